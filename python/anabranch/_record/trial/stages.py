# SPDX-License-Identifier: Apache-2.0
"""Pinned buffers by which bytes go between the GPU and the host's pageable memory.

Threads: one at a time; threads of ours move the bytes. Failure: torch's own errors.
"""

from __future__ import annotations

import collections
import dataclasses
from concurrent.futures import Future

import torch
from torch import Tensor

from anabranch._record.memory.host import move_bytes, mover_threads

STAGE_BYTES = 4 << 20  # of one pinned buffer, at least
_MOST_STAGE_BYTES, _MOST_BYTES = 16 << 20, 128 << 20  # of one, and of all together
_SHARE = 64  # of what goes through them
_STAGES, _MOST_AHEAD = 16, 12


def stage_bytes_for(size_bytes: int) -> int:
    """Of one pinned buffer, where so many bytes go through them: a power of two, as torch pins. A
    turn of one takes Python as long however much is in it: 4 MiB at a time came to a third of what
    the link moves."""
    share = size_bytes // _SHARE
    return max(STAGE_BYTES, min(1 << share.bit_length() >> 1, _MOST_STAGE_BYTES))


@dataclasses.dataclass
class _Stage:
    buffer: Tensor
    event: torch.cuda.Event  # behind the GPU's last copy
    moved: Future[None] | None = None  # the threads' last work


class Stages:
    """Pinned buffers between the GPU and the host's other memory, used in turn: while the GPU
    copies some, threads move the bytes of others. There are no more than so many bytes have a use
    for, since pinning takes half a second a gigabyte. At most ``ahead`` and one may have been sent
    and not passed on. Where the system pins no memory they are ordinary ones, and each of the GPU's
    copies waits for its end. Used as a context, behind which all that was passed on is there."""

    def __init__(self, size_bytes: int, stage_bytes: int = STAGE_BYTES) -> None:
        count = min(_STAGES, _MOST_BYTES // stage_bytes, 2 + 2 * size_bytes // stage_bytes)
        self.ahead = min(_MOST_AHEAD, count - 2)
        try:
            buffers = [torch.empty(stage_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
                       for _ in range(count)]
        except RuntimeError:
            buffers = [torch.empty(stage_bytes, dtype=torch.uint8, device="cpu")
                       for _ in range(count)]
        self._free = collections.deque(_Stage(buffer, torch.cuda.Event()) for buffer in buffers)
        self._sent: collections.deque[tuple[_Stage, Tensor]] = collections.deque()

    def __enter__(self) -> Stages:
        self._threads = mover_threads()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._threads:
            self._threads.shutdown()
        for stage in self._free:
            stage.event.synchronize()
            if stage.moved and kind is None:
                stage.moved.result()

    def fetch(self, to: Tensor, piece: Tensor) -> None:
        """From the GPU: its copy is queued, and a thread moves the bytes on behind that."""
        stage = self._free.popleft()
        self._free.append(stage)
        if stage.moved:
            stage.moved.result()
        buffer = stage.buffer[:piece.numel()]
        buffer.copy_(piece, non_blocking=True)
        stage.event.record()
        stage.moved = self._move(stage, to, buffer)

    def send(self, piece: Tensor, source: Tensor) -> None:
        """To the GPU: a thread moves the bytes into a stage behind its last copy. pass_on()
        queues the next one."""
        stage = self._free.popleft()
        stage.moved = self._move(stage, stage.buffer[:piece.numel()], source)
        self._sent.append((stage, piece))

    def _move(self, stage: _Stage, to: Tensor, source: Tensor) -> Future[None] | None:
        """Behind the stage's event, by a thread; by this one where there are none."""
        if self._threads is None:
            _move_behind(stage.event, to, source)
            return None
        return self._threads.submit(_move_behind, stage.event, to, source)

    def pass_on(self) -> None:
        """The first stage that is not on its way to the GPU yet: its copy is queued."""
        stage, piece = self._sent.popleft()
        if stage.moved:
            stage.moved.result()
        piece.copy_(stage.buffer[:piece.numel()], non_blocking=True)
        stage.event.record()
        self._free.append(stage)


def _move_behind(event: torch.cuda.Event, to: Tensor, source: Tensor) -> None:
    event.synchronize()
    move_bytes(to, source)
