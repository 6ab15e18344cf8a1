# SPDX-License-Identifier: Apache-2.0
"""Copies of a GPU's memory, so that a step can run again from the same state. They are made on the
GPU where they fit into the bytes granted there, and else in the host's memory, through a few pinned
buffers.

The host's memory is pageable, since pinning as much as a large model's state takes many seconds.
Threads: one at a time. Failure: Short where neither has enough memory; nothing is held then.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.memory.gpu import free_bytes
from anabranch._record.memory.host import (
    free_aside,
    fresh_bytes,
    host_free_bytes,
    move_bytes,
    mover_threads,
)
from anabranch._record.memory.shortage import Short
from anabranch._record.tensors import size_of
from anabranch._record.trial.checksums import pieces

_STAGE_BYTES = 8 << 20  # of one pinned buffer
_STAGES = 16
_AHEAD = 4  # pieces on their way to the GPU, fewer than stages
# Of what the host has available, what copies leave alone, for its other work.
_HOST_SHARE = 0.9
_ALIGNMENT = 64
_WORD = 8


class Copies:
    """Of tensors of one GPU, as they are when it is made. ``where`` says in whose memory;
    ``device_bytes`` may be taken of the GPU's. The tensors themselves are not held."""

    def __init__(self, tensors: Sequence[Tensor], device_bytes: int) -> None:
        # Each begins aligned, so that pieces can be viewed as whatever type they have.
        *self._begins, self.size_bytes = itertools.accumulate(
            (_aligned(size_of([tensor])) for tensor in tensors), initial=0)
        self.where = "GPU" if self.size_bytes <= device_bytes else "host"
        self._kept = torch.empty(0, dtype=torch.uint8)
        if self.where == "GPU":
            self._keep_on_device(tensors)
        else:
            self._keep_on_host(tensors)

    def _keep_on_device(self, tensors: Sequence[Tensor]) -> None:
        on_gpu = next((tensor.device for tensor in tensors if tensor.is_cuda), self._kept.device)
        self._kept = torch.empty(self.size_bytes, dtype=torch.uint8, device=on_gpu)
        self._copy_on_device(tensors, is_back=False)

    def _keep_on_host(self, tensors: Sequence[Tensor]) -> None:
        available = host_free_bytes()
        if self.size_bytes > _HOST_SHARE * available:
            raise Short("copies of what the step writes", self.size_bytes, available, "host")
        try:
            self._kept = fresh_bytes(self.size_bytes)
        except (RuntimeError, MemoryError, OSError) as error:  # a limit of the process
            raise Short("copies of what the step writes", self.size_bytes, available,
                        "host") from error
        with _Stages(self.size_bytes) as stages:
            for begin, piece in _pieces_of(tensors):
                stages.fetch(self._kept[begin:begin + piece.numel()], piece)

    def put_back(self, tensors: Sequence[Tensor], but: Collection[int] = ()) -> None:
        """Into tensors of the same layout, on the current stream. What is in the host's memory of
        the tensors with the numbers ``but`` stays there."""
        if self.where == "GPU":
            self._copy_on_device(tensors, is_back=True)
            return
        wanted = {i: tensor for i, tensor in enumerate(tensors) if i not in but}
        with _Stages(size_of([*wanted.values()])) as stages:
            for _, begin, piece in self._pieces_at(wanted):
                stages.send(piece, self._kept[begin:begin + piece.numel()])

    def _copy_on_device(self, tensors: Sequence[Tensor], is_back: bool) -> None:
        """All at once, since they may be hundreds, and in words where that can be."""
        kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for begin, piece in _pieces_of(tensors, self.size_bytes):
            are_words = piece.numel() % _WORD == 0 == piece.storage_offset() % _WORD
            kind = torch.int64 if are_words else torch.uint8
            ours = self._kept[begin:begin + piece.numel()].view(kind)
            theirs = piece.view(kind)
            to, source = kinds.setdefault(kind, ([], []))
            to.append(theirs if is_back else ours)
            source.append(ours if is_back else theirs)
        for to, source in kinds.values():
            _compat.copy_all(to, source)

    def close(self) -> None:
        """Lets go of them."""
        kept, self._kept = [self._kept], self._kept[:0].clone()
        if self.where == "host":
            free_aside(kept)

    def pieces(self, tensors: Mapping[int, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of some tensors, by their number, of the layout of the ones copied: which one, a piece of
        it as it is now, and the same of the copy, on the tensor's device. Flat bytes. Those of the
        host's memory are on their way while earlier ones are looked at."""
        if self.where == "GPU":
            for number, begin, piece in self._pieces_at(tensors):
                yield number, piece, self._kept[begin:begin + piece.numel()].to(piece.device)
            return
        sent: collections.deque[tuple[int, Tensor, Tensor]] = collections.deque()
        with _Stages(size_of([*tensors.values()])) as stages:
            for number, begin, piece in self._pieces_at(tensors):
                there = torch.empty_like(piece)
                stages.send(there, self._kept[begin:begin + piece.numel()])
                sent.append((number, piece, there))
                if len(sent) > _AHEAD:
                    stages.pass_on()
                    yield sent.popleft()
            while sent:
                stages.pass_on()
                yield sent.popleft()

    def _pieces_at(self, tensors: Mapping[int, Tensor]) -> Iterator[tuple[int, int, Tensor]]:
        """Which tensor, where its piece begins in the copies, and the piece."""
        for number, tensor in tensors.items():
            begin = self._begins[number]
            for piece in pieces(tensor, _STAGE_BYTES):
                yield number, begin, piece
                begin += piece.numel()


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _pieces_of(tensors: Sequence[Tensor],
               most_bytes: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """Where in the copies each piece of each tensor lies; of at most so many bytes, those of a
    stage by default."""
    base = 0
    for tensor in tensors:
        begin = base
        for piece in pieces(tensor, most_bytes or _STAGE_BYTES):
            yield begin, piece
            begin += piece.numel()
        base += _aligned(begin - base)


@dataclasses.dataclass
class _Stage:
    buffer: Tensor
    event: torch.cuda.Event  # behind the GPU's last copy
    moved: Future[None] | None = None  # the threads' last work


class _Stages:
    """Pinned buffers between the GPU and the host's other memory, used in turn: while the GPU
    copies some, threads move the bytes of others. As many as so many bytes have a use for, since
    pinning takes half a second a gigabyte. Where the system pins no memory they are ordinary
    ones, and each of the GPU's copies waits for its end. Used as a context, behind which all has
    been copied."""

    def __init__(self, size_bytes: int) -> None:
        count = min(_STAGES, _AHEAD + 2 + size_bytes // _STAGE_BYTES)
        try:
            buffers = [torch.empty(_STAGE_BYTES, dtype=torch.uint8, pin_memory=True)
                       for _ in range(count)]
        except RuntimeError:
            buffers = [torch.empty(_STAGE_BYTES, dtype=torch.uint8) for _ in range(count)]
        self._free = collections.deque(_Stage(buffer, torch.cuda.Event()) for buffer in buffers)
        self._sent: collections.deque[tuple[_Stage, Tensor]] = collections.deque()

    def __enter__(self) -> _Stages:
        self._threads = mover_threads()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        while self._sent and kind is None:
            self.pass_on()
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
        """To the GPU: a thread moves the bytes into a stage behind its last copy, and the next one
        is queued when there is no other stage, or at the end."""
        if not self._free:
            self.pass_on()
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


def grantable_bytes(device: int) -> int:
    """How much of the GPU's memory copies may take: a 64th of what torch has reserved there, at
    least 32 MiB, and at most a quarter of what is free."""
    reserved = torch.cuda.memory_reserved(device)
    return min(max(_SMALL_BYTES, reserved // _SMALL_SHARE), free_bytes(device) // 4)


_SMALL_BYTES = 32 << 20
_SMALL_SHARE = 64
