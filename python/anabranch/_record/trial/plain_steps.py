# SPDX-License-Identifier: Apache-2.0
"""Plain runs of callables that are to be recorded, one callable at a time.

These share the stream of captures. Compiled graphs run on the caller's stream and do not wait: a
callable's run may wait for their backward, on autograd's thread. While a callable is tried, the
graphs and the recorded callables that it calls are part of what is to be recorded, and are not
recorded themselves.

Threads: any. Failure: torch's errors.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import torch

from anabranch._record.memory.gpu import give_back
from anabranch._record.trial.trial import on_stream


class PlainSteps:
    """Entered by the thread that tries a callable; by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._thread = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        self._thread = threading.get_ident()

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        self._lock.release()

    def is_trying(self) -> bool:
        """Whether some thread tries a callable now."""
        return self._depth > 0

    def is_trying_here(self) -> bool:
        """Whether this thread does."""
        return self._depth > 0 and self._thread == threading.get_ident()


PLAIN_STEPS = PlainSteps()


@contextlib.contextmanager
def on_capture_stream(device: int) -> Iterator[None]:
    """Runs on the stream of captures. Cached memory of the caller's stream is given back before,
    and that of this one afterwards."""
    give_back(device)
    with on_stream(capture_stream(device), device):
        yield
    give_back(device)


@functools.cache
def capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
