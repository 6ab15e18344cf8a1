# SPDX-License-Identifier: Apache-2.0
"""The numbers of one step that its captures note: what they are now, what they are in the capture
that tells which words follow them, and where they stand.

Threads: one capture at a time. Failure: Unexplained where two numbers cannot be told apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from anabranch._record.numbers.formulas import Unexplained
from anabranch._record.numbers.noted import Trace

# Part of a value by which numbers of one value are told apart in the third capture, and by which a
# number has to differ there from what it is now: rounded words would be the same otherwise.
_STEP, _LEAST = 2.0 ** -7, 2.0 ** -8


@dataclasses.dataclass(frozen=True)
class StepNumbers:
    """``leaves`` are those that are numbers; ``holders`` have the others, by their keys."""

    leaves: tuple[int, ...]
    holders: tuple[tuple[Any, Any], ...]
    now: tuple[float, ...]  # of the leaves, then of what stands in the holders
    other: tuple[float, ...]  # in the third capture

    @staticmethod
    def make(leaves: Sequence[int], holders: Sequence[tuple[Any, Any]], now: Sequence[float],
             before: Sequence[float]) -> StepNumbers:
        """``before``: what they were in an earlier call. A number that was nearly the same then, or
        that is equal to another now and then, gets a value beside that in the third capture."""
        other: list[float] = []
        seen: set[tuple[float, float]] = set()
        for value, earlier in zip(now, before, strict=True):
            apart = earlier
            for turn in range(len(now) + 3):
                apart = earlier * (1.0 - turn * _STEP)
                is_far = not abs(apart - value) < _LEAST * max(abs(apart), abs(value))
                if is_far and (value, apart) not in seen and apart != value:
                    break
            else:
                raise Unexplained("two of its numbers are equal, and cannot be told apart")
            seen.add((value, apart))
            other.append(apart)
        return StepNumbers(tuple(leaves), tuple(holders), tuple(now), tuple(other))

    @contextlib.contextmanager
    def noted(self, leaves: list[Any], trace: Trace, *, are_other: bool) -> Iterator[None]:
        """Around a capture: floats that note what is computed from them stand in the numbers'
        places, and in ``leaves``, which are the capture's own."""
        made = [trace.number(value) for value in (self.other if are_other else self.now)]
        for i, number in zip(self.leaves, made, strict=False):
            leaves[i] = number
        before = [(holder, key, holder[key]) for holder, key in self.holders]
        try:
            for (holder, key), number in zip(self.holders, made[len(self.leaves):], strict=True):
                holder[key] = number
            yield
        finally:
            for holder, key, value in before:
                holder[key] = value
            trace.close()
