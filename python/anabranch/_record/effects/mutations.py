# SPDX-License-Identifier: Apache-2.0
"""Side effects of a step that a launch repeats, one class a kind: what a run leaves in a place,
what it adds to a number there, and by what it changes a sequence or a set.

Each answers after a run what that has left, as a tree of tensors and constants that becomes a part
of the recording's answer, and leaves such a thing there itself (``put``). ``before`` is the type of
what stood there before the recorded run.

Threads: the recorder's; launches put. Failure: NotRecordable from ``left``, with the place.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from anabranch._record.effects.holders import NOTHING, Held, put
from anabranch._record.effects.tagged import Tag, TaggedFloat, TaggedInt, tagged
from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.state.paths import Path


@dataclasses.dataclass
class Mutation:
    """Where a run binds something: a tensor, a constant, a container of these, or nothing. ``path``
    leads to the holder."""

    holder: Any
    key: Any
    path: Path
    before: type
    is_guarded: bool = False  # what stood there before stays a guard

    def get(self) -> Any:
        if isinstance(self.holder, list):
            return self.holder[self.key] if self.key < len(self.holder) else NOTHING
        return self.holder.get(self.key, NOTHING)

    def left(self) -> Any:
        """After a run: what a launch has to put."""
        return self.get()

    def put(self, value: Any) -> None:
        if value is not NOTHING or self.get() is not NOTHING:
            put(self.holder, self.key, value)

    def finds_as_before(self) -> bool:
        """Whether something of the same type stands there as before the recorded run. Python may
        have branched on it."""
        return type(self.get()) is self.before

    def bound_to(self, holder: Any) -> Mutation:
        return dataclasses.replace(self, holder=holder)

    def before_run(self, holder: Any) -> Mutation:
        """The same of this holder, before another run of the step."""
        return self.bound_to(holder)

    @property
    def place(self) -> Path:
        return *self.path, self.key

    @property
    def is_everywhere(self) -> bool:
        """Whether every state has this very holder: a class, or a module of Python."""
        return self.path[:1] == ("",)

    def __str__(self) -> str:
        names = [*self.path[1:], self.key if isinstance(self.key, (str, int)) else ""]
        return ".".join(str(name) for name in names if name != "")


@dataclasses.dataclass
class Count(Mutation):
    """Where a run changes a number: by how much it adds, or to what it sets it. Captures find it
    tagged, and tell; of what stood there before other runs, ``base``, the difference is taken."""

    tag: Tag | None = None
    base: int | float = 0

    def begin(self, number: int) -> None:
        """Before capture ``number``: puts a number there that tells what becomes of it, another one
        in each capture."""
        found = self.get()
        self.tag, self.base = Tag(), found + type(found)((64 if type(found) is int else 1) * number)
        put(self.holder, self.key, tagged(self.base, self.tag))

    def left(self) -> Any:
        now = self.get()
        tag, self.tag = self.tag, None
        is_tagged = isinstance(now, (TaggedInt, TaggedFloat))
        is_ours = is_tagged and now.tag is tag
        is_anothers = is_tagged and not is_ours  # two numbers that have changed places
        if tag is not None and (tag.is_read or is_anothers
                                or (is_ours and type(now) is TaggedFloat)):
            raise NotRecordable(Cause.PYTHON_CHANGES.because(
                f"its Python changes {self}, and decides or computes by it")._replace(
                    place=f"at {tag.read_at}" if tag.read_at else ""))
        if is_ours:
            return "added", int.__int__(now) - self.base
        if tag is None and type(now) is type(self.base) is int:
            return "added", now - self.base
        return "set", now

    def put(self, value: Any) -> None:
        how, number = value
        put(self.holder, self.key, self.get() + number if how == "added" else number)


@dataclasses.dataclass
class Grown(Mutation):
    """By what a run changes a sequence: how many items it drops at the beginning and at the end,
    and what it appends. ``before`` is the sequence's class."""

    items: list[Any] = dataclasses.field(default_factory=list)  # before each run
    is_tail: bool = False  # what is appended alone: items before have mutations of their own
    dropped: int = 0

    def get(self) -> Any:
        now, before = list(self.holder), self.items
        if self.is_tail:
            return 0, 0, now[len(before):]
        for dropped in range(len(before) + 1):
            kept = len(before) - dropped
            if list(map(id, now[:kept])) == list(map(id, before[dropped:])):
                return dropped, 0, now[kept:]
            if not dropped and len(now) < kept and list(map(id, before[:len(now)])) == \
                    list(map(id, now)):
                return 0, kept - len(now), []
        raise AssertionError("all may be dropped")

    def put(self, value: Any) -> None:
        first, last, added = value
        kept = list(self.holder)[first:len(self.holder) - last]
        if first or last:
            self.holder.clear()
            self.holder.extend(kept)
        self.holder.extend(added)

    def before_run(self, holder: Any) -> Grown:
        return dataclasses.replace(self, holder=holder, items=list(holder))

    def finds_as_before(self) -> bool:
        """Where all items were dropped, by clear() as likely as one by one, there have to be as
        many."""
        is_alike = type(self.holder) is self.before
        length = len(self.holder) if is_alike else -1
        return length == self.dropped if self.dropped == len(self.items) > 0 \
            else length >= self.dropped


@dataclasses.dataclass
class Members(Mutation):
    """What a run adds to a set and takes out of it."""

    items: frozenset[Any] = frozenset()  # before each run

    def get(self) -> Any:
        return frozenset(self.holder - self.items), frozenset(self.items - self.holder)

    def put(self, value: Any) -> None:
        added, removed = value
        self.holder.difference_update(removed)
        self.holder.update(added)

    def before_run(self, holder: Any) -> Members:
        return dataclasses.replace(self, holder=holder, items=frozenset(holder))

    def finds_as_before(self) -> bool:
        return type(self.holder) is self.before


def of_collection(held: Held) -> Grown | Members:
    if isinstance(held.before, set):
        return Members(held.holder, "", held.path, type(held.holder), items=frozenset(held.before))
    return Grown(held.holder, "", held.path, type(held.holder), items=held.before)
