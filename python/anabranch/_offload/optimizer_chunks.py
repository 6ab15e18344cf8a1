# SPDX-License-Identifier: Apache-2.0
"""An optimizer's step in chunks of parameters, whose state comes from the host's memory and goes
back there.

While a chunk is updated, the state of the next one comes in and that of the last one goes out, on a
stream each (``copies``). The caller's stream waits for a copy in before the update, and for a copy
out before the memory is given back that it reads. So all copies are done where the step ends on the
caller's stream, memory is only ever given back behind its last use, and no order is lost in a
capture, where the waits become edges.

Threads: one step of an optimizer at a time, as in torch. Failure: that of the update; state that
has come in goes out again.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch._offload import copies, host_memory

LEAST_BYTES = 1 << 16  # of a tensor that moves
_LEAST_CHUNKS = 3  # on their way: one comes, one is updated, one goes
_CHUNKS = 4  # into which what may be on its way is cut
_GUESS = 2  # times a parameter's bytes is its state, until it is there
_PLAIN = (Tensor, torch.nn.Parameter)
Home = Callable[[Tensor], Tensor | None]


@dataclasses.dataclass
class Chunk:
    """Parameters of one device, by the number of their group, and how large their state is."""

    device: torch.device
    parameters: dict[int, list[Tensor]]
    size_bytes: int = 0


def moves(value: Any) -> bool:
    """Whether a thing in a parameter's state is a tensor that moves: large, and no part of another.
    Counts of steps stay where they are."""
    if type(value) is not Tensor or (size := value.numel() * value.itemsize) < LEAST_BYTES:
        return False
    return value.layout is torch.strided and not value.requires_grad \
        and size == value.untyped_storage().nbytes()


def moving_of(states: Mapping[Any, Any],
              parameter: Tensor) -> Iterator[tuple[dict[Any, Any], Any, Tensor]]:
    """A parameter's state, a key and a tensor that moves."""
    state: Any = states.get(parameter)
    for key, value in list(state.items()) if isinstance(state, dict) else ():
        if moves(value):
            yield state, key, value


def device_of(parameters: Sequence[Tensor]) -> torch.device | None:
    """From which the state of a group moves. Where its parameters are of several kinds or on
    several devices torch may update all of them in another way, so then it stays whole."""
    devices = {one.device for one in parameters}
    is_plain = all(type(one) in _PLAIN and one.layout is torch.strided for one in parameters)
    [device] = devices if len(devices) == 1 else [None]
    return device if device and is_plain and host_memory.may_leave(device) else None


def chunks_of(groups: Sequence[Mapping[str, Any]], states: Mapping[Any, Any],
              most_bytes: int) -> tuple[dict[int, list[Tensor]], list[Chunk]]:
    """Parameters that have a gradient: those whose state stays, by group, and chunks of the others,
    the last parameters first, since a backward is done with these first."""
    staying: dict[int, list[Tensor]] = {}
    chunks: list[Chunk] = []
    for number, group in reversed(list(enumerate(groups))):
        device = device_of(group["params"])
        for parameter in reversed(group["params"]):
            if parameter.grad is None:
                continue
            if device is None:
                staying.setdefault(number, []).insert(0, parameter)
                continue
            size = _size_of(states, parameter)
            last = chunks[-1] if chunks else None
            if last is None or last.device != device or (
                    last.size_bytes and last.size_bytes + size > most_bytes // _CHUNKS):
                chunks.append(last := Chunk(device, {}))
            last.parameters.setdefault(number, []).append(parameter)
            last.size_bytes += size
    return staying, chunks


def _size_of(states: Mapping[Any, Any], parameter: Tensor) -> int:
    if states.get(parameter):
        return sum(value.numel() * value.itemsize for *_, value in moving_of(states, parameter))
    size = parameter.numel() * parameter.itemsize
    return _GUESS * size if size >= LEAST_BYTES else 0


def step_in_chunks(chunks: Sequence[Chunk], states: Mapping[Any, Any],
                   update: Callable[[dict[int, list[Tensor]]], None], home: Home,
                   most_bytes: int) -> None:
    """``update(parameters)`` updates some parameters, by group, while ``states`` has their state on
    their device. ``home(value)`` gives memory of the host for a tensor that has none yet; None: it
    stays. At most ``most_bytes`` of state are on the device at once, or three chunks."""
    on_their_way: collections.deque[_Trip] = collections.deque()

    def begin(chunk: Chunk) -> _Trip:
        while len(on_their_way) >= _LEAST_CHUNKS and most_bytes < chunk.size_bytes + sum(
                trip.chunk.size_bytes for trip in on_their_way):
            on_their_way.popleft().end()
        on_their_way.append(trip := _Trip(chunk, states, home))
        trip.begin()
        return trip

    try:
        coming = begin(chunks[0])
        for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
            trip = coming
            if following is not None:
                coming = begin(following)
            trip.arrive()
            try:
                update(chunk.parameters)
            finally:
                trip.leave()
    finally:
        for trip in on_their_way:
            trip.end()


class _Trip:
    """Of a chunk's state to its device and back, on the current stream and those for copies."""

    def __init__(self, chunk: Chunk, states: Mapping[Any, Any], home: Home) -> None:
        self.chunk, self._states, self._new_home = chunk, states, home
        self._lanes = copies.lanes_of(chunk.device)
        self._coming: list[tuple[dict[Any, Any], Any, Tensor, Tensor]] = []
        self._homes: dict[tuple[int, Any], Tensor] = {}  # by the id of a state, and key
        self._held: list[Tensor] = []  # until copies have read them
        self._done: Any = None  # behind the last copy

    def _tensors(self) -> Iterator[tuple[dict[Any, Any], Any, Tensor]]:
        for parameters in self.chunk.parameters.values():
            for parameter in parameters:
                yield from moving_of(self._states, parameter)

    def begin(self) -> None:
        lanes, into = self._lanes, self._lanes.into
        for state, key, home in self._tensors():
            if host_memory.is_home(home):
                there = lanes.empty(home.shape, home.stride(), home.dtype)
                self._coming.append((state, key, home, there))
        # What is allocated may have been given back by work that is queued now.
        into.wait_event(lanes.mark(lanes.current()))
        for _, _, home, there in self._coming:
            lanes.copy(into, there, home)
        self._done = lanes.mark(into)

    def arrive(self) -> None:
        self._lanes.current().wait_event(self._done)
        for state, key, home, there in self._coming:
            state[key] = there
            self._homes[id(state), key] = home

    def leave(self) -> None:
        """What the update has put in the place of a tensor goes too."""
        lanes, out = self._lanes, self._lanes.out
        out.wait_event(lanes.mark(lanes.current()))
        for state, key, value in self._tensors():
            home = value if host_memory.is_home(value) else self._homes.get((id(state), key))
            if home is None or not _are_alike(home, value):
                home = self._new_home(value)
            if home is not None and home is not value:
                lanes.copy(out, home, value)
                state[key] = home
                self._held.append(value)
        self._done = lanes.mark(out)

    def end(self) -> None:
        self._lanes.current().wait_event(self._done)
        self._coming.clear()
        self._held.clear()


def _are_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
