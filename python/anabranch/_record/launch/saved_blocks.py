# SPDX-License-Identifier: Apache-2.0
"""What a recorded forward saves for its backward goes there in the blocks that it lies in.

A view of a block costs about two microseconds to make, save and let go, a forward of 16 layers
saves some three hundred, and all the backward's recording asks of one is its address. So a launch
of the forward answers, in the place of each such tensor, the block itself, which AOTAutograd saves
as it would the tensor; and a launch of the backward adds where in it the tensor begins. A backward
that runs plainly makes the views.

Which input of the backward is which result of the forward is not known beforehand: it is seen in a
call in which the forward answered tensors, by these themselves. Where somebody else would see what
is saved, hooks on saved tensors or compiled autograd, the forward goes on to answer tensors.

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
    """A tensor's: its block is that base of a launch."""

    base: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class BlockLayout:
    """Of a forward's recording: where its results lie that do so in blocks. In each call one of
    these blocks says so, that of result ``lead``."""

    def __init__(self, places: dict[int, BlockPlace]) -> None:
        self.places = places
        self.lead = min(places)

    def sign(self, bases: Sequence[Tensor]) -> None:
        bases[self.places[self.lead].base]._anabranch_layout = self  # type: ignore[attr-defined]

    def has_signed(self, given: Any) -> bool:
        return getattr(given, "_anabranch_layout", None) is self


class InputPlaces:
    """The same, of the backward's inputs."""

    def __init__(self, layout: BlockLayout, inputs: dict[int, int]) -> None:
        self.of = {inputs[result]: place for result, place in layout.places.items()}
        self.lead = inputs[layout.lead]


class InBlocks(list[Any]):
    """Inputs of which some are the blocks that the tensors lie in."""

    def __init__(self, inputs: Sequence[Any], places: InputPlaces) -> None:
        super().__init__(inputs)
        self.places = places


def opened(inputs: list[Any]) -> list[Any]:
    """With the tensors themselves."""
    if not isinstance(inputs, InBlocks):
        return inputs
    tensors = list(inputs)
    for index, place in inputs.places.of.items():
        tensors[index] = part_of(tensors[index], *place[1:])
    return tensors


def handed_over(inputs: list[Any]) -> list[Any]:
    """The same, in a list that alone has them, so that they can be let go of one by one."""
    tensors = opened(inputs)
    if tensors is not inputs:
        inputs.clear()
    return tensors


class SavedBlocks:
    """What a forward graph and its backward share."""

    def __init__(self) -> None:
        # Of those that have been seen; replaced, not changed.
        self._places: dict[BlockLayout, InputPlaces] = {}
        self._watched: tuple[BlockLayout, list[tuple[int, weakref.ref[Tensor]]]] | None = None

    def may_pass(self, layout: BlockLayout) -> bool:
        """Whether the forward may answer blocks now."""
        return layout in self._places and _compat.saves_unseen()

    def watch(self, layout: BlockLayout, results: Sequence[Any]) -> None:
        """The forward has answered tensors."""
        if layout not in self._places and _compat.saves_unseen():
            self._watched = layout, [(i, weakref.ref(results[i])) for i in layout.places]

    def of_backward(self, inputs: list[Any]) -> list[Any]:
        """Its inputs as they are, or InBlocks."""
        watched = self._watched  # once: another thread's backward may have found what it looked for
        if watched is not None:
            self._look_for(*watched, inputs)
        for layout, places in self._places.items():
            if layout.has_signed(inputs[places.lead]):
                return InBlocks(inputs, places)
        return inputs

    def _look_for(self, layout: BlockLayout, results: Sequence[tuple[int, weakref.ref[Tensor]]],
                  inputs: Sequence[Any]) -> None:
        """Unless these are another call's."""
        numbers = {id(given): i for i, given in enumerate(inputs) if isinstance(given, Tensor)}
        places = {result: numbers[id(reference())] for result, reference in results
                  if id(reference()) in numbers}
        if len(places) == len(results):
            self._places = {**self._places, layout: InputPlaces(layout, places)}
            self._watched = None
