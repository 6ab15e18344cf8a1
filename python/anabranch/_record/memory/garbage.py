# SPDX-License-Identifier: Apache-2.0
"""Python's garbage while a step is recorded: what holds the GPU's memory in a ring, and finalizers.

Threads: collection is the whole process's. Failure: none.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_OF_LATE = 1  # generations


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Garbage waits. A finalizer that frees a graph or an event would end a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            with contextlib.suppress(Exception):  # it only saves time
                _count_anew()
            gc.enable()


def collect_of_late() -> None:
    """What has been made of late, which takes next to nothing; all of the process takes as long as
    captures do."""
    gc.collect(_OF_LATE)


def _count_anew() -> None:
    """Python looks through the whole process once what is young has been looked through often
    enough, which we may have done ourselves meanwhile. What is frozen moves all counts to nothing;
    it is thawed into the oldest generation, to which what is not garbage goes in any case."""
    collect_of_late()
    if gc.get_freeze_count() == 0:  # else somebody has frozen what must not be thawed
        gc.freeze()
        gc.unfreeze()
