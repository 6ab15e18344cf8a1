# SPDX-License-Identifier: Apache-2.0
"""Times calls of a step, each to the end of a synchronise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from standstill import Turn

WARM_UP = 10
TIMED_S = 1.5  # further calls are timed until then
MOST_TIMED = 100
TURNS, TURN_S = 3, 0.5  # seconds of a turn in which calls are timed, after half as many


class Clock:
    """Times calls. ``durations`` and ``ends``, since the first call began, are in seconds."""

    def __init__(self, step: Callable[[], Any], device: str) -> None:
        self._step = step
        self._wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        self._wait()
        self._begin = time.perf_counter()
        self.durations: list[float] = []
        self.ends: list[float] = []

    def call(self) -> None:
        start = time.perf_counter()
        self._step()
        self._wait()
        end = time.perf_counter()
        self.durations.append(end - start)
        self.ends.append(end - self._begin)

    def calls(self, least: int, seconds: float = TIMED_S, most: float = MOST_TIMED) -> list[float]:
        """More where they are short; the durations of these calls."""
        before, start = len(self.durations), time.perf_counter()
        while (done := len(self.durations) - before) < least or (
                done < most and time.perf_counter() - start < seconds):
            self.call()
        return self.durations[before:]

    def calls_in_turns(self, turn: Turn, least: int) -> list[float]:
        """Those of the turn that was fastest by its median."""
        found = []
        for _ in range(TURNS):
            with turn:
                self.calls(2, TURN_S / 2, float("inf"))
                found.append(self.calls(-(-least // TURNS), TURN_S))
        return min(found, key=statistics.median)
