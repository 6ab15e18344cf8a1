# SPDX-License-Identifier: Apache-2.0
"""Tensors that take the place of a step's own while it is captured, and the lock of captures.

A capture gives the tensor objects of a step other memory. Threads that read addresses meanwhile use
``Swaps`` as a sequence lock. Threads: one capture at a time in a process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import CaptureMemory
from anabranch._record.tensors import Unit

one_at_a_time = threading.RLock()


def wait_for_captures() -> None:
    """Until no other thread captures."""
    with one_at_a_time:
        pass


_ALIGNMENT = 512  # of torch's allocator; a stand-in lies as its tensor does within this
class Swaps:
    """A sequence lock: ``count`` is odd while a capture has swapped the memory of tensors. A thread
    that reads addresses reads them again if the count was odd, or has changed afterwards."""

    count = 0


class StandIns:
    """Tensors like those given, at fresh addresses of a capture memory.

    ``tensors`` are plain tensors of one device; ``at[i]`` is where unit i lies.
    """

    def __init__(self, tensors: Sequence[Tensor], units: Sequence[Unit],
                 memory: CaptureMemory) -> None:
        self.tensors = list(tensors)
        self.at: list[int] = []
        for unit in units:
            shift = unit.address % _ALIGNMENT
            base = memory.allocate(shift + unit.size_bytes)
            self.at.append(base + shift)
            device = tensors[unit.members[0][0]].device
            storage = _compat.storage_at(base, shift + unit.size_bytes, device)
            for index, offset in unit.members:
                self.tensors[index] = _view_of(storage, shift + offset, tensors[index])

    @contextlib.contextmanager
    def in_place_of(self, originals: Sequence[Tensor], first: int) -> Iterator[None]:
        """Around a capture: these tensor objects have the memory of ``tensors[first:]``."""
        stand_ins = self.tensors[first:first + len(originals)]
        before = [tensor.data for tensor in originals]
        Swaps.count += 1
        try:
            for tensor, stand_in in zip(originals, stand_ins, strict=True):
                tensor.data = stand_in
            yield
        finally:
            for tensor, data in zip(originals, before, strict=True):
                tensor.data = data
            Swaps.count += 1


def _view_of(storage: torch.UntypedStorage, offset: int, like: Tensor) -> Tensor:
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    made.set_(storage, offset // like.element_size(), like.shape, like.stride())
    return _compat.read_otherwise(made, like.is_conj(), like.is_neg())
