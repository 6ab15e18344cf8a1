# SPDX-License-Identifier: Apache-2.0
"""Pinned memory that stays where it is as long as a recording: its launches copy to it and from it.

A step that puts bytes into pinned memory and fetches them again has to find the same memory in
each of its captures: then the copies stay the driver's, at an address that is right in all
launches. torch's allocator gives each capture memory of its own.

Threads: any for blocks; one capture at a time in a process, which others may not be part of.
Failure: that of torch where the system pins no more memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from anabranch import _compat

_now: PinnedBlocks | None = None
_of_call = threading.local()


class PinnedBlocks:
    """Blocks of one step, or of all that runs on a GPU beside recordings. One that nobody holds any
    more serves again at once, whatever a GPU still does with it: who takes it queues its copies
    behind those. Copies of one capture with the same bytes keep their order by themselves."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Tensor, int]] = []  # and how many hold the memory of an idle one
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> Tensor:
        with self._lock:
            for block, idle in self._blocks:
                if block.numel() == size_bytes and _compat.use_counts(block)[1] == idle:
                    return block.view(-1)
            block = pinned_bytes(size_bytes)
            self._blocks.append((block, _compat.use_counts(block)[1]))
            return block.view(-1)

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def has(self, block: Tensor) -> bool:
        with self._lock:
            return any(block.data_ptr() == own.data_ptr() for own, _ in self._blocks)


def blocks_of_capture() -> PinnedBlocks | None:
    """Those of the step that is being captured now, or None."""
    return _now if _now is not None and torch.cuda.is_current_stream_capturing() else None


@contextlib.contextmanager
def calling_with(block: Tensor) -> Iterator[None]:
    """Around a call of this thread that is given its block and takes none."""
    _of_call.block = block
    try:
        yield
    finally:
        _of_call.block = None


def has_planned_copies(blocks: PinnedBlocks) -> bool:
    """Whether a step's copies begin where somebody has planned them, by its own blocks or by the
    one that its call is given."""
    return bool(blocks) or block_in_call() is not None


def block_in_call() -> Tensor | None:
    return getattr(_of_call, "block", None)


@contextlib.contextmanager
def lasting(blocks: PinnedBlocks) -> Iterator[None]:
    """Around the step while it is captured."""
    global _now
    around, _now = _now, blocks
    try:
        yield
    finally:
        _now = around


def pinned_bytes(size_bytes: int) -> Tensor:
    """Allocated on another thread, which is in no capture: there they would come out of the
    capture's pool."""
    with ThreadPoolExecutor(1, "anabranch-pin") as thread:
        return thread.submit(lambda: torch.empty(
            size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)).result()
