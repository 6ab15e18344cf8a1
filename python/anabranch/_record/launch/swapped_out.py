# SPDX-License-Identifier: Apache-2.0
"""What a launch in stretches has finished, in the host's memory while a later stretch has no room.

A launch that finds no memory runs plainly instead, but not once a stretch of it has run: it has let
go of what it was given. A plain run would hold at that point what is finished as well, so without
that there is room for what a plain run has room for.

Threads: one launch's. Failure: torch's errors, where there is no memory once all has run.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from anabranch._record.memory.gpu import empty_cache


class SwappedOut:
    """Nothing to begin with."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Tensor, int, Tensor]] = {}  # by id: bytes, values

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Frees the memory of tensors, each of which has a storage of its own. Waits for the
        current stream."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if id(tensor) not in self._kept and storage.nbytes():
                values = tensor.to("cpu", copy=True)
                self._kept[id(tensor)] = tensor, storage.nbytes(), values
                storage.resize_(0)
        empty_cache()

    def put_back(self) -> None:
        for tensor, size_bytes, values in self._kept.values():
            tensor.untyped_storage().resize_(size_bytes)
            tensor.copy_(values)
        self._kept.clear()
