# SPDX-License-Identifier: Apache-2.0
"""What a step changes in Python's numbers that a launch would not: an optimizer's, and how often a
scheduler has been stepped.

It is looked at behind the plain run, before anything else runs the step's Python: a capture would
step a scheduler once more. Threads: one try to record. Failure: NotRecordable.
"""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from anabranch._record.refusals import NotRecordable
from anabranch._record.state.state import NO_STATE, State


class SteppedByHand:
    """Of the optimizers and schedulers of a state, from now on."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._numbers = self._numbers_now()
        found = state.objects().values() if state is not NO_STATE else ()
        self._schedulers = [(one, one.last_epoch) for one in found
                            if isinstance(one, (LRScheduler, ReduceLROnPlateau))]

    def _numbers_now(self) -> list[tuple[Any, ...]]:
        return [self._state.hyperparameters(one) for one in self._state.optimizers]

    def check(self) -> None:
        """Raises NotRecordable where one is another now."""
        if any(one.last_epoch != before for one, before in self._schedulers):
            raise NotRecordable("it steps a learning-rate scheduler, which a launch would not do; "
                                "call scheduler.step() outside")
        if self._numbers != self._numbers_now():
            raise NotRecordable("it changes an optimizer's numbers in Python; keep them in tensors "
                                "(lr=torch.tensor(...)), or change them outside")
