# SPDX-License-Identifier: Apache-2.0
"""The states of one callable: of each set of models and optimizers among its arguments the one
found last.

A model, an optimizer or a batch may be an argument as well as in a closure. States are numbered so
that those between which a recording need not tell have one number. Threads: any. Failure: none.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from anabranch._record.state.paths import AllPaths, Ignored, Path
from anabranch._record.state.state import State

_UNUSED_CALLS = 256  # after which models that are given no more are let go
_Ids = tuple[int, ...]


class StateCache:
    """``roots`` are walked for every state, with the objects that are given. ``most_fingerprints``
    kinds of states are told from new ones. ``has_guards``: on Python's numbers."""

    def __init__(self, roots: Sequence[Any], most_fingerprints: int,
                 has_guards: bool = True) -> None:
        self._roots = roots
        self._states: dict[_Ids, State] = {}  # which hold what the ids belong to
        self._used: dict[_Ids, int] = {}  # in which call
        self._calls = 0
        self.are_several = False  # and so note_use() has to be told of calls
        self._fingerprints: collections.deque[tuple[Any, int]] = collections.deque(
            maxlen=most_fingerprints)
        self._numbers = itertools.count()
        self._before: State | None = None
        self._farther: frozenset[Path] = frozenset()
        # Numbers that the step changes itself, or all.
        self._ignored: Ignored = frozenset[Path]() if has_guards else AllPaths()
        self._lock = threading.Lock()

    def current(self, objects: Sequence[Any]) -> State | None:
        """What was found with these, unless something has taken another's place since."""
        if self.are_several:
            self.note_use(objects)
        ids = _lasting(objects)
        state = self._states.get(ids)
        if state is None or state.ignored is not self._ignored:
            return None
        if state.is_of(objects):
            return state if state.is_current() else None
        with self._lock:
            # Of now: another thread may have been told to look farther.
            state = self._states.get(ids)
            if state is None or state.ignored is not self._ignored \
                    or not state.base.is_of(_base_of(objects)) or not state.base.is_current():
                return None
            return self._keep(State(self._roots, objects, state, self._farther, state.base,
                                    self._ignored), ids)

    def note_use(self, objects: Sequence[Any]) -> bool:
        """To be called with what each call is given, where there are several states. Answers
        whether it is a time at which those that are used no more are let go of."""
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
        """All that there is now, with a number of its own unless recordings of what was found
        before may serve it."""
        with self._lock:
            ids = _lasting(objects)
            before = self._states.get(ids) or self._before
            of_base = _base_of(objects)
            state = State(self._roots, of_base, before, self._farther, ignored=self._ignored)
            if None in of_base:
                state = State(self._roots, objects, before, self._farther, state, self._ignored)
            return self._keep(state, ids)

    def _keep(self, state: State, ids: _Ids) -> State:
        state.number = self._number_of(state, self._states.get(ids))
        self._fingerprints.append((state.fingerprint, state.number))
        self._states[ids] = self._before = state
        self.are_several = len(self._states) > 1
        return state

    def kept(self) -> list[State]:
        """The last of each set of models and optimizers that was given."""
        return list(self._states.values())

    def look_farther(self, ways: Collection[Path]) -> None:
        """From now on it looks there too."""
        with self._lock:
            self._farther = self._farther.union(ways)
            self._states.clear()

    def ignore(self, numbers: Collection[Path]) -> None:
        """From now on it does not look at those."""
        with self._lock:
            self._ignored = self._ignored.union(numbers)

    def _number_of(self, state: State, before: State | None) -> int:
        known = next((one for one in self._fingerprints if one[0] == state.fingerprint), None)
        if known is not None:
            self._fingerprints.remove(known)
        if before is not None and state.leads_as(before):
            return before.number
        return next(self._numbers) if known is None else known[1]


_LASTING = (nn.Module, torch.optim.Optimizer)


def is_lasting(thing: Any) -> bool:
    """Whether it is an argument that one gives again."""
    return isinstance(thing, _LASTING)


def _lasting(objects: Sequence[Any]) -> _Ids:
    """The ids of those. Of others, batches, no more than the last are held."""
    return tuple([id(thing) for thing in objects if is_lasting(thing)])


def _base_of(objects: Sequence[Any]) -> list[Any]:
    return [thing if is_lasting(thing) else None for thing in objects]
