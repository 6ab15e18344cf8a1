# SPDX-License-Identifier: Apache-2.0
"""The numbers of one step that its captures note: what they are now, what they are in the capture
that tells which words follow them, and where they stand.

Threads: one capture at a time. Failure: Unexplained where there is no such capture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from anabranch import _compat
from anabranch._record.numbers.formulas import Unexplained, numbers_apart
from anabranch._record.numbers.noted import NumberTrace

_NEAR = 2.0 ** -6


@dataclasses.dataclass(frozen=True)
class StepNumbers:
    """``leaves`` are those that are numbers; ``holders`` have the others, by their keys. What
    they are and were comes in this order."""

    leaves: tuple[int, ...]
    holders: tuple[tuple[Any, Any], ...]
    now: tuple[float, ...]
    before: tuple[float, ...]  # in an earlier call
    other: tuple[float, ...] = ()  # in the third capture

    def apart(self, trace: NumberTrace) -> StepNumbers:
        """With others for the third capture. ``trace`` is of a capture with those of now. Raises
        Unexplained."""
        return dataclasses.replace(
            self, other=numbers_apart(trace, self.now, self.before))

    def between(self) -> StepNumbers:
        """With numbers now that no capture has had: between those of now and from before, or below
        those of now where these are much the same."""
        return dataclasses.replace(self, now=tuple(
            (value + before) / 2 if abs(value - before) > _NEAR * abs(value)
            else value * (1 - _NEAR) for value, before in zip(self.now, self.before, strict=True)))

    @contextlib.contextmanager
    def standing(self, leaves: list[Any]) -> Iterator[None]:
        """Around runs of the step with the numbers of now. ``leaves`` are the runs' own. Raises
        Unexplained where a run has changed one."""
        for i, value in zip(self.leaves, self.now, strict=False):
            leaves[i] = value
        with self._in_holders(self.now[len(self.leaves):]):
            yield

    @contextlib.contextmanager
    def _in_holders(self, values: Sequence[float]) -> Iterator[None]:
        with contextlib.ExitStack() as behind:
            for (holder, key), number in zip(self.holders, values, strict=True):
                behind.callback(operator.setitem, holder, key, holder[key])
                holder[key] = number
            yield
            if any(holder[key] is not number for (holder, key), number in
                   zip(self.holders, values, strict=True)):
                raise Unexplained("the step changes it itself; change it outside")

    @contextlib.contextmanager
    def noted(self, leaves: list[Any], trace: NumberTrace, *, are_other: bool) -> Iterator[None]:
        """Around a capture: floats that note what is computed from them stand in the numbers'
        places, and in ``leaves``, which are the capture's own. Raises Unexplained where the step
        has changed one, or gives one to compiled code that would have to be compiled anew."""
        made = [trace.number(value) for value in (self.other if are_other else self.now)]
        for i, number in zip(self.leaves, made, strict=False):
            leaves[i] = number
        try:
            with self._in_holders(made[len(self.leaves):]), _not_compiled():
                yield
        finally:
            trace.close()


@contextlib.contextmanager
def _not_compiled() -> Iterator[None]:
    """Compiled code takes a float's type for granted, and would be compiled anew for each noted
    one, until Dynamo gives it up."""
    compiling = _compat.NothingCompiled()
    try:
        with compiling:
            yield
    except Exception:
        if not compiling.is_met:
            raise
    if compiling.is_met:
        raise Unexplained("compiled code is given it, which takes it for a constant; make it a "
                          "tensor on the GPU")
