# SPDX-License-Identifier: Apache-2.0
"""What a step answers, as leaves and a shape: containers as torch's pytrees have them, and objects that
the step makes (a dataclass, a cache of keys and values), by their attributes.

An object is opened where its class leaves copying to Python, so that one like it is its class's
``__new__`` and the same attributes. What was there before the step is answered itself: a leaf.
Threads: as what is answered. Failure: Unlike.
"""

from __future__ import annotations

import copyreg
import dataclasses
import types
from collections.abc import Container, Iterable, Sequence
from typing import Any

from torch import Tensor

from . import _compat

_DEEPEST, _MOST = 50, 10_000  # objects within one another, and in all; what is beyond is a leaf
_NEVER_OPENED = (Tensor, type, types.FunctionType, types.ModuleType)
_OBJECTS = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")  # as object has them
_COPIES_ITSELF = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__copy__", "__deepcopy__")


class Unlike(Exception):
    """Answers of different shapes."""


@dataclasses.dataclass(frozen=True)
class _Object:
    """One that is opened. Its shape is that of two dictionaries, its attributes and what is in its
    slots."""

    kind: type
    shape: Shape

    def make(self) -> Any:
        return self.kind.__new__(self.kind)


@dataclasses.dataclass(frozen=True)
class Shape:
    """``parts`` are of torch's leaves: None is a leaf, a number the object opened with that number."""

    tree: Any
    parts: tuple[_Object | int | None, ...]

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        if not any(part is not None for part in self.parts):
            return _compat.tree_unflatten(leaves, self.tree)
        return _Maker(leaves).make(self)


class _Maker:
    def __init__(self, leaves: Iterable[Any]) -> None:
        self._leaves = iter(leaves)
        self._made: list[Any] = []

    def make(self, shape: Shape) -> Any:
        return _compat.tree_unflatten(list(map(self._part, shape.parts)), shape.tree)

    def _part(self, part: _Object | int | None) -> Any:
        if part is None:
            return next(self._leaves)
        if isinstance(part, int):
            return self._made[part]
        made = part.make()
        self._made.append(made)  # before its attributes: they may lead back to it
        attributes, in_slots = self.make(part.shape)
        if attributes:
            vars(made).update(attributes)
        for name, value in in_slots.items():
            object.__setattr__(made, name, value)
        return made


def flatten(answers: Sequence[Any], closed: Container[int] = ()) -> tuple[list[list[Any]], Shape]:
    """The leaves of each of some answers, and the shape that they all have. Objects whose ids are
    ``closed``, and those that are the same in all of several answers, are leaves."""
    flattener = _Flattener(len(answers), closed)
    return flattener.leaves, flattener.shape_of(answers, 0)


class _Flattener:
    def __init__(self, count: int, closed: Container[int]) -> None:
        self.leaves: list[list[Any]] = [[] for _ in range(count)]
        self._closed = closed
        self._numbers: list[dict[int, int]] = [{} for _ in range(count)]  # of objects, by their ids

    def shape_of(self, answers: Sequence[Any], depth: int) -> Shape:
        flat, trees = zip(*(_compat.tree_flatten(answer, self._is_closed) for answer in answers),
                          strict=True)
        if any(tree != trees[0] for tree in trees):
            raise Unlike
        return Shape(trees[0], tuple([self._part(leaves, depth)
                                      for leaves in zip(*flat, strict=True)]))

    def _is_closed(self, thing: Any) -> bool:
        return id(thing) in self._closed

    def _part(self, leaves: Sequence[Any], depth: int) -> _Object | int | None:
        seen = {numbers.get(id(leaf)) for leaf, numbers in zip(leaves, self._numbers, strict=True)}
        if len(seen) > 1:
            raise Unlike
        [number] = seen
        if number is not None:
            return number
        if not self._may_open(leaves, depth):
            for leaf, of_answer in zip(leaves, self.leaves, strict=True):
                of_answer.append(leaf)
            return None
        for leaf, numbers in zip(leaves, self._numbers, strict=True):
            numbers[id(leaf)] = len(numbers)
        return _Object(type(leaves[0]), self.shape_of(list(map(_fields_of, leaves)), depth + 1))

    def _may_open(self, leaves: Sequence[Any], depth: int) -> bool:
        first, *others = leaves
        if self._is_closed(first) or (others and all(other is first for other in others)):
            return False
        return depth < _DEEPEST and len(self._numbers[0]) < _MOST \
            and all(type(other) is type(first) for other in others) \
            and all(_fields_of(leaf) is not None for leaf in leaves)


def _fields_of(thing: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Its attributes and what is in its slots, where these are all of it."""
    kind = type(thing)
    if isinstance(thing, types.SimpleNamespace):
        return dict(vars(thing)), {}
    if _is_frozen_with_slots(kind) and not getattr(thing, "__dict__", None):
        return {}, {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    if isinstance(thing, _NEVER_OPENED) or any(hasattr(kind, name) for name in _COPIES_ITSELF) \
            or any(getattr(kind, name) is not getattr(object, name) for name in _OBJECTS):
        return None
    try:
        make, arguments, state, *items = thing.__reduce_ex__(4)
    except TypeError:  # something of the interpreter's: a lock, a generator
        return None
    if make is not copyreg.__newobj__ or arguments != (kind,) or any(items):
        return None
    attributes, in_slots = state if isinstance(state, tuple) else (state, None)
    return dict(attributes or {}), dict(in_slots or {})


def _is_frozen_with_slots(kind: type) -> bool:
    """A dataclass which dataclasses has given a state of their own making, its fields."""
    return "__setstate__" in vars(kind) and kind.__new__ is object.__new__ \
        and vars(kind)["__setstate__"] is getattr(dataclasses, "_dataclass_setstate", None)
