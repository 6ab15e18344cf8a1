# SPDX-License-Identifier: Apache-2.0
"""What ``anabranch.doctor --test`` runs, in a process of its own: a crash or a hang is then a line
of the report as well. Prints a line of JSON a test, as it ends: its name, "OK", "FAILED" or
"not run", the seconds it took, and what it found.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from anabranch import doctor

if TYPE_CHECKING:
    import torch

# What Inductor's kernels need of a compiler, less torch's headers: these alone take seconds.
_PROGRAM = """
#include <omp.h>
#include <vector>
extern "C" int sum(int n) {
  std::vector<int> values(n, 1);
  int all = 0;
#pragma omp parallel for reduction(+ : all)
  for (int i = 0; i < n; ++i) all += values[i];
  return all;
}
"""
_CALLS = 6  # of a recorded step: the second captures it, all further ones launch


class NotRun(Exception):
    """What a test needs is not there, which is no failure."""


def _import_torch() -> str:
    if doctor.installed_torch() is None:
        raise NotRun("torch is not installed")
    import torch

    return f"torch {torch.__version__} imported"


def _compile_a_program() -> str:
    compiler = doctor.compiler()
    if compiler is None:
        raise NotRun("there is no C++ compiler")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "sum.cpp"), Path(folder, "sum.so")
        source.write_text(_PROGRAM)
        made = subprocess.run(
            [compiler, "-std=c++17", "-O1", "-fopenmp", "-fPIC", "-shared", source, "-o", library],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if made.returncode != 0:
            wrong = [line for line in made.stdout.splitlines() if "error" in line]
            raise RuntimeError((wrong or made.stdout.splitlines() or ["it says nothing"])[0])
        if ctypes.CDLL(str(library)).sum(1000) != 1000:
            raise RuntimeError("a compiled loop counts wrong")
    return "a library with OpenMP is built, loaded and right"


def _compile_two_streams() -> str:
    """Of operators that torch has ready: no kernel has to be built."""
    if doctor.installed_torch() is None:
        raise NotRun("torch is not installed")
    import torch

    import anabranch

    def branches(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with anabranch.stream("left"):
            left = x @ weight
        with anabranch.stream("right"):
            right = weight @ x
        return left @ right

    given = torch.randn(2, 16, 16).unbind()
    compiled = torch.compile(branches, backend=anabranch.backend, options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given), branches(*given))
    return "a compiled model on two streams answers as eager does"


def _record_a_step() -> str:
    if doctor.installed_torch() is None:
        raise NotRun("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise NotRun("torch finds no GPU")
    return train_recorded("cuda")


def _measure_the_link() -> str:
    if doctor.installed_torch() is None:
        raise NotRun("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise NotRun("torch finds no GPU")
    from anabranch._offload.link import measure_anew

    link = measure_anew(torch.device("cuda", 0))
    return f"{link.out_rate / 1e9:.1f} GB/s to the host, {link.in_rate / 1e9:.1f} back, and kept"


def train_recorded(device: str) -> str:
    """A small model trains twice from one state, recorded and plainly: the losses agree, and the
    recording was launched."""
    import torch
    from torch import nn

    import anabranch

    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    plain, recorded = _step_of(copy.deepcopy(model)), anabranch.record(_step_of(model), strict=True)
    for x in torch.randn(_CALLS, 8, 16).to(device):
        torch.testing.assert_close(recorded(x), plain(x))
    launched = sum(report.launched for report in recorded.reports)
    if not launched:
        raise RuntimeError(f"no call was launched: {recorded.reports[0].reason}")
    return f"a training step launched {launched} times has the losses of eager"


def _step_of(model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


TESTS: dict[str, Callable[[], str]] = {
    "torch": _import_torch,
    "compiler": _compile_a_program,
    "streams": _compile_two_streams,
    "recording": _record_a_step,
    "link": _measure_the_link,
}


def run(name: str) -> doctor.Tested:
    """Whatever is raised is what the test has found."""
    begin = time.perf_counter()
    try:
        became, found = "OK", TESTS[name]()
    except NotRun as why:
        became, found = "not run", str(why)
    except Exception as error:
        lines = str(error).strip().splitlines()
        became, found = "FAILED", f"{type(error).__name__}: {lines[0] if lines else ''}"
    return doctor.Tested(name, became, time.perf_counter() - begin, found)


def main() -> None:
    for name in TESTS:
        with contextlib.redirect_stdout(sys.stderr):
            tested = run(name)
        print(json.dumps(tested), flush=True)


if __name__ == "__main__":
    main()
