# SPDX-License-Identifier: Apache-2.0
"""Processes that are set up side by side and timed one at a time: while one has the turn, the others
stand still.

A process asks for its turn by a file beside its answer, waits until it is given, and says when it is
over. It may have several. What the GPU has been given before its process was stopped runs on, so a
turn begins a moment later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

POLL_S = 0.05
STILL_S = 0.5  # until what was queued before has run


@dataclasses.dataclass(frozen=True)
class Turn:
    """As the process sees it that is timed: a context around what is timed, each time."""

    place: Path

    def _file(self, name: str) -> Path:
        return self.place.with_suffix(f".{name}")

    def __enter__(self) -> None:
        self._file("asked").touch()
        while not self._file("given").exists():
            time.sleep(POLL_S)

    def __exit__(self, *error: object) -> None:
        self._file("over").touch()
        while self._file("over").exists():  # until the others go on
            time.sleep(POLL_S)

    def is_asked(self) -> bool:
        return self._file("asked").exists() and not self._file("given").exists()

    def is_over(self) -> bool:
        return self._file("over").exists()

    def give(self) -> None:
        self._file("given").touch()

    def clear(self) -> None:
        """Before its process begins, and when a turn is over."""
        for name in ("asked", "given", "over"):  # in this order: it waits for the last
            self._file(name).unlink(missing_ok=True)


class Turns:
    """As the process sees them that starts the others, with whom it shares their places. Who has had
    fewest is next."""

    def __init__(self) -> None:
        self._now: tuple[Turn, Any] | None = None
        self._given: dict[Turn, int] = {}

    @property
    def is_free(self) -> bool:
        return self._now is None

    def look(self, running: Iterable[tuple[Turn, Any]]) -> None:
        """Ends a turn that is over or whose process has ended, and gives the next one."""
        running = list(running)
        if self._now is not None:
            turn, process = self._now
            if process.is_alive() and not turn.is_over():
                return
            self._now = None
            turn.clear()
            signal_all((other for _, other in running), signal.SIGCONT)
        ready = min(((turn, process) for turn, process in running
                     if process.is_alive() and turn.is_asked()),
                    key=lambda entry: self._given.get(entry[0], 0), default=None)
        if ready is not None:
            self._now = ready
            self._given[ready[0]] = self._given.get(ready[0], 0) + 1
            signal_all((other for _, other in running if other is not ready[1]), signal.SIGSTOP)
            time.sleep(STILL_S)
            ready[0].give()


def signal_all(processes: Iterable[Any], number: int) -> None:
    """To each and all that it has started."""
    for process in processes:
        for send in (os.killpg, os.kill):  # it may not have made its group yet
            with contextlib.suppress(ProcessLookupError):
                send(process.pid, number)
