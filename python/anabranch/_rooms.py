# SPDX-License-Identifier: Apache-2.0
"""The memory of what a step answers: allocated anew by each launch, from torch's allocator.

A tensor that fills its allocation is allocated as itself, anything else as bytes to be viewed.
Small tensors that are freed together in any case, those that a forward graph saves for its
backward, share blocks: a tensor of its own costs three times what a view does.

Threads: immutable once made. Failure: allocate() raises torch's errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from . import _compat
from ._capture import Fresh
from ._given import reach

# Torch serves requests of up to 10 MiB from segments of 20 MiB: a block is not kept from its holes.
_BLOCK_BYTES = 10 << 20
_SMALL_BYTES = 2 << 20
_ALIGNMENT = 512  # of torch's allocations


class Room(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class Rooms:
    """``rooms[of[allocation]]`` is what a launch allocates in place of that of the capture.

    ``answers`` are views of the allocations, whose sizes in bytes are ``sizes``; those in
    ``together`` are used for nothing but tensors that are freed together.
    """

    def __init__(self, answers: Sequence[Fresh], sizes: Sequence[int],
                 together: Collection[int]) -> None:
        views: dict[int, list[Fresh]] = {}
        for answer in answers:
            views.setdefault(answer.allocation, []).append(answer)
        made = {allocation: _room(some, sizes[allocation]) for allocation, some in views.items()}
        small = [allocation for allocation in made
                 if allocation in together and 0 < sizes[allocation] <= _SMALL_BYTES]
        small.sort(key=lambda allocation: str(made[allocation].dtype))
        alone = [allocation for allocation in made if allocation not in set(small)]
        self.of = {allocation: i for i, allocation in enumerate([*alone, *small])}
        self.rooms = [made[allocation] for allocation in self.of]
        self._alone = [made[allocation] for allocation in alone]
        self._blocks: list[tuple[Room, list[tuple[Sequence[int], Sequence[int], int]]]] = []
        for dtype, group in itertools.groupby(small, lambda allocation: made[allocation].dtype):
            self._share(dtype, [(made[allocation], sizes[allocation]) for allocation in group])

    def _share(self, dtype: torch.dtype, parts: Sequence[tuple[Room, int]]) -> None:
        """Blocks of one type, filled one after the other."""
        views: list[tuple[Sequence[int], Sequence[int], int]] = []
        end = 0
        for room, size in parts:
            if views and end + size > _BLOCK_BYTES:
                self._blocks.append((Room((end // dtype.itemsize,), (1,), dtype), views))
                views, end = [], 0
            views.append((room.shape, room.stride, end // dtype.itemsize))
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._blocks.append((Room((end // dtype.itemsize,), (1,), dtype), views))

    def allocate(self) -> list[Tensor]:
        """One tensor a room, on the current device."""
        fresh = list(itertools.starmap(_compat.empty_strided_cuda, self._alone))
        for block, views in self._blocks:
            base = _compat.empty_strided_cuda(*block)
            fresh += [_compat.reinterpret_tensor(base, *view) for view in views]
        return fresh


def _room(views: Sequence[Fresh], size: int) -> Room:
    """Itself, where one view fills it; else flat, of the views' type where they have one: a view of
    the same type costs a fifth of another."""
    view = views[0]
    fills = view.offset_bytes == 0 and all(other == view for other in views) \
        and reach(view.shape, view.stride) * view.dtype.itemsize == size
    if fills:
        return Room(view.shape, view.stride, view.dtype)
    is_alike = all(other.dtype == view.dtype for other in views) and size % view.dtype.itemsize == 0
    dtype = view.dtype if is_alike else torch.uint8
    return Room((size // dtype.itemsize,), (1,), dtype)
