# SPDX-License-Identifier: Apache-2.0
"""Other numbers for a capture that shall tell which words follow the numbers of a step, and how.

Two ways to make a word of a value may give the same word for the numbers of now: two numbers that
are equal, or the inverse of a double and of a float. They are told apart by a capture with numbers
for which they differ, and those for which as much as possible is rounded otherwise than now. What
each way would give is known beforehand, from the trace of a capture with the numbers of now.

Threads: pure. Failure: Unexplained.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random

from anabranch._record.numbers.formulas import CHANGES, ENCODINGS, Unexplained, distinct, encoded
from anabranch._record.numbers.noted import Entry, OtherWay, evaluate

# A number differs by such a part of it at least, and is so much smaller at most than what it was
# before.
_LEAST, _MOST = 2.0 ** -8, 0.5
_TRIES = 48  # for each number, near what it was before, or near what it is now
_WAYS = [(size, change, encode) for size, encodings in ENCODINGS.items()
         for change in CHANGES[size] for encode in encodings]


def numbers_apart(entries: Sequence[Entry], now: Sequence[float],
                  before: Sequence[float]) -> tuple[float, ...]:
    """Those that leave the fewest ways alike, and the fewest words as they are. ``before``: what
    they were in an earlier call. Raises Unexplained where with none of those that were tried the
    step goes the same way."""
    _, entries = distinct(entries)
    ways = _all_ways(entries)
    mine = [entry.value for entry in entries]
    groups = _alike(mine, ways)
    rounded = [way for way in ways if _WAYS[way[1]][1] is float]

    def left(values: Sequence[float]) -> tuple[int, int] | None:
        """How many ways are alike, and words as they are; None where another way is gone, or where
        a number is nearly what it is now."""
        if any(abs(a - b) < _LEAST * max(abs(a), abs(b))
               for a, b in zip(now, values, strict=True)):
            return None
        try:
            found = evaluate(entries, values)
        except (ArithmeticError, OtherWay):
            return None
        return (sum(len(alike) - 1 for group in groups for alike in _alike(found, group)),
                sum(_word(mine, way) == _word(found, way) for way in rounded))

    for near in (before, now):
        if best := _best(list(now), near, left):
            return best
    raise Unexplained("with a slightly different value the step goes another way")


def _best(now: list[float], near: Sequence[float],
          left: Callable[[Sequence[float]], tuple[int, int] | None]) -> tuple[float, ...] | None:
    """One number after the other is the best of some; None where no choice is possible."""
    random, best, least = Random(0), None, None
    for i in range(len(now)):
        for _ in range(_TRIES):
            values = tuple([_other(value, other, random) if best is None or i == j else best[j]
                            for j, (value, other) in enumerate(zip(now, near, strict=True))])
            found = left(values)
            if found is not None and (least is None or found < least):
                best, least = values, found
    return best


_Way = tuple[int, int]  # an entry, and one of _WAYS


def _all_ways(entries: Sequence[Entry]) -> list[_Way]:
    return [(i, way) for i, entry in enumerate(entries) if type(entry.value) is not bool
            for way in range(len(_WAYS))]


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


def _other(value: float, near: float, random: Random) -> float:
    """A little less than ``near``, or than the value where that is no size to go by."""
    near = near if near and math.isfinite(near) else value
    return near * (1.0 - random.uniform(_LEAST, _MOST))
