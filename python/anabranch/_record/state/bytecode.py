# SPDX-License-Identifier: Apache-2.0
"""The operations of a code object, as far as they name something. What ``dis`` tells of them takes
ten times as long, and a step may run a hundred thousand of them.

Threads: any. Failure: none. Source: Python's ``dis``, which a test holds it to.
"""

from __future__ import annotations

import dis
import functools
import sys
import types
from typing import NamedTuple

# Of which so many bits of the argument are no part of the name's number.
_FLAGS = {"LOAD_GLOBAL": 1, "LOAD_ATTR": int(sys.version_info >= (3, 12)), "LOAD_SUPER_ATTR": 2}
_EXTENDED, _CACHE = dis.EXTENDED_ARG, dis.opmap["CACHE"]
_NAMES = {op: _FLAGS.get(dis.opname[op], 0) for op in dis.hasname}
_FREE = frozenset(dis.hasfree)


class Operation(NamedTuple):
    """``named``: the attribute, or the variable that is no local one; empty where there is none.
    ``is_of_name``: it is no variable of a closure."""

    opname: str
    arg: int
    named: str = ""
    is_of_name: bool = False


@functools.lru_cache(256)  # what is made of them is kept, and much smaller
def operations(code: types.CodeType) -> tuple[Operation, ...]:
    """In order, without caches and prefixes."""
    raw, names, opname = code.co_code, code.co_names, dis.opname
    found, prefix = [], 0
    for at in range(0, len(raw), 2):
        op, arg = raw[at], raw[at + 1] | prefix
        if op == _CACHE:
            continue
        if op == _EXTENDED:
            prefix = arg << 8
            continue
        prefix = 0
        if (flags := _NAMES.get(op)) is not None:
            found.append(Operation(opname[op], arg, names[arg >> flags], True))
        elif op in _FREE:
            variable: str = code._varname_from_oparg(arg)  # type: ignore[attr-defined]
            found.append(Operation(opname[op], arg, variable))
        else:
            found.append(Operation(opname[op], arg))
    return tuple(found)
