# SPDX-License-Identifier: Apache-2.0
"""Python's numbers, texts and switches that a step may read: a recording has frozen them, so that
another one is another signature.

They are variables of functions, attributes of objects, modules and classes, and items and lengths
of containers, where the step's code names them; and callables, as themselves. Which code that is
follows from names as well: that of the functions which the walk has met, and of a class's methods
whose names are named in it. Another object or container may take the place of one that holds any:
those on the way are watched.

Threads: as the objects found. Failure: none; what is gone since makes numbers None.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import operator
import string
import sys
import types
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ._holders import Slotted, Variables, attributes_of, is_librarys, may_enter, module_of, named_in

if TYPE_CHECKING:
    from ._walk import Path

PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device,
          torch.Size)  # where they are equal they are the same
_PLAIN_TYPES = frozenset(PLAIN)
# Number has those of numpy, but for its truth.
_ALIKE = (enum.Enum, Number, str, bytes, range, torch.memory_format, torch.layout,
          type(Ellipsis))
_MOST_ITEMS = 100  # of a container that is looked at
# Without being named. Not __eq__, __hash__ and __repr__, which data classes have for all fields.
_ALWAYS_CALLED = ("forward", "__call__", "__getitem__", "__getattr__", "__getattribute__",
                  "__iter__", "__next__", "__contains__", "__len__", "__bool__", "__enter__",
                  "__exit__", "__float__", "__int__", "__index__", "__add__", "__radd__",
                  "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__",
                  "__matmul__", "__neg__", "__lt__", "__le__", "__gt__", "__ge__")
# Code with these may read an attribute that it does not name.
_BY_NO_NAME = frozenset(("getattr", "attrgetter", "vars", "dir", "getmembers", "fields", "asdict",
                         "astuple", "__dict__", "__slots__", "copy", "deepcopy", "replace",
                         "_replace", "dumps", "tree_map", "tree_flatten"))
_ANY_NAME = "*"  # among names, where there is such code
# Told by what is in them, where that is little, and otherwise by which they are.
_FILLED = (set, collections.deque)
_THEMSELVES = (*_FILLED, frozenset, slice, torch.finfo, torch.iinfo)
_MOST_BYTES = 1024  # of an array that is looked at
# That lead to tensors, if anything.
_OTHERS_MATTERS = (torch.Tensor, nn.Module, torch.optim.Optimizer, torch.Generator)
_LENGTH, _ATTRIBUTES = "its length", "how many attributes it has"  # in a path
OF_MODULES = frozenset(vars(nn.Module()))  # registries, and what has a guard of its own
_COUNT = object()  # in place of a key: how many items a holder has
_NOBODYS = (object, nn.Module)  # whose methods are torch's and Python's own matter


class Numbers(tuple):  # type: ignore[type-arg]
    """As they are at some time, to be compared. What is no number any more equals nothing."""

    of: Layout

    def each(self) -> Iterator[tuple[Path, Any]]:
        return zip(self.of.paths, self, strict=True)

    def told(self) -> dict[str, Any]:
        """By the names of their places."""
        return {".".join(str(name) for name in path[1:] if name != ""): value
                for path, value in self.each()}

    def without(self, ignored: Container[Path]) -> Numbers:
        """Those that would have been found without some places."""
        values, layout = dict(self.each()), self.of.without(ignored)
        return layout.numbers(values[path] for path in layout.paths)


class Layout:
    """The keys of each holder, and the path of what stands there. It keeps no holder alive:
    signatures have it."""

    def __init__(self, holders: Iterable[Mapping[Any, Path]]) -> None:
        self._holders = list(holders)
        self.alike: dict[tuple[Any, ...], list[int]] = {}  # holders, by their keys
        for i, paths in enumerate(self._holders):
            self.alike.setdefault(tuple(paths), []).append(i)
        self.paths = [path for some in self.alike.values() for i in some
                      for path in self._holders[i].values()]

    def without(self, ignored: Container[Path]) -> Layout:
        return Layout(filter(None, (_without(paths, ignored) for paths in self._holders)))

    def numbers(self, values: Iterable[Any]) -> Numbers:
        numbers = Numbers(values)
        numbers.of = self
        return numbers


def _without(paths: Mapping[Any, Path], ignored: Container[Path]) -> dict[Any, Path]:
    """Where the length of a container is ignored, so are its items."""
    return {key: path for key, path in paths.items()
            if path not in ignored and (*path[:-1], _LENGTH) not in ignored}


class Places:
    """Where they stand: holders, with a path by key."""

    def __init__(self, held: Iterable[tuple[Any, Mapping[Any, Path]]]) -> None:
        self.held = list(held)
        self._layout = Layout(paths for _, paths in self.held)
        self._alike: list[tuple[Callable[[Any], Any], list[Any], bool]] = [
                       (len if keys == (_COUNT,) else operator.itemgetter(*keys),
                        [self.held[i][0] for i in some], len(keys) == 1)
                       for keys, some in self._layout.alike.items()]
        # What stood there, what of it can be filled, with what it was told as, and all that:
        # together, since threads may look at once.
        self._last: tuple[list[Any], list[tuple[Any, Any]], Numbers | None] = ([], [], None)

    def without(self, ignored: Container[Path]) -> Places:
        held = [(holder, _without(paths, ignored)) for holder, paths in self.held]
        return Places((holder, paths) for holder, paths in held if paths)

    def now(self) -> Numbers | None:
        """Mostly the very objects of last time: then so is the answer."""
        before, filled, numbers = self._last
        try:
            if numbers is not None and all(map(operator.is_, self._values(), before)) \
                    and all(_told(value) == told for value, told in filled):
                return numbers
            values = list(self._values())
        except (KeyError, IndexError, ValueError, AttributeError):
            return None
        are_told = list(map(_is_told, values))
        numbers = self._layout.numbers(
            _told(value) if is_told else object()
            for value, is_told in zip(values, are_told, strict=True))
        if all(are_told):  # else it would hold somebody's tensor
            filled = [(value, told) for value, told in zip(values, numbers, strict=True)
                      if _can_be_filled(value)]
            self._last = values, filled, numbers
        return numbers

    def _values(self) -> Iterator[Any]:
        flat = itertools.chain.from_iterable
        return flat([map(get, holders) if is_one else flat(map(get, holders))
                     for get, holders, is_one in self._alike])


class Itself:
    """Equal to what stands for the very same object, which it does not keep, where that can be."""

    def __init__(self, thing: Any) -> None:
        self._id = id(thing)
        try:
            self._get: Callable[[], Any] = weakref.ref(thing)
        except TypeError:
            self._get = lambda: thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self._id == other._id \
            and self._get() is other._get() is not None

    def __hash__(self) -> int:
        return self._id


class Cells:
    """Variables of closures, by their numbers."""

    def __init__(self, cells: Sequence[types.CellType]) -> None:
        self._cells = cells

    def __getitem__(self, number: int) -> Any:
        return self._cells[number].cell_contents


def changed(before: Numbers | None, now: Numbers | None) -> set[Path]:
    """Where they are other numbers."""
    if before is None or now is None or before == now:
        return set()
    then = dict(before.each())
    return {path for path, new in now.each()
            if path in then and then[path] != new and type(new) is not object}


class Stand(NamedTuple):
    """Where an object stands in whose place there may be another one."""

    holder: Any
    key: Any
    thing: Any


class Collector:
    """What a walk has met, and then the numbers in it. ``names`` are named by code that was met
    before."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = {*names, *_ALWAYS_CALLED}
        self._functions: dict[types.FunctionType, Path] = {}
        self._kinds: dict[type, None] = {}
        self._attributes: dict[int, tuple[type, Mapping[str, Any], Path]] = {}
        self._containers: dict[int, tuple[dict[Any, Any] | list[Any], Path]] = {}
        self._stands: dict[Path, Stand] = {}
        self._methods: dict[types.FunctionType, Path] = {}  # whose names are named
        self.watched: list[Stand] = []  # those on the way to numbers

    def add_function(self, function: types.FunctionType, path: Path) -> None:
        if not is_librarys(module_of(function)):  # as that around a user's is
            self._functions.setdefault(function, path)
            self._add_names(function)

    def _add_names(self, function: types.FunctionType) -> None:
        names = _names_in(function.__code__)
        self.names.update(names)
        if not names.isdisjoint(_BY_NO_NAME) and not is_librarys(module_of(function)):
            self.names.add(_ANY_NAME)

    def add_stand(self, holder: Any, key: Any, path: Path, thing: Any) -> None:
        """Where an object or a container stands, which may lead to what is added."""
        self._stands[path] = Stand(holder, key, thing)

    def add_object(self, thing: Any, attributes: Mapping[str, Any], path: Path) -> None:
        self._kinds[type(thing)] = None
        self._attributes.setdefault(id(thing), (type(thing), attributes, path))

    def add_container(self, container: dict[Any, Any] | list[Any], path: Path) -> None:
        self._containers.setdefault(id(container), (container, path))

    def places(self, leading: Container[int]) -> Places:
        """Of callables those that are not ``leading`` to tensors, by their ids: others of one make
        may take these's places."""
        found, unread = _Found(leading), self._unread()
        for container, path in self._containers.values():
            if _leads_through(path, unread):
                continue
            if len(container) <= _MOST_ITEMS:
                found.add(container, _items(container), path)
            found.add_count(container, (*path, _LENGTH))
        in_class = {kind: self._named_in_class(kind) for kind in self._kinds}
        for kind, attributes, path in self._attributes.values():
            if _leads_through(path, unread):
                continue
            found.add(attributes, self._named(attributes), path)
            if any(name not in attributes for name in in_class[kind]):
                found.add_count(attributes, (*path, _ATTRIBUTES))  # one more may hide its class's
        self._watch({path for _, paths in (*found.held.values(), *found.counts.values())
                     for path in paths.values()})
        for kind in {base: None for met in self._kinds for base in met.__mro__}:
            if kind not in _NOBODYS:
                found.add(vars(kind), self._named(vars(kind)), ("", f"class {kind.__name__}"))
        cells: dict[int, tuple[types.CellType, Path]] = {}
        for function, path in {**self._methods, **self._functions}.items():
            variables = Variables(function)
            found.add(variables.globals, ((name, value) for name, value in variables.items()
                                          if name not in variables.cells),
                      ("", function.__module__))
            for name, cell in variables.cells.items():
                if found.is_wanted(variables.get(name, cell)):
                    cells.setdefault(id(cell), (cell, (*path, name)))
        found.add_cells(list(cells.values()))
        return Places([*found.held.values(), *found.counts.values()])

    def _watch(self, paths: Iterable[Path]) -> None:
        on_the_way = {path[:end] for path in paths for end in range(len(path))}
        things = {id(stand.thing) for path, stand in self._stands.items() if path in on_the_way}
        self.watched = [stand for stand in self._stands.values() if id(stand.thing) in things]

    def _named_in_class(self, kind: type) -> list[str]:
        return [name for base in kind.__mro__ if base not in _NOBODYS
                for name, value in self._named(vars(base)) if is_number(value)]

    def _named(self, attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        return ((name, attributes[name]) for name in attributes
                if self._is_named(name) and name not in OF_MODULES)

    def may_be_read(self, name: str) -> bool:
        """Of an attribute, when names have been followed."""
        return _ANY_NAME in self.names or self._is_named(name)

    def _is_named(self, name: str) -> bool:
        """Or by f"name{number}"."""
        return name in self.names \
            or (name[-1:] in string.digits and name.rstrip(string.digits) in self.names)

    def _unread(self) -> set[Path]:
        """Where things stand that are nothing but attributes which no code names."""
        dictionaries = {id(attributes) for _, attributes, _ in self._attributes.values()}

        def may_be_read(stand: Stand) -> bool:
            is_attribute = isinstance(stand.holder, Slotted) or id(stand.holder) in dictionaries
            return not is_attribute or self.may_be_read(stand.key)

        read = {id(stand.thing) for stand in self._stands.values() if may_be_read(stand)}
        return {path for path, stand in self._stands.items() if id(stand.thing) not in read}

    def follow_names(self) -> None:
        """To the methods whose names are named, which name more; and so with configurations, of
        which one looks at no more than that. When all has been met, and before what depends on
        names."""
        reached = self._methods
        looked_at: set[tuple[int, str]] = set()
        known = -1
        while known != len(self.names) + len(self._kinds) + len(self._attributes):
            known = len(self.names) + len(self._kinds) + len(self._attributes)
            for kind in list(self._kinds):
                methods = _methods_of(kind)
                for method in [method for name in methods if self._is_named(name)
                               for method in methods[name] if method not in reached]:
                    reached[method] = ("", f"class {kind.__name__}", method.__name__)
                    self._add_names(method)
                    variables = Variables(method)
                    for name, value in variables.items():
                        self._look_at(variables, name, ("", method.__module__, name), value)
            for thing, (_, attributes, path) in list(self._attributes.items()):
                for name, value in list(self._named(attributes)):
                    if (thing, name) not in looked_at:
                        looked_at.add((thing, name))
                        self._look_at(attributes, name, (*path, name), value)

    def _look_at(self, holder: Any, key: str, path: Path, value: Any) -> None:
        if type(value) in (dict, list):
            self.add_container(value, path)
        elif isinstance(value, _OTHERS_MATTERS) or not may_enter(value):
            return
        else:
            self.add_object(value, attributes_of(value), path)
        self._stands.setdefault(path, Stand(holder, key, value))


class _Found:
    """What there is so far, by the ids of the holders."""

    def __init__(self, leading: Container[int]) -> None:
        self.held: dict[int, tuple[Any, dict[Any, Path]]] = {}
        self.counts: dict[int, tuple[Any, dict[Any, Path]]] = {}
        self._leading = leading

    def is_wanted(self, value: Any) -> bool:
        return _is_told(value) and id(value) not in self._leading

    def add(self, holder: Any, items: Iterable[tuple[Any, Any]], path: Path) -> None:
        for key, value in items:
            if self.is_wanted(value):
                self.held.setdefault(id(holder), (holder, {}))[1][key] = (*path, key)

    def add_count(self, holder: Any, path: Path) -> None:
        self.counts[id(holder)] = holder, {_COUNT: path}

    def add_cells(self, cells: Sequence[tuple[types.CellType, Path]]) -> None:
        if cells:
            holder = Cells([cell for cell, _ in cells])
            self.held[id(holder)] = holder, dict(enumerate(path for _, path in cells))


def _leads_through(path: Path, some: Container[Path]) -> bool:
    return any(path[:end] in some for end in range(1, len(path) + 1))


def _is_told(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_told, value))
    return is_number(value) or isinstance(value, _THEMSELVES) or _is_array(value) \
        or (callable(value) and not isinstance(value, nn.Module))


def _told(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_told, value))
    if isinstance(value, Number):  # equal ones of several types make other types of tensors
        return type(value), value
    if is_number(value):
        return value
    contents = _contents(value)
    return Itself(value) if contents is None else contents


def _can_be_filled(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_can_be_filled, value))
    return isinstance(value, _FILLED) or _is_array(value)


def _contents(value: Any) -> Any:
    """Of what can be filled, and is little, as it is now. Else None."""
    if isinstance(value, _FILLED) and len(value) <= _MOST_ITEMS and all(map(is_number, value)):
        return type(value), frozenset(value) if isinstance(value, set) else tuple(value)
    if _is_array(value) and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
        return value.dtype.str, value.shape, value.tobytes()
    return None


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def is_number(value: Any) -> bool:
    """Or another plain value, of which it does not matter which object it is."""
    kind = type(value)
    if isinstance(value, (tuple, frozenset)):
        return kind is torch.Size or all(map(is_number, value))
    return (kind in _PLAIN_TYPES and kind is not type) or isinstance(value, _ALIKE) \
        or kind is getattr(sys.modules.get("numpy"), "bool_", None)


def _items(container: dict[Any, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else enumerate(container)


@functools.lru_cache(4096)
def _names_in(code: types.CodeType) -> frozenset[str]:
    """What code names, and texts in it that may be names: getattr(self, "scale")."""
    return frozenset((*named_in(code), *filter(str.isidentifier, _texts_in(code.co_consts))))


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts_in(constant)
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant.co_consts)


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
