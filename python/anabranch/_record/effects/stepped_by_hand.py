# SPDX-License-Identifier: Apache-2.0
"""What a step changes in Python's numbers that a launch would not: an optimizer's, also those in
the states of its parameters, and how often a scheduler has been stepped.

It is looked at behind the plain run, before anything else runs the step's Python: a capture would
step a scheduler once more. Threads: one try to record. Failure: NotRecordable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.state.number_places import hyperparameters_of


class SteppedByHand:
    """Of these optimizers, and of the schedulers among these objects, from now on."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer],
                 objects: Iterable[Any]) -> None:
        self._optimizers = optimizers
        self._numbers, self._counts = self._numbers_now(), list(map(_counts_in, optimizers))
        self._schedulers = [(one, one.last_epoch) for one in objects
                            if isinstance(one, (LRScheduler, ReduceLROnPlateau))]

    def _numbers_now(self) -> list[tuple[Any, ...]]:
        return list(map(hyperparameters_of, self._optimizers))

    def check(self) -> None:
        """Raises NotRecordable where one is another now."""
        if any(one.last_epoch != before for one, before in self._schedulers):
            raise NotRecordable(
                "it steps a learning-rate scheduler, which a launch would not do",
                Cause.STEPPED_BY_HAND, "Call scheduler.step() outside of the step.")
        if self._numbers != self._numbers_now() or any(
                counts.get(number, before) != before for one, known in zip(
                    self._optimizers, self._counts, strict=True)
                for counts in [_counts_in(one)] for number, before in known.items()):
            raise NotRecordable(
                "it changes an optimizer's numbers in Python", Cause.STEPPED_BY_HAND,
                "Keep them in tensors (lr=torch.tensor(...)), or change them outside of the step.")


def _counts_in(optimizer: torch.optim.Optimizer) -> dict[tuple[int, Any], Any]:
    """Numbers of Python's in the states of its parameters, such as how often it has stepped. By the
    parameter's id and their name."""
    return {(id(parameter), name): value for parameter, state in list(optimizer.state.items())
            if isinstance(state, dict) for name, value in state.items()
            if isinstance(value, (int, float))}
