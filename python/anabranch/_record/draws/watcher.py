# SPDX-License-Identifier: Apache-2.0
"""Which item a step's first run takes from an iterator that was there before it, and whether a call
may take it before the step.

It may where nobody could tell: the step has left nothing behind yet that an iterator's code could
see, and what that code changes is the iterator's own and nothing that the step names. Iterators
over containers, and those of loaders in other processes, see nothing of it.

Threads: a run's own. Failure: none; what is not certain stays where it is.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.draws.taken import Draw, can_be_given, is_iterator
from anabranch._record.effects.holders import HolderSnapshot
from anabranch._record.effects.iterators import is_over_container
from anabranch._record.observe.inputs import Taken, users_line
from anabranch._record.observe.observing import note_draw, note_taken, unobserved, users_names
from anabranch._record.state.guards import GuardValues, changed
from anabranch._record.state.paths import Path, bare, name_of
from anabranch._record.state.state import State
from anabranch._record.tensors import version_of

_MOST = 64  # tensors that are taken first


class Watcher:
    """Of one run. ``found``: what is to be taken first from now on, if anything; ``moved``: guarded
    values that this changes. ``given``: tensors that were taken before. ``owned``: names of what
    iterators were seen to change, to which those of this run are added."""

    def __init__(self, state: State, iterators: dict[int, tuple[Any, list[Path]]],
                 given: Collection[Tensor], owned: set[str]) -> None:
        self.found: Draw | None = None
        self.moved: set[Path] = set()
        self._state, self._iterators = state, iterators
        self._given, self._owned = list(given), owned
        self._has_drawn = False
        self._taken: Taken | None = None
        self._changed: set[Path] = set()  # by the iterator's code
        self._before: _Seen | None = None

    @classmethod
    def of(cls, state: State, given: Collection[Tensor], owned: set[str]) -> Watcher | None:
        """None where the state leads to no iterator."""
        iterators: dict[int, tuple[Any, list[Path]]] = {}
        for path, (_, thing) in state.walk_before_run().entered.items():
            if is_iterator(thing):
                iterators.setdefault(id(thing), (thing, []))[1].append(path)
        return cls(state, iterators, given, owned) if iterators else None

    def begin(self) -> None:
        """The run begins."""
        with contextlib.suppress(Exception):
            self._before = _Seen(self._state, self._given)

    def knows(self, iterator: Any) -> bool:
        return id(iterator) in self._iterators

    @contextlib.contextmanager
    def drawing(self, iterator: Any, has_default: bool) -> Iterator[list[Any]]:
        """Around code of an iterator; what it gives is to be put into the list."""
        paths, drawn = self._iterators[id(iterator)][1], list[Any]()
        try:
            before = self._began(iterator)
        except Exception:
            before = None
        taken = Taken(f"what {name_of(paths[0])} gives", users_line(sys._getframe()))
        if before is None:
            if isinstance(iterator, types.GeneratorType):  # what it raises in captures ends it
                note_taken(taken)
            yield drawn
            return
        self._taken, draw = taken, Draw(tuple(paths), has_default, torch.is_grad_enabled())
        try:
            with unobserved():
                yield drawn
        finally:
            with contextlib.suppress(Exception):
                if self._may_be_first(before, paths, drawn):
                    self.found = draw
            if self.found is None:
                note_taken(taken)

    def _began(self, iterator: Any) -> _Seen | None:
        """All as it is now; None where this is not the first one, or where the iterator's code
        could see what the step has done."""
        is_first, self._has_drawn = not self._has_drawn, True
        if not is_first or len(self._given) >= _MOST or self._before is None:
            return None
        if is_over_container(iterator):
            is_unseen = self._before.are_sequences_as_now()
        else:
            is_unseen = _compat.is_of_other_processes(iterator) or self._before.is_as_now()
        return _Seen(self._state, self._given) if is_unseen else None

    def _may_be_first(self, before: _Seen, paths: Sequence[Path], drawn: list[Any]) -> bool:
        if not before.are_tensors_as_now() or not all(
                can_be_given(_compat.tree_flatten(item)[0]) for item in drawn):
            return False
        self.moved = before.changed_values()
        self._changed = {*before.changed(), *self.moved}
        return all(any(_below(one, path) is not None for path in paths) for one in self._changed)

    def end(self) -> None:
        """The run has ended: whatever code it has run is known. Nothing else may name what belongs
        to iterators."""
        found, self.found = self.found, None
        with contextlib.suppress(Exception):
            own = {part for one in self._changed for path in found.paths
                   for part in _below(one, path) or ()} if found is not None else set()
            names = users_names() if own or self._owned else frozenset[str]()
            if names is None or not names.isdisjoint({*own, *self._owned}):
                note_taken(self._taken or Taken("what an iterator changes",
                                                users_line(sys._getframe())))
                return
            self.found = found
            self._owned.update(own)
            if found is not None:
                note_draw()


class _Seen:
    """What code of an iterator could see of a step at one time, or change."""

    def __init__(self, state: State, given: Collection[Tensor]) -> None:
        self._state, self._holders = state, HolderSnapshot(state)
        self._tensors = [*given, *state.tensors()]
        self._versions = list(map(version_of, self._tensors))
        self._values = state.python_values(), state.seen_values()
        self._around = [_around(with_grad) for with_grad in (False, True)]

    def are_tensors_as_now(self) -> bool:
        return list(map(version_of, self._tensors)) == self._versions

    def are_sequences_as_now(self) -> bool:
        """Whether all lists, sets and deques hold what they held."""
        return all(isinstance(held.before, dict) for held, _ in self._holders.changes())

    def is_as_now(self) -> bool:
        grad = torch.is_grad_enabled()
        return self.are_tensors_as_now() and not any(True for _ in self._holders.changes()) \
            and _are_equal(self._around[grad], _around(grad))

    def changed(self) -> Iterator[Path]:
        """What holders have another thing now, by their paths and keys."""
        for held, pairs in self._holders.changes():
            yield from ((*held.path, key) for key, _, _ in pairs) if pairs else (held.path,)

    def changed_values(self) -> set[Path]:
        now: tuple[GuardValues | None, ...] = self._state.python_values(), self._state.seen_values()
        return {path for then, values in zip(self._values, now, strict=True)
                for path in changed(then, values)}


def _around(with_grad: bool) -> tuple[Any, ...]:
    """Of torch, with and without gradients: it is taken either way."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    on_gpu = () if device is None else (
        torch.cuda.current_stream(device), torch.cuda.get_rng_state(device))
    with torch.set_grad_enabled(with_grad):
        return _compat.modes(), torch.get_rng_state(), *on_gpu


def _are_equal(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for a, b in zip(some, others, strict=True))


def _below(path: Path, end: Path) -> Path | None:
    """The rest of a path behind another one; None where it goes elsewhere."""
    path, end = bare(path), bare(end)
    return path[len(end):] if path[:len(end)] == end else None
