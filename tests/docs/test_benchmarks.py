# SPDX-License-Identifier: Apache-2.0
"""Benchmarks find what they import: they run on a GPU, long after the change that broke them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
GPU = sorted((BENCH / "gpu").glob("*.py"))


@pytest.mark.parametrize("path", GPU, ids=lambda path: path.stem)
def test_a_benchmark_imports_what_there_is(path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCH / "gpu"), str(BENCH), *sys.path])
    before = set(sys.modules)
    try:
        importlib.import_module(path.stem)
    finally:
        for name in set(sys.modules) - before:
            if str(BENCH) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
