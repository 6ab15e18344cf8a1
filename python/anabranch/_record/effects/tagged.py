# SPDX-License-Identifier: Apache-2.0
"""Numbers that a step changes, made to tell what becomes of them: ``self.steps += 1`` adds to a
counter, which a launch can do; ``if self.steps % 100 == 0`` decides by it, which a launch cannot.

In captures, a number that the plain run has changed is tagged: it has the value that a capture
gives it, and it notes the first use that is not the addition of a constant. Functions of C may read
it unseen. So each capture gives it another value, and what kernels are given of it differs between
captures.

Threads: a tag belongs to one capture. Failure: those of int's and float's own operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from anabranch._record.refusals import called_from, line_of


class Tag:
    """Of one number in one capture. ``read_at``: where it was used, "train.py:88 in step"; empty
    where it was not."""

    def __init__(self) -> None:
        self.is_read, self.read_at = False, ""

    def read(self) -> None:
        if not self.is_read:
            self.is_read = True
            frame = called_from(sys._getframe(2))
            self.read_at = line_of(frame, frame.f_lineno) if frame is not None else ""


class TaggedInt(int):
    tag: Tag

    def __reduce__(self) -> Any:
        self.tag.read()
        return int, (int.__int__(self),)


class TaggedFloat(float):
    tag: Tag

    def __reduce__(self) -> Any:
        self.tag.read()
        return float, (float.__float__(self),)


def tagged(value: int | float, tag: Tag) -> TaggedInt | TaggedFloat:
    made = TaggedInt(value) if type(value) is int else TaggedFloat(value)
    made.tag = tag
    return made


def _reading(kind: type, name: str) -> Callable[..., Any]:
    plain = getattr(kind, name)

    def method(self: Any, *others: Any) -> Any:
        self.tag.read()
        return plain(self, *others)

    return method


def _counting(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: TaggedInt, other: Any) -> Any:
        if type(other) is not int:
            self.tag.read()
            return plain(self, other)
        return tagged(plain(self, other), self.tag)

    return method


_NOT_USES = {"__new__", "__init__", "__init_subclass__", "__class__", "__getattribute__",
             "__setattr__", "__delattr__", "__reduce__", "__reduce_ex__", "__doc__", "__dir__",
             "__subclasshook__", "__getnewargs__", "__sizeof__", "__getstate__", "__getformat__",
             "__setformat__", "from_bytes", "fromhex"}
for _kind, _tagged in ((int, TaggedInt), (float, TaggedFloat)):
    for _name in dir(_kind):
        if _name not in _NOT_USES and callable(getattr(_kind, _name)):
            setattr(_tagged, _name, _reading(_kind, _name))
for _name in ("__add__", "__radd__", "__sub__"):
    setattr(TaggedInt, _name, _counting(_name))
