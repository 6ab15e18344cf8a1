# SPDX-License-Identifier: Apache-2.0
"""The states of one callable: the last one found for each set of models and optimizers among its
arguments.

A model, an optimizer or a batch may be an argument instead of standing in a closure. Each state has
a number; states that one recording may serve have the same. Threads: any. Failure: none.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from anabranch._record.state.number_places import NO_NUMBERS, NumberPlaces
from anabranch._record.state.paths import AllPaths, Ignored, Path
from anabranch._record.state.read_set import NOTHING_READ, ReadSet
from anabranch._record.state.search_rules import SearchRules
from anabranch._record.state.state import State

_UNUSED_CALLS = 256  # after which models that are no longer given are let go of
_Ids = tuple[int, ...]


class StateCache:
    """Args:
        roots: walked for every state, and with them the objects that the call is given.
        most_fingerprints: how many kinds of states are remembered and recognised.
        has_guards: whether Python values are guarded.
    """

    def __init__(self, roots: Sequence[Any], most_fingerprints: int,
                 has_guards: bool = True) -> None:
        self._roots = roots
        self._states: dict[_Ids, State] = {}  # states hold the objects of these ids
        self._used: dict[_Ids, int] = {}  # in which call, last
        self._calls = 0
        self.are_several = False  # if so, note_use() has to be called in every call
        self._fingerprints: collections.deque[tuple[Any, int]] = collections.deque(
            maxlen=most_fingerprints)
        self._numbers = itertools.count()
        self._before: State | None = None
        self._farther: frozenset[Path] = frozenset()
        # Paths of values that are not guarded: those that the step itself changes, or all.
        self._ignored: Ignored = frozenset[Path]() if has_guards else AllPaths()
        self._often_new: frozenset[Path] = frozenset()  # where the program puts new lists
        self.seen = NOTHING_READ  # by code that ran
        self.followed = NO_NUMBERS
        self._lock = threading.Lock()

    def current(self, objects: Sequence[Any]) -> State | None:
        """The state that was found with these objects, unless something in it has been replaced
        since."""
        if self.are_several:
            self.note_use(objects)
        ids = _lasting(objects)
        state = self._states.get(ids)
        if state is None or not self._is_as_told(state):
            return None
        if state.is_of(objects):
            return state if state.is_current() else None
        with self._lock:
            # Once more: another thread may have widened the search meanwhile.
            state = self._states.get(ids)
            if state is None or not self._is_as_told(state) \
                    or not state.base.is_of(_base_of(objects)) or not state.base.is_current():
                return None
            return self._keep(State(self._roots, objects, state, state.base, self._rules), ids)

    @property
    def _rules(self) -> SearchRules:
        return SearchRules(self._farther, self._ignored, self.followed, self._often_new, self.seen)

    def note_use(self, objects: Sequence[Any]) -> bool:
        """To be called in every call, with what it is given, where there are several states. At
        times it lets go of states that are no longer used, and answers True."""
        with self._lock:
            self._calls += 1
            self._used[_lasting(objects)] = self._calls
            if self._calls % _UNUSED_CALLS:
                return False
            for unused in [ids for ids in self._states
                           if self._used.get(ids, 0) <= self._calls - _UNUSED_CALLS]:
                del self._states[unused]
            self._used = {ids: self._used[ids] for ids in self._states if ids in self._used}
            return True

    def find(self, objects: Sequence[Any]) -> State:
        """A state of everything that is found now. It has a number of its own, unless recordings of
        an earlier state may serve it."""
        with self._lock:
            ids = _lasting(objects)
            before = self._states.get(ids) or self._before
            replaced = before.replaced_containers() if before is not None else ()
            if replaced:
                self._often_new = self._often_new.union(replaced)
            of_base = _base_of(objects)
            state = State(self._roots, of_base, before, rules=self._rules)
            if None in of_base:
                state = State(self._roots, objects, before, state, self._rules)
            return self._keep(state, ids)

    def _keep(self, state: State, ids: _Ids) -> State:
        state.number = self._number_of(state, self._states.get(ids))
        self._fingerprints.append((state.fingerprint, state.number))
        self._states[ids] = self._before = state
        self.are_several = len(self._states) > 1
        return state

    def kept(self) -> list[State]:
        """The last state of each set of models and optimizers that was given."""
        return list(self._states.values())

    def look_farther(self, ways: Collection[Path]) -> None:
        """From now on walks follow these paths, too."""
        with self._lock:
            self._farther = self._farther.union(ways)
            self._states.clear()

    def _is_as_told(self, state: State) -> bool:
        return state.ignored is self._ignored and state.followed is self.followed \
            and state.often_new is self._often_new and state.told_seen is self.seen

    def follow(self, numbers: NumberPlaces) -> None:
        """From now on recordings follow these numbers, and no others."""
        with self._lock:
            self.followed = numbers

    def ignore(self, paths: Collection[Path]) -> None:
        """From now on the values at these paths are not guarded."""
        with self._lock:
            self._ignored = self._ignored.union(paths)
            self.seen = self.seen.without(self._ignored)

    def see(self, reads: ReadSet, state: State, objects: Sequence[Any]) -> State | None:
        """From now on this is guarded, too. The state, which was found with these objects, with it;
        None where there is nothing new in it."""
        with self._lock:
            seen = self.seen.joined(reads.without(self._ignored))
            if seen is self.seen:
                return None
            is_as_told, self.seen = self._is_as_told(state), seen
            if is_as_told:
                state.see(seen)
        return state if is_as_told else self.find(objects)

    def _number_of(self, state: State, before: State | None) -> int:
        known = next((one for one in self._fingerprints if one[0] == state.fingerprint), None)
        if known is not None:
            self._fingerprints.remove(known)
        if before is not None and state.leads_as(before):
            return before.number
        return next(self._numbers) if known is None else known[1]


_LASTING = (nn.Module, torch.optim.Optimizer)


def is_lasting(thing: Any) -> bool:
    """Whether it is an argument that later calls give again: a model or an optimizer."""
    return isinstance(thing, _LASTING)


def _lasting(objects: Sequence[Any]) -> _Ids:
    """The ids of those. Of other objects, batches, only the last ones are held."""
    return tuple([id(thing) for thing in objects if is_lasting(thing)])


def _base_of(objects: Sequence[Any]) -> list[Any]:
    return [thing if is_lasting(thing) else None for thing in objects]
