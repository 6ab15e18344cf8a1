# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests here and those that need a GPU share; each conftest.py names them.

Compiled code is kept in .cache/ of the source tree, so that a second run is quick.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

try:
    _cache = ROOT / ".cache" / f"torch-{importlib.metadata.version('torch')}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache))
    import torch
except ImportError:
    torch = None  # the tests that need no torch still run


def _link_quickly() -> None:
    """Inductor links some five hundred libraries for these tests. gold, where it is, takes half as
    long as the linker that it takes the place of."""
    gold = shutil.which("ld.gold")
    folder = ROOT / ".cache" / "linker"
    if gold is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "ld").symlink_to(gold)
    os.environ.setdefault("COMPILER_PATH", str(folder))


def _time_no_guards() -> None:
    """Dynamo empties the processor's caches to say how long the guards of a frame take, which takes
    a tenth of the time that it needs for the frame."""
    if torch is not None:
        from torch._dynamo import guards

        if hasattr(guards, "profile_guard_manager"):
            guards.profile_guard_manager = lambda *args: 0.0


_link_quickly()
_time_no_guards()

DEADLINE_S = 300  # for one test: a hang ends the run with every thread's stack


@pytest.fixture(autouse=True)
def deadline():
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def fresh_torch(request):
    """Every test starts from the same seed and the same precision of products, which
    set_float32_matmul_precision cannot put back, and leaves no compiled code in the process."""
    if torch is None:
        yield
        return
    torch.manual_seed(0)
    torch.backends.cuda.matmul.fp32_precision = "none"
    if told := sys.modules.get("anabranch._record.warn"):  # what is told once is told in each
        for known in (told._times, told._lines, told._told):
            known.clear()
    yield
    if "keep_compiled" not in request.fixturenames:
        torch.compiler.reset()


@pytest.fixture(scope="module")
def keep_compiled():
    """For modules whose tests use what others of them have compiled. What is compiled too often
    would run in eager from then on: it raises."""
    with torch._dynamo.config.patch(recompile_limit=100, fail_on_recompile_limit_hit=True):
        yield
    torch.compiler.reset()


def _share_headers(folder: Path) -> None:
    """Inductor compiles its headers for every temporary folder anew: six seconds."""
    if torch is None:
        return
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    ours = Path(default_cache_dir()) / "precompiled_headers"
    theirs = folder / ours.parent.name / ours.name
    for parent in (ours, theirs.parent):
        parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        theirs.symlink_to(ours)


@pytest.fixture
def run_python(tmp_path):
    """Runs a program in a process of its own; answers what subprocess.run answers."""
    def run(program: str, **variables: str | None):
        _share_headers(tmp_path)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                       "TMPDIR": str(tmp_path), **variables}
        environment = {name: text for name, text in environment.items() if text is not None}
        return subprocess.run([sys.executable, "-c", program], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, timeout=DEADLINE_S - 20)

    return run
