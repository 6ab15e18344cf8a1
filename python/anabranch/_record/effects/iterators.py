# SPDX-License-Identifier: Apache-2.0
"""How far iterators have gone that a step finds: what it takes from one, a launch would not take.

Threads: as the iterators. Failure: none; None for what is no iterator, or does not tell.
"""

from __future__ import annotations

import collections
import itertools
import operator
import types
from typing import Any

_MADE: tuple[Any, ...] = (
    [], (), {}, {}.values(), {}.items(), set(), range(1), range(1 << 70), "", b"",
    collections.deque())
_PLAIN = tuple({*(type(iter(made)) for made in _MADE), type(reversed([])), type(reversed({}))})
_OVER_OTHERS = (enumerate, zip, map, filter, itertools.chain, itertools.cycle, itertools.islice,
                itertools.count, itertools.repeat, itertools.accumulate, itertools.starmap,
                itertools.takewhile, itertools.dropwhile)
_MOST_DEEP = 4  # iterators over iterators


def position_of(thing: Any, depth: int = 0) -> Any:
    """What is another value once something has been taken from it."""
    if isinstance(thing, types.GeneratorType):
        frame = thing.gi_frame
        return "generator", None if frame is None else frame.f_lasti, _taken_by(frame)
    if isinstance(thing, _PLAIN):
        return "iterator", operator.length_hint(thing, -1), _told(thing)
    if isinstance(thing, _OVER_OTHERS) and depth < _MOST_DEEP:
        return "iterator", repr(thing) if isinstance(thing, itertools.count) else None, \
            _of_inner(thing, depth)
    return None


def is_over_container(thing: Any) -> bool:
    """Whether it gives what is in a container of Python's, and runs nobody's code."""
    return isinstance(thing, _PLAIN)


def _taken_by(frame: types.FrameType | None) -> Any:
    """Where a generator stands at the same place again: the numbers that it counts by, and how far
    its own iterators have gone."""
    return None if frame is None else [
        (name, value if type(value) in (int, float, str) else position_of(value, _MOST_DEEP))
        for name, value in frame.f_locals.items()]


def _told(iterator: Any) -> Any:
    try:
        return iterator.__reduce__()[2:]
    except (AttributeError, TypeError, IndexError):
        return None


def _of_inner(iterator: Any, depth: int) -> Any:
    try:
        made_of = iterator.__reduce__()
    except (AttributeError, TypeError):
        return None
    found: list[Any] = []
    for part in itertools.chain(*(some for some in made_of[1:] if isinstance(some, tuple))):
        found.append(part if type(part) in (int, bool) else position_of(part, depth + 1))
    return found, [part for part in made_of[2:] if type(part) is int]
