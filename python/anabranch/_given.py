# SPDX-License-Identifier: Apache-2.0
"""Memory that a step is given: which tensors share it, and what stands in for it in a capture."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import CaptureMemory

_ALIGNMENT = 512  # of torch's allocator; a stand-in lies as its tensor does within this


@dataclasses.dataclass
class Unit:
    """Bytes that move as one: a tensor's, or those of several tensors that overlap."""

    address: int
    size_bytes: int
    members: list[tuple[int, int]]  # (tensor, bytes into the unit); the first lies at 0


def extent(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to behind its last."""
    return reach(tensor.shape, tensor.stride()) * tensor.element_size()


def reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The same of a shape, in elements."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def units_of(tensors: Sequence[Tensor]) -> list[Unit]:
    """Tensors that share bytes are one unit; those without bytes are in none."""
    sizes = [extent(tensor) for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors]
    units: list[Unit] = []
    # Of those that begin together the longest comes first.
    for index in sorted(range(len(tensors)), key=lambda i: (addresses[i], -sizes[i])):
        begin, size = addresses[index], sizes[index]
        if size == 0:
            continue
        last = units[-1] if units else None
        if last is None or begin >= last.address + last.size_bytes:
            units.append(Unit(begin, size, [(index, 0)]))
            continue
        last.members.append((index, begin - last.address))
        last.size_bytes = max(last.size_bytes, begin + size - last.address)
    return units


def units_apart(tensors: Sequence[Tensor], first: int) -> list[Unit]:
    """The same, but that a tensor before ``first`` is never in one unit with one behind."""
    return [*units_of(tensors[:first]), *units_behind(tensors[first:], first)]


def units_behind(tensors: Sequence[Tensor], first: int) -> list[Unit]:
    """Units of tensors of which the first has that number."""
    return [dataclasses.replace(unit, members=[(first + i, offset) for i, offset in unit.members])
            for unit in units_of(tensors)]


def overlap(units: Sequence[Unit]) -> bool:
    """Whether any two of them share bytes."""
    ordered = sorted(units, key=lambda unit: unit.address)
    return any(one.address + one.size_bytes > other.address
               for one, other in itertools.pairwise(ordered))


_swaps = 0  # odd while stand-ins have the place of somebody's tensors


def swaps() -> int:
    """Where it is odd, or another afterwards, addresses read meanwhile may be those of
    stand-ins."""
    return _swaps


class StandIns:
    """Tensors like those given, at fresh addresses of a capture memory.

    ``tensors`` are plain tensors of one device; ``at[i]`` is where unit i lies.
    """

    def __init__(self, tensors: Sequence[Tensor], units: Sequence[Unit],
                 memory: CaptureMemory) -> None:
        self.tensors = list(tensors)
        self.at: list[int] = []
        for unit in units:
            shift = unit.address % _ALIGNMENT
            base = memory.allocate(shift + unit.size_bytes)
            self.at.append(base + shift)
            device = tensors[unit.members[0][0]].device
            room = _compat.storage_at(base, shift + unit.size_bytes, device)
            for index, offset in unit.members:
                self.tensors[index] = _view_of(room, shift + offset, tensors[index])

    @contextlib.contextmanager
    def in_place_of(self, originals: Sequence[Tensor], first: int) -> Iterator[None]:
        """Around a capture: these tensor objects have the memory of ``tensors[first:]``."""
        global _swaps
        stand_ins = self.tensors[first:first + len(originals)]
        before = [tensor.data for tensor in originals]
        _swaps += 1
        try:
            for tensor, stand_in in zip(originals, stand_ins, strict=True):
                tensor.data = stand_in
            yield
        finally:
            for tensor, data in zip(originals, before, strict=True):
                tensor.data = data
            _swaps += 1


def _view_of(room: torch.UntypedStorage, offset: int, like: Tensor) -> Tensor:
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    return made.set_(room, offset // like.element_size(), like.shape, like.stride())


def whole_bytes(tensor: Tensor) -> Tensor:
    """All of a tensor's storage as a tensor of bytes that shares it."""
    storage = tensor.untyped_storage()
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


def bytes_of(tensors: Sequence[Tensor], units: Sequence[Unit]) -> list[Tensor]:
    """The memory of each unit as a tensor of bytes that shares it."""
    views = []
    for unit in units:
        first = tensors[unit.members[0][0]]
        begin = first.data_ptr() - first.untyped_storage().data_ptr()
        views.append(whole_bytes(first)[begin:begin + unit.size_bytes])
    return views
