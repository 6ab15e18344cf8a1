# SPDX-License-Identifier: Apache-2.0
"""Other numbers for a capture that shall tell which words follow the numbers of a step, and how.

Two ways to make a word of a value may give the same word for the numbers of now: two numbers that
are equal, or the inverse of a double and of a float. They are told apart by a capture with numbers
for which they differ, and those for which as much as possible is rounded otherwise than now. What
each way would give is known beforehand, from the trace of a capture with the numbers of now.

Threads: pure. Failure: Unexplained.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random

from anabranch._record.numbers.encodings import CHANGES, ENCODINGS, encoded
from anabranch._record.numbers.formulas import Unexplained, distinct
from anabranch._record.numbers.noted import Constant, Entry, OtherWay, evaluate

# A number differs by such a part of it at least, and is so much smaller at most than what it was
# before.
_LEAST, _MOST = 2.0 ** -8, 0.5
_TRIES = 48  # of all numbers at once, and of each that leaves something alike
_MOST_WORK = 60_000  # entries that are evaluated, beyond the first tries
_WAYS = [(size, change, encode) for size, encodings in ENCODINGS.items()
         for change in CHANGES[size] for encode in encodings]


def numbers_apart(entries: Sequence[Entry], now: Sequence[float],
                  before: Sequence[float]) -> tuple[float, ...]:
    """Those that leave the fewest ways alike, and the fewest words as they are. ``before``: what
    they were in an earlier call. Raises Unexplained where with none of those that were tried the
    step goes the same way."""
    _, entries = distinct(entries)
    search = _Search(entries, now)
    for near in (before, now):
        if best := search.best(near):
            return best
    raise Unexplained("with a slightly different value the step goes another way")


_Way = tuple[int, int]  # an entry, and one of _WAYS
_Left = frozenset[_Way]


class _Search:
    """``_groups`` are ways that give the same word now; ``_rounded`` those whose words ought to
    differ from what they are now."""

    def __init__(self, entries: Sequence[Entry], now: Sequence[float]) -> None:
        self._entries, self._now = entries, now
        mine = [entry.value for entry in entries]
        ways = [(i, way) for i, entry in enumerate(entries) if type(entry.value) is not bool
                for way in range(len(_WAYS))]
        self._groups = _alike(mine, ways)
        self._rounded = [(way, _word(mine, way)) for way in ways if _WAYS[way[1]][1] is float]
        self._random = Random(0)

    def best(self, near: Sequence[float]) -> tuple[float, ...] | None:
        """Of some that are drawn for all numbers at once, and then for one after the other of those
        that need not leave alike what they do. None where no choice is possible."""
        drawn = [tuple(map(self._other, self._now, near)) for _ in range(_TRIES)]
        found = [(values, left) for values in drawn if (left := self._left(values)) is not None]
        if not found:
            return None
        best, least = min(found, key=lambda each: len(each[1]))
        to_blame = self._numbers_of(least - least.intersection(*(left for _, left in found)))
        tries = _MOST_WORK // (len(self._entries) * max(1, len(to_blame)))
        for i, _ in itertools.product(to_blame, range(min(_TRIES, tries))):
            values = (*best[:i], self._other(self._now[i], near[i]), *best[i + 1:])
            left = self._left(values)
            if left is not None and len(left) < len(least):
                best, least = values, left
        return best

    def _left(self, values: Sequence[float]) -> _Left | None:
        """Ways that are alike, or whose words are as they are now; None where the step goes another
        way, or where a number is nearly what it is now."""
        if any(abs(a - b) < _LEAST * max(abs(a), abs(b))
               for a, b in zip(self._now, values, strict=True)):
            return None
        try:
            found = evaluate(self._entries, values)
        except (ArithmeticError, OtherWay):
            return None
        return frozenset([*(way for group in self._groups for alike in _alike(found, group)
                            for way in alike),
                          *(way for way, word in self._rounded if _word(found, way) == word)])

    def _numbers_of(self, ways: Iterable[_Way]) -> list[int]:
        """From which these are made."""
        found, waiting = set(), {entry for entry, _ in ways}
        while waiting:
            found.add(entry := waiting.pop())
            waiting |= {operand for operand in self._entries[entry].operands
                        if not isinstance(operand, Constant)} - found
        return sorted(entry for entry in found if entry < len(self._now))

    def _other(self, value: float, near: float) -> float:
        """A little less than ``near``, or than the value where that is no size to go by."""
        near = near if near and math.isfinite(near) else value
        return near * (1.0 - self._random.uniform(_LEAST, _MOST))


def _alike(values: Sequence[float], ways: Sequence[_Way]) -> list[list[_Way]]:
    """Those ways that give the same word for these values, more than one each."""
    groups: defaultdict[tuple[int, int | None], list[_Way]] = defaultdict(list)
    for way in ways:
        groups[_word(values, way)].append(way)
    return [group for group in groups.values() if len(group) > 1]


def _word(values: Sequence[float], way: _Way) -> tuple[int, int | None]:
    """With its size."""
    size, change, encode = _WAYS[way[1]]
    return size, encoded(values[way[0]], change, encode)
