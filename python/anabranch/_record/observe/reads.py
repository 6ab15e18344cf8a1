# SPDX-License-Identifier: Apache-2.0
"""Where the values stand that code was seen to read: variables of modules, also of torch's and of
other libraries, what is read of modules and classes by dotted names, context variables, and the
environment.

What a step's own objects hold is found by the walk (``state``), and not here. Tensors, modules and
optimizers may be replaced between launches, and are no guards. Threads: any. Failure: none.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import os
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from anabranch._record.observe.compiled import code_behind
from anabranch._record.observe.names import Chain, chains_of
from anabranch._record.observe.observer import Observer, Ran
from anabranch._record.quick import dict_behind
from anabranch._record.state.dotted import is_users
from anabranch._record.state.namespaces import OfClass, found_in, given_to, module_of, names_in
from anabranch._record.state.paths import Path
from anabranch._record.state.read_set import (
    ABSENT,
    MOVABLE,
    MadeOf,
    Namespace,
    Read,
    ReadSet,
)

_OF_TENSORS = frozenset(dir(Tensor))
_MOST_WRAPPED = 8  # one in the other
_MOST_ITEMS = 256  # of a library's table of functions that is looked into
_IN_TABLES = (types.FunctionType, types.BuiltinFunctionType, type, bool, str)


def reads_of(observer: Observer, things: Iterable[Any] = ()) -> ReadSet:
    """What code that was observed has read, and code that is compiled among ``things``, to which
    the step leads; what callables among these are made of, and the bases of their classes."""
    things = list(things)
    inputs, compiled = observer.inputs, list(code_behind(things))
    ran = [*observer.ran.values(), *compiled]
    by_names = itertools.chain.from_iterable(
        _reads_by(chain, one) for one in ran for chain in chains_of(one.code))
    variables = [value for one in compiled for chain in chains_of(one.code)
                 if type(value := one.variable(chain)) is contextvars.ContextVar]
    methods = itertools.chain.from_iterable(map(_methods, ran))
    made_of = itertools.chain.from_iterable(_made_of(one, observer.ran) for one in things)
    kinds = dict.fromkeys([*(one.of for one in ran), *map(type, things)])
    bases = itertools.chain.from_iterable(map(_bases, kinds))
    return ReadSet([*by_names, *methods, *made_of, *bases, *_of_tensors(ran),
                    *map(_environment, inputs.environment)],
                   [*inputs.variables, *variables],
                   itertools.chain.from_iterable(map(_namespaces, ran)))


def _of_tensors(ran: Iterable[Ran]) -> Iterator[Read]:
    """What the class of tensors has by the names of attributes in code."""
    names = {name for one in ran for name in names_in(one.code)}
    yield from (Read(dict_behind(vars(Tensor)), name, ("", "torch", "Tensor", name))
                for name in sorted(names & _OF_TENSORS))


def _module_of(ran: Ran) -> str:
    return str(ran.globals.get("__name__", ""))


def _methods(ran: Ran) -> Iterator[Read]:
    """Where code stands that ran as a method: in a class of its first argument, or in that which it
    is named by."""
    *names, name = ran.code.co_qualname.split(".")
    named = ran.globals.get(names[0]) if len(names) == 1 else None
    for kind in (*ran.of.__mro__, *(named.__mro__ if isinstance(named, type) else ())):
        found = vars(kind).get(name)
        for part in ("fget", "func", "__func__"):
            found = found_in(found, part, found)
        for _ in range(_MOST_WRAPPED):
            if found is not None and found_in(found, "__code__") is not ran.code:
                found = found_in(found, "__wrapped__")
        if found_in(found, "__code__") is ran.code:
            path = "", kind.__module__, kind.__name__, name
            yield Read(dict_behind(vars(kind)), name, path)
            yield from _of_callable(found, path)
            return


def _made_of(thing: Any, ran: Container[types.CodeType]) -> Iterator[Read]:
    """Of a partial, or a function that ran."""
    if isinstance(thing, functools.partial) or found_in(thing, "__code__") in ran:
        yield from _of_callable(thing, ("", getattr(thing, "__qualname__", "partial")))


def _of_callable(thing: Any, path: Path) -> Iterator[Read]:
    """Of a partial, or a function of the user's."""
    if isinstance(thing, types.FunctionType):
        if not is_users(module_of(thing)):
            return
        defaults = thing.__kwdefaults__ or {}
        yield from (Read(defaults, name, (*path, name)) for name, value in defaults.items()
                    if not isinstance(value, MOVABLE))
    yield from (Read(MadeOf(thing), name, (*path, name)) for name in given_to(thing))


def _of_backward(thing: Any, path: Path) -> Iterator[Read]:
    """What torch's C++ asks a class of a forward and a backward for."""
    if isinstance(thing, type) and issubclass(thing, torch.autograd.Function):
        name = "_backward_cls"
        yield Read(dict_behind(vars(thing)), name, (*path, name))


def _bases(kind: type) -> Iterator[Read]:
    """From which a class of the user's inherits."""
    if is_users(kind.__module__):
        yield Read(MadeOf(kind), "__mro__", ("", kind.__module__, kind.__name__, "__mro__"))


def _namespaces(ran: Ran) -> Iterator[Namespace]:
    module = _module_of(ran)
    if not is_users(module):
        return
    yield Namespace(ran.globals, ran.globals, ("", module))
    for chain in chains_of(ran.code):
        value = ran.variable(chain)
        if isinstance(value, type) and is_users(value.__module__):
            yield Namespace(dict_behind(vars(value)), OfClass(value),
                            ("", f"class {value.__name__}"))


def _environment(name: str) -> Read:
    environment: Any = os.environ
    return Read(environment._data, environment.encodekey(name), ("", "os", "environ", name))


def _reads_by(chain: Chain, ran: Ran) -> Iterator[Read]:
    module = _module_of(ran)
    path: Path = ("", module, chain.variable)
    if chain.is_global:
        read = Read(ran.globals, chain.variable, path)
        value = ran.variable(chain, ABSENT)
        if isinstance(value, MOVABLE):
            return
        yield read
        yield from _of_callable(value, path)
        yield from _of_backward(value, path)
        if value is ABSENT:
            builtins = ran.globals.get("__builtins__")
            holder = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
            if isinstance(holder, dict) and chain.variable in holder:
                yield Read(holder, chain.variable, ("", "builtins", chain.variable))
            return
    elif (value := ran.variable(chain, ABSENT)) is not ABSENT:
        yield from _of_callable(value, path)
        yield from _of_backward(value, path)
    else:
        return
    yield from _attributes(value, path, chain.attributes, is_users(module))


def _attributes(value: Any, path: Path, names: tuple[str, ...], of_users: bool) -> Iterator[Read]:
    """As far as attributes are items of dictionaries: those of modules and classes, and of objects
    that libraries have for themselves. The user's objects are the walk's."""
    for name in names:
        if isinstance(value, MOVABLE) \
                or (of_users and not isinstance(value, (types.ModuleType, type))):
            return
        path = (*path, name)
        holders = _holders_of(value, name)
        if not holders or isinstance(value := holders[-1].get(name, ABSENT), MOVABLE):
            return
        yield from (Read(holder, name, path) for holder in holders)
        if value is ABSENT or hasattr(type(value), "__get__"):
            return  # a function, or what a property answers
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        for key, item in list(value.items()):
            if isinstance(key, str) and isinstance(item, _IN_TABLES):
                yield Read(value, key, (*path, key))


def _holders_of(thing: Any, name: str) -> list[dict[str, Any]]:
    """Where the attribute is looked for: it is in the last one, and in none of those before."""
    if isinstance(thing, types.ModuleType):
        return [vars(thing)] if name in vars(thing) else []
    own = found_in(thing, "__dict__")
    is_class = isinstance(thing, type)
    if not is_class and type(own) is dict and name in own:
        return [own]
    bases = thing.__mro__ if is_class else type(thing).__mro__
    count = next((i for i, base in enumerate(bases, 1) if name in vars(base)), 0)
    holders = [dict_behind(vars(base)) for base in bases[:count]]
    return [*([own] if not is_class and type(own) is dict else []), *holders] if holders else []
