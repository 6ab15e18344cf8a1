# SPDX-License-Identifier: Apache-2.0
"""Mappings over what holds tensors and is no dictionary: the variables of a function, and the
attributes of classes and of objects with ``__slots__``.

Threads: as what is held. Failure: KeyError where there is nothing.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from anabranch._record.quick import OF_FUNCTIONS
from anabranch._record.state.bytecode import Operation, operations

CELL = object()  # in the place of a key: what is in a cell
Lookup = tuple[Any, Any]  # holder and key


class Variables(MutableMapping[str, Any]):
    """Variables that a function uses and that are not local to it: those of its closure, and the
    globals that it names."""

    def __init__(self, function: types.FunctionType) -> None:
        self.globals, self.code = function.__globals__, function.__code__
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (),
                              strict=True))
        self._names = [*self.cells, *(name for name in dict.fromkeys(named_in(function.__code__))
                                      if name not in self.cells)]

    def __getitem__(self, name: str) -> Any:
        if name not in self.cells:
            return self.globals[name]
        try:
            return self.cells[name].cell_contents
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.cells:
            self.cells[name].cell_contents = value
        else:
            self.globals[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self.cells:
            del self.cells[name].cell_contents
        else:
            del self.globals[name]


def place_of(lookup: Lookup) -> Lookup:
    """For variables of a function and of closures, the cell or the globals that hold them: looking
    these up calls no Python code."""
    holder, key = lookup
    if isinstance(holder, Cells):
        return holder.cells[key], CELL
    if not isinstance(holder, Variables):
        return lookup
    return (holder.cells[key], CELL) if key in holder.cells else (holder.globals, key)


class Slotted(MutableMapping[str, Any]):
    """The attributes of an object whose class has ``__slots__``, and those of its dictionary if it
    has one."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self.thing, name)
        except AttributeError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        names = (*slots_of(self.thing), *found_in(self.thing, "__dict__", ()))
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.thing, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.thing, name)


class Given:
    """What may be put into a thing as a whole, by the names of its attributes: code and defaults of
    functions, what a partial calls, the bases of a class, the dictionary of an object."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __getitem__(self, name: str) -> Any:
        return object.__getattribute__(self.thing, name)


OF_PARTIALS = ("func", "args", "keywords")


def given_to(thing: Any) -> tuple[str, ...]:
    """The names of what a function or a partial is made of."""
    return OF_FUNCTIONS if isinstance(thing, types.FunctionType) else \
        OF_PARTIALS if isinstance(thing, functools.partial) else ()


class Behind(MutableMapping[str, Any]):
    """The attributes of the object behind a weak reference, which it does not keep alive."""

    def __init__(self, weak: weakref.ref[Any]) -> None:
        self._weak = weak

    def _now(self) -> MutableMapping[str, Any]:
        thing = self._weak()
        return attributes_of(thing) if may_enter(thing) else {}

    def __getitem__(self, name: str) -> Any:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __setitem__(self, name: str, value: Any) -> None:
        self._now()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._now()[name]

    def told(self, name: str) -> tuple[type, Any]:
        value = self[name]
        return type(value), value


class StandsNow:
    """Whatever list or dictionary stands in a place now, of the kind that stood there. KeyError
    where none does."""

    def __init__(self, holder: Any, key: Any, kind: type) -> None:
        self.place, self.kind = (holder, key), kind

    def __getitem__(self, key: Any) -> Any:
        return self.now()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.now()[key] = value

    def __len__(self) -> int:
        return len(self.now())

    def now(self) -> Any:
        holder, key = self.place
        thing = holder[key]
        if type(thing) is not self.kind:
            raise KeyError(key)
        return thing


class OfClass(MutableMapping[str, Any]):
    """The attributes of a class itself, none of those that it inherits."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __getitem__(self, name: str) -> Any:
        return vars(self.kind)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(vars(self.kind)))

    def __len__(self) -> int:
        return len(vars(self.kind))

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.kind, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.kind, name)


_OF_VARIABLES = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME",
                 "DELETE_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


@functools.lru_cache(4096)
def named_in(code: types.CodeType) -> tuple[str, ...]:
    """The names in a function's code and in that of functions inside it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return (*code.co_names, *(name for constant in inner for name in named_in(constant)))


def found_in(thing: Any, name: str, default: Any = None) -> Any:
    """The attribute that an object or its class has, without code of theirs: one that is made when
    it is asked for, as of lazy modules, may import something or fail."""
    of_kind: Any = type(thing).__getattribute__  # one of C's, as of threading.local, is its own
    get = object.__getattribute__ if isinstance(of_kind, types.FunctionType) else of_kind
    try:
        return get(thing, name)
    except AttributeError:
        return default


def slots_of(thing: Any) -> tuple[str, ...]:
    kind: type = type(thing)
    return _slots_in_class(kind)


@functools.lru_cache(1024)
def _slots_in_class(kind: type) -> tuple[str, ...]:
    named = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for names in named for name in ([names] if isinstance(names, str) else names)]
    return tuple([name for name in names if not name.startswith("__")])


# logging: a logger keeps in itself what it has been asked, and leads to all others.
_DONT_ENTER = ("torch", "builtins", "typing", "collections", "functools", "numpy", "anabranch",
               "logging")


def may_enter(thing: Any) -> bool:
    """Whether it is an object of the user's, with attributes."""
    if isinstance(thing, (type, types.ModuleType)):
        return False
    if found_in(thing, "__dict__") is None and not slots_of(thing):
        return False
    return not is_librarys(type(thing).__module__)


def is_librarys(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in _DONT_ENTER


def module_of(function: types.FunctionType) -> str:
    """The module in which its code stands; a wrapper may have taken another name."""
    return str(function.__globals__.get("__name__", ""))


def attributes_of(thing: Any) -> Any:
    return Slotted(thing) if slots_of(thing) else vars(thing)


def is_library_base(kind: type) -> bool:
    """Whether its methods read nothing of the user's: those of torch's optimizers read groups,
    whose numbers are guarded by themselves, and those of recorded modules lead to the model's."""
    return kind is nn.Module or kind in torch.Tensor.__mro__ \
            or kind.__module__ == "anabranch._record.recorded_module" or (
        issubclass(kind, (torch.optim.Optimizer, torch.Tensor)) and is_librarys(kind.__module__))


class Cells:
    """Variables of closures, by index."""

    def __init__(self, cells: Sequence[types.CellType]) -> None:
        self.cells = cells

    def __getitem__(self, number: int) -> Any:
        return self.cells[number].cell_contents

    def __setitem__(self, number: int, value: Any) -> None:
        self.cells[number].cell_contents = value


@functools.lru_cache(4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """The attributes that code names, and texts in it that may be such names: getattr(self,
    "scale")."""
    return frozenset((*_attributes_in(code), *filter(str.isidentifier, _texts_in(code.co_consts))))


@functools.lru_cache(4096)
def only_called_in(code: types.CodeType) -> frozenset[str]:
    """Those that code names only to call them, and catches nothing that this may raise."""
    called, read = set[str](), set[str](_texts_in(code.co_consts))
    for name, is_called in _attributes_in(code).items():
        (called if is_called else read).add(name)
    return frozenset(called - read)


@functools.lru_cache(4096)
def _attributes_in(code: types.CodeType) -> dict[str, bool]:
    """The attributes that a function's code names, and that of functions inside it; and whether
    each is only called, where nothing is caught."""
    found: dict[str, bool] = {}
    catches = False
    for one in operations(code):
        catches |= one.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH")
        if one.is_of_name and one.opname not in _OF_VARIABLES:
            found[one.named] = _is_called(one) and found.get(one.named, True)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for name, is_called in _attributes_in(constant).items():
                found[name] = is_called and found.get(name, True)
    return dict.fromkeys(found, False) if catches else found


def _is_called(one: Operation) -> bool:
    return one.opname == "LOAD_METHOD" or (
        one.opname == "LOAD_ATTR" and sys.version_info >= (3, 12) and bool(one.arg & 1))


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, (tuple, frozenset)):
            yield from _texts_in(constant)
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant.co_consts)


def methods_of(kind: type) -> dict[str, list[types.FunctionType]]:
    """By their names, those that it overrides as well: these may be called by the others."""
    found: dict[str, list[types.FunctionType]] = {}
    for base in kind.__mro__:
        if not is_library_base(base):
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
        value = found_in(value, "__wrapped__")


def numbered(things: tuple[Any, ...], name: Callable[[int], Any] = int) -> Iterator[Any]:
    return ((name(i), things, i) for i in range(len(things)))


def parts_of_function(function: types.FunctionType) -> Iterator[tuple[Any, Any, Any]]:
    compiled = getattr(function, "_torchdynamo_orig_callable", None)
    if compiled is not None:  # what else is in it is the compiler's
        yield "compiled", (compiled,), 0
        return
    variables = Variables(function)
    yield from ((name, variables, name) for name in variables)
    yield from numbered(function.__defaults__ or (), "default {}".format)
    for name in function.__kwdefaults__ or {}:
        yield f"default {name}", function.__kwdefaults__, name
