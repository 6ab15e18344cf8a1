# SPDX-License-Identifier: Apache-2.0
"""Guards on Python values. A recording freezes every Python value that its step reads; if one of
them changes, the call has another signature.

Guarded are numbers, texts, switches, small arrays and callables. They are variables of functions,
attributes of objects, modules and classes, and items and lengths of containers. ``guard_collector``
finds them by the names that the step's code mentions. This module looks them up and compares them.

Threads: as the objects found. Failure: none; where a value is gone, the values are None.
"""

from __future__ import annotations

import collections
import enum
import operator
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from numbers import Number
from typing import Any

import torch
from torch import nn

from anabranch._record.checks import Kind, answers
from anabranch._record.state.paths import Path, name_of
from anabranch._record.state.place_checks import NotQuick, PlaceChecks, keys_of


class Guards:
    """All guarded values of a state at one time, hashable, so that they may be part of a key. A
    state whose values have not changed answers the same object again, which compares quickly."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self._hash: int | None = None

    @property
    def python_values(self) -> GuardValues | None:
        """Those that code names; the others are of modules, optimizers, tensors and hooks."""
        last: GuardValues | None = self.values[-1]
        return last

    @property
    def seen(self) -> GuardValues:
        """Those that code was seen to read besides."""
        values: GuardValues = self.values[-2]
        return values

    def paths(self) -> list[Path]:
        """Of all that Python holds."""
        return [*self.seen.of.paths, *(self.python_values.of.paths if self.python_values else ())]

    @property
    def gradients(self) -> bytes | None:
        """Which parameters require gradients, and which have none; None where that is no guard."""
        told: bytes | None = self.values[_GRADIENTS]
        return told

    def are_but_for_gradients(self, other: Guards) -> bool:
        """Whether nothing else is another one, as behind a launch that has set some."""
        return self is other or all(i == _GRADIENTS or mine == theirs for i, (mine, theirs)
                                    in enumerate(zip(self.values, other.values, strict=True)))

    def without(self, ignored: Container[Path]) -> Guards:
        """The same, but for the values at some paths."""
        last = self.python_values
        return Guards((*self.values[:-2], self.seen.without(ignored),
                       last and last.without(ignored)))

    def with_seen(self, now: GuardValues) -> Guards:
        """The same, where more was seen to be read, with the values of now for that."""
        before = dict(self.seen.each())
        seen = now.of.with_values(before.get(path, value) for path, value in now.each())
        return Guards((*self.values[:-2], seen, self.python_values))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Guards) and self.values == other.values)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.values)
        return self._hash


_GRADIENTS = 1  # among the values
PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device,
         torch.Size)  # where they are equal they are the same
_PLAIN_TYPES = frozenset(PLAIN)
# Number has those of numpy, but for its truth.
_ALIKE = (enum.Enum, Number, str, bytes, range, torch.memory_format, torch.layout,
          type(Ellipsis))
_MOST_NEW = 100  # of a container in whose place others come
_FILLED = (set, collections.deque)
_THEMSELVES = (*_FILLED, frozenset, slice, torch.finfo, torch.iinfo)
_MOST_BYTES = 1 << 20  # of an array that is looked at
# In a path.
LENGTH, ITEMS = "its length or order", "its items"
ORDER = object()  # in place of a key: how many items a holder has, or which keys in which order


class GuardValues(tuple):  # type: ignore[type-arg]
    """Guarded values as they are at one time. Where something stands that cannot be guarded any
    more, the value is a new object, which equals nothing."""

    of: GuardLayout

    def each(self) -> Iterator[tuple[Path, Any]]:
        return zip(self.of.paths, self, strict=True)

    def told(self) -> dict[str, Any]:
        """The values by the names of their places, for messages."""
        return {name_of(path): value for path, value in self.each()}

    def without(self, ignored: Container[Path]) -> GuardValues:
        """What would have been found without some paths."""
        values, layout = dict(self.each()), self.of.without(ignored)
        return layout.with_values(values[path] for path in layout.paths)


class GuardLayout:
    """The keys of each holder, and the path of what stands at each. Signatures keep layouts, so a
    layout keeps no holder alive."""

    def __init__(self, holders: Iterable[Mapping[Any, Path]]) -> None:
        self._holders = list(holders)
        self.paths = [path for paths in self._holders for path in paths.values()]

    def without(self, ignored: Container[Path]) -> GuardLayout:
        return GuardLayout(filter(None, (_without(paths, ignored) for paths in self._holders)))

    def with_values(self, values: Iterable[Any]) -> GuardValues:
        made = GuardValues(values)
        made.of = self
        return made


def _without(paths: Mapping[Any, Path], ignored: Container[Path]) -> dict[Any, Path]:
    """Where the length of a container is ignored, so are its items."""
    return {key: path for key, path in paths.items()
            if path not in ignored and (*path[:-1], LENGTH) not in ignored}


class Contents:
    """The items of a large container, as one value that stands at any key: the same one as long as
    it has the very same items."""

    def __init__(self, container: dict[Any, Any] | list[Any]) -> None:
        self._container = container
        self._last: tuple[tuple[Any, ...], tuple[Any, ...]] = (), ()

    def __getitem__(self, key: Any) -> tuple[Any, ...]:
        there = self._container
        now = (*there, *there.values()) if isinstance(there, dict) else tuple(there)
        before, guarded = self._last
        if len(now) != len(before) or not all(map(operator.is_, now, before)):
            guarded = tuple([item if is_guarded(item) else type(item) for item in now])
            self._last = now, guarded
        return guarded


class GuardSet:
    """The places of guarded values: holders, and for each a path by key."""

    def __init__(self, held: Iterable[tuple[Any, Mapping[Any, Path]]]) -> None:
        self.held = list(held)
        self._layout = GuardLayout(paths for _, paths in self.held)
        # In the order of the layout's paths.
        self._places = [(holder, key) for holder, paths in self.held for key in paths]

    def without(self, ignored: Container[Path]) -> GuardSet:
        held = [(holder, _without(paths, ignored)) for holder, paths in self.held]
        return GuardSet((holder, paths) for holder, paths in held if paths)

    def paths(self) -> list[Path]:
        return self._layout.paths

    def only(self, some: Container[Path]) -> GuardSet:
        """Those of some paths."""
        held = [(holder, {key: path for key, path in paths.items() if path in some})
                for holder, paths in self.held]
        return GuardSet((holder, paths) for holder, paths in held if paths)

    def now(self) -> GuardValues | None:
        """The values now; None where one is gone."""
        try:
            return self._layout.with_values(map(_told_at, self._places))
        except (KeyError, IndexError, ValueError, AttributeError):
            return None

    def add_checks(self, checks: PlaceChecks) -> None:
        """That all values are those of now."""
        for (holder, key), path in zip(self._places, self._layout.paths, strict=True):
            if key is ORDER:
                checks.add_order(holder, path)
            elif not is_guarded(value := holder[key]):
                raise NotQuick(f"{name_of(path)} is nothing that is guarded")
            else:
                checks.add((holder, key), Kind.EQUALS if is_plain(value) else Kind.IS, value, path)
                if _can_be_filled(value):
                    checks.all.append(answers(_told, (value,), _told(value), name_of(path)))


def _told_at(place: tuple[Any, Any]) -> Any:
    holder, key = place
    if key is ORDER:
        keys = keys_of(holder)
        return len(holder) if keys is None else tuple(map(told_of, keys))
    value = holder[key]
    return _told(value) if is_guarded(value) else object()


class SameObject:
    """Stands for one object, and equals whatever stands for the same one. It keeps the object alive
    only where there can be no weak reference to it."""

    def __init__(self, thing: Any) -> None:
        self._id = id(thing)
        try:
            self._get: Callable[[], Any] = weakref.ref(thing)
        except TypeError:
            self._get = lambda: thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and self._id == other._id \
            and self._get() is other._get() is not None

    def __hash__(self) -> int:
        return self._id

    def get(self) -> Any:
        """None, where it is no more."""
        return self._get()


def changed(before: GuardValues | None, now: GuardValues | None) -> set[Path]:
    """The paths whose values differ."""
    if before is None or now is None or before == now:
        return set()
    then = dict(before.each())
    return {path for path, new in now.each()
            if path in then and then[path] != new and type(new) is not object}


def is_guarded(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(is_guarded, value))
    return is_plain(value) or isinstance(value, _THEMSELVES) or _is_array(value) \
        or (callable(value) and not isinstance(value, nn.Module)) \
        or any("__get__" in vars(base) for base in type(value).__mro__)


def is_often_new(value: Any) -> bool:
    """Whether another one of these may take its place and is compared by what is in it."""
    return type(value) in (list, dict) and len(value) <= _MOST_NEW \
        and all(map(is_plain, value.values() if type(value) is dict else value))


def _told(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_told, value))
    if isinstance(value, Number):  # equal ones of several types make other types of tensors
        return type(value), value
    if is_plain(value):
        return value
    contents = _contents(value)
    return SameObject(value) if contents is None else contents


def told_of(value: Any) -> Any:
    """What a guard has for any value: that itself where it is plain, else which object it is, or
    which a tuple has."""
    if type(value) is tuple:
        return tuple(map(told_of, value))
    return _told(value) if is_plain(value) else SameObject(value)


def _can_be_filled(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_can_be_filled, value))
    return isinstance(value, _FILLED) or _is_array(value)


def _contents(value: Any) -> Any:
    """The contents of a set, a deque or an array, as they are now. None for anything else, and for
    a large array."""
    if isinstance(value, _FILLED) and all(map(is_plain, value)):
        return type(value), tuple(value)  # a set's, too: it may be gone through
    if _is_array(value) and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    return None


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def is_plain(value: Any) -> bool:
    """Whether it is a number, a text or another value of which it does not matter which object it
    is."""
    kind = type(value)
    if isinstance(value, (tuple, frozenset)):
        return kind is torch.Size or all(map(is_plain, value))
    return (kind in _PLAIN_TYPES and kind is not type) or isinstance(value, _ALIKE) \
        or kind is getattr(sys.modules.get("numpy"), "bool_", None)
