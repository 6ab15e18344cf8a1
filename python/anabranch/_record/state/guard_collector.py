# SPDX-License-Identifier: Apache-2.0
"""Finds the Python values that a step may read, by the names that its code mentions.

That code is all functions that the walk has met, the methods of classes that are named in such
code, and functions of the user's that it reaches by dotted names (``dotted``). Objects and
containers on the way to a value are guarded by identity, since another one may take their place.
Where a program puts new lists of plain values, as peft does with the names of active adapters,
whatever list stands there is looked into. Threads: as the objects found. Failure: none.
"""

from __future__ import annotations

import collections
import functools
import operator
import string
import threading
import types
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from anabranch import _compat
from anabranch._record.state.dotted import DottedNames, DottedRead, is_users, run_by
from anabranch._record.state.guards import (
    ITEMS,
    LENGTH,
    ORDER,
    Contents,
    GuardSet,
    is_guarded,
    is_often_new,
    is_plain,
)
from anabranch._record.state.namespaces import (
    Behind,
    Cells,
    Given,
    Lookup,
    OfClass,
    Slotted,
    StandsNow,
    Variables,
    attributes_of,
    found_in,
    given_to,
    is_library_base,
    is_librarys,
    may_enter,
    methods_of,
    module_of,
    named_in,
    names_in,
    only_called_in,
    parts_of_function,
)
from anabranch._record.state.paths import Path
from anabranch._record.state.place_checks import MOST_ITEMS

# Methods that Python calls without naming them. Not __eq__, __hash__ and __repr__, which data
# classes have for all fields.
_ALWAYS_CALLED = ("forward", "__call__", "__getitem__", "__getattr__", "__getattribute__",
                  "__iter__", "__next__", "__contains__", "__len__", "__bool__", "__enter__",
                  "__exit__", "__float__", "__int__", "__index__", "__add__", "__radd__",
                  "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__",
                  "__matmul__", "__neg__", "__lt__", "__le__", "__gt__", "__ge__", "__get__")
# Code with these may read an attribute that it does not name.
BY_NO_NAME = frozenset(("getattr", "attrgetter", "vars", "dir", "getmembers", "fields", "asdict",
                         "astuple", "__dict__", "__slots__", "copy", "deepcopy", "replace",
                         "_replace", "dumps", "tree_map", "tree_flatten"))
_ANY_NAME = "*"  # among names, where there is such code
# The walk looks into these itself, for tensors.
_OTHERS_MATTERS = (torch.Tensor, nn.Module, torch.optim.Optimizer, torch.Generator)
# Nobody gives these another dictionary; classes of modules are looked at by themselves.
_KEPT = (torch.Tensor, nn.Module)
# Registries, what has a guard of its own, and what DistributedDataParallel notes of its buckets.
_OF_MODULES = frozenset((*vars(nn.Module()), _compat.NOTED_OF_BUCKETS))
# The same, and what schedulers put there: a step around the optimizer's, which notes its calls.
_OF_OPTIMIZERS = frozenset((*vars(torch.optim.Optimizer([torch.empty(0, device="cpu")], {})),
                            "step", "_opt_called")) - {"defaults"}


def of_base(kind: type) -> frozenset[str]:
    """Attributes of a class's objects that are torch's own."""
    return _OF_OPTIMIZERS if issubclass(kind, torch.optim.Optimizer) else _OF_MODULES


class Stand(NamedTuple):
    """Where an object or a container stands; another one may take its place."""

    holder: Any
    key: Any
    thing: Any


class GuardCollector:
    """Takes what a walk meets, and then answers the guards on the values in it.

    Args:
        names: names of attributes that code mentions which an earlier walk has met.
        only_called: those of them that it only calls.
        often_new: paths at which the program puts new lists or dictionaries.
    """

    def __init__(self, names: Iterable[str] = (), only_called: Iterable[str] = (),
                 often_new: frozenset[Path] = frozenset()) -> None:
        self.names = {*names, *_ALWAYS_CALLED}
        self._read = {*names}.difference(only_called)  # those that are not only called
        self._functions: dict[types.FunctionType, Path] = {}
        self._wrappers: dict[types.FunctionType, Path] = {}  # a library's, around others
        self._often_new = often_new
        self._kinds: dict[type, None] = {}
        self._classes: dict[int, type] = {}  # by the ids of the mappings that show their attributes
        self._attributes: dict[int, tuple[type, Mapping[str, Any], Path]] = {}
        self._containers: dict[int, tuple[dict[Any, Any] | list[Any], Path]] = {}
        self._stands: dict[Path, Stand] = {}
        self._methods: dict[types.FunctionType, Path] = {}  # that code names
        self._methods_of = functools.cache(methods_of)  # of now
        # Places where an attribute that a class has, and code names, would be hidden.
        self.hiding: list[tuple[Path, Lookup]] = []
        self._dotted = DottedNames()
        self._reads: dict[tuple[int, str], DottedRead] = {}  # by the holder's id, and the name
        self._unread_code: list[types.FunctionType] = []  # whose dotted names are still to be read
        self.watched: dict[Path, Stand] = {}  # those on the way to guarded values
        self.callables: dict[int, tuple[Any, Path]] = {}  # functions and partials, by their ids
        self._weak: list[tuple[type, Behind, Path]] = []
        self._objects: dict[int, tuple[Any, Path]] = {}
        self._with_dictionary: set[int] = set()  # which of these keep attributes in one

    def add_function(self, function: types.FunctionType, path: Path) -> None:
        if is_librarys(module_of(function)):
            if "_torchdynamo_orig_callable" not in vars(function):  # it holds what is a compiler's
                self._wrappers.setdefault(function, path)
        else:
            self._functions.setdefault(function, path)
            self.callables.setdefault(id(function), (function, path))
            self._add_code(function)

    def _add_code(self, function: types.FunctionType) -> None:
        if is_users(module_of(function)):
            self._unread_code.append(function)
        self.add_names(function.__code__, is_librarys(module_of(function)))
        self._add_told(Variables(function).values())

    def add_names(self, code: types.CodeType, is_of_library: bool = False) -> None:
        names = names_in(code)
        self.names |= names
        self._read |= names - only_called_in(code)
        if not is_of_library and not BY_NO_NAME.isdisjoint((*names, *named_in(code))):
            self.names.add(_ANY_NAME)
            self._read.add(_ANY_NAME)

    def _add_told(self, values: Iterable[Any]) -> None:
        """Names that are values themselves: of what ``operator.attrgetter`` made, and texts, where
        code reads attributes without naming them."""
        for value in values:
            if type(value) in (operator.attrgetter, operator.methodcaller):
                texts = [text for text in value.__reduce__()[1] if isinstance(text, str)]
            else:
                texts = [value] if type(value) is str and _ANY_NAME in self.names else []
            told = {name for text in texts for name in text.split(".")}
            self.names |= told
            self._read |= told

    def add_stand(self, holder: Any, key: Any, path: Path, thing: Any) -> None:
        """Notes where an object or a container stands that may lead to guarded values."""
        self._stands[path] = Stand(holder, key, thing)

    def add_object(self, thing: Any, attributes: Mapping[str, Any], path: Path) -> None:
        self._kinds[type(thing)] = None
        self._attributes.setdefault(id(thing), (type(thing), attributes, path))
        if not isinstance(thing, _KEPT):
            self._objects.setdefault(id(thing), (thing, path))
            if type(attributes) is dict and not isinstance(thing, threading.local):
                self._with_dictionary.add(id(thing))

    def add_weak(self, weak: weakref.ref[Any], path: Path) -> None:
        """Of the object behind it only numbers and texts are guarded: nothing is held for that."""
        behind, kind = Behind(weak), type(weak())
        self._kinds[kind] = None
        self._weak.append((kind, behind, path))

    def add_partial(self, partial: functools.partial[Any], path: Path) -> None:
        self.callables.setdefault(id(partial), (partial, path))
        self.add_container(partial.keywords, path)

    def add_container(self, container: dict[Any, Any] | list[Any], path: Path) -> None:
        self._containers.setdefault(id(container), (container, path))

    def places(self, leading: Container[int]) -> GuardSet:
        """The guards on all that was met. ``leading`` has the ids of objects that lead to tensors:
        callables among them are not guarded, since others of their type may take their places."""
        found, often_new = _Found(leading), self._replaced()
        self._add_contents(found, often_new)
        on_the_way = {path[:end] for _, paths in (*found.held.values(), *found.counts.values())
                      for path in paths.values() for end in range(len(path))}
        self._watch(on_the_way, often_new)
        on_the_way.update(path[:end] for path, stand in self._stands.items()
                          if id(stand.thing) in leading for end in range(len(path)))
        self._objects = {number: (thing, path) for number, (thing, path) in self._objects.items()
                         if path in on_the_way or number in leading}
        self._add_classes(found)
        for read in self._reads.values():
            if read.name in read.holder:
                found.add(read.holder, [(read.name, read.holder[read.name])], read.path[:-1])
        self._add_variables(found)
        return GuardSet([*found.held.values(), *found.counts.values()])

    def _add_contents(self, found: _Found, often_new: Mapping[Path, StandsNow]) -> None:
        """Of containers and objects."""
        unread, hidden_by = self._unread(), functools.cache(self._named_in_class)
        for container, path in self._containers.values():
            if _leads_through(path, unread):
                continue
            holder = often_new.get(path, container)
            if len(container) <= MOST_ITEMS:
                found.add(holder, _items(container), path)
            else:
                found.add_contents(container, (*path, ITEMS))
            found.add_order(holder, (*path, LENGTH))
        for kind, attributes, path in self._attributes.values():
            if _leads_through(path, unread):
                continue
            found.add(attributes, self._named(attributes, kind), path)
            self.hiding += [(path, (own, name)) for own in [_own_attributes(attributes)]
                            for name in hidden_by(kind) if name not in own]
        for kind, behind, path in self._weak:
            found.add(behind, ((name, value) for name, value in self._named(behind, kind)
                               if is_plain(value)), path)
        self.hiding += [place for kind in self._kinds for name in hidden_by(kind)
                        for place in _hidden_in_class(kind, name)]

    def _add_classes(self, found: _Found) -> None:
        for kind in {base: None for met in self._kinds for base in met.__mro__}:
            if not is_library_base(kind):
                shown = vars(kind)
                self._classes[id(shown)] = kind
                found.add(shown, self._named(shown, kind), ("", f"class {kind.__name__}"))

    def _add_variables(self, found: _Found) -> None:
        """Of functions; of a library's those in which another function stands."""
        cells: dict[int, tuple[types.CellType, Path]] = {}
        for function, path in {**self._methods, **self._functions, **self._wrappers}.items():
            variables, is_wrapper = Variables(function), function in self._wrappers
            if not is_wrapper:
                found.add(variables.globals, ((name, value) for name, value in variables.items()
                                              if name not in variables.cells),
                          ("", function.__module__))
            for name, cell in variables.cells.items():
                inner = variables.get(name, cell)
                if found.is_wanted(inner) and (
                        not is_wrapper or isinstance(inner, types.FunctionType)):
                    cells.setdefault(id(cell), (cell, (*path, name)))
        found.add_cells(list(cells.values()))

    def looked_at(self) -> list[tuple[Any, Path]]:
        """The attributes of objects, and the containers, that were met, with the way to each."""
        return [*((attributes, path) for _, attributes, path in self._attributes.values()),
                *self._containers.values()]

    def settable(self, holder: Any) -> Any:
        """A holder of what was found, or another one of the same, whose items can be set."""
        kind = self._classes.get(id(holder))
        return holder if kind is None else OfClass(kind)

    def kinds(self) -> list[tuple[Path, Any, type]]:
        """The classes of these objects."""
        return [(path, thing, type(thing)) for thing, path in self._objects.values()]

    def given(self) -> list[tuple[Path, tuple[Lookup, Any]]]:
        """What callables that were met are made of, and the dictionaries of objects on the way to
        guarded values and tensors; others may be put there. Asked after places()."""
        found = [(path, (Given(thing), name)) for thing, path in self.callables.values()
                 for name in given_to(thing)]
        found += [(path, (Given(thing), "__dict__")) for number, (thing, path)
                  in self._objects.items() if number in self._with_dictionary]
        return [(path, (lookup, lookup[0][lookup[1]])) for path, lookup in found]

    def _watch(self, on_the_way: Container[Path], often_new: Container[Path]) -> None:
        things = {id(stand.thing) for path, stand in self._stands.items() if path in on_the_way}
        self.watched = {path: stand for path, stand in self._stands.items()
                        if id(stand.thing) in things and path not in often_new}

    def _replaced(self) -> dict[Path, StandsNow]:
        """By path, whatever stands where a program puts new containers; not where one stands in
        several places."""
        if not self._often_new:
            return {}
        times = collections.Counter(id(stand.thing) for stand in self._stands.values())
        return {path: StandsNow(stand.holder, stand.key, type(stand.thing))
                for path in self._often_new if (stand := self._stands.get(path)) is not None
                and times[id(stand.thing)] == 1 and is_often_new(stand.thing)}

    def _named_in_class(self, kind: type) -> list[str]:
        """What an attribute of an object itself would hide."""
        names = {name: value for base in reversed(kind.__mro__) if not is_library_base(base)
                 for name, value in self._named(vars(base), base) if not name.startswith("__")}
        return [name for name, value in names.items() if not hasattr(type(value), "__set__")]

    def _named(self, attributes: Mapping[str, Any], kind: type) -> Iterator[tuple[str, Any]]:
        hidden = of_base(kind)
        return ((name, value) for name in attributes
                if self._is_named(name) and name not in hidden
                and self._may_be(value := attributes[name], name))

    def _may_be(self, value: Any, name: str) -> bool:
        """Whether code may read this value by this name: what it only calls is no number or text,
        or the step would have failed."""
        return may_be_read(name, self._read) or not is_plain(value) or callable(value)

    @property
    def only_called(self) -> set[str]:
        return self.names - self._read

    def may_be_read(self, name: str) -> bool:
        """Whether code may read an attribute of this name; asked after follow_names()."""
        return may_be_read(name, self.names)

    def _is_named(self, name: str) -> bool:
        return _is_among(name, self.names)

    def _unread(self) -> set[Path]:
        """Paths of objects that stand only in attributes which no code names."""
        dictionaries = {id(attributes) for _, attributes, _ in self._attributes.values()}

        def may_be_read(stand: Stand) -> bool:
            is_attribute = isinstance(stand.holder, Slotted) or id(stand.holder) in dictionaries
            return not is_attribute or self.may_be_read(stand.key)

        read = {id(stand.thing) for stand in self._stands.values() if may_be_read(stand)}
        return {path for path, stand in self._stands.items() if id(stand.thing) not in read}

    def follow_names(self) -> None:
        """Follows names to methods, whose code names more, until nothing new is found. In
        configurations and variables of methods only what is named is looked at. To be called
        after the walk, and before anything that depends on names."""
        reached = self._methods
        looked_at: set[tuple[int, str]] = set()
        known = -1
        while known != len(self.names) + len(self._kinds) + len(self._attributes):
            self._follow_dotted_names()
            for _, attributes, _ in list(self._attributes.values()):
                self._add_told(attributes.values())
            for container, _ in self._containers.values():
                if len(container) <= MOST_ITEMS:
                    self._add_told(value for _, value in _items(container))
            known = len(self.names) + len(self._kinds) + len(self._attributes)
            for kind in list(self._kinds):
                self._look_at_class(kind)
                methods = self._methods_of(kind)
                for method in [method for name in methods if self._is_named(name)
                               for method in methods[name] if method not in reached]:
                    reached[method] = ("", f"class {kind.__name__}", method.__name__)
                    self._add_code(method)
                    variables = Variables(method)
                    for name, value in variables.items():
                        self._look_at(variables, name, ("", method.__module__, name), value)
            for thing, (kind, attributes, path) in list(self._attributes.items()):
                for name, value in list(self._named(attributes, kind)):
                    if (thing, name) not in looked_at:
                        looked_at.add((thing, name))
                        self._look_at(attributes, name, (*path, name), value)

    def _look_at_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_users(base.__module__) and not is_library_base(base):
                for name, value in list(self._named(vars(base), base)):
                    self._look_at(vars(base), name, ("", f"class {base.__name__}", name), value)

    def _follow_dotted_names(self) -> None:
        """And to the functions behind these and behind variables, which name more."""
        while self._unread_code:
            function = self._unread_code.pop()
            for name, value in Variables(function).items():
                self._add_run_by(value, ("", function.__module__, name))
            for read in self._dotted.read_by(function):
                place = id(read.holder), read.name
                if place not in self._reads:
                    self._reads[place] = read
                    self._add_run_by(read.value, read.path)
                    self._look_at(read.holder, read.name, read.path, read.value)

    def _add_run_by(self, value: Any, path: Path) -> None:
        for function in run_by(value):
            if function not in self._functions and function not in self._methods:
                self.add_function(function, path)
                for name, holder, key in parts_of_function(function):
                    self._look_at(holder, key, ("", function.__module__, name), holder[key])

    def _look_at(self, holder: Any, key: str, path: Path, value: Any) -> None:
        if type(value) in (dict, list):
            self.add_container(value, path)
        elif isinstance(value, _OTHERS_MATTERS) or not may_enter(value):
            return
        else:
            self.add_object(value, attributes_of(value), path)
        self._stands.setdefault(path, Stand(holder, key, value))


def may_be_read(name: str, names: Container[str]) -> bool:
    """Whether code that mentions these names may read an attribute of this one."""
    return _ANY_NAME in names or _is_among(name, names)


def _is_among(name: str, names: Container[str]) -> bool:
    """Also as f"name{number}"."""
    return name in names or (name[-1:] in string.digits and name.rstrip(string.digits) in names)


def _hidden_in_class(kind: type, name: str) -> Iterator[tuple[Path, Lookup]]:
    """Classes that come before the one that has it."""
    for base in kind.__mro__:
        if name in vars(base):
            return
        yield ("", f"class {base.__name__}"), (vars(base), name)


def _own_attributes(attributes: Any) -> Any:
    return found_in(attributes.thing, "__dict__", {}) if isinstance(attributes, Slotted) \
        else attributes


class _Found:
    """The guarded values found so far, by the ids of their holders."""

    def __init__(self, leading: Container[int]) -> None:
        self.held: dict[int, tuple[Any, dict[Any, Path]]] = {}
        self.counts: dict[int, tuple[Any, dict[Any, Path]]] = {}
        self._leading = leading

    def is_wanted(self, value: Any) -> bool:
        return is_guarded(value) and id(value) not in self._leading

    def add(self, holder: Any, items: Iterable[tuple[Any, Any]], path: Path) -> None:
        for key, value in items:
            if self.is_wanted(value):
                self.held.setdefault(id(holder), (holder, {}))[1][key] = (*path, key)

    def add_contents(self, container: dict[Any, Any] | list[Any], path: Path) -> None:
        holder = Contents(container)
        self.held[id(holder)] = holder, {"": path}

    def add_order(self, holder: Any, path: Path) -> None:
        self.counts[id(holder)] = holder, {ORDER: path}

    def add_cells(self, cells: Sequence[tuple[types.CellType, Path]]) -> None:
        if cells:
            holder = Cells([cell for cell, _ in cells])
            self.held[id(holder)] = holder, dict(enumerate(path for _, path in cells))


def _leads_through(path: Path, some: Container[Path]) -> bool:
    return any(path[:end] in some for end in range(1, len(path) + 1))


def _items(container: dict[Any, Any] | list[Any]) -> Iterable[tuple[Any, Any]]:
    return list(container.items()) if isinstance(container, dict) else enumerate(container)
