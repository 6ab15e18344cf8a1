# SPDX-License-Identifier: Apache-2.0
"""One model in one mode, measured in a process of its own: run.py starts it.

After the warm-up a call is timed from one synchronise to the next. Where others run beside it, it is
timed in several turns of its own, each with a warm-up: the machine is not as fast all the time. The
seconds until it was fast tell nothing then. What is judged is a call of what
has been timed: weights and buffers are put back to what they were before the first one.
"""

from __future__ import annotations

import dataclasses
import statistics
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from case import Case, make_case
from clock import WARM_UP, Clock
from judge import Reference, judge, left_behind, make_reference, tensors_of
from lists import LISTS
from modes import OURS, Step
from standstill import Turn
from together import SEPARATOR, timed_together

FAST = 1.2  # of the median: a call that takes no longer is a fast one
MESSAGE = 600  # characters of an error that are kept


@dataclasses.dataclass(frozen=True)
class Job:
    """``what``: all measures; all but the times; only the speed; nothing, calls until all is compiled;
    or the speed of several modes in one process."""

    list: str
    name: str
    kind: str
    mode: str
    device: str
    batch: int
    precision: str
    least_calls: int = 30
    what: Literal["all", "untimed", "speed", "compile", "together"] = "all"


def seconds_until_fast(durations: Sequence[float], ends: Sequence[float], median: float) -> float:
    return next(end for took, end in zip(durations, ends) if took <= FAST * median)


def peak_memory(step: Callable[[], Any]) -> dict[str, int]:
    """Bytes at the peak of three steps, without what the warm-up left cached."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return {"allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved()}


class State:
    """Of a model, as it is now; on the CPU, so that it does not count as the step's memory. A table
    that a first call makes in the place of an empty buffer stays."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._kept = [tensor.detach().to("cpu", copy=True) for tensor in self._tensors()]

    def _tensors(self) -> list[torch.Tensor]:
        return [*self._model.parameters(), *self._model.buffers()]

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, kept in zip(self._tensors(), self._kept, strict=True):
                if tensor.shape == kept.shape:
                    tensor.copy_(kept)


def results_of(case: Case, step: Step, kind: str, state: State) -> dict[str, torch.Tensor]:
    state.put_back()
    answer = step()
    if kind == "inference":
        return tensors_of(answer)
    return {"loss": answer, **left_behind(case.model)}


def timed(step: Step, job: Job, turn: Turn | None) -> dict[str, Any]:
    clock = Clock(step, job.device)
    for _ in range(WARM_UP):
        clock.call()
    took = clock.calls(job.least_calls) if turn is None else \
        clock.calls_in_turns(turn, job.least_calls)
    median = statistics.median(took)
    quarters = statistics.quantiles(took, n=4)
    row = {"ms": round(median * 1e3, 4), "iqr_ms": round((quarters[2] - quarters[0]) * 1e3, 4),
           "calls": len(took)}
    if turn is not None:
        return row
    fast = seconds_until_fast(clock.durations, clock.ends, median)
    return {**row, "first_call_s": round(clock.durations[0], 3), "until_fast_s": round(fast, 3)}


class Measured:
    """What has been found so far. ``stage`` is what is being done, for the error that ends it."""

    def __init__(self, job: Job, turn: Turn | None) -> None:
        self.job, self._turn = job, turn
        self.stage = "making the model"
        self.row: dict[str, Any] = {"batch": job.batch, "precision": job.precision}

    def run(self) -> None:
        job = self.job
        entry = LISTS[job.list][job.name]
        torch.set_float32_matmul_precision("high")
        case = make_case(entry, job.batch, job.kind, job.device)
        if job.what == "compile":
            self._warm(Step(case.in_precision(job.precision), job.kind, job.mode))
            return
        if job.what == "together":
            self.stage = "calls"
            case = case.in_precision(job.precision)
            self.row.update(timed_together(case, job.kind, job.mode.split(SEPARATOR), self._turn))
            return
        self.stage = "eager"  # which also starts torch's libraries, so that no call has to
        reference = make_reference(case, job.kind, job.precision, is_exact=job.what != "speed")
        case = case.in_precision(job.precision)
        state = State(case.model)
        self.stage = "calls"
        step = Step(case, job.kind, job.mode)
        if job.what == "untimed":
            self._warm(step)
        else:
            self.row.update(timed(step, job, self._turn))
        if job.what != "speed":
            self._rest(step, case, state, reference)
        elif job.mode in OURS:
            self.stage = "reports"
            self.row["recording_s"] = step.seconds_of_recording()

    def _warm(self, step: Step) -> None:
        self.stage = "calls"
        clock = Clock(step, self.job.device)
        for _ in range(WARM_UP):
            clock.call()

    def _rest(self, step: Step, case: Case, state: State, reference: Reference) -> None:
        job = self.job
        if job.device == "cuda":
            self.stage = "memory"
            self.row["memory"] = peak_memory(step)
        self.stage = "accuracy"
        self.row["accuracy"] = judge(LISTS[job.list][job.name], job.kind, job.precision, reference,
                                     results_of(case, step, job.kind, state))
        self.stage = "reports"
        if (told := step.recordings()) is not None:
            self.row["recordings"] = told


def measure(job: Job, turn: Turn | None = None) -> dict[str, Any]:
    """The row of the results. An error is in it, with what was being done then."""
    found = Measured(job, turn)
    try:
        found.run()
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}".strip()
        found.row["error"] = {"stage": found.stage, "message": message[:MESSAGE]}
    return found.row
