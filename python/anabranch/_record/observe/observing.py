# SPDX-License-Identifier: Apache-2.0
"""The observation of one call: the first run of a step in it, which is the plain one.

Threads: a call's own. Failure: a mistake of ours in an observer ends the observation, and no more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from anabranch._record.observe.inputs import Taken
from anabranch._record.observe.names import contents_read_at
from anabranch._record.observe.observer import Observer
from anabranch._record.refusals import Again, Cause, NotRecordable
from anabranch._record.state.dotted import is_users
from anabranch._record.state.guard_collector import BY_NO_NAME
from anabranch._record.state.namespaces import names_in


class _Current(threading.local):
    waiting: Observer | None = None  # for the first run of the call
    of_call: Observer | None = None


_CURRENT = _Current()


@contextlib.contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """A call whose first run of a step is observed; not the runs of what that step calls."""
    before = _CURRENT.waiting, _CURRENT.of_call
    _CURRENT.waiting = _CURRENT.of_call = observer
    try:
        yield
    finally:
        _CURRENT.waiting, _CURRENT.of_call = before


def run_observed(call: Callable[[list[Any]], Any], leaves: list[Any]) -> Any:
    """Runs a step, which is observed where a call waits for its first run."""
    observer, _CURRENT.waiting = _CURRENT.waiting, None
    if observer is None:
        return call(leaves)
    with contextlib.suppress(Exception):
        observer.begin()
    try:
        return call(leaves)
    finally:
        with contextlib.suppress(Exception):
            observer.end()


def is_observed() -> bool:
    """Whether all that this call has run was observed, or nothing was to be."""
    observer = _CURRENT.of_call
    return observer is None or observer.is_complete


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Around code that is not the step's."""
    observer = _CURRENT.of_call
    if observer is not None:
        observer.is_paused = True
    try:
        yield
    finally:
        if observer is not None:
            observer.is_paused = False


def note_taken(taken: Taken) -> None:
    """The step takes that in, which was not observed."""
    if _CURRENT.of_call is not None:
        _CURRENT.of_call.inputs.taken[taken] = None


def note_draw() -> None:
    """The step takes what further calls take before it."""
    if _CURRENT.of_call is not None:
        _CURRENT.of_call.has_drawn = True


def check_draws() -> None:
    """Raises Again where it does: it then has another signature."""
    if _CURRENT.of_call is not None and _CURRENT.of_call.has_drawn:
        raise Again("it takes from an iterator what further calls take before it")


def users_names() -> frozenset[str] | None:
    """Those in code of the user's that has run; None where it may read by others, or is not
    known."""
    observer = _CURRENT.of_call
    if observer is None or not observer.is_complete:
        return None
    codes = [one.code for one in observer.ran.values()
             if is_users(str(one.globals.get("__name__", "")))]
    names = frozenset[str]().union(*map(names_in, codes))
    return names if names.isdisjoint(BY_NO_NAME) else None


def check_inputs() -> None:
    """Raises NotRecordable where the step takes in what no guard can hold."""
    if not is_observed():
        raise Again(UNOBSERVED)
    observer = _CURRENT.of_call
    if observer is not None and observer.inputs.taken:
        first: Taken = next(iter(observer.inputs.taken))
        reason = Cause.HIDDEN_INPUT.because(
            f"its Python takes in {first.what}, which launches would not do")
        raise NotRecordable(reason._replace(place=f"at {first.place}"))


def collection_read_at(name: str) -> str | None:
    """Where code that ran does more with a collection of this name than to change it; None where it
    does not; empty where none names it."""
    observer = _CURRENT.of_call
    if observer is None:
        return None
    places = [contents_read_at(one.code, name) for one in observer.ran.values()]
    is_named = any(place is not None for place in places)
    return next((place for place in places if place), None if is_named else "")


UNOBSERVED = ("a profiler or debugger has taken what shows which values its Python reads "
              "(sys.setprofile, or the tools 3 and 4 of sys.monitoring)")
