# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded callable does in Python, without a GPU.

    python bench/call_overhead.py [results.json] [--processes N] [--against CHECKOUT] [--behind]

Question: how long does a call look at what it looks at before it is launched? The tests' stand-in
for a GPU records, tensors lie on the CPU, and the launch itself does nothing. So these are not the
figures of `gpu/calls.py`, whose launches, addresses and allocations are a GPU's; they tell one
state of the code from another. The first cases are those of that file: one kernel over eight
inputs, and a training step of 591 tensors (16 layers, AdamW), its gradients gone when it ends and
staying. The others are calls of which something is another than in the last one
(tests/python/support/kinds_of_call.py). A round is the mean of calls in a row for some five
milliseconds, in time that the thread has had a core for; what the caller does before each, such as
to make its arguments, is not in it. A process runs ten; its least counts, for the machine only
adds to it. `--against` takes another checkout with a library in build/dev/bridge: both run in turn,
a process each. With `--behind` each call comes behind other work, 48 MB that are written and a
module that is parsed, which leaves nothing of ours in the processor's nearer caches. A round is one
call then, and the first quartile of a process counts.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch_common import ROOT, machine

sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))
sys.path.insert(0, os.environ.get("BENCH_PACKAGE") or str(ROOT / "python"))  # or a checkout's

import pytest
from kinds_of_call import KINDS, Steps, warmed_up

from anabranch._record import quick

# What is installed as editable is found before the path is looked at.
IN_A_PROCESS = """
import runpy, sys
sys.meta_path[:] = [one for one in sys.meta_path if "_editable" not in type(one).__module__]
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ROUND_NS = 5_000_000


def called(name: str) -> Callable[[int], int]:
    """Nanoseconds of the case's call of that number, in time that the thread has had a core for.
    What comes before it is not counted. Call it under Steps."""
    case = warmed_up(KINDS[name][0]())

    def call(i: int) -> int:
        case.before(i)
        args, kwargs = case.arguments(i)
        start = time.thread_time_ns()
        case.recorded(*args, **kwargs)
        return time.thread_time_ns() - start

    return call


def rounds_of(name: str, rounds: int) -> list[float]:
    """Microseconds a call, a figure a round."""
    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, KINDS[name][1])
        call, found, i = called(name), [], 0
        for _ in range(rounds):
            took = []
            while sum(took) < ROUND_NS:
                took.append(call(i := i + 1))
            found.append((sum(took) - len(took) * clock_ns()) / len(took) / 1000)
    return found


def clock_ns() -> float:
    """What it takes to look at the clock."""
    start = time.thread_time_ns()
    for _ in range(100):
        time.thread_time_ns()
    return (time.thread_time_ns() - start) / 100


def behind_other_work(name: str, calls: int) -> list[float]:
    """Microseconds of single calls."""
    written, parsed = torch.zeros(6 << 20, dtype=torch.float64), inspect.getsource(argparse)
    with pytest.MonkeyPatch.context() as patch:
        Steps(patch, KINDS[name][1])
        call, found = called(name), []
        for i in range(calls):
            written += 1
            ast.dump(ast.parse(parsed))
            found.append(call(i) / 1000)
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
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--behind", action="store_true", help="other work")
    parser.add_argument("--one-process", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one_process:
        json.dump({name: behind_other_work(name, 100) if chosen.behind else rounds_of(name, 10)
                   for name in chosen.only}, sys.stdout)
        return
    asked = ["--only", *chosen.only, *(["--behind"] if chosen.behind else [])]
    sides = {"ours": None, **({"theirs": chosen.against} if chosen.against else {})}
    us: dict[str, dict[str, list[float]]] = {
        name: {side: [] for side in sides} for name in chosen.only}
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
