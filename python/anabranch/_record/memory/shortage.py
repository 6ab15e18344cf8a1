# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out while a step is recorded or launched: which phase wanted how much, and when
it is worth another try.

Threads: a recorder's. Failure: Short, which is a reason to run plainly and never reaches the user.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator

import torch

from anabranch._core.library import NativeError
from anabranch._record.memory.gpu import free_bytes
from anabranch._record.refusals import Cause, NotRecordable

# What torch, the driver, cuBLAS and the CPU's allocator say.
_SAID = re.compile(r"out of memory|OUT_OF_MEMORY|ALLOC_FAILED|can't allocate memory|"
                   r"not enough memory|Cannot allocate memory", re.IGNORECASE)
_TRIED = re.compile(r"(?:[Tt]ried to allocate|you tried to allocate) ([\d.]+) ?([KMG]i?B|bytes)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
OF_LAUNCH = "the arena and the results of a launch"  # a phase's name
_LEAST_MORE = 32 << 20  # that has to come free before another try


class Short(NotRecordable):
    """A phase of recording, or a launch, wanted more bytes than were free. ``wanted`` is 0 where
    nobody said how many."""

    cause = Cause.OUT_OF_MEMORY

    def __init__(self, phase: str, wanted: int, free: int, place: str = "GPU") -> None:
        of = f"{wanted} bytes" if wanted else "more"
        super().__init__(f"{phase} wanted {of} of the {place}'s memory, of which {free} bytes "
                         "were free")
        self.missing = max(wanted - free, 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory of whatever kind has run out."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError, NativeError)) \
        and bool(_SAID.search(str(error)))


def wanted_of(error: BaseException) -> int:
    """How many bytes it says were asked for; 0 where it does not."""
    said = _TRIED.search(str(error))
    return int(float(said[1]) * _UNITS.get(said[2], 1)) if said else 0


@contextlib.contextmanager
def phase(name: str, device: int) -> Iterator[None]:
    """Around a phase: Short where memory runs out in it."""
    try:
        yield
    except Exception as error:
        if isinstance(error, NotRecordable) or not is_out_of_memory(error):
            raise
        raise short_of(name, error, device) from error


def short_of(name: str, error: BaseException, device: int) -> Short:
    return Short(name, wanted_of(error), free_bytes(device))


@dataclasses.dataclass
class Shortage:
    """Why something was not done for want of memory, and how much has to be free for another
    try."""

    short: Short
    device: int
    free_before: int  # when it was tried
    tries: int = 1

    @property
    def more(self) -> int:
        """Bytes that have to be free beside those of then. Each try that fails doubles the
        least."""
        return max(self.short.missing, _LEAST_MORE << min(self.tries - 1, 10))

    def has_passed(self) -> bool:
        return free_bytes(self.device) >= self.free_before + self.more

    def __str__(self) -> str:
        return f"{self.short}; it is tried again when {self.more} bytes more are free"
