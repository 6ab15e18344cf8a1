# SPDX-License-Identifier: Apache-2.0
"""Which line of the user's queued what a captured step queues in eager code by other means than
operators, such as a Triton kernel of the user's, where times are asked for: no note sees it
(access_notes.py), so Python's trace function looks between two lines whether nodes have come.

Only frames of the user's are traced, on the capturing thread; what other threads queue meanwhile,
as autograd's do, belongs to the line that waits for them. Where a debugger or a tool for coverage
traces, nothing is looked at.

Threads: one. Failure: none; a line that is not known is None.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from anabranch._fx.source import SourceLine
from anabranch._record.capture.labels import Labels, is_users, line_of

Tracer = Callable[[FrameType, str, Any], Any]


class EagerLines:
    """``has_new()`` says whether nodes have come since the last mark, and ``mark()`` makes one."""

    def __init__(self, has_new: Callable[[], bool], mark: Callable[[], int],
                 labels: Labels) -> None:
        self._has_new, self._mark, self._labels = has_new, mark, labels
        self._at: tuple[FrameType, int] | None = None  # where the user's code is

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """While inside, lines of this thread are looked between."""
        if sys.gettrace() is not None:
            yield
            return
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            self.take()
            self._at = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While inside, somebody else labels what is queued. On any thread."""
        self.take()
        tracer = sys.gettrace()
        if tracer == self._enter:
            sys.settrace(None)
        try:
            yield
        finally:
            if tracer == self._enter:
                sys.settrace(tracer)

    @property
    def line(self) -> SourceLine | None:
        """Where the user's code is, on whatever thread this is asked."""
        return line_of(*self._at) if self._at is not None else None

    def take(self) -> None:
        """What has come since the last mark was queued by the line where the user's code is."""
        # Whatever went wrong here would be raised in the user's code.
        with contextlib.suppress(Exception):
            if self._at is not None and self._has_new():
                self._labels.put(self._mark(), line_of(*self._at))

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        return self._step if is_users(frame.f_code.co_filename) else None

    def _step(self, frame: FrameType, event: str, argument: Any) -> Tracer:
        self.take()
        if event == "line":
            self._at = frame, frame.f_lineno
        elif event == "return":
            caller = frame.f_back
            while caller is not None and not is_users(caller.f_code.co_filename):
                caller = caller.f_back
            self._at = (caller, caller.f_lineno) if caller is not None else None
        return self._step
