# SPDX-License-Identifier: Apache-2.0
"""A GPU for tests that need none: streams that run late, in any order that their waits allow, and
an allocator that gives out freed memory at once.

Kernels are functions over addresses, as a GPU's are: they keep nothing alive. Memory belongs to the
stream that was current when it was allocated and goes back to it when its tensor dies, or, where
record_stream named others, when these have done what was queued by then.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import random
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from anabranch import _compat

JUNK = 0x5A


class Mark:
    """A place in a stream's queue."""

    def __init__(self) -> None:
        self.is_reached = False


class Event:
    def __init__(self) -> None:
        self.mark: Mark | None = None


class Stream:
    def __init__(self, name: str, priority: int = 0) -> None:
        self.name = name
        self.priority = priority
        self.queue: collections.deque[Any] = collections.deque()
        self.free: dict[int, list[bytearray]] = collections.defaultdict(list)  # by size
        self.let_go: list[tuple[list[Mark], bytearray]] = []  # to be free behind the marks

    def mark(self) -> Mark:
        mark = Mark()
        self.queue.append(mark)
        return mark

    def record_event(self, event: Event) -> None:
        event.mark = self.mark()

    def wait_event(self, event: Event) -> None:
        if event.mark is not None:
            self.queue.append((event.mark,))

    def wait_stream(self, other: Stream) -> None:
        self.queue.append((other.mark(),))

    def advance(self) -> bool:
        """Does the next thing, unless it has to wait."""
        if not self.queue:
            return False
        head = self.queue[0]
        if isinstance(head, tuple) and not head[0].is_reached:
            return False
        self.queue.popleft()
        if isinstance(head, Mark):
            head.is_reached = True
        elif not isinstance(head, tuple):
            head()
        return True


class Raw:
    """A tensor's place, without a hold on its memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._memory = storage.data_ptr(), storage.nbytes()
        self._dtype = tensor.dtype
        self._lies = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()

    def tensor(self) -> torch.Tensor:
        storage = _compat.storage_at(*self._memory, torch.device("cpu"))
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._lies)


class Gpu:
    """Also what a CudaInstance takes for its queues."""

    new_event = Event

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.sides: dict[tuple[Stream, str], Stream] = {}
        self.main = Stream("main")
        self.is_capturing = False
        self._local = threading.local()
        self._lock = threading.RLock()
        self._blocks: dict[int, tuple[Stream, bytearray, list[Stream]]] = {}  # by address

    # What a CudaInstance asks.

    def on_device(self) -> Any:
        return contextlib.nullcontext()

    def ambient(self) -> Stream:
        return getattr(self._local, "current", self.main)

    def enter(self, stream: Stream) -> None:
        self._local.current = stream

    def side(self, ambient: Stream, name: str, priority: int) -> Stream:
        return self.sides.setdefault((ambient, name), Stream(name, priority))

    def is_captured(self) -> bool:
        return self.is_capturing

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        self._blocks[tensor.untyped_storage().data_ptr()][2].append(stream)

    # Memory and kernels, on the current stream.

    def empty(self, sizes: Sequence[int], strides: Sequence[int],
              dtype: torch.dtype) -> torch.Tensor:
        extent = 1 + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
        memory = self._allocate(extent * dtype.itemsize)
        return torch.frombuffer(memory, dtype=dtype).as_strided(sizes, strides)

    def launch(self, kernel: Callable[[], Any]) -> None:
        self.ambient().queue.append(kernel)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy that lies here."""
        made = self.empty(tensor.shape, tensor.contiguous().stride(), tensor.dtype)
        to, value = Raw(made), tensor.clone()
        self.launch(lambda: to.tensor().copy_(value))
        return made

    def read(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Filled when the stream gets there."""
        source, found = Raw(tensor), []
        self.launch(lambda: found.append(source.tensor().clone()))
        return found

    def spoil(self, size_bytes: int) -> None:
        """What the allocator has just given back is used for something else."""
        made = self.empty((size_bytes,), (1,), torch.uint8)
        to = Raw(made)
        self.launch(lambda: to.tensor().fill_(JUNK))

    def run(self, steps: int | None = None) -> None:
        """In some order that the waits allow: all, or so many steps of it."""
        with self._lock:
            streams = [self.main, *self.sides.values()]
            while steps is None or steps > 0:
                if self.random.random() < 0.2:  # else the one that was preferred so far
                    self.random.shuffle(streams)
                if not any(stream.advance() for stream in streams):
                    break
                steps = None if steps is None else steps - 1
            assert steps is not None or not any(s.queue for s in streams), "a deadlock"

    def _allocate(self, size_bytes: int) -> Any:
        stream = self.ambient()
        with self._lock:
            let_go, stream.let_go = stream.let_go, []
            for marks, block in let_go:
                if all(mark.is_reached for mark in marks):
                    stream.free[len(block)].append(block)
                else:
                    stream.let_go.append((marks, block))
            free = stream.free[size_bytes]
            block = free.pop() if free else bytearray(size_bytes)
            memory = (ctypes.c_char * size_bytes).from_buffer(block)
            address = ctypes.addressof(memory)
            self._blocks[address] = stream, block, []
        weakref.finalize(memory, self._free, address)
        return memory

    def _free(self, address: int) -> None:
        with self._lock:
            stream, block, users = self._blocks.pop(address)
            stream.let_go.append(([user.mark() for user in users], block))
