# SPDX-License-Identifier: Apache-2.0
"""Copies of a GPU's memory, so that a step can be run again from where it was: on the GPU where they fit
into the room that is granted, else in the host's memory, through a few pinned buffers.

The host's memory is pageable, since to pin as much as a large model's state takes many seconds, and is
touched ahead of the copies by another thread, since the system hands fresh pages out slower than a
GPU's bytes come over. Threads: one at a time. Failure: Short where neither has the room; nothing is
held then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from . import _compat
from ._checksums import pieces
from ._device_memory import free_bytes
from ._shortage import Short

_STAGE_BYTES = 32 << 20  # of one pinned buffer
_STAGES = 4
_TOUCHED_AT_ONCE = 256 << 20
# Of what the host has available, what copies leave alone, for its other work.
_HOST_SHARE = 0.9
_ALIGNMENT = 64


def size_of(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Copies:
    """Of tensors of one GPU, as they are when it is made. ``where`` says in whose memory; ``device_bytes``
    may be taken of the GPU's. The tensors themselves are not held."""

    def __init__(self, tensors: Sequence[Tensor], device_bytes: int) -> None:
        # Each begins aligned, so that pieces can be viewed as whatever type they have.
        self.size_bytes = sum(_aligned(size_of([tensor])) for tensor in tensors)
        self.where = "GPU" if self.size_bytes <= device_bytes else "host"
        self._kept = torch.empty(0, dtype=torch.uint8)
        if self.where == "GPU":
            self._keep_on_device(tensors)
        else:
            self._keep_on_host(tensors)

    def _keep_on_device(self, tensors: Sequence[Tensor]) -> None:
        on_gpu = next((tensor.device for tensor in tensors if tensor.is_cuda), self._kept.device)
        self._kept = torch.empty(self.size_bytes, dtype=torch.uint8, device=on_gpu)
        for begin, piece in _places_of(tensors):
            self._kept[begin:begin + piece.numel()].copy_(piece)

    def _keep_on_host(self, tensors: Sequence[Tensor]) -> None:
        available = host_free_bytes()
        if self.size_bytes > _HOST_SHARE * available:
            raise Short("copies of what the step writes", self.size_bytes, available, "host")
        try:
            self._kept = torch.empty(self.size_bytes, dtype=torch.uint8)
        except (RuntimeError, MemoryError) as error:  # a limit of the process
            raise Short("copies of what the step writes", self.size_bytes, available, "host") from error
        touched = _Toucher(self._kept)
        stages = _Stages()
        waiting: list[tuple[int, int, Tensor]] = []  # where, bytes, and from which stage

        def take(leave: int) -> None:
            while len(waiting) > leave:
                begin, size, stage = waiting.pop(0)
                stages.wait(stage)
                touched.wait(begin + size)
                self._kept[begin:begin + size].copy_(stage[:size])

        try:
            for begin, piece in _places_of(tensors):
                take(_STAGES - 1)
                stage = stages.next()
                stage[:piece.numel()].copy_(piece, non_blocking=True)
                stages.record(stage)
                waiting.append((begin, piece.numel(), stage))
            take(0)
        finally:
            touched.stop()

    def put_back(self, tensors: Sequence[Tensor]) -> None:
        """Into tensors of the same layout, on the current stream."""
        stages = _Stages() if self.where == "host" else None
        for begin, piece in _places_of(tensors):
            kept = self._kept[begin:begin + piece.numel()]
            if stages is None:
                piece.copy_(kept)
                continue
            stage = stages.next()
            stages.wait(stage)
            stage[:piece.numel()].copy_(kept)
            piece.copy_(stage[:piece.numel()], non_blocking=True)
            stages.record(stage)
        if stages is not None:
            stages.finish()

    def close(self) -> None:
        """Lets go of them."""
        self._kept = self._kept[:0].clone()

    def pieces(self, tensors: Sequence[Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of tensors of the same layout: which one, a piece of it as it is now, and the same of the copy,
        on the tensors' device. Flat bytes."""
        number, end = -1, 0
        for begin, piece in _places_of(tensors):
            while number < 0 or begin >= end:
                number += 1
                end += _aligned(size_of([tensors[number]]))
            yield number, piece, self._kept[begin:begin + piece.numel()].to(piece.device)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def _places_of(tensors: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Where in the copies each piece of each tensor lies."""
    base = 0
    for tensor in tensors:
        begin = base
        for piece in pieces(tensor, _STAGE_BYTES):
            yield begin, piece
            begin += piece.numel()
        base += _aligned(begin - base)


class _Stages:
    """Pinned buffers that are used in turn, each with an event behind its last use. Where the system
    pins no memory they are ordinary ones, and each copy waits for its end."""

    def __init__(self) -> None:
        try:
            self._buffers = [torch.empty(_STAGE_BYTES, dtype=torch.uint8, pin_memory=True)
                             for _ in range(_STAGES)]
        except RuntimeError:
            self._buffers = [torch.empty(_STAGE_BYTES, dtype=torch.uint8) for _ in range(_STAGES)]
        self._events = {id(buffer): torch.cuda.Event() for buffer in self._buffers}
        self._turn = 0

    def next(self) -> Tensor:
        self._turn += 1
        return self._buffers[self._turn % _STAGES]

    def record(self, buffer: Tensor) -> None:
        self._events[id(buffer)].record()

    def wait(self, buffer: Tensor) -> None:
        self._events[id(buffer)].synchronize()

    def finish(self) -> None:
        for buffer in self._buffers:
            self.wait(buffer)


class _Toucher:
    """Writes a zero into each page of fresh memory, from its beginning on, on another thread."""

    def __init__(self, memory: Tensor) -> None:
        self._memory, self._done, self._is_stopped = memory, 0, False
        self._moved = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name="anabranch-touch")
        self._thread.start()

    def _run(self) -> None:
        while self._done < self._memory.numel() and not self._is_stopped:
            end = min(self._done + _TOUCHED_AT_ONCE, self._memory.numel())
            self._memory[self._done:end].zero_()
            with self._moved:
                self._done = end
                self._moved.notify_all()

    def wait(self, until: int) -> None:
        """Until so many bytes have been touched: they are written behind that."""
        with self._moved:
            self._moved.wait_for(lambda: self._done >= until or not self._thread.is_alive())

    def stop(self) -> None:
        self._is_stopped = True
        self._thread.join()


def host_free_bytes() -> int:
    """What this process may take of the host's memory without others having to give any up: what the
    system calls available, within the limit of its control group, and its share where several
    processes of one program run here."""
    available = _available_of_system()
    limit = _free_of_group()
    available = available if limit is None else min(available, limit)
    return available // _compat.processes_here()


def _available_of_system() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_of_group() -> int | None:
    """None where there is no control group that limits memory (of version 2, or 1)."""
    for limit, used, stat in (
            ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
             "/sys/fs/cgroup/memory.stat"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes",
             "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat")):
        try:
            most, now = Path(limit).read_text().strip(), int(Path(used).read_text())
            if most == "max":
                return None
            files = sum(int(line.split()[1]) for line in Path(stat).read_text().splitlines()
                        if line.startswith(("inactive_file ", "total_inactive_file ")))
            return max(0, int(most) - now + files)
        except (OSError, ValueError):
            continue
    return None


def room_on_device(device: int) -> int:
    """How much of the GPU copies may take: what is small beside what torch has there already, or beside
    any GPU, and a quarter of what is free at most."""
    reserved = torch.cuda.memory_reserved(device)
    return min(max(_SMALL_BYTES, reserved // _SMALL_SHARE), free_bytes(device) // 4)


_SMALL_BYTES = 32 << 20
_SMALL_SHARE = 64
