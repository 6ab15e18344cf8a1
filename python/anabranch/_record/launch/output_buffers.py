# SPDX-License-Identifier: Apache-2.0
"""The memory of what a step answers: allocated anew by each launch, from torch's allocator.

A tensor that fills its allocation is allocated as itself, anything else as bytes to be viewed.
Small tensors that are mostly freed together share blocks: a tensor of its own costs three times
what a view does, and the views are made when the launch is queued. These are what a forward graph
saves for its backward, where they may be made not at all (``saved_blocks``), and gradients. A block
is free when the last tensor in it is.

Threads: immutable once made. Failure: allocate() raises torch's errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._fx.extents import extent_bytes
from anabranch._record.capture.step import Fresh
from anabranch._record.picker import picker
from anabranch._record.quick import View

# Torch serves requests of up to 10 MiB from segments of 20 MiB: a block is not kept from its holes.
_BLOCK_BYTES = 10 << 20
_SMALL_BYTES = 2 << 20
# A backward frees a block with the last tensor in it. So blocks are this part of all that is saved
# with them, where that is little; no smaller than what torch calls small.
_SHARE, _LEAST_BLOCK_BYTES = 16, 1 << 20
# Smaller: one that somebody keeps keeps its block. Torch calls requests up to this size small, too.
_SMALL_GRADIENT_BYTES = 1 << 20
_ALIGNMENT = 512  # of torch's allocations


class OutputBuffer(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype




class _Views:
    """``views``, and None for so many more behind them."""

    def __init__(self, views: Sequence[tuple[int, View]], missing: int) -> None:
        self._pick_bases = picker([base for base, _ in views])
        self._places = list(zip(*(view for _, view in views), strict=True))
        self._missing = [None] * missing

    def of(self, bases: Sequence[Tensor]) -> list[Any]:
        made = map(_compat.reinterpret_tensor, self._pick_bases(bases), *self._places) \
            if self._places else ()
        return [*made, *self._missing]


class OutputBuffers:
    """``buffers[of[allocation]]`` is what a launch has in place of an allocation of the capture.

    ``answers`` are views of the allocations, whose sizes in bytes are ``sizes``; those in
    ``saved`` are used for nothing but what is saved, and those in ``gradients`` for nothing but
    gradients. ``turns`` says which stretch of a launch is the first to use an allocation, where
    there are several: a block belongs to one of them. The buffers that are in ``alone`` come first:
    each is a base, and so is each block behind them.
    """

    def __init__(self, answers: Sequence[Fresh], sizes: Sequence[int],
                 saved: Collection[int] = (), gradients: Collection[int] = (),
                 turns: Mapping[int, int] = MappingProxyType({})) -> None:
        views: dict[int, list[Fresh]] = {}
        for answer in answers:
            views.setdefault(answer.allocation, []).append(answer)
        made = {allocation: _buffer(some, sizes[allocation]) for allocation, some in views.items()}
        of_saved = _alike(made, {i for i in saved if 0 < sizes[i] <= _SMALL_BYTES}, turns)
        of_gradients = [group for group in _alike(
            made, {i for i in gradients if 0 < sizes[i] <= _SMALL_GRADIENT_BYTES}, turns)
            if len(group) > 1]  # one alone costs less than a block and a view
        small = list(itertools.chain.from_iterable([*of_saved, *of_gradients]))
        alone = [allocation for allocation in made if allocation not in set(small)]
        self._saved = frozenset(saved)
        self.of = {allocation: i for i, allocation in enumerate([*alone, *small])}
        self.buffers = [made[allocation] for allocation in self.of]
        self.alone = len(alone)
        self._bases = [made[allocation] for allocation in alone]
        self._views: list[tuple[int, View]] = []  # base, and where in it, of those behind these
        share = sum(sizes[i] for i in saved) // _SHARE
        block_bytes = min(max(share, _LEAST_BLOCK_BYTES), _BLOCK_BYTES)
        for group in of_saved:
            self._share([(made[i], sizes[i]) for i in group], block_bytes)
        for group in of_gradients:
            self._share([(made[i], sizes[i]) for i in group], _BLOCK_BYTES)
        last = sum(map(len, of_gradients))
        self._viewed = _Views(self._views, 0)
        self._viewed_without = _Views(self._views[:len(self._views) - last], last)

    def _share(self, parts: Sequence[tuple[OutputBuffer, int]], block_bytes: int) -> None:
        """Blocks of one type, filled one after the other."""
        dtype, ends = parts[0][0].dtype, dict[int, int]()
        places = in_blocks([size for _, size in parts], block_bytes)
        for (buffer, size), (block, begin) in zip(parts, places, strict=True):
            at = (buffer.shape, buffer.stride, begin // dtype.itemsize)
            self._views.append((len(self._bases) + block, at))
            ends[block] = begin + _aligned(size)
        self._bases += [OutputBuffer((end // dtype.itemsize,), (1,), dtype)
                        for end in ends.values()]

    @property
    def bases(self) -> int:
        return len(self._bases)

    @property
    def layouts(self) -> Sequence[OutputBuffer]:
        """Of the bases."""
        return self._bases

    @property
    def size_bytes(self) -> int:
        return sum(extent_bytes(*base) for base in self._bases)

    def place(self, buffer: int) -> tuple[int, int]:
        """Its base, and at which byte of that it begins."""
        base, view = self.view(buffer)
        return base, view[-1] * self._bases[base].dtype.itemsize if view else 0

    def in_block(self, allocation: int) -> tuple[int, int] | None:
        """The same of an allocation of the capture, if it lies in a block of what is saved."""
        buffer = self.of[allocation]
        is_shared = allocation in self._saved and buffer >= self.alone
        return self.place(buffer) if is_shared else None

    def allocate(self) -> list[Tensor]:
        """The bases, on the current device."""
        return list(itertools.starmap(_compat.empty_strided_cuda, self._bases))

    def view(self, buffer: int) -> tuple[int, View | None]:
        """Its base, and what it is of that; None where it is the base."""
        return (buffer, None) if buffer < self.alone else self._views[buffer - self.alone]

    def is_filled_by(self, part: Fresh) -> bool:
        """Whether a part of an allocation of the capture is all that a launch has for that."""
        buffer = self.buffers[self.of[part.allocation]]
        return buffer == OutputBuffer(part.shape, part.stride, part.dtype)

    def place_of(self, part: Fresh) -> tuple[int, View | None] | None:
        """As view(), of a part of what a launch allocates; None where it is no view of a base's
        type, or of nothing."""
        if part.allocation < 0:
            return None
        base, view = self.view(self.of[part.allocation])
        if self.is_filled_by(part):
            return base, view
        dtype = self._bases[base].dtype
        if dtype != part.dtype or part.offset_bytes % dtype.itemsize:
            return None
        begin = view[-1] if view else 0
        return base, (part.shape, part.stride, begin + part.offset_bytes // dtype.itemsize)

    def tensors(self, bases: list[Tensor], has_gradients: bool = True) -> list[Any]:
        """One a buffer; None for gradients that share blocks, where these are not wanted."""
        if not self._views:
            return bases
        viewed = self._viewed if has_gradients else self._viewed_without
        return [*bases[:self.alone], *viewed.of(bases)]


def in_blocks(sizes: Iterable[int],
              block_bytes: int = _BLOCK_BYTES) -> Iterator[tuple[int, int]]:
    """Where pieces of memory of these sizes lie that fill blocks one after the other, each by its
    block and at which byte. One that is larger than a block has one of its own size."""
    block = end = 0
    for size in sizes:
        if end and end + size > block_bytes:
            block, end = block + 1, 0
        yield block, end
        end += _aligned(size)


def _aligned(size: int) -> int:
    """As torch allocates so many bytes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def view_at(base: Tensor, offset_bytes: int, shape: Sequence[int], stride: Sequence[int],
            dtype: torch.dtype) -> Tensor:
    """Of the memory behind ``base``, from so many bytes after its first element."""
    begin = base.storage_offset() * base.element_size() + offset_bytes
    made = torch.empty(0, dtype=dtype, device=base.device)
    return made.set_(base.untyped_storage(), begin // dtype.itemsize, shape, stride)


def part_of(base: Tensor, offset_bytes: int, shape: Sequence[int], stride: Sequence[int],
            dtype: torch.dtype) -> Tensor:
    """The same of what a launch has allocated: a view of its type costs a fifth of another."""
    if base.dtype == dtype and offset_bytes % dtype.itemsize == 0:
        return _compat.reinterpret_tensor(base, shape, stride, offset_bytes // dtype.itemsize)
    return view_at(base, offset_bytes, shape, stride, dtype)


def _alike(made: Mapping[int, OutputBuffer], some: Collection[int],
           turns: Mapping[int, int]) -> list[list[int]]:
    """Allocations, by the types of their buffers and their turns, and else in the order of
    these."""
    found: dict[tuple[torch.dtype, int], list[int]] = {}
    for allocation in made:
        if allocation in some:
            kind = made[allocation].dtype, turns.get(allocation, 0)
            found.setdefault(kind, []).append(allocation)
    return list(found.values())


def _buffer(views: Sequence[Fresh], size: int) -> OutputBuffer:
    """Itself, where one view fills it; else flat, of the views' type where they have one."""
    view = views[0]
    fills = view.offset_bytes == 0 and all(other == view for other in views) \
        and extent_bytes(view.shape, view.stride, view.dtype) == size
    if fills:
        return OutputBuffer(view.shape, view.stride, view.dtype)
    is_alike = all(other.dtype == view.dtype for other in views) and size % view.dtype.itemsize == 0
    dtype = view.dtype if is_alike else torch.uint8
    return OutputBuffer((size // dtype.itemsize,), (1,), dtype)
