# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded callable does in Python, without a GPU.

    python bench/call_overhead.py [results.json] [--processes N] [--against CHECKOUT] [--behind]

Question: how long does a call look at what it looks at before it is launched? The tests' stand-in
for a GPU records, tensors lie on the CPU, and the launch itself does nothing. So these are not the
figures of `gpu/calls.py`, whose launches, addresses and allocations are a GPU's; they tell one
state of the code from another. The cases are those of that file: one kernel over eight inputs, and
a training step of 591 tensors (16 layers, AdamW), its gradients gone when it ends and staying. A
round is the mean of calls in a row for some ten milliseconds, in time that the thread has had a
core for. A process runs some dozens; its least counts, for the machine only adds to it. `--against`
takes another checkout with a library in build/dev/bridge: both run in turn, a process each. With
`--behind` each call comes behind other work, 48 MB that are written and a module that is parsed,
which leaves nothing of ours in the processor's nearer caches. A round is one call then, and the
first quartile of a process counts.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch_common import ROOT, machine

sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))
sys.path.insert(0, os.environ.get("BENCH_PACKAGE") or str(ROOT / "python"))  # or a checkout's

import pytest
from stand_in_recording import StandIn

import anabranch
from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Block, Slot
from anabranch._record import attempt, quick
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Fresh, Step
from anabranch._record.launch import discovered
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.recording import StepRecording

# What is installed as editable is found before the path is looked at.
IN_A_PROCESS = """
import runpy, sys
sys.meta_path[:] = [one for one in sys.meta_path if "_editable" not in type(one).__module__]
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LAYERS, PARTS, WIDTH, INPUTS = 16, 9, 8, 8
SIZE_BYTES = WIDTH * 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 1, bias=False) for _ in range(PARTS))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 1, bias=False)


class DoesNothing:
    """In the place of CapturedRecording: it names all blocks that have a size."""

    counts = CaptureCounts(nodes=2)
    parts = ()
    launch_address = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    handle = SimpleNamespace(value=0)  # of which labs answers 0

    def __init__(self, step: Any, *_: Any, **__: Any) -> None:
        self.slots = [Slot(i, block.size_bytes, 4) for i, block in enumerate(step.blocks)
                      if block.size_bytes]

    def launch(self, addresses: bytes, stream: int) -> None:
        assert len(addresses) == 8 * (len(self.slots) + len(self.parts))


class Steps:
    """Records what is called as if it answered one tensor, wrote what it was given behind its
    arguments, and left gradients or none."""

    def __init__(self, patch: pytest.MonkeyPatch, do_gradients_stay: bool) -> None:
        self._stays = do_gradients_stay
        StandIn(patch)
        patch.setattr(Tensor, "is_cuda", property(lambda tensor: True))
        patch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
        patch.setattr(_compat, "current_device", lambda: 0)
        patch.setattr(_compat, "current_stream", lambda device: 0)
        patch.setattr(attempt, "StepRecording", self._recording)
        patch.setattr(discovered, "CapturedStep",
                      lambda device, one, two, blocks, *_: SimpleNamespace(blocks=blocks))
        patch.setattr(discovered, "CapturedRecording", DoesNothing)

    def _recording(self, step: Step, *_: Any) -> StepRecording:
        like = [torch.ones(WIDTH), *(step.parameters if self._stays else ())]
        fresh = [Fresh(i, 0, tuple(one.shape), one.stride(), one.dtype)
                 for i, one in enumerate(like)]
        _, shape = flatten([0])
        first = Captured(None, None, [], object(), None, fresh[:1], shape,
                         gradients=dict(enumerate(fresh[1:])),
                         mutated=list(range(step.arguments, step.own)))
        blocks = [*(Block(0, 0, unit.size_bytes * (unit.members[0][0] < step.own), True)
                    for unit in step.units),  # it clears the gradients that it finds
                  *(Block(0, 0, SIZE_BYTES, False) for _ in fresh)]
        capture = SimpleNamespace(first=first, second=first, blocks=blocks, noted=None, third=None,
                                  is_mapped=False)
        return StepRecording(step, DiscoveredStep(step, capture, None), False)


def small() -> tuple[Any, list[Tensor]]:
    @anabranch.record(verify=False, max_parallel_kernels=1)
    def join(*parts: Tensor) -> Tensor:
        return torch.cat(parts)

    return join, [torch.ones(WIDTH) for _ in range(INPUTS)]


def training(do_gradients_stay: bool) -> tuple[Any, list[Tensor]]:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, cos, sin = (torch.ones(WIDTH) for _ in range(3))

    @anabranch.record(verify=False, max_parallel_kernels=1)
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = sum(((parameter * tokens).sum() for parameter in model.parameters()),
                   (cos * sin).sum())
        loss.backward()
        optimizer.step()
        if not do_gradients_stay:
            optimizer.zero_grad()
        return loss.detach()

    return step, []


# What makes it, whether gradients stay, calls a round, and tensors that a launch is given.
CASES: dict[str, tuple[Callable[[], tuple[Any, list[Tensor]]], bool, int, int]] = {
    "one kernel, 8 inputs": (small, False, 500, INPUTS),
    "training, no gradients left": (lambda: training(False), False, 60, 591),
    "training, gradients stay": (lambda: training(True), True, 40, 591),
}


def called(name: str) -> tuple[Callable[[], Any], int]:
    """The case's call, warmed up, and how often a round calls it. Call it under Steps."""
    make, do_gradients_stay, calls, given = CASES[name]
    recorded, arguments = make()
    for _ in range(30):
        recorded(*arguments)
    report = recorded.reports[-1]
    gradients = (given - 3) // 4 * do_gradients_stay
    assert report.reason is None and report.slots == given + gradients + 1, report
    return lambda: recorded(*arguments), calls


def rounds_of(name: str, rounds: int) -> list[float]:
    """Microseconds a call, a figure a round."""
    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, CASES[name][1])
        call, calls = called(name)
        found = []
        for _ in range(rounds):
            start = time.thread_time_ns()
            for _ in range(calls):
                call()
            found.append((time.thread_time_ns() - start) / calls / 1000)
    return found


def behind_other_work(name: str, calls: int) -> list[float]:
    """Microseconds of single calls."""
    written, parsed = torch.zeros(6 << 20, dtype=torch.float64), inspect.getsource(argparse)
    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, CASES[name][1])
        call, _ = called(name)
        found = []
        for _ in range(calls):
            written += 1
            ast.dump(ast.parse(parsed))
            start = time.thread_time_ns()
            call()
            found.append((time.thread_time_ns() - start) / 1000)
    return found


def in_a_process(checkout: Path | None, *asked: str) -> dict[str, list[float]]:
    """A few rounds of each case, with another checkout's package, or this one's."""
    theirs = {} if checkout is None else {
        "BENCH_PACKAGE": str(checkout / "python"),
        "ANABRANCH_LIBRARY_PATH": str(checkout / "build/dev/bridge/libanabranch_bridge.so")}
    answer = subprocess.run([sys.executable, "-c", IN_A_PROCESS, os.path.abspath(__file__),
                             "--one-process", *asked], check=True, capture_output=True, text=True,
                            env={**os.environ, **theirs})
    return json.loads(answer.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--behind", action="store_true", help="other work")
    parser.add_argument("--one-process", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one_process:
        json.dump({name: behind_other_work(name, 100) if chosen.behind else rounds_of(name, 40)
                   for name in CASES}, sys.stdout)
        return
    asked = ["--behind"] if chosen.behind else []
    sides = {"ours": None, **({"theirs": chosen.against} if chosen.against else {})}
    us: dict[str, dict[str, list[float]]] = {
        name: {side: [] for side in sides} for name in CASES}
    for i in range(chosen.processes):
        for side in (list(sides) if i % 2 == 0 else reversed(sides)):
            for name, found in in_a_process(sides[side], *asked).items():
                us[name][side].append(
                    statistics.quantiles(found, n=4)[0] if chosen.behind else min(found))
    for name, found in us.items():
        print(name, {side: f"{min(some):.1f} us, {statistics.median(some):.1f} in the median process"
                     for side, some in found.items()})
    if chosen.results:
        chosen.results.write_text(json.dumps(
            {"bench": "call_overhead", "question": __doc__, "machine": machine(),
             "is_compiled": quick.is_compiled, "is_behind_other_work": chosen.behind,
             "us_of_a_process": us}, indent=1) + "\n")


if __name__ == "__main__":
    main()
