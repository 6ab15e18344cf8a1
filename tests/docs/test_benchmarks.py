# SPDX-License-Identifier: Apache-2.0
"""Benchmarks find what they import: they run long after the change that broke them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH, TESTS = ROOT / "bench", ROOT / "tests"


def files_of(folder):
    """Of modules that have been imported from there, by name."""
    return {name: file for name, module in sys.modules.items()
            if (file := str(getattr(module, "__file__", "") or "")).startswith(str(folder))}


@pytest.mark.parametrize("path", sorted(BENCH.rglob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_imports_what_there_is(path, monkeypatch):
    """As a script does: without what these tests have put on the path, or imported."""
    monkeypatch.setattr(sys, "path", [str(path.parent), *(
        entry for entry in sys.path if not entry.startswith(str(TESTS)))])
    for name in files_of(TESTS / "python" / "support"):
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    try:
        importlib.import_module(path.stem)
    finally:
        for name in {*files_of(BENCH), *files_of(TESTS / "python" / "support")} - before:
            del sys.modules[name]
