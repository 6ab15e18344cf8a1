# SPDX-License-Identifier: Apache-2.0
"""Lists of integers in a capture that is to serve others: what torch makes of one is a table.

``torch.tensor(positions, device="cuda")`` and ``x[positions]`` take their numbers from a tensor on
the CPU that the capture has in the list's place (host_tables). Nothing else tells what is in such a
list: it holds objects that are no numbers, and refuses to be looked into.

Threads: one capture at a time; other threads' calls go their own way. Failure: NotRecordable.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anabranch._record.capture.replaced import StandIn
from anabranch._record.refusals import NotRecordable

# By which Python looks into a list or changes it; how long it is may be asked.
_LOOKING = ("__iter__", "__getitem__", "__contains__", "__eq__", "__ne__", "__lt__", "__le__",
            "__gt__", "__ge__", "__add__", "__radd__", "__mul__", "__rmul__", "__repr__",
            "__hash__", "__reduce_ex__", "index", "count")
_CHANGING = ("__setitem__", "__delitem__", "__iadd__", "__imul__", "__reversed__", "append",
             "extend", "insert", "pop", "remove", "clear", "copy", "reverse", "sort")
_KINDS = (torch.int64, torch.int32, torch.float64, torch.float32)  # that have all of the numbers


def _refuse(*_: Any, **__: Any) -> Any:
    raise NotRecordable("it looks at the numbers of a list in Python")


class NotedList(list[object]):
    """``table`` has the numbers, int64."""

    table: Tensor


class NotedTuple(tuple[object, ...]):
    """``table`` has the numbers, int64."""

    table: Tensor


for _name in _LOOKING:
    setattr(NotedList, _name, _refuse)
    setattr(NotedTuple, _name, _refuse)
for _name in _CHANGING:
    setattr(NotedList, _name, _refuse)


def noted(kind: type, table: Tensor) -> NotedList | NotedTuple:
    """In the place of a list, or a tuple, of so many numbers."""
    made: Any = (NotedTuple if kind is tuple else NotedList)([object()] * len(table))
    made.table = table
    return made  # type: ignore[no-any-return]


def _table_of(data: Any) -> Tensor | None:
    """Of a noted list, or of a list of such; None of anything else."""
    if isinstance(data, NotedList | NotedTuple):
        return data.table
    if type(data) not in (list, tuple) or not data:
        return None
    tables = [_table_of(part) for part in data]
    found = [table for table in tables if table is not None]
    if not found:
        return None
    if len(found) < len(tables) or len({table.shape for table in found}) > 1:
        _refuse()
    return torch.stack(found)


def stand_ins() -> list[StandIn]:
    """What takes lists of numbers, for this thread."""
    return [*((torch, name, _maker(getattr(torch, name))) for name in ("tensor", "as_tensor")),
            (Tensor, "new_tensor", _maker(Tensor.new_tensor, is_method=True)),
            *((Tensor, name, _indexer(getattr(Tensor, name)))
              for name in ("__getitem__", "__setitem__"))]


def _maker(original: Callable[..., Tensor], is_method: bool = False) -> Callable[..., Tensor]:
    mine = threading.get_ident()

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        given = dict(zip(("data", "dtype", "device"), args[is_method:], strict=False)) | kwargs
        table = _table_of(given.get("data")) if threading.get_ident() == mine else None
        if table is None:
            return original(*args, **kwargs)
        kind = given.get("dtype") or (args[0].dtype if is_method else torch.int64)
        if kind not in _KINDS:
            raise NotRecordable(f"it makes {kind} of the numbers of a list, which may be too many "
                                "for that")
        made = table.to(kind) if kind is not table.dtype else table.clone()
        return made.to(given.get("device") or (
            args[0].device if is_method else torch.get_default_device()))

    return make


def _indexer(original: Callable[..., Any]) -> Callable[..., Any]:
    mine = threading.get_ident()

    @functools.wraps(original)
    def index(of: Tensor, index: Any, *value: Any) -> Any:
        if threading.get_ident() == mine:
            if isinstance(index, NotedTuple):
                _refuse()  # a place in each dimension
            index = tuple(map(_opened, index)) if type(index) is tuple else _opened(index)
        return original(of, index, *value)

    return index


def _opened(part: Any) -> Any:
    return part.table if isinstance(part, NotedList | NotedTuple) else part
