# SPDX-License-Identifier: Apache-2.0
"""What a launch does to gradients: it lets go of those that the step lets go of, before it
allocates others, and sets these when it has been queued.

Threads: immutable once made. Failure: what torch raises where a gradient is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from anabranch._record.capture.step import Fresh
from anabranch._record.checks import packed
from anabranch._record.launch.output_buffers import OutputBuffers
from anabranch._record.launch.outputs import LeafBuilder
from anabranch._record.quick import (
    gradient_row,
    let_go_of_gradients,
    set_gradients,
    sets_gradients,
)


class Gradients:
    """``found`` are the gradients that a capture has left, by the numbers of their owners;
    ``are_read`` where it reads those that it finds, which a launch then keeps until it is queued.
    Owners are given in the order of these numbers."""

    def __init__(self, found: Mapping[int, Any], are_read: bool, buffers: OutputBuffers,
                 build: LeafBuilder) -> None:
        self._let_go = [] if are_read else list(found)
        self.let_go_bytes = packed(self._let_go)
        self._builds = [(i, build.part(part)) for i, part in found.items()]
        places = {i: buffers.place_of(part) for i, part in found.items() if isinstance(part, Fresh)}
        rows = [gradient_row(i, *place) for i, place in places.items() if place is not None]
        self.are_any = bool(found)
        # Whether nothing but owners and bases is needed to set them; and how, then.
        self.are_quick = sets_gradients and len(rows) == len(found)
        self.rows = b"".join(rows) if self.are_quick else b""

    def let_go(self, owners: Sequence[Tensor]) -> None:
        if self._let_go and not let_go_of_gradients(owners, self.let_go_bytes):
            for index in self._let_go:
                owners[index].grad = None

    def set_quickly(self, owners: Sequence[Tensor], bases: Sequence[Tensor]) -> bool:
        """Whether they have all been set; ``bases`` are those that a launch has allocated."""
        return self.are_quick and set_gradients(owners, bases, self.rows)

    def set(self, owners: Sequence[Tensor], given: Sequence[Tensor],
            fresh: Sequence[Tensor]) -> None:
        for index, build in self._builds:
            owners[index].grad = build(given, fresh)
