# SPDX-License-Identifier: Apache-2.0
"""What code reads by dotted names of modules, classes and functions: ``settings.RATE``,
``Config.rate``, ``utils.rotate``.

The walk does not enter these, which lead to all of a program. Their names are followed where they
stand in code. Only what is the user's own is looked into: no library of Python's, and nothing that
is installed beside torch.

Threads: any. Failure: none.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, MutableMapping
from pathlib import PurePath
from typing import Any, NamedTuple

import torch

from anabranch._record.state.bytecode import operations
from anabranch._record.state.namespaces import Variables, is_library_base, is_librarys, module_of
from anabranch._record.state.paths import Path

_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PRECALL", "PUSH_NULL", "NOP", "COPY_FREE_VARS")
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_OF_GRADIENTS = ("forward", "backward", "setup_context", "jvp", "vmap")


class DottedRead(NamedTuple):
    """A value that code reads from a holder; the path is made of the names in the code."""

    holder: MutableMapping[str, Any]
    name: str
    value: Any
    path: Path


class Inherited(MutableMapping[str, Any]):
    """The attributes of a class, and those that it inherits from classes of the user's."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def owner_of(self, name: str) -> Any:
        """The attributes of the class that has it."""
        return vars(self._owner_of(name))

    def _owner_of(self, name: str) -> type:
        for base in self._kind.__mro__:
            if name in vars(base) and not is_library_base(base):
                return base
        raise KeyError(name)

    def __getitem__(self, name: str) -> Any:
        return vars(self._owner_of(name))[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._owner_of(name), name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._owner_of(name), name)

    def __iter__(self) -> Iterator[str]:
        return iter({name: None for base in self._kind.__mro__ if not is_library_base(base)
                     for name in vars(base)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


class DottedNames:
    """Has one holder for each class."""

    def __init__(self) -> None:
        self._of_class: dict[type, Inherited] = {}

    def read_by(self, function: types.FunctionType) -> Iterator[DottedRead]:
        """What a function of the user's reads by dotted names."""
        variables = Variables(function)
        for variable, *names in chains_in(function.__code__):
            value, path = variables.get(variable), Path(("", variable))
            for name in names:
                holder = self._holder_of(value)
                if holder is None or name not in holder:
                    break
                value, path = holder[name], (*path, name)
                yield DottedRead(holder, name, value, path)

    def _holder_of(self, thing: Any) -> MutableMapping[str, Any] | None:
        """Of a module, a class or a function of the user's; None of anything else."""
        if isinstance(thing, types.ModuleType):
            return vars(thing) if is_users(thing.__name__) else None
        if isinstance(thing, type):
            return self._of_class.setdefault(thing, Inherited(thing)) \
                if is_users(thing.__module__) else None
        if isinstance(thing, types.FunctionType):
            return vars(thing) if is_users(module_of(thing)) else None
        return None


def run_by(value: Any) -> Iterator[types.FunctionType]:
    """Functions of the user's that are run where code names this. A function of autograd is named
    by its class, or by its ``apply``."""
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)) \
            and isinstance(value.__self__, type):
        value = value.__self__
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        if is_users(module_of(value)):
            yield value
    elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
        of_class = Inherited(value)
        for name in _OF_GRADIENTS:
            if name in of_class:
                yield from run_by(of_class[name])


@functools.lru_cache(1024)
def is_users(module: str) -> bool:
    """Whether a module is neither Python's own nor installed beside torch."""
    top = module.partition(".")[0]
    if is_librarys(top) or top in sys.stdlib_module_names:
        return False
    found = sys.modules.get(top)
    places = [getattr(found, "__file__", None), *getattr(found, "__path__", ())]
    return not any(place and not _INSTALLED.isdisjoint(PurePath(place).parts) for place in places)


@functools.lru_cache(4096)
def chains_in(code: types.CodeType) -> frozenset[tuple[str, ...]]:
    """A variable and the attributes that are read from there one behind the other, for each place
    in a function's code and in that of functions inside it."""
    found: set[tuple[str, ...]] = set()
    chain: tuple[str, ...] = ()
    for one in operations(code):
        if one.opname in _VARIABLES:
            chain = (one.named,)
        elif chain and one.opname in _ATTRIBUTES:
            chain = (*chain, one.named)
            found.add(chain)
        elif one.opname not in _BETWEEN:
            chain = ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= chains_in(constant)
    return frozenset(found)
