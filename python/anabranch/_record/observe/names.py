# SPDX-License-Identifier: Apache-2.0
"""Which variables a function's code reads, and which attributes of them.

Threads: any. Failure: none.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple

from anabranch._record.state.bytecode import operations

_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PRECALL", "PUSH_NULL", "NOP", "COPY_FREE_VARS",
            "INSTRUMENTED_LOAD_ATTR")


class Chain(NamedTuple):
    """A variable, and the attributes that are read from there one after the other."""

    variable: str
    is_global: bool
    attributes: tuple[str, ...]


@functools.lru_cache(8192)
def chains_of(code: types.CodeType) -> tuple[Chain, ...]:
    """What code reads by itself, without the functions that it defines. The longest chains only."""
    found: dict[Chain, None] = {}
    chain: Chain | None = None
    for one in operations(code):
        if one.opname in _ATTRIBUTES and chain is not None:
            found.pop(chain, None)
            chain = chain._replace(attributes=(*chain.attributes, one.named))
        elif one.opname in _GLOBALS or one.opname in _FREE:
            chain = Chain(one.named, one.opname in _GLOBALS, ())
        elif one.opname in _BETWEEN:
            continue
        else:
            chain = None
        if chain is not None:
            found[chain] = None
    return tuple(found)


# Methods that change a collection, and answer nothing of what is in it.
_CHANGING = frozenset(("append", "appendleft", "extend", "extendleft", "add", "discard", "remove",
                       "clear", "insert", "update", "reverse", "rotate"))
_POPPING = frozenset(("pop", "popleft"))
_LOADS = (*_GLOBALS, *_FREE, *_ATTRIBUTES, "LOAD_FAST", "LOAD_FAST_CHECK")


def contents_read_at(code: types.CodeType, name: str) -> str | None:
    """Where code reads what is in a collection of this name: its line; empty where it only changes
    it. None where it does not name it."""
    found: str | None = None
    steps = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    line = code.co_firstlineno
    for i, one in enumerate(steps):
        line = getattr(one, "line_number", one.starts_line) or line  # the former from 3.13 on
        if one.opname in _LOADS and one.argval == name:
            found = ""
            if not _only_changes(steps[i + 1:]):
                return f"{code.co_filename.rpartition('/')[2]}:{line} in {code.co_name}"
    return found


def _only_changes(following: list[dis.Instruction]) -> bool:
    """Whether a method that changes the collection is read of it, and called."""
    if not following or following[0].opname not in _ATTRIBUTES:
        return False
    if following[0].argval in _CHANGING:
        return True
    calls = (i for i, one in enumerate(following) if one.opname.startswith("CALL"))
    call = next(calls, len(following))
    return following[0].argval in _POPPING and call + 1 < len(following) \
        and following[call + 1].opname == "POP_TOP"
