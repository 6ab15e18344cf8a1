# SPDX-License-Identifier: Apache-2.0
"""Facts about tensors: wrapping classes, versions, and which tensors share memory.

Threads: any. Failure: none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._fx.extents import extent_bytes


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The plain tensors inside one of a wrapping class (DTensor and its like), or itself."""
    if not is_wrapper(tensor):
        return [tensor]
    return [inner for _, _, part in _parts_of_wrapper(tensor) for inner in inner_tensors(part)]


def inner_places(tensor: Tensor) -> list[tuple[Any, str]]:
    """Where the plain tensors inside a wrapping one are: object and attribute."""
    places: list[tuple[Any, str]] = []
    for owner, name, inner in _parts_of_wrapper(tensor):
        places += inner_places(inner) if is_wrapper(inner) else [(owner, name)]
    return places


def _parts_of_wrapper(tensor: Tensor) -> Iterator[tuple[Any, str, Tensor]]:
    """Owner, attribute and value. A wrapper may name other things too: DTensor its mesh (2.15)."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        if isinstance(part := getattr(tensor, name), Tensor):
            yield tensor, name, part


def version_of(tensor: Tensor) -> int:
    """How often it was written in place; 0 for those that do not count."""
    return 0 if tensor.is_inference() else tensor._version


def layout_of(tensor: Tensor) -> tuple[Any, ...]:
    """What kernels are chosen by, and given, but for the address: shape, strides, type, device, and
    whether torch reads the elements conjugated or negated."""
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj(),
            tensor.is_neg())


def as_it_lies(tensor: Tensor) -> Tensor:
    """The same memory, read neither conjugated nor negated: of what is, torch may ask a copy."""
    is_conj, is_neg = tensor.is_conj(), tensor.is_neg()
    return _compat.read_otherwise(tensor, is_conj, is_neg) if is_conj or is_neg else tensor


def may_be_parameter(tensor: Tensor) -> bool:
    return tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, nn.Parameter))


def may_get_gradient(tensor: Tensor) -> bool:
    """Also where it has to require gradients first, as any leaf of such a type may."""
    return tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex()
                               or isinstance(tensor, nn.Parameter))


def is_pinned(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_pinned()


def is_wrapper(tensor: Tensor) -> bool:
    return hasattr(type(tensor), "__tensor_flatten__")


@dataclasses.dataclass
class Unit:
    """Bytes that move as one: a tensor's, or those of several tensors that overlap."""

    address: int
    size_bytes: int
    members: list[tuple[int, int]]  # (tensor, bytes into the unit); the first lies at 0


def units_of(tensors: Sequence[Tensor]) -> list[Unit]:
    """Tensors that share bytes are one unit; those without bytes are in none."""
    sizes = [extent_bytes(tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors]
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


def units_overlap(units: Sequence[Unit]) -> bool:
    """Whether any two of them share bytes."""
    ordered = sorted(units, key=lambda unit: unit.address)
    return any(one.address + one.size_bytes > other.address
               for one, other in itertools.pairwise(ordered))


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
        storage = first.untyped_storage()
        begin = first.data_ptr() - storage.data_ptr()
        view = torch.empty(0, dtype=torch.uint8, device=first.device)
        views.append(view.set_(storage, begin, (unit.size_bytes,), (1,)))
    return views


class MemoryOf:
    """Which memory tensors have, to give it back to them: code may set ``tensor.data``, or call
    ``tensor.set_()``. Holds that memory. Leaves out tensors that are not strided, and those of
    devices other than the CPU and GPUs."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        with _compat.DisableTorchFunctionSubclass():
            once = {id(tensor): tensor for tensor in tensors}.values()
            self._all = [(tensor, tensor.data) for tensor in once if tensor.layout is torch.strided
                         and tensor.device.type in ("cpu", "cuda")]

    def moved(self) -> list[Tensor]:
        """The tensors that have other memory by now, or another shape or type of it."""
        with _compat.DisableTorchFunctionSubclass():
            return [tensor for tensor, data in self._all if not _share_place(tensor, data)]

    def give_back(self) -> None:
        moved = set(map(id, self.moved()))
        with _compat.DisableTorchFunctionSubclass():
            for tensor, data in self._all:
                if id(tensor) in moved:
                    tensor.data = data


def _share_place(one: Tensor, other: Tensor) -> bool:
    if (one.device, one.dtype, one.is_conj(), one.is_neg()) \
            != (other.device, other.dtype, other.is_conj(), other.is_neg()):
        return False
    return as_it_lies(one).is_set_to(as_it_lies(other))


def memory_on_cpu(tensor: Tensor) -> int | None:
    """Where a tensor's storage lies on the CPU; None of others, of what has none, and of what a
    compiler only thinks of."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    with contextlib.suppress(RuntimeError):
        return tensor.untyped_storage().data_ptr() or None
    return None


def size_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def any_overlap(given: Sequence[Tensor], some: Collection[int]) -> bool:
    """Whether one of ``some`` shares bytes with any other tensor."""
    return any(len(unit.members) > 1 and any(i in some for i, _ in unit.members)
               for unit in units_of(given))


def device_of(leaves: Iterable[Any], state: Iterable[Any]) -> int | None:
    """Of the first that is on a GPU."""
    for leaf in (*leaves, *state):
        if isinstance(leaf, Tensor) and leaf.is_cuda:
            return leaf.device.index
    return None
