# SPDX-License-Identifier: Apache-2.0
"""What a step answers, as leaves and a shape: containers as torch's pytrees have them, and objects
that the step makes (a dataclass, a cache of keys and values), by their attributes.

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

from anabranch import _compat

_DEEPEST, _MOST = 50, 10_000  # objects within one another, and in all; what is beyond is a leaf
_NEVER_OPENED = (Tensor, type, types.FunctionType, types.ModuleType)
_OBJECTS = ("__new__", "__reduce__", "__reduce_ex__", "__getstate__")  # as object has them
_NEW_OBJECT = vars(copyreg)["__newobj__"]  # what object.__reduce_ex__ names
_COPIES_ITSELF = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__copy__", "__deepcopy__")


class Unlike(Exception):
    """Answers of different shapes."""


@dataclasses.dataclass(frozen=True)
class _Object:
    """One that is opened: its class, attributes, and what is in its slots."""

    kind: type
    attributes: tuple[tuple[str, _Part], ...]
    in_slots: tuple[tuple[str, _Part], ...]


@dataclasses.dataclass(frozen=True)
class _Container:
    tree: Any  # of torch's
    parts: tuple[_Part, ...]


# None is a leaf, a number the object that was opened with that number.
_Part = _Object | _Container | int | None


@dataclasses.dataclass(frozen=True)
class Shape:
    part: _Part

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        return _Maker(leaves).make(self.part)


class _Maker:
    def __init__(self, leaves: Iterable[Any]) -> None:
        self._leaves = iter(leaves)
        self._made: list[Any] = []

    def make(self, part: _Part) -> Any:
        if part is None:
            return next(self._leaves)
        if isinstance(part, _Container):
            return _compat.tree_unflatten(list(map(self.make, part.parts)), part.tree)
        if isinstance(part, int):
            return self._made[part]
        kind: Any = part.kind
        made = kind.__new__(kind)
        self._made.append(made)  # before its attributes: they may lead back to it
        if part.attributes:
            attributes = vars(made)
            for name, value in part.attributes:
                attributes[name] = self.make(value)
        for name, value in part.in_slots:
            object.__setattr__(made, name, self.make(value))
        return made


def flatten(answers: Sequence[Any], closed: Container[int] = ()) -> tuple[list[list[Any]], Shape]:
    """The leaves of each of some answers, and the shape that they all have. Objects whose ids are
    ``closed``, and those that are the same in all of several answers, are leaves."""
    flattener = _Flattener(len(answers), closed)
    part = flattener.part_of(answers, 0)
    # Torch's walk is a function that names itself: it holds whom it asks, until garbage is
    # collected.
    leaves, flattener.leaves = flattener.leaves, []
    return leaves, Shape(part)


class _Flattener:
    def __init__(self, count: int, closed: Container[int]) -> None:
        self.leaves: list[list[Any]] = [[] for _ in range(count)]
        self._closed = closed
        self._numbers: list[dict[int, int]] = [{} for _ in range(count)]  # of objects, by their ids

    def part_of(self, values: Sequence[Any], depth: int) -> _Part:
        flat, trees = zip(*(_compat.tree_flatten(value, self._is_closed) for value in values),
                          strict=True)
        if any(tree != trees[0] for tree in trees):
            raise Unlike
        if trees[0].is_leaf():
            return self._leaf(values, depth)
        return _Container(trees[0], tuple([self._leaf(leaves, depth)
                                           for leaves in zip(*flat, strict=True)]))

    def _is_closed(self, thing: Any) -> bool:
        return id(thing) in self._closed

    def _leaf(self, leaves: Sequence[Any], depth: int) -> _Part:
        """Of torch's trees."""
        seen = {numbers.get(id(leaf)) for leaf, numbers in zip(leaves, self._numbers, strict=True)}
        if len(seen) > 1:
            raise Unlike
        [number] = seen
        if number is not None:
            return number
        fields = [_fields_of(leaf) for leaf in leaves] if self._may_open(leaves, depth) else [None]
        if None in fields:
            for leaf, of_answer in zip(leaves, self.leaves, strict=True):
                of_answer.append(leaf)
            return None
        for leaf, numbers in zip(leaves, self._numbers, strict=True):
            numbers[id(leaf)] = len(numbers)
        known = [field for field in fields if field is not None]
        attributes, in_slots = (self._named([field[i] for field in known], depth + 1)
                                for i in (0, 1))
        return _Object(type(leaves[0]), attributes, in_slots)

    def _named(self, fields: Sequence[dict[str, Any]], depth: int) -> tuple[tuple[str, _Part], ...]:
        if any(list(other) != list(fields[0]) for other in fields):
            raise Unlike
        return tuple([(name, self.part_of([of_it[name] for of_it in fields], depth))
                      for name in fields[0]])

    def _may_open(self, leaves: Sequence[Any], depth: int) -> bool:
        first, *others = leaves
        if self._is_closed(first) or (others and all(other is first for other in others)):
            return False
        return depth < _DEEPEST and len(self._numbers[0]) < _MOST \
            and all(type(other) is type(first) for other in others)


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
    if make is not _NEW_OBJECT or arguments != (kind,) or any(items):
        return None
    attributes, in_slots = state if isinstance(state, tuple) else (state, None)
    return dict(attributes or {}), dict(in_slots or {})


def _new_of(kind: Any) -> Any:
    return kind.__new__


def _is_frozen_with_slots(kind: type) -> bool:
    """A dataclass which dataclasses has given a state of their own making, its fields."""
    return "__setstate__" in vars(kind) and _new_of(kind) is _new_of(object) \
        and vars(kind)["__setstate__"] is getattr(dataclasses, "_dataclass_setstate", None)
