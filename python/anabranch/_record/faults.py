# SPDX-License-Identifier: Apache-2.0
"""Mistakes of Anabranch's own in a call, of which the caller is to notice no more than a warning.

An error that is not the user's, in a call in which nothing of the user's has run and nothing has
been launched, is followed by a plain run, and so are all later calls. One that comes behind an
answer leaves the answer. What is left is raised: a launch that has begun cannot be taken back.

Compiled code that calls a recorded step breaks there, and Dynamo goes on to trace what is called.
It is stopped for what is ours, of which it can make nothing, and goes on for what is the user's.

Threads: counts are a thread's own. Failure: none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from anabranch import _compat
from anabranch.errors import AnabranchError


class _Begun(threading.local):
    """Dynamo would guard on the number: functions that use it are ``untraced``."""

    runs = 0  # of the user's code, and launches
    tracer: Any = None  # Dynamo's, where it is stopped for ours


BEGUN = _Begun()


@_compat.untraced
def run_users(call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls what is the user's, and notes that it has begun."""
    BEGUN.runs += 1
    if BEGUN.tracer is None:
        return call(*args, **kwargs)
    tracer, BEGUN.tracer = BEGUN.tracer, None
    _compat.trace_by(tracer)
    try:
        return call(*args, **kwargs)
    finally:
        _compat.trace_by(None)
        BEGUN.tracer = tracer


@_compat.untraced
def may_run_plainly(error: Exception, begun_before: int) -> bool:
    """Whether an error is a mistake of ours, behind which the call may run from its beginning.
    ``begun_before``: ``BEGUN.runs`` as the call began."""
    return BEGUN.runs == begun_before and not isinstance(error, AnabranchError)


@contextlib.contextmanager
def behind_answer(break_off: Callable[[Exception], None]) -> Iterator[None]:
    """Around what follows an answer: a mistake of ours does not take it from the caller, and is
    given to ``break_off``."""
    try:
        yield
    except AnabranchError:
        raise
    except Exception as error:
        break_off(error)
