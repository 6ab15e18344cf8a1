# SPDX-License-Identifier: Apache-2.0
"""One measured run of memory.py, in a process that does nothing else: a loop of steps, watched."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._inductor.compile_fx  # before the turn is taken, since it takes seconds
from steps import BACKEND, KINDS, RECORD, WARM_UP, Case

from cases.llama import Shape
from cases.memory_models import (
    Workload,
    infer_bert,
    of_graphs,
    train_fusion,
    train_llama,
    train_lstm,
)

LIMIT_S = 240  # of a process, its wait for the GPU left out
TIMED = 10  # the last calls of a loop
MIB = 1 << 20


class Turn:
    """At the GPU: of processes that ask for one, one has it, until it ends. A process that takes
    longer than its limit is ended by the system."""

    def __init__(self, path: str) -> None:
        signal.alarm(LIMIT_S)
        self._lock = open(path)

    def take(self) -> None:
        signal.alarm(0)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        signal.alarm(LIMIT_S)


class Lowest:
    """The least free memory of the device, asked for every ten milliseconds: recording is not
    slower for it."""

    def __init__(self) -> None:
        self.before = self.free = torch.cuda.mem_get_info()[0]
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._has_ended.wait(0.01):
            self._look()

    def _look(self) -> None:
        self.free = min(self.free, torch.cuda.mem_get_info()[0])

    def end(self) -> None:
        self._has_ended.set()
        self._thread.join()
        self._look()


class Counts(NamedTuple):
    """Over all reports of a step."""

    recordings: int
    calls: int
    launched: int

    @staticmethod
    def of(work: Workload) -> Counts:
        reports = work.reports()
        return Counts(sum(report.nodes > 0 for report in reports),
                      sum(report.calls for report in reports),
                      sum(report.launched for report in reports))

    def is_served_until(self, after: Counts) -> bool:
        """Whether the call between them was launches only."""
        launched = after.launched - self.launched
        return self.recordings == after.recordings and after.calls - self.calls == launched > 0


def run_loop(work: Workload, calls: int, turn: Turn) -> dict[str, Any]:
    """Peaks are those of the whole loop, in bytes. An exception ends it and is told. From its
    second call on it has the GPU for itself."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held, lowest = torch.cuda.memory_reserved(), Lowest()
    seconds: list[float] = []
    losses: list[str] = []
    counts, exception = [Counts.of(work)], None
    try:
        for index in range(calls):
            if index == 1:
                turn.take()
            if index == calls - TIMED:
                lowest.end()  # what is timed is not disturbed
            start = time.perf_counter()
            losses.append(float(work.step()).hex())
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            counts.append(Counts.of(work))
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        exception = f"{type(error).__name__} in call {len(seconds)}: {first}"
    lowest.end()
    return {"reserved": torch.cuda.max_memory_reserved(),
            "allocated": torch.cuda.max_memory_allocated(),
            "device": held + lowest.before - lowest.free, "exception": exception,
            "losses": losses, **times(seconds, counts, calls), **told(work),
            "written": work.written()}


def times(seconds: Sequence[float], counts: Sequence[Counts], calls: int) -> dict[str, Any]:
    """``recording_s`` is what the calls took in which a recording was made. ``until_recorded_s`` is
    what all calls took before the first launch, but for the very first, which compiles."""
    pairs = list(zip(counts, counts[1:], strict=False))
    served = [index for index, (before, after) in enumerate(pairs) if before.is_served_until(after)]
    is_recorded = bool(served) and served[-1] == calls - 1
    making = [index for index, (before, after) in enumerate(pairs)
              if after.recordings > before.recordings]
    return {"first_s": seconds[0] if seconds else None,
            "ms": statistics.median(seconds[-TIMED:]) * 1e3 if len(seconds) == calls else None,
            "recorded": is_recorded,
            "recording_s": sum(seconds[index] for index in making) if making else None,
            "until_recorded_s": sum(seconds[1:served[0]]) if is_recorded else None,
            "call_s": [round(each, 5) for each in seconds]}


def told(work: Workload) -> dict[str, Any]:
    reports = work.reports()
    return {"reasons": sorted({report.reason for report in reports if report.reason}),
            "reports": [str(report) for report in reports]}


def training(given: dict[str, Any]) -> dict[str, Any]:
    """A loop of training steps, with a limit to torch's memory or without."""
    turn = Turn(given["turn"])
    if given["is_alone"]:
        turn.take()
    if given["is_deterministic"]:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    total = torch.cuda.mem_get_info()[1]
    if given["allowed"] is not None:  # one MiB more, so that rounding decides nothing
        torch.cuda.set_per_process_memory_fraction(min(1.0, (given["allowed"] + MIB) / total))
    work = train_llama(given["way"], Shape(**given["shape"]), given["length"],
                       given["blocks_apart"])
    found = run_loop(work, given["calls"], turn)
    if not given["is_alone"]:
        del found["device"]  # of all processes
    return {**found, "device_total": total}


def steady_work(case: str, way: str) -> Workload:
    if case not in KINDS:
        return OWN_CASES[case](way)
    batch, length, what = KINDS[case]
    made = Case(batch, length, way)
    step = getattr(made, what)()
    if way == BACKEND:
        return Workload(step, of_graphs)
    return Workload(step, lambda: made.recorded.reports if way == RECORD else [])


def steady_peaks(case: str, way: str) -> dict[str, Any]:
    """Of some steps after the warm-up, without what that left cached."""
    work = steady_work(case, way)
    for _ in range(WARM_UP):
        work.step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = Counts.of(work)
    for _ in range(3):
        work.step()
    torch.cuda.synchronize()
    return {"allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "recorded": before.is_served_until(Counts.of(work)), **told(work)}


OWN_CASES: dict[str, Callable[[str], Workload]] = {
    "LSTM training B16 S64": train_lstm,
    "TFT training B64 S48": train_fusion,
    "BERT inference B32 S128": infer_bert}


def steady(given: dict[str, Any]) -> dict[str, Any]:
    """``left``: what is allocated when models, recordings and results are gone, over before."""
    signal.alarm(LIMIT_S)
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    try:
        found = steady_peaks(given["case"], given["way"])
    except ImportError as error:
        return {"skipped": str(error)}
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return {**found, "left": torch.cuda.memory_allocated() - before}
