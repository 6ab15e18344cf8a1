# SPDX-License-Identifier: Apache-2.0
"""A model in several modes in one process, timed in turn, a few calls each.

Processes of one mode each differ by a tenth and more from one to the next, whatever the mode: by
where their memory lies, and by what the machine does meanwhile. Here all modes have that in common.
What their steps answer is judged elsewhere: measure.py.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch._dynamo.config
from case import Case
from clock import WARM_UP, Clock
from modes import Step
from standstill import Turn

BLOCK, SKIPPED = 6, 2  # calls in a row, of which the first meet what another mode has left
TURNS, TURN_S, LEAST_ROUNDS = 3, 1.0, 2
SEPARATOR = "+"  # between modes, in a job


def timed_together(case: Case, kind: str, modes: Sequence[str], turn: Turn | None
                   ) -> dict[str, Any]:
    """``ms`` and ``iqr_ms`` a mode, and how many ``calls`` of each."""
    limits = torch._dynamo.config
    limits.recompile_limit *= len(modes)  # they share the code that Dynamo counts for
    clocks: dict[str, Clock] = {}
    for mode in modes:
        clocks[mode] = Clock(Step(case.copied(), kind, mode), case.device)
        clocks[mode].calls(WARM_UP, 0)
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(TURNS):
        with turn or contextlib.nullcontext():
            _run_rounds(clocks, found)
    return {"ms": {mode: _ms(statistics.median(took)) for mode, took in found.items()},
            "iqr_ms": {mode: _ms(_iqr(took)) for mode, took in found.items()},
            "calls": len(found[modes[0]])}


def _run_rounds(clocks: dict[str, Clock], found: dict[str, list[float]]) -> None:
    start, rounds = time.perf_counter(), 0
    while rounds < LEAST_ROUNDS or time.perf_counter() - start < TURN_S:
        for mode, clock in clocks.items():
            found[mode] += clock.calls(BLOCK, 0)[SKIPPED:]
        rounds += 1


def _iqr(took: Sequence[float]) -> float:
    low, _, high = statistics.quantiles(took, n=4)
    return high - low


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)
