# SPDX-License-Identifier: Apache-2.0
"""Fixtures and the one comparison that most tests here make: compiled against eager.

ANABRANCH_TEST_BACKEND=inductor runs the same tests on another backend, which shows what a test
itself gets wrong; tests of what is Anabranch's alone are then left out.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))  # compare, fixtures, zoo and more

from fixtures import deadline, fresh_torch, keep_compiled, run_python, torch  # noqa: F401

if torch is not None:
    from compare import BACKEND
else:
    here = Path(__file__).parent
    BACKEND = "anabranch"  # the tests that need no torch still run
    _without_torch = {"test_config.py", "test_errors.py", "test_doctor.py", "test_import.py",
                      "test_redact.py"}
    collect_ignore = [str(path.relative_to(here)) for path in here.rglob("test_*.py")
                      if path.name not in _without_torch]


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: of a room whose tests compile next to nothing")
    config.addinivalue_line("markers", "oldest: also run on the oldest supported torch")
    config.addinivalue_line("markers", "slow: takes more than some ten seconds")
    config.addinivalue_line("markers", "own: about Anabranch's own backend, whatever is tested")
    config.addinivalue_line("markers", "wrong_upstream: other backends are known to fail this")


def pytest_collection_finish():
    """What is imported by now stays. Collections that tests ask for need not look through it."""
    gc.freeze()


def pytest_unconfigure():
    """So that Triton does not call it leaked."""
    gc.unfreeze()


# What `make check` runs.
QUICK_ROOMS = ("core", "fx", "record")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name in QUICK_ROOMS and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.quick)
    if BACKEND == "anabranch":
        return
    for item in items:
        if item.get_closest_marker("own"):
            item.add_marker(pytest.mark.skip(reason=f"{BACKEND} is tested, not anabranch"))
        if item.get_closest_marker("wrong_upstream"):
            item.add_marker(pytest.mark.xfail(reason=f"{BACKEND} gets this wrong", strict=False))
