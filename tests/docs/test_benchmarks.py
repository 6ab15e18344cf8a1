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


def imported_as(path):
    """From which folder, and by which name: packages stand beside the scripts that use them."""
    folder, names = path.parent, [path.stem] if path.stem != "__init__" else []
    while (folder / "__init__.py").exists():
        names.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(names)


@pytest.mark.parametrize("path", sorted(BENCH.rglob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_imports_what_there_is(path, monkeypatch):
    """As a script does: without what these tests have put on the path, or imported."""
    folder, name_of_module = imported_as(path)
    monkeypatch.setattr(sys, "path", [str(folder), *(
        entry for entry in sys.path if not entry.startswith(str(TESTS)))])
    for name in files_of(TESTS / "python" / "support"):
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    try:
        importlib.import_module(name_of_module)
    finally:
        for name in {*files_of(BENCH), *files_of(TESTS / "python" / "support")} - before:
            del sys.modules[name]
