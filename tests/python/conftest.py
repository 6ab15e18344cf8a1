# SPDX-License-Identifier: Apache-2.0
"""Fixtures and the one comparison that most tests here make: compiled against eager.

ANABRANCH_TEST_BACKEND=inductor runs the same tests on another backend, which shows what a test
itself gets wrong; tests of what is Anabranch's alone are then left out. Compiled code is kept in
.cache/ of the source tree, so that a second run is quick.
"""

from __future__ import annotations

import faulthandler
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300  # for one test: a hang ends the run with every thread's stack

sys.path.insert(0, str(Path(__file__).parent))  # for compare and zoo, which tests import

try:
    _cache = ROOT / ".cache" / f"torch-{importlib.metadata.version('torch')}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache))
    import torch
    from compare import BACKEND
except ImportError:
    torch, BACKEND = None, "anabranch"  # the tests that need no torch still run
    _without_torch = {"test_config.py", "test_errors.py", "test_doctor.py", "test_import.py"}
    collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py")
                      if path.name not in _without_torch]


def pytest_configure(config):
    config.addinivalue_line("markers", "oldest: also run on the oldest supported torch")
    config.addinivalue_line("markers", "slow: takes more than some ten seconds")
    config.addinivalue_line("markers", "own: about Anabranch's own backend, whatever is tested")
    config.addinivalue_line("markers", "wrong_upstream: other backends are known to fail this")


def pytest_collection_modifyitems(items):
    if BACKEND == "anabranch":
        return
    for item in items:
        if item.get_closest_marker("own"):
            item.add_marker(pytest.mark.skip(reason=f"{BACKEND} is tested, not anabranch"))
        if item.get_closest_marker("wrong_upstream"):
            item.add_marker(pytest.mark.xfail(reason=f"{BACKEND} gets this wrong", strict=False))


@pytest.fixture(autouse=True)
def deadline():
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def fresh_torch():
    """Every test starts from the same seed and leaves no compiled code in the process."""
    if torch is None:
        yield
        return
    torch.manual_seed(0)
    yield
    torch.compiler.reset()


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a process of its own; answers what subprocess.run answers."""
    def run(program: str, **variables: str | None):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                       "TMPDIR": str(tmp_path), **variables}
        environment = {name: text for name, text in environment.items() if text is not None}
        return subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, timeout=DEADLINE_S - 20)

    return run
