# SPDX-License-Identifier: Apache-2.0
"""Which variables a function's code reads, and which attributes of them.

Threads: any. Failure: none.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple

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
    for one in dis.get_instructions(code):
        if one.opname in _ATTRIBUTES and chain is not None:
            found.pop(chain, None)
            chain = chain._replace(attributes=(*chain.attributes, one.argval))
        elif one.opname in _GLOBALS or one.opname in _FREE:
            chain = Chain(one.argval, one.opname in _GLOBALS, ())
        elif one.opname in _BETWEEN:
            continue
        else:
            chain = None
        if chain is not None:
            found[chain] = None
    return tuple(found)
