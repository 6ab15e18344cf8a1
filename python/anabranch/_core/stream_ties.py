# SPDX-License-Identifier: Apache-2.0
"""StreamTies of device.h from Python: CUDA streams tied to one another in one call."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p

from anabranch._core.capture import CaptureDevice
from anabranch._core.handle import Handle
from anabranch._core.library import core, last_error

# Likewise, once at each end of a graph: (handle, c_void_p(stream), streams as bytes, n).
_join: Callable[..., int] = core.undeclared("stream_ties_join")
_fork: Callable[..., int] = core.undeclared("stream_ties_fork")


class StreamTies(Handle):
    """Ties a stream of a GPU to others of it, each by its address, those of the others as words."""

    _free = "stream_ties_free"

    def __init__(self, device: CaptureDevice) -> None:
        super().__init__(core.stream_ties_new(device.handle), device)

    def join(self, stream: c_void_p, others: bytes) -> None:
        """What is queued on ``stream`` from now on begins behind what ``others`` have queued."""
        if _join(self.handle, stream, others, len(others) // 8):
            raise last_error()

    def fork(self, stream: c_void_p, others: bytes) -> None:
        """What is queued on ``others`` from now on begins behind what ``stream`` has queued."""
        if _fork(self.handle, stream, others, len(others) // 8):
            raise last_error()
