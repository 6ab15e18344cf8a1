# SPDX-License-Identifier: Apache-2.0
"""Lists of integers in a capture that is to serve others: what torch makes of one is a table.

``torch.tensor(positions, device="cuda")`` and ``x[positions]`` take their numbers from a tensor on
the CPU that the capture has in the list's place (host_tables). Whatever else looks into such a list
finds what is in it, and is noted: the capture is refused then. Nothing raises inside of a list,
since C does not always expect that. What C finds there without asking are no numbers.

Threads: one capture at a time; other threads' calls go their own way. Failure: NotRecordable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from anabranch._record.capture.replaced import of_pythons_things, replaced
from anabranch._record.refusals import Cause, NotRecordable

# By which Python looks into a list or changes it; how long it is may be asked.
_LOOKING = ("__iter__", "__getitem__", "__contains__", "__eq__", "__ne__", "__lt__", "__le__",
            "__gt__", "__ge__", "__add__", "__mul__", "__rmul__", "__repr__", "__reversed__",
            "index", "count", "copy", "__setitem__", "__delitem__", "__iadd__", "__imul__",
            "append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort")
_KINDS = (torch.int64, torch.int32, torch.float64, torch.float32)  # that have all of the numbers
_LOOKS = "it looks at the numbers of a list in Python"
_numbers_of: Callable[[Tensor], list[int]] = Tensor.tolist  # which nobody has replaced


class NotedList(list[Any]):
    """``table`` has the numbers, int64. Behind the capture it is a list like any other."""

    def __init__(self, table: Tensor, looks: list[str]) -> None:
        super().__init__([object()] * len(table))
        self.table = table
        self._numbers: list[int] | None = _numbers_of(table)
        self._looks = looks

    def end(self) -> None:
        """Of the capture: somebody may have kept it."""
        if self._numbers is not None:
            list.__init__(self, self._numbers)
            self._numbers = None

    def inside(self) -> list[int]:
        """What is in it, for somebody who looks."""
        if self._numbers is None:
            return self
        self._looks.append(_LOOKS)
        return self._numbers

    def __radd__(self, other: list[Any]) -> list[Any]:
        return other + self.inside()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copies are ordinary lists."""
        return list, ([*self.inside()],)


def _looking(name: str) -> Callable[..., Any]:
    original = getattr(list, name)

    @functools.wraps(original)
    def method(self: NotedList, *args: Any, **kwargs: Any) -> Any:
        args = tuple(one.inside() if isinstance(one, NotedList) else one for one in args)
        return original(self.inside(), *args, **kwargs)

    return method


for _name in _LOOKING:
    setattr(NotedList, _name, _looking(_name))


class _Capture:
    """The lists of the capture that goes on, and who has looked into them."""

    def __init__(self) -> None:
        self.lists: list[NotedList] = []
        self.looks: list[str] = []


_current = _Capture()


def noted(table: Tensor) -> NotedList:
    """In the place of a list of so many numbers, while a step is captured."""
    made = NotedList(table, _current.looks)
    _current.lists.append(made)
    return made


@contextlib.contextmanager
def lists_noted() -> Iterator[None]:
    """Around the step. NotRecordable where something has looked into a list."""
    global _current
    before, _current = _current, _Capture()
    try:
        with replaced(of_pythons_things(_made, _opened)):
            yield
        if _current.looks:
            raise NotRecordable(_LOOKS, Cause.CHANGING_VALUE)
    except Exception as error:
        if _current.looks and not isinstance(error, NotRecordable):
            raise NotRecordable(_LOOKS, Cause.CHANGING_VALUE) from error
        raise
    finally:
        for made in _current.lists:
            made.end()
        _current = before


def _table_of(data: Any) -> Tensor | None:
    """Of a noted list, or of a list of such; None of anything else."""
    if isinstance(data, NotedList):
        return data.table
    if type(data) not in (list, tuple) or not data:
        return None
    tables = [_table_of(part) for part in data]
    found = [table for table in tables if table is not None]
    if not found:
        return None
    if len(found) < len(tables) or len({table.shape for table in found}) > 1:
        raise NotRecordable(_LOOKS, Cause.CHANGING_VALUE)
    return torch.stack(found)


def _made(data: Any, kind: torch.dtype | None, device: torch.device) -> Tensor | None:
    table = _table_of(data)
    if table is None:
        return None
    kind = kind or table.dtype
    if kind not in _KINDS:
        raise NotRecordable(f"it makes {kind} of the numbers of a list, which may be too many for "
                            "that", Cause.CHANGING_VALUE)
    return (table.to(kind) if kind is not table.dtype else table.clone()).to(device)


def _opened(part: Any) -> Any:
    return part.table if isinstance(part, NotedList) else part
