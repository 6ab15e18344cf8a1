# SPDX-License-Identifier: Apache-2.0
"""Lists of integers among a callable's arguments that launches follow.

Positions, lengths and page tables come as lists that are others in each call. Those that have
changed become one tensor on the CPU from then on, which is an argument like any other
(launch/host_arguments). Plain runs get lists again; captures get lists
that only torch's own functions can turn into tensors (capture/noted_lists). Where a step does
anything else with one, each list is recorded by itself again, for good.

Threads: under the recorder's lock, but for reading. Failure: none.
"""

from __future__ import annotations

import array
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from anabranch._record.capture.noted_lists import noted
from anabranch._record.capture.now import is_recording
from anabranch._record.picker import picker
from anabranch._record.signatures.signature import LEAF


class _Run(NamedTuple):
    """Leaves that are the items of one list."""

    begin: int
    end: int


class Listed(NamedTuple):
    """In place of the containers: those of which the lists are in the last leaf."""

    containers: Any
    runs: tuple[_Run, ...]


class _Taking:
    """How the lists are taken from so many leaves in such containers."""

    def __init__(self, listed: Listed, count: int) -> None:
        taken = [i for run in listed.runs for i in range(run.begin, run.end)]
        self.listed = listed
        self.numbers = picker(taken)
        self.others = picker(sorted({*range(1, count)}.difference(taken)))


class FollowedLists:
    """Of one callable."""

    def __init__(self) -> None:
        self._takings: dict[Any, _Taking] = {}  # by containers
        self._is_refused = False

    @property
    def has_any(self) -> bool:
        return bool(self._takings)

    def begin(self, key: Any, known: Iterable[Any]) -> bool:
        """Whether lists are followed from now on that tell this signature from a known one."""
        first, *_ = told = key[2]
        containers: Any = first[1]
        followed: tuple[_Run, ...] = ()
        if isinstance(containers, Listed):
            containers, followed = containers
        others = [other[2] for other in known if other[2][0] == first]
        runs = [run for run in _runs_in(containers) if run not in followed]
        changed = [run for run, place in zip(runs, _places_of(runs, followed), strict=True)
                   if all(isinstance(guard, tuple) and guard[0] is int for guard in told[place])
                   and any(other[place] != told[place] for other in others)]
        if not changed or self._is_refused:
            return False
        # The table of those that were taken before is a leaf.
        count = len(told) + sum(run.end - run.begin for run in followed) - bool(followed)
        listed = Listed(containers, tuple(sorted((*followed, *changed))))
        self._takings = {**self._takings, containers: _Taking(listed, count)}
        return True

    def refuse(self) -> None:
        """None are followed from now on."""
        self._is_refused, self._takings = True, {}

    def taken_from(self, leaves: list[Any]) -> list[Any]:
        """The same with the numbers of followed lists in one tensor, which comes last; as they are
        where these are no integers of four bytes: no type that torch makes of them is too narrow
        then."""
        taking = self._takings.get(leaves[0])
        if taking is None:
            return leaves
        numbers = taking.numbers(leaves)
        if not _INTEGERS.issuperset(map(type, numbers)):
            return leaves
        try:
            narrow = torch.frombuffer(array.array("i", numbers), dtype=torch.int32)
        except OverflowError:
            return leaves
        return [taking.listed, *taking.others(leaves), narrow.long()]


_INTEGERS = frozenset((int,))


def with_lists(leaves: Sequence[Any]) -> Any:
    """The arguments, (args, kwargs), of leaves from which lists were taken."""
    listed, *rest, table = leaves
    runs, others = {run.begin: run for run in listed.runs}, iter(rest)
    pieces = iter(table.split([run.end - run.begin for run in listed.runs]))
    make: Any = noted if is_recording() else torch.Tensor.tolist
    place = 1

    def packed(node: Any) -> Any:
        nonlocal place
        if node == LEAF:
            place += 1
            return next(others)
        kind, keys, *inner = node
        count = len(keys) if kind is dict else keys
        if inner:
            parts = [packed(part) for part in inner[0]]
        elif place in runs and count and kind is list:
            place += count
            return make(next(pieces))
        else:
            place += count
            parts = list(itertools.islice(others, count))
        return dict(zip(keys, parts, strict=True)) if kind is dict else kind(parts)

    return packed(listed.containers)


def _runs_in(containers: Any) -> Iterator[_Run]:
    """Of all lists that hold nothing but leaves."""
    place = 1

    def walk(node: Any) -> Iterator[_Run]:
        nonlocal place
        if node == LEAF:
            place += 1
            return
        kind, keys, *inner = node
        if inner:
            for part in inner[0]:
                yield from walk(part)
            return
        count = len(keys) if kind is dict else keys
        if kind is list and count:
            yield _Run(place, place + count)
        place += count

    if isinstance(containers, tuple):  # else unusual ones, or none
        for node in containers[2]:
            yield from walk(node)


def _places_of(runs: Iterable[_Run], taken: Sequence[_Run]) -> Iterator[slice]:
    """Where runs are in leaves from which others were taken."""
    for run in runs:
        before = sum(other.end - other.begin for other in taken if other.begin < run.begin)
        yield slice(run.begin - before, run.end - before)
