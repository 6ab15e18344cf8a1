# SPDX-License-Identifier: Apache-2.0
"""Runs of a step that are given what the call has taken from iterators already.

Meanwhile the modules of its functions have a ``next`` of their own, which acts on the thread of the
run alone and is away while torch compiles. Outside of such runs nothing is replaced.

Threads: any. Failure: what iterators and the step raise.
"""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from anabranch import _compat
from anabranch._record.draws.taken import EXHAUSTED, Draw, Drawn, NextOutcome
from anabranch._record.draws.watcher import Watcher
from anabranch._record.faults import run_users

_OURS = (__name__, run_users.__module__)
Call = Callable[[list[Any]], Any]


class _Now(threading.local):
    taken: tuple[NextOutcome, ...] = ()  # by the call, for its runs
    watcher: Watcher | None = None  # of its first run
    run: _Run | None = None


_NOW = _Now()


@contextlib.contextmanager
def having_taken(outcome: NextOutcome, *, is_first: bool) -> Iterator[None]:
    """A call whose runs are given this, behind what it has taken before."""
    before = _NOW.taken
    _NOW.taken = (outcome,) if is_first else (*before, outcome)
    try:
        yield
    finally:
        _NOW.taken = before


@contextlib.contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """A call whose first run is watched."""
    before, _NOW.watcher = _NOW.watcher, watcher
    try:
        yield
    finally:
        _NOW.watcher = before


def take(iterator: Any, draw: Draw) -> NextOutcome:
    """Takes one thing. A step around this one may have taken it already, and gives it."""
    has_default = draw.has_default
    try:
        with torch.set_grad_enabled(draw.with_grad):
            thing = run_users(_next, iterator, *([EXHAUSTED] if has_default else []))
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_globals["__name__"] in _OURS:
            traceback = traceback.tb_next
        return NextOutcome(iterator, has_default, error=error.with_traceback(traceback))
    return NextOutcome(iterator, has_default, thing)


def run_served(call: Call, leaves: list[Any], made_of: Callable[[Any, Sequence[Any]], Any],
               namespaces: Sequence[dict[str, Any]]) -> Any:
    """Runs a step; ``made_of(containers, leaves)`` makes an item of its leaves. ``namespaces``: the
    variables of modules in which it may name ``next``."""
    taken, watcher = _NOW.taken, _NOW.watcher
    if not taken and watcher is None:
        return call(leaves)
    things = [outcome.thing for outcome in taken]
    if isinstance(leaves[0], Drawn):
        for i, (containers, parts) in enumerate(leaves[0].of_items(leaves)):
            things[i] = EXHAUSTED if containers is EXHAUSTED else made_of(containers, parts)
        leaves = leaves[0].arguments(leaves)
    around = _NOW.run
    _NOW.taken, _NOW.watcher = (), None
    try:
        with _REPLACING.around(namespaces):
            if watcher is not None:
                watcher.begin()
            _NOW.run = _Run(list(zip(taken, things, strict=True)), watcher, around)
            return call(leaves)
    finally:
        _NOW.run, _NOW.taken = around, taken
        if watcher is not None:
            watcher.end()


class _Run:
    """``left``: what the run is still to be given. ``around``: the run of a step that calls this
    one."""

    def __init__(self, left: list[tuple[NextOutcome, Any]], watcher: Watcher | None,
                 around: _Run | None) -> None:
        self._left, self._watcher, self._around = left, watcher, around

    def next(self, iterator: Any, default: tuple[Any, ...]) -> Any:
        for i, (outcome, thing) in enumerate(self._left):
            if outcome.iterator is iterator:
                del self._left[i]
                return outcome.again(thing, default)
        if self._watcher is None or not self._watcher.knows(iterator):
            return self._beyond(iterator, default)
        _NOW.run, before = self._around, self
        try:
            with self._watcher.drawing(iterator, bool(default)) as drawn:
                drawn.append(self._beyond(iterator, default))
        finally:
            _NOW.run = before
        return drawn[0]

    def _beyond(self, iterator: Any, default: tuple[Any, ...]) -> Any:
        if self._around is not None:
            return self._around.next(iterator, default)
        return builtins.next(iterator, *default)


def _next(*args: Any, **kwargs: Any) -> Any:
    run = _NOW.run
    if run is None or kwargs or len(args) not in (1, 2):
        return builtins.next(*args, **kwargs)
    return run.next(args[0], args[1:])


class _Replacing:
    """``next`` in the variables of modules, as long as runs need that: what torch has compiled is
    guarded by builtins, and by no name that a module lacks."""

    def __init__(self) -> None:
        self._runs: dict[int, int] = {}  # by the ids of modules' variables
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def around(self, namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
        self._begin(namespaces)
        try:
            with _compat.around_compiling(lambda: self._end(namespaces),
                                          lambda: self._begin(namespaces)):
                yield
        finally:
            self._end(namespaces)

    def _begin(self, namespaces: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            for names in namespaces:
                self._runs[id(names)] = self._runs.get(id(names), 0) + 1
                names.setdefault("next", _next)

    def _end(self, namespaces: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            for names in namespaces:
                self._runs[id(names)] -= 1
                if not self._runs[id(names)]:
                    del self._runs[id(names)]
                    if names.get("next") is _next:
                        del names["next"]


_REPLACING = _Replacing()
