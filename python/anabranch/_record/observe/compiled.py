# SPDX-License-Identifier: Apache-2.0
"""The code that torch.compile has compiled, which runs no more: what it reads was frozen when it
was compiled, under guards of Dynamo that a launch does not ask.

That is the code of functions and modules that are compiled, and what this calls by name, as far as
it is Python. Threads: any. Failure: none.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from anabranch import _compat
from anabranch._record.observe.names import Chain, chains_of
from anabranch._record.observe.observer import Ran
from anabranch._record.state.dotted import is_users
from anabranch._record.state.namespaces import found_in

_MOST = 4096  # functions


def code_behind(things: Iterable[Any]) -> Iterator[Ran]:
    """``things`` are what a step leads to."""
    waiting = [function for thing in things
               for function in _functions_in(_compat.compiled_from(thing))]
    known: set[types.CodeType] = set()
    while waiting and len(known) < _MOST:
        function = waiting.pop()
        if function.__code__ not in known:
            known.add(function.__code__)
            ran = Ran.of_function(function)
            yield ran
            waiting += [called for chain in chains_of(ran.code)
                        for called in _functions_in(_value_of(chain, ran))]


def _functions_in(thing: Any) -> Iterator[types.FunctionType]:
    """A function of Python's; those of a method and its object, of all modules in a module, and of
    an object or a class of the user's."""
    if isinstance(thing, types.MethodType):
        yield from _functions_in(thing.__func__)
        thing = thing.__self__
    if isinstance(thing, types.FunctionType):
        if not _compat.is_compilers(str(thing.__globals__.get("__name__", ""))):
            yield thing
    elif isinstance(thing, nn.Module):
        for kind in {type(module): None for module in thing.modules()}:
            yield from _functions_of(base for base in kind.__mro__
                                     if base is not nn.Module and issubclass(base, nn.Module))
    else:
        kind = thing if isinstance(thing, type) else type(thing)
        yield from _functions_of(base for base in kind.__mro__ if is_users(base.__module__))


def _functions_of(kinds: Iterable[type]) -> Iterator[types.FunctionType]:
    for kind in kinds:
        for value in vars(kind).values():
            value = found_in(value, "__func__", value)  # noqa: PLW2901
            if isinstance(value, types.FunctionType):
                yield value


def _value_of(chain: Chain, ran: Ran) -> Any:
    value = ran.variable(chain)
    for name in chain.attributes:
        if not isinstance(value, (types.ModuleType, type)):
            return None
        value = vars(value).get(name)
    return value
