# SPDX-License-Identifier: Apache-2.0
"""A recorded forward passes its saved tensors to its backward as the blocks that they lie in.

A view of a block costs about two microseconds to make, save and free. A forward of 16 layers saves
some three hundred, and the backward's recording needs only their addresses. So a launch of the
forward answers, in the place of each such tensor, the block itself. AOTAutograd saves the block as
it would the tensor. A launch of the backward adds the offset at which the tensor begins. A backward
that runs plainly makes the views.

Which input of the backward is which result of the forward is not known beforehand. It is seen in a
call in which the forward answers tensors, by the identity of these. Where other code would see what
is saved (hooks on saved tensors, compiled autograd), the forward goes on answering tensors.

Threads: any. Failure: none.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.launch.output_buffers import part_of


class BlockPlace(NamedTuple):
    """Where a tensor lies: its block is base number ``base`` of a launch."""

    base: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class BlockLayout:
    """Where a forward's saved results lie inside shared blocks. The block of result ``lead``
    carries the layout as a Python attribute, by which the backward recognises it."""

    def __init__(self, places: dict[int, BlockPlace]) -> None:
        self.places = places
        self.lead = min(places)

    def sign(self, bases: Sequence[Tensor]) -> None:
        bases[self.places[self.lead].base]._anabranch_layout = self  # type: ignore[attr-defined]

    def has_signed(self, given: Any) -> bool:
        return getattr(given, "_anabranch_layout", None) is self


class InputPlaces:
    """The same layout, by the inputs of the backward."""

    def __init__(self, layout: BlockLayout, inputs: dict[int, int]) -> None:
        self.of = {inputs[result]: place for result, place in layout.places.items()}
        self.lead = inputs[layout.lead]


def lie_as(one: BlockPlace | None, other: BlockPlace | None, offset_bytes: int) -> bool:
    """Whether both are in one block, and the other so many bytes behind."""
    return one is not None and other is not None and one.base == other.base \
        and other.offset_bytes - one.offset_bytes == offset_bytes


class InBlocks(list[Any]):
    """Inputs of a backward; in place of some tensors there are the blocks that they lie in."""

    def __init__(self, inputs: Sequence[Any], places: InputPlaces) -> None:
        super().__init__(inputs)
        self.places = places


def opened(inputs: list[Any]) -> list[Any]:
    """The inputs with the tensors themselves in place of blocks."""
    if not isinstance(inputs, InBlocks):
        return inputs
    tensors = list(inputs)
    for index, place in inputs.places.of.items():
        tensors[index] = part_of(tensors[index], *place[1:])
    return tensors


def handed_over(inputs: list[Any]) -> list[Any]:
    """The same in a list that is their only owner, so that they can be freed one by one."""
    tensors = opened(inputs)
    if tensors is not inputs:
        inputs.clear()
    return tensors


class SavedBlocks:
    """What a forward graph and its backward share.

    ``backward_is_short``: the last backward ran plainly for want of memory. Then so does the next
    forward: what a plain run saves is freed one by one, and lies as it does without us.
    """

    def __init__(self) -> None:
        self.backward_is_short = False
        # By the layouts that have been seen; replaced, not changed.
        self._places: dict[BlockLayout, InputPlaces] = {}
        self._watched: tuple[BlockLayout, list[tuple[int, weakref.ref[Tensor]]]] | None = None

    def may_pass(self, layout: BlockLayout) -> bool:
        """Whether the forward may answer blocks now."""
        return layout in self._places and _compat.saves_unseen()

    def watch(self, layout: BlockLayout, results: Sequence[Any]) -> None:
        """Notes the tensors that the forward has answered, to find them among a backward's
        inputs."""
        if layout not in self._places and _compat.saves_unseen():
            self._watched = layout, [(i, weakref.ref(results[i])) for i in layout.places]

    def of_backward(self, inputs: list[Any]) -> list[Any]:
        """The backward's inputs as they are, or as InBlocks."""
        watched = self._watched  # once: another thread's backward may have found what it looked for
        if watched is not None:
            self._look_for(*watched, inputs)
        for layout, places in self._places.items():
            if layout.has_signed(inputs[places.lead]):
                return InBlocks(inputs, places)
        return inputs

    def _look_for(self, layout: BlockLayout, results: Sequence[tuple[int, weakref.ref[Tensor]]],
                  inputs: Sequence[Any]) -> None:
        """Learns the places of the results among the inputs, unless these are another call's."""
        indices = {id(given): i for i, given in enumerate(inputs) if isinstance(given, Tensor)}
        places = {result: indices[id(reference())] for result, reference in results
                  if id(reference()) in indices}
        if len(places) == len(results):
            self._places = {**self._places, layout: InputPlaces(layout, places)}
            self._watched = None
