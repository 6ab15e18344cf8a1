# SPDX-License-Identifier: Apache-2.0
"""How each result of a step is made from the memory of a launch, decided once when it is
recorded."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from anabranch import _compat
from anabranch._record.capture.pytree import Shape
from anabranch._record.capture.step import Alias, Constant, Fresh, Lazy, StepObject, Wrapped
from anabranch._record.launch.output_buffers import OutputBuffers, part_of, view_at
from anabranch._record.picker import picker

# (given, fresh) -> a part of the answer
Build = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]


class OutputBuilder:
    """What a call answers. Most of it is whole tensors, given or fresh, which are only picked."""

    def __init__(self, leaves: Sequence[Any], shape: Shape, build: LeafBuilder) -> None:
        whole = [build.whole(leaf) for leaf in leaves]
        self._pick = picker([index or 0 for index in whole]) \
            if any(index is not None for index in whole) else None
        self._is_fresh = all(index is None or index < build.fresh for index in whole)
        self._others = [(i, build.part(leaf)) for i, leaf in enumerate(leaves) if whole[i] is None]
        self._count = len(leaves)
        self._wrap = _wrapper(len(leaves), shape)
        self.is_flat = self._wrap in (list, tuple)
        # Where all that it answers is one fresh tensor: which.
        self.alone = whole[0] if self._wrap is _ALONE and self._is_fresh else None

    def build(self, given: Sequence[Tensor], fresh: Sequence[Tensor]) -> Any:
        if self.alone is not None:
            return fresh[self.alone]
        leaves = list(self._pick(fresh if self._is_fresh else [*fresh, *given])) \
            if self._pick else [None] * self._count
        for index, make in self._others:
            leaves[index] = make(given, fresh)
        return self._wrap(leaves)


_ALONE = operator.itemgetter(0)


def _wrapper(count: int, shape: Shape) -> Callable[[list[Any]], Any]:
    """From leaves to the answer. Flat ones, which most are, need no walk."""
    numbers = list(range(count))
    made = shape.unflatten(numbers)
    for flat in (list, tuple):
        if type(made) is flat and made == flat(numbers):
            return flat
    if type(made) is int:
        return _ALONE
    return shape.unflatten


class LeafBuilder:
    """From what a leaf is to a function that makes it in each launch. Behind the tensors that a
    launch is given stand those of the step's objects that it answers."""

    def __init__(self, buffers: OutputBuffers, objects: Sequence[int] = ()) -> None:
        self._buffers = buffers
        self.fresh = len(buffers.buffers)  # tensors, which come before the given ones
        self._objects = {index: i - len(objects) for i, index in enumerate(objects)}

    def whole(self, leaf: Any) -> int | None:
        """Which of the fresh and then the given tensors it is, if it is one."""
        if isinstance(leaf, Alias) and leaf.view is None:
            return self.fresh + leaf.tensor
        if isinstance(leaf, Fresh) and leaf.allocation >= 0 and self._buffers.is_filled_by(leaf):
            return self._buffers.of[leaf.allocation]
        return None

    def part(self, leaf: Any) -> Build:
        if isinstance(leaf, Constant):
            return lambda given, fresh: leaf.value
        if isinstance(leaf, StepObject):
            from_end = self._objects[leaf.index]
            return lambda given, fresh: given[from_end]
        if isinstance(leaf, Alias):
            return self._alias(leaf)
        if isinstance(leaf, Wrapped):
            return self._wrapped(leaf)
        if isinstance(leaf, Lazy):
            plain = self.part(leaf.parts[0])
            return lambda given, fresh: _compat.read_otherwise(plain(given, fresh), leaf.is_conj,
                                                               leaf.is_neg)
        if leaf.allocation < 0:
            return lambda given, fresh: _compat.empty_strided_cuda(leaf.shape, leaf.stride,
                                                                   leaf.dtype)
        buffer = self._buffers.of[leaf.allocation]
        if self._buffers.is_filled_by(leaf):
            return lambda given, fresh: fresh[buffer]
        at = leaf.offset_bytes, leaf.shape, leaf.stride, leaf.dtype
        return lambda given, fresh: part_of(fresh[buffer], *at)

    @staticmethod
    def _alias(leaf: Alias) -> Build:
        if leaf.view is None:
            return lambda given, fresh: given[leaf.tensor]
        shape, stride, offset, dtype = leaf.view
        return lambda given, fresh: view_at(given[leaf.tensor], offset, shape, stride, dtype)

    def _wrapped(self, leaf: Wrapped) -> Build:
        parts = [self.part(part) for part in leaf.parts]

        def build(given: Sequence[Tensor], fresh: Sequence[Tensor]) -> Any:
            inner = {name: part(given, fresh)
                     for name, part in zip(leaf.names, parts, strict=True)}
            return leaf.kind.__tensor_unflatten__(  # type: ignore[attr-defined]
                inner, leaf.context, leaf.shape, leaf.stride)

        return build


class BlockLeafBuilder(LeafBuilder):
    """Where a launch has bases in the buffers' place. What lies in a block is that."""

    def __init__(self, buffers: OutputBuffers, objects: Sequence[int]) -> None:
        super().__init__(buffers, objects)
        self.fresh = buffers.bases

    def whole(self, leaf: Any) -> int | None:
        at = self._buffers.in_block(leaf.allocation) \
            if isinstance(leaf, Fresh) and leaf.allocation >= 0 else None
        return super().whole(leaf) if at is None else at[0]
