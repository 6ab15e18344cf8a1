# SPDX-License-Identifier: Apache-2.0
"""What holds tensors and is no dictionary, as one, as far as the walk needs that: the variables of a
function, and the attributes of objects with slots.

Threads: as what is held. Failure: KeyError where there is nothing.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any


class Cell:
    """A closure's cell as something with one key."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __getitem__(self, _: Any) -> Any:
        return self._cell.cell_contents


class Variables:
    """Those of a function that are not its own: its closure's, and the globals that it names. As a
    dictionary, as far as that is needed."""

    def __init__(self, function: types.FunctionType) -> None:
        self._globals = function.__globals__
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (),
                               strict=True))
        self._names = [name for name in names_in(function.__code__) if name not in self._cells]

    def items(self) -> list[tuple[str, Any]]:
        found = [(name, cell.cell_contents) for name, cell in self._cells.items() if _is_full(cell)]
        return [*found, *((name, self._globals[name]) for name in self._names
                          if name in self._globals)]

    def get(self, name: str, default: Any) -> Any:
        return dict(self.items()).get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._cells:
            self._cells[name].cell_contents = value
        else:
            self._globals[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._cells:
            del self._cells[name].cell_contents
        else:
            del self._globals[name]


class Slotted:
    """The attributes of an object whose class has ``__slots__``, and those of its dictionary if it
    has one; as a dictionary, as far as that is needed."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._thing, name)
        except AttributeError:
            raise KeyError(name) from None

    def items(self) -> list[tuple[str, Any]]:
        names = [*slots_of(type(self._thing)), *getattr(self._thing, "__dict__", ())]
        return [(name, getattr(self._thing, name)) for name in names if hasattr(self._thing, name)]

    def get(self, name: str, default: Any) -> Any:
        return getattr(self._thing, name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._thing, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self._thing, name)


def _is_full(cell: types.CellType) -> bool:
    try:
        cell.cell_contents
    except ValueError:
        return False
    return True


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


@functools.lru_cache(1024)
def slots_of(kind: type) -> tuple[str, ...]:
    named = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for names in named for name in ([names] if isinstance(names, str) else names)]
    return tuple([name for name in names if not name.startswith("__")])
