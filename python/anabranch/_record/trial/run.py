# SPDX-License-Identifier: Apache-2.0
"""What one run of a step has left behind: plain data that trials and comparisons share."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from anabranch._record.capture.step import Step
from anabranch._record.effects.side_effects import SideEffects
from anabranch._record.refusals import ANSWER_MISSED, RANDOM_ON_CPU, Cause, Moved, NotRecordable
from anabranch._record.tensors import MemoryOf

Sum = tuple[Any, tuple[int, int]]  # shape and type, and the checksum


@dataclasses.dataclass
class Moment:
    """What a step could read or write beside a GPU's memory, as it was then."""

    gradients: list[Tensor | None]  # themselves; None as well for those that were let go
    random: tuple[Tensor, Tensor]
    generators: list[tuple[torch.Generator, Tensor]]
    memory: MemoryOf  # of what the step is given
    on_host: list[tuple[Tensor, int, Tensor]]  # with its version, and a copy


@dataclasses.dataclass
class Run:
    """What one run of a step left behind: checksums of all of it, and the tensors themselves until
    they are let go."""

    answer: Any
    after: Moment | None
    tensors: dict[str, Tensor]  # results, gradients and given memory, by name
    sums: dict[str, Sum]
    has_history: bool = False  # a result had a grad_fn
    is_missed: bool = False  # a backward may follow through one of these
    drawn: str = ""  # whose generator on the CPU has moved: "torch", or "other"
    has_moved: bool = False  # tensors that it was given have other memory since

    def check(self, step: Step) -> None:
        """Refuses what a recording cannot repeat. A result that requires gradients is one: a
        backward outside the step would need its history, which a launch does not make. What eager
        code draws from torch's generator on the CPU is left to the captures of ``step``."""
        if self.drawn:
            if self.drawn != "torch" or step.is_compiled:
                raise NotRecordable(RANDOM_ON_CPU, Cause.RANDOM_ON_CPU)
            assert self.after is not None
            step.drawn_to = self.after.random[1]
        if self.has_moved:
            raise Moved()
        if self.is_missed:
            raise NotRecordable(ANSWER_MISSED, Cause.ANSWER_WANTS_GRADIENT)

    def let_go(self) -> None:
        """Of all but the checksums."""
        self.answer, self.after, self.tensors = None, None, {}


def check_run(plain: Run, effects: SideEffects, step: Step) -> None:
    """Refuses what a recording cannot repeat."""
    effects.check()
    plain.check(step)
