# SPDX-License-Identifier: Apache-2.0
"""Python's numbers, texts and switches that a step may read: a recording has frozen them, so that
another one is another signature.

They are variables of functions, attributes of objects, modules and classes, and items and lengths of
containers, where the step's code names them; and functions, as themselves. Which code that is follows
from names as well: that of the functions which the walk has met, and of a class's methods whose names
are named in it.

Threads: as the objects found. Failure: none; what is gone since makes numbers None.
"""

from __future__ import annotations

import enum
import functools
import itertools
import operator
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ._holders import Variables, named_in

if TYPE_CHECKING:
    from ._walk import Path

PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device,
          torch.Size)  # where they are equal they are the same
_PLAIN_TYPES = frozenset(PLAIN)
_MOST_ITEMS = 100  # of a container that is looked at
_ALWAYS_CALLED = ("forward", "__call__", "__getitem__", "__getattr__", "__iter__", "__enter__",
                  "__exit__")
_LENGTH, _ATTRIBUTES = "its length", "how many attributes it has"  # in a path
_COUNT = object()  # in place of a key: how many items a holder has
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_NOBODYS = (object, nn.Module)  # whose methods are torch's and Python's own matter


class Numbers(tuple):  # type: ignore[type-arg]
    """As they are at some time, to be compared. What is no number any more equals nothing."""

    of: Places

    def each(self) -> Iterator[tuple[Path, Any]]:
        return zip(self.of.paths, self, strict=True)

    def told(self) -> dict[str, Any]:
        """By the names of their places."""
        return {".".join(str(name) for name in path[1:] if name != ""): value
                for path, value in self.each()}

    def without(self, ignored: Container[Path]) -> Numbers:
        """Those that would have been found without some places."""
        values, places = dict(self.each()), self.of.without(ignored)
        return places.numbers(values[path] for path in places.paths)


class Places:
    """Where they stand: holders, with a path by key."""

    def __init__(self, held: Iterable[tuple[Any, Mapping[Any, Path]]]) -> None:
        self.held = list(held)
        alike: dict[tuple[Any, ...], list[tuple[Any, Mapping[Any, Path]]]] = {}  # by their keys
        for holder, paths in self.held:
            alike.setdefault(tuple(paths), []).append((holder, paths))
        self.paths = [path for some in alike.values() for _, paths in some for path in paths.values()]
        self._alike = [(len if keys == (_COUNT,) else operator.itemgetter(*keys),
                        [holder for holder, _ in some], len(keys) == 1)
                       for keys, some in alike.items()]
        self._last: tuple[list[Any], Numbers | None] = ([], None)

    def without(self, ignored: Container[Path]) -> Places:
        """Where the length of a container is ignored, so are its items."""
        held = [(holder, {key: path for key, path in paths.items()
                          if path not in ignored and (*path[:-1], _LENGTH) not in ignored})
                for holder, paths in self.held]
        return Places((holder, paths) for holder, paths in held if paths)

    def numbers(self, values: Iterable[Any]) -> Numbers:
        numbers = Numbers(values)
        numbers.of = self
        return numbers

    def now(self) -> Numbers | None:
        """Mostly the very objects of last time: then so is the answer."""
        before, numbers = self._last
        try:
            if numbers is not None and all(map(operator.is_, self._values(), before)):
                return numbers
            values = list(self._values())
        except (KeyError, IndexError, ValueError, AttributeError):
            return None
        are_plain = list(map(_is_plain, values))
        numbers = self.numbers(value if is_plain else object()
                               for value, is_plain in zip(values, are_plain, strict=True))
        if all(are_plain):  # else it would hold somebody's tensor
            self._last = values, numbers
        return numbers

    def _values(self) -> Iterator[Any]:
        flat = itertools.chain.from_iterable
        return flat([map(get, holders) if is_one else flat(map(get, holders))
                     for get, holders, is_one in self._alike])


class Cells:
    """Variables of closures, by their numbers."""

    def __init__(self, cells: Sequence[types.CellType]) -> None:
        self._cells = cells

    def __getitem__(self, number: int) -> Any:
        return self._cells[number].cell_contents


def changed(before: Numbers | None, now: Numbers | None) -> set[Path]:
    """Where they are other numbers, of the same places."""
    if before is None or now is None or before == now:
        return set()
    return {path for (path, old), (_, new) in zip(before.each(), now.each(), strict=True)
            if old != new and _is_plain(new)}


class Collector:
    """What a walk has met, and then the numbers in it. ``names`` are named by code that was met
    before."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = {*names, *_ALWAYS_CALLED}
        self._functions: dict[types.FunctionType, Path] = {}
        self._kinds: dict[type, None] = {}
        self._attributes: dict[int, tuple[type, Mapping[str, Any], Path]] = {}
        self._containers: list[tuple[dict[Any, Any] | list[Any], Path]] = []

    def add_function(self, function: types.FunctionType, path: Path) -> None:
        self._functions.setdefault(function, path)
        self.names.update(named_in(function.__code__))

    def add_object(self, thing: Any, attributes: Mapping[str, Any], path: Path) -> None:
        self._kinds[type(thing)] = None
        self._attributes.setdefault(id(thing), (type(thing), attributes, path))

    def add_container(self, container: dict[Any, Any] | list[Any], path: Path) -> None:
        self._containers.append((container, path))

    def places(self, leading: Container[int]) -> Places:
        """Of functions those that are not ``leading`` to tensors, by their ids: others of one make
        may take these's places."""
        methods = self._follow_names()
        found = _Found(leading)
        for container, path in self._containers:
            if len(container) <= _MOST_ITEMS:
                found.add(container, _items(container), path)
            found.add_count(container, (*path, _LENGTH))
        in_class = {kind: self._named_in_class(kind) for kind in self._kinds}
        for kind, attributes, path in self._attributes.values():
            found.add(attributes, self._named(attributes), path)
            if any(name not in attributes for name in in_class[kind]):
                found.add_count(attributes, (*path, _ATTRIBUTES))  # one more may hide its class's
        for kind in {base: None for kind in self._kinds for base in kind.__mro__}:
            if kind not in _NOBODYS:
                found.add(vars(kind), self._named(vars(kind)), ("", f"class {kind.__name__}"),
                          is_number)
        cells: dict[int, tuple[types.CellType, Path]] = {}
        for function, path in {**methods, **self._functions}.items():
            is_wanted = found.is_wanted if function in self._functions else is_number
            variables = Variables(function)
            found.add(variables.globals, ((name, value) for name, value in variables.items()
                                          if name not in variables.cells),
                      ("", function.__module__), is_wanted)
            for name, cell in variables.cells.items():
                if is_wanted(variables.get(name, cell)):
                    cells.setdefault(id(cell), (cell, (*path, name)))
        found.add_cells(list(cells.values()))
        return Places([*found.held.values(), *found.counts.values()])

    def _named_in_class(self, kind: type) -> list[str]:
        return [name for base in kind.__mro__ if base not in _NOBODYS
                for name, value in self._named(vars(base)) if is_number(value)]

    def _named(self, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        return ((name, attributes[name]) for name in attributes
                if name in self.names and name != "training")  # which has a guard of its own

    def _follow_names(self) -> dict[types.FunctionType, Path]:
        """The methods whose names are named, which name more."""
        reached: dict[types.FunctionType, Path] = {}
        is_new = True
        while is_new:
            is_new = False
            for kind in self._kinds:
                methods = _methods_of(kind)
                for method in [method for name in methods if name in self.names
                               for method in methods[name] if method not in reached]:
                    reached[method] = ("", f"class {kind.__name__}", method.__name__)
                    self.names.update(named_in(method.__code__))
                    is_new = True
        return reached


class _Found:
    """What there is so far, by the ids of the holders."""

    def __init__(self, leading: Container[int]) -> None:
        self.held: dict[int, tuple[Any, dict[Any, Path]]] = {}
        self.counts: dict[int, tuple[Any, dict[Any, Path]]] = {}
        self._leading = leading

    def is_wanted(self, value: Any) -> bool:
        return _is_plain(value) and id(value) not in self._leading

    def add(self, holder: Any, items: Iterable[tuple[Any, Any]], path: Path,
            is_wanted: Callable[[Any], bool] | None = None) -> None:
        is_wanted = is_wanted or self.is_wanted
        for key, value in items:
            if is_wanted(value):
                self.held.setdefault(id(holder), (holder, {}))[1][key] = (*path, key)

    def add_count(self, holder: Any, path: Path) -> None:
        self.counts[id(holder)] = holder, {_COUNT: path}

    def add_cells(self, cells: Sequence[tuple[types.CellType, Path]]) -> None:
        if cells:
            holder = Cells([cell for cell, _ in cells])
            self.held[id(holder)] = holder, dict(enumerate(path for _, path in cells))


def _is_plain(value: Any) -> bool:
    return is_number(value) or isinstance(value, _FUNCTIONS)


def is_number(value: Any) -> bool:
    """Or another plain value, of which it does not matter which object it is."""
    kind = type(value)
    if kind is tuple:
        return all(map(is_number, value))
    return (kind in _PLAIN_TYPES and kind is not type) or isinstance(value, enum.Enum)


def _items(container: dict[Any, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else enumerate(container)


@functools.lru_cache(1024)
def _methods_of(kind: type) -> dict[str, list[types.FunctionType]]:
    """By their names, those that it overrides as well: these may be called by the others."""
    found: dict[str, list[types.FunctionType]] = {}
    for base in kind.__mro__:
        if base not in _NOBODYS:
            for name, value in vars(base).items():
                found.setdefault(name, []).extend(_functions_in(value))
    return found


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    while value is not None:
        if isinstance(value, types.FunctionType):
            yield value
        value = getattr(value, "__wrapped__", None)
