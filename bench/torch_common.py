# SPDX-License-Identifier: Apache-2.0
"""How the torch benchmarks measure, judge and keep what they found.

Rivals solve the same problem in one process and take turns, a round each, so that whatever the
machine does meets all of them. A round is the median call of some tens of milliseconds. A ratio is
taken round by round; its median and interquartile range are reported. Correctness comes first:
each rival's result is compared with eager before it is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROUND_S = 0.04
WARM_UP_S = 0.3
MISSED = 3  # exit status of a benchmark that ran and missed a target
BUSY = 0.7  # runnable processes that were there before us; above it others take our cores
# run.py tells its children, whose predecessors would count as load.
LOAD_BEFORE = float(os.environ.get("BENCH_LOAD_BEFORE") or os.getloadavg()[0])


@dataclasses.dataclass
class Sample:
    """Times of one rival, a figure a round, in microseconds."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def iqr(self) -> float:
        return spread(self.rounds)


@dataclasses.dataclass
class Rival:
    """`threads`: what torch.set_num_threads is while it compiles and runs."""

    name: str
    call: Callable[[], Any]
    threads: int


def spread(values: Sequence[float]) -> float:
    """The interquartile range."""
    if len(values) < 4:
        return max(values) - min(values)
    first, _, third = statistics.quantiles(values, n=4)
    return third - first


def ratio(of: Sample, to: Sample) -> tuple[float, float]:
    """How many times as fast `of` is as `to`: median and interquartile range over the rounds."""
    ratios = [theirs / ours for ours, theirs in zip(of.rounds, to.rounds)]
    return statistics.median(ratios), spread(ratios)


def fresh_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own. torch keeps compiled variants by code object and
    looks through them in order, so rivals that shared one would pay for each other's guards."""
    copy = types.FunctionType(function.__code__.replace(), function.__globals__, function.__name__,
                              function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def compile_with(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    import torch

    if backend == "anabranch":
        import anabranch

        return torch.compile(fresh_code(function), backend=anabranch.backend, dynamic=False)
    return torch.compile(fresh_code(function), backend=backend, dynamic=False)


def _time_round(rival: Rival, calls: int) -> float:
    import torch

    torch.set_num_threads(rival.threads)
    rival.call()  # the first call after a change of threads wakes them
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        rival.call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


def race(rivals: Sequence[Rival], rounds: int) -> dict[str, Sample]:
    """Rounds in turn; every second time in the opposite order, so that none always follows one."""
    import torch

    calls = {}
    for rival in rivals:
        torch.set_num_threads(rival.threads)
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < WARM_UP_S or count < 3:
            rival.call()
            count += 1
        each = (time.perf_counter() - start) / count
        calls[rival.name] = max(3, min(2000, int(ROUND_S / each)))
    samples: dict[str, Sample] = {rival.name: Sample([]) for rival in rivals}
    for index in range(rounds):
        for rival in (rivals if index % 2 == 0 else reversed(rivals)):
            samples[rival.name].rounds.append(_time_round(rival, calls[rival.name]))
    return samples


@dataclasses.dataclass
class Row:
    """One line of a table. Judged is the figure as it is shown, with two decimals; `reach` None:
    nothing was promised, the line is there to be known."""

    what: str
    ours: str
    rival: str
    figure: float  # the ratio that is judged
    figure_spread: float
    reach: float | None
    at_least: bool = True  # else: at most

    @property
    def reached(self) -> bool:
        if self.reach is None:
            return True
        shown = round(self.figure, 2)
        return shown >= self.reach if self.at_least else shown <= self.reach

    def cells(self) -> list[str]:
        reach, verdict = "-", "-"
        if self.reach is not None:
            reach = f"{'>=' if self.at_least else '<='} {self.reach:.2f}x"
            verdict = "reached" if self.reached else "MISSED"
        return [self.what, self.ours, self.rival, f"{self.figure:.2f}x +-{self.figure_spread:.2f}",
                reach, verdict]


HEADINGS = ["what", "anabranch", "torch.compile", "ratio (median, IQR)", "reach", "verdict"]


def print_table(title: str, rows: Sequence[Row], backend: str) -> None:
    headings = [backend if heading == "anabranch" else heading for heading in HEADINGS]
    lines = [headings, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())
    if LOAD_BEFORE > BUSY:
        print(f"  The machine was busy before this began (load {LOAD_BEFORE:.1f}): these figures "
              "say little.")
    sys.stdout.flush()


def machine() -> dict[str, Any]:
    import torch

    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo")
                  if line.startswith("model name")), platform.processor())
    return {"processor": model, "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(), "python": platform.python_version(),
            "torch": torch.__version__, "load_before": LOAD_BEFORE,
            "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def results_folder(backend: str, quick: bool) -> Path:
    """Figures worth keeping stand in the tree; trials do not overwrite them."""
    kept = backend == "anabranch" and not quick
    return ROOT / "bench" / "results" if kept else ROOT / "out" / "bench"


def save(name: str, question: str, chosen: argparse.Namespace, rows: Sequence[Row],
         **details: Any) -> Path:
    """Everything that was measured, so that a figure can be judged later."""
    folder = results_folder(chosen.backend, chosen.quick)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    kept = {"question": question, "backend": chosen.backend, "machine": machine(),
            "rows": [{**dataclasses.asdict(row), "reached": row.reached} for row in rows],
            **details}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def raw(samples: dict[str, Sample]) -> dict[str, list[float]]:
    return {name: [round(value, 3) for value in sample.rounds] for name, sample in samples.items()}


def microseconds(sample: Sample) -> str:
    return f"{sample.median:.1f} us +-{sample.iqr:.1f}"


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--backend", default="anabranch",
                        help="what is measured; 'inductor' measures the measurement itself")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="few rounds and few sizes")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds = min(chosen.rounds, 7)
    return chosen
