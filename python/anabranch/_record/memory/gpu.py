# SPDX-License-Identifier: Apache-2.0
"""What torch's allocator may still take of a GPU, and what it has taken at most.

A capture allocates addresses that own no memory, and torch counts them like any other: against the
limit of set_per_process_memory_fraction, and in its peaks. So the limit is off while a step is
captured, and behind it the peaks are those of what was really allocated.

Threads: any; what other threads allocate while a limit is off is not limited either. Failure: none,
but torch's own errors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from anabranch import _compat
from anabranch._core.capture import CaptureMemory, capture_device
from anabranch._core.library import NativeError, library_path

# Times what a callable uses, as a first call begins: with that much free its memory is not short,
# whatever gradients, moments and intermediates there will be.
_ROOMY = 6
# Of a GPU's memory, the share that it does not feel: 140 MiB of an H200, where each product of
# cuBLAS that runs beside others wants 32 MiB of scratch memory of its own.
_SLACK_SHARE = 1024
# Of what is cached, what is not worth giving back: to ask the driver for it again takes as long.
_SMALL_CACHE = 64 << 20
# Torch takes requests from here on in multiples of the granule, smaller ones in blocks of 20 MiB.
_LEAST_EXACT, _GRANULE = 10 << 20, 2 << 20


class Peaks(NamedTuple):
    """Bytes, at most or at a time: of tensors, and of what is reserved for them."""

    allocated: int
    reserved: int

    def highest(self, other: Peaks) -> Peaks:
        return Peaks(max(self.allocated, other.allocated), max(self.reserved, other.reserved))


def other_allocator() -> str:
    """The name of what allocates in the place of torch's caching allocator, such as "pluggable";
    "" where nothing does."""
    name = torch.cuda.get_allocator_backend()
    return "" if name == "native" else name


def taken(device: int, which: str = "current") -> Peaks:
    """What is taken now, or ("peak") was at most since the peaks were last set back. Nothing where
    an allocator does not tell."""
    stats = {}
    with contextlib.suppress(RuntimeError):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
    if not stats:  # nothing has been allocated there
        return Peaks(0, 0)
    return Peaks(*(stats[name]["all"][which] for name in ("allocated_bytes", "reserved_bytes")))


def free_bytes(device: int) -> int:
    """What torch could still allocate, by what the GPU has free and by the user's limit; with what
    it has cached, which may lie in pieces."""
    free, total = torch.cuda.mem_get_info(device)
    now = taken(device)
    fraction = _compat.memory_fraction(device)
    if fraction < 1:
        free = min(free, int(fraction * total) - now.reserved)
    return max(free, 0) + now.reserved - now.allocated


def slack_bytes(device: int) -> int:
    """What a launch may take more than the plain step does, for kernels side by side."""
    total = torch.cuda.mem_get_info(device)[1]
    return int(total * min(_compat.memory_fraction(device), 1.0)) // _SLACK_SHARE


def is_plentiful(device: int, used: int) -> bool:
    """Whether a callable that uses so many bytes may be generous: nobody has set a limit, most of
    the GPU is free, and many times what it uses."""
    total = torch.cuda.mem_get_info(device)[1]
    return _compat.memory_fraction(device) >= 1 \
        and free_bytes(device) > max(total // 2, _ROOMY * used)


def give_back(device: int) -> None:
    """Gives the driver back what torch has cached, where that is much: what one stream has cached
    is of no use to another."""
    now = taken(device)
    if now.reserved - now.allocated > _SMALL_CACHE:
        empty_cache()


def empty_cache() -> None:
    """Gives the driver back all that torch has cached, behind all that is queued on the GPUs.
    Memory that is mapped (expandable segments) torch unmaps behind the work of its own stream
    alone; a step whose other streams still read there is right as long as nobody unmaps it."""
    for device in range(torch.cuda.device_count()):
        if torch.cuda.memory_reserved(device):
            torch.cuda.synchronize(device)
    torch.cuda.empty_cache()


def give_back_memory() -> None:
    """What plain runs and captures needed, once nothing holds it any more. It is cached in pieces
    into most of which the arena of a launch would not fit."""
    if torch.cuda.is_initialized():
        _compat.clear_workspaces()
        empty_cache()


@contextlib.contextmanager
def no_limit(device: int) -> Iterator[None]:
    """Without the user's limit, where addresses are allocated that own no memory."""
    fraction = _compat.memory_fraction(device)
    if fraction >= 1:
        yield
        return
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(fraction, device)


@functools.cache
def capture_allocator() -> Any:
    """Torch's handle of the allocator behind CaptureMemory."""
    return torch.cuda.memory.CUDAPluggableAllocator(
        str(library_path), "anabranch_capture_allocate", "anabranch_capture_release")


class Meter:
    """Peaks of one device phase by phase, while the user's own peaks go on to count: those of the
    phases that are noted are in them when the meter is closed."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._users = taken(device, "peak")
        self.highest, self.phase = Peaks(0, 0), ""  # of all that was noted, and when
        torch.cuda.reset_peak_memory_stats(device)

    def note(self, phase: str, addresses: int = 0) -> Peaks:
        """What was taken at most since the last note, without so many bytes that were addresses
        alone."""
        found = taken(self._device, "peak")
        found = found._replace(reserved=found.reserved - addresses)
        if found.reserved > self.highest.reserved:
            self.phase = phase
        self.highest = self.highest.highest(found)
        torch.cuda.reset_peak_memory_stats(self._device)
        return found

    def skip(self) -> None:
        """Forgets what was taken since the last note: it was addresses alone."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def close(self) -> None:
        with contextlib.suppress(NativeError, RuntimeError):  # a statistic, and no more
            _raise_peaks(self._device, self._users.highest(self.highest))


def _raise_peaks(device: int, wanted: Peaks) -> None:
    """Torch can set its peaks back to now, and to nothing else. So as much is allocated as lies
    between, of addresses that own no memory; to within some MiB."""
    empty_cache()  # nothing of it is taken for these
    now = taken(device)
    reserved = wanted.reserved - now.reserved
    allocated = _exact(min(wanted.allocated - now.allocated, reserved))
    cached = _exact(reserved - allocated)
    memory = CaptureMemory(capture_device(device))
    pools = [torch.cuda.MemPool(capture_allocator().allocator(), no_split=True) for _ in range(2)]
    memory.begin_capture()
    memory.open()
    try:
        with torch.cuda.device(device), no_limit(device):
            _allocate_once(pools[0], cached)
            torch.cuda.reset_peak_memory_stats(device)
            _allocate_once(pools[1], allocated)
    finally:
        memory.shut()
        pools.clear()
        memory.close()


def _exact(size_bytes: int) -> int:
    """What torch takes no more than that for."""
    return size_bytes // _GRANULE * _GRANULE if size_bytes >= _LEAST_EXACT else 0


def _allocate_once(pool: torch.cuda.MemPool, size_bytes: int) -> None:
    """Without a kernel that writes there, which torch.empty() queues where a user wants fresh
    memory filled."""
    if size_bytes:
        with torch.cuda.use_mem_pool(pool):
            _compat.empty_strided_cuda((size_bytes,), (1,), torch.uint8)
