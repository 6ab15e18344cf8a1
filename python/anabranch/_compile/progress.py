# SPDX-License-Identifier: Apache-2.0
"""A line that says which region is being compiled: on a terminal, or in a notebook's cell.

Threads: any. Failure: none; where the line cannot be shown it is not.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

_AFTER_SECONDS = 2.0
_COLUMNS = 78


@contextlib.contextmanager
def progress_line(total: int, wanted: bool | None) -> Iterator[Callable[[str], None]]:
    """From the third second on. ``wanted`` None: where there is a terminal or a notebook. Answers
    what is called with the name of each region."""
    show = _find_place(wanted)
    if show is None:
        yield lambda name: None
        return
    line = _Line(total, show)
    try:
        yield line.step
    finally:
        line.close()


def _find_place(wanted: bool | None) -> Callable[[str], None] | None:
    """What shows a text in place of the one before; None where nothing is to be shown."""
    if wanted is False:
        return None
    if "ipykernel" in sys.modules:
        return _Cell().show
    return _show_on_terminal if wanted or sys.stderr.isatty() else None


def _show_on_terminal(text: str) -> None:
    sys.stderr.write(f"\r{text:<{_COLUMNS}}" + ("" if text else "\r"))
    sys.stderr.flush()


class _Cell:
    """A piece of output of the cell that runs."""

    def __init__(self) -> None:
        from IPython.display import DisplayHandle

        self._handle = DisplayHandle()
        self._show = self._handle.display

    def show(self, text: str) -> None:
        with contextlib.suppress(Exception):  # a notebook that is gone is no reason to stop
            self._show({"text/plain": text}, raw=True)
            self._show = self._handle.update


class _Line:
    def __init__(self, total: int, show: Callable[[str], None]) -> None:
        self._total = total
        self._done = 0
        self._name = ""
        self._is_shown = False
        self._show = show
        self._lock = threading.Lock()
        self._timer = threading.Timer(_AFTER_SECONDS, self._begin)
        self._timer.daemon = True
        self._timer.start()

    def step(self, name: str) -> None:
        with self._lock:
            self._done += 1
            self._name = name
            if self._is_shown:
                self._write()

    def _begin(self) -> None:
        with self._lock:
            self._is_shown = True
            self._write()

    def _write(self) -> None:
        self._show(f"anabranch: compiling region {self._done} of {self._total} ({self._name})")

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._is_shown:
                self._show("")
