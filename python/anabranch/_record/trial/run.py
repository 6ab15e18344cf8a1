# SPDX-License-Identifier: Apache-2.0
"""What one run of a step has left behind: plain data that trials and comparisons share."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from anabranch._record.refusals import Cause, Moved, NotRecordable
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
    has_drawn: bool = False  # random numbers on the CPU
    has_gradients: bool = False  # it has set some
    has_moved: bool = False  # tensors that it was given have other memory since

    def check(self) -> None:
        """Refuses what a recording cannot repeat. A result that requires gradients is one: a
        backward outside the step would need its history, which a launch does not make."""
        if self.has_drawn:
            raise NotRecordable(
                "it draws random numbers on the CPU (torch's, Python's or numpy's), and launches "
                "would go on with those of its recording", Cause.RANDOM_ON_CPU)
        if self.has_moved:
            raise Moved()
        if self.has_history and not self.has_gradients:
            raise NotRecordable(
                "it answers tensors that require gradients and runs no backward itself",
                Cause.ANSWER_WANTS_GRADIENT)

    def let_go(self) -> None:
        """Of all but the checksums."""
        self.answer, self.after, self.tensors = None, None, {}
