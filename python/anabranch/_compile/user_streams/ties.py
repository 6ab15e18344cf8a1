# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the user, tied to both ends of a graph at each call of it.

On CUDA the library ties all streams of a device in one call an end: an idle stream is not waited
for, and events serve again. On other devices, and where the library finds no driver, torch does.

Threads: each call has ends of its own. Failure: NativeError, or torch's, where the driver fails.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from anabranch import _compat
from anabranch._core.capture import capture_device
from anabranch._core.library import NativeError
from anabranch._core.stream_ties import StreamTies

_CPU, _CUDA = 0, 1  # torch's numbers of kinds of devices


@dataclasses.dataclass
class Ties:
    """Numbers are those of Dynamo's table, which is filled anew for each call."""

    streams: dict[int, None] = dataclasses.field(default_factory=dict)  # in order of appearance
    awaited: dict[int, None] = dataclasses.field(default_factory=dict)  # events from outside
    recorded: dict[int, int] = dataclasses.field(default_factory=dict)  # event -> stream, by time
    used_on: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # argument, stream
    barriers: list[int | None] = dataclasses.field(default_factory=list)  # None: for the device

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        _knots(map(_compat.object_of_graph, self.streams))  # opens what no capture may open
        has_more = bool(self.awaited or self.recorded or self.used_on or self.barriers)

        def tied(*args: Any) -> Any:
            streams = {i: _compat.object_of_graph(i) for i in self.streams}
            knots = _knots(streams.values())
            more = _Ends(self, streams) if has_more else None
            for knot in knots:
                knot.join()
            if more is not None:
                more.begin()
            answer = call(*args)
            for knot in knots:
                knot.fork()
            if more is not None:
                more.end(args)
            return answer

        return tied


class _Ends:
    """What a call has at its ends beside streams. Dynamo's table may be another call's by the end
    of this one, so all is taken out of it before. Nothing is to be done for the CPU, whose work is
    done when a call returns."""

    def __init__(self, ties: Ties, streams: dict[int, torch.Stream]) -> None:
        self._ties = ties
        self._streams = {i: s for i, s in streams.items() if s.device_type != _CPU}
        self._events = {i: _compat.object_of_graph(i) for i in (*ties.awaited, *ties.recorded)}

    def begin(self) -> None:
        for event in (self._events[i] for i in self._ties.awaited):
            if event.device.type != "cpu" and not is_captured(ambient_stream(event.device)):
                ambient_stream(event.device).wait_event(event)

    def end(self, args: tuple[Any, ...]) -> None:
        for event, i in self._ties.recorded.items():
            if i in self._streams:  # the current stream is behind the user's since the begin
                self._current(i).record_event(self._events[event])
        for argument, i in self._ties.used_on:
            if i in self._streams:
                args[argument].record_stream(self._streams[i])
        for barrier in self._ties.barriers:
            if barrier in self._streams:
                self._current(barrier).synchronize()
            elif barrier is None and torch.accelerator.is_available():
                torch.accelerator.synchronize()

    def _current(self, i: int) -> torch.Stream:
        return ambient_stream(self._streams[i].device)


class _LibraryKnot:
    """The current stream of a CUDA device and others of it, which may name it too."""

    def __init__(self, ties: StreamTies, current: int, others: list[int]) -> None:
        self._ties = ties
        self._current = ctypes.c_void_p(current)
        self._others = struct.pack(f"{len(others)}P", *others)

    def join(self) -> None:
        self._ties.join(self._current, self._others)

    def fork(self) -> None:
        self._ties.fork(self._current, self._others)


class _TorchKnot:
    """The same by torch's own means, for any device."""

    def __init__(self, others: list[torch.Stream]) -> None:
        self._current = ambient_stream(others[0].device)
        captured = is_captured(self._current)
        # A capture can be tied to nothing outside: a stream that is not in it has queued nothing
        # for it, and would never be joined to it again.
        self._others = [stream for stream in others if not is_same(stream, self._current)
                        and (not captured or is_captured(stream))]

    def join(self) -> None:
        for stream in self._others:
            self._current.wait_stream(stream)

    def fork(self) -> None:
        for stream in self._others:
            stream.wait_stream(self._current)


def _knots(streams: Iterable[torch.Stream]) -> list[_LibraryKnot | _TorchKnot]:
    """One for each device."""
    by_device: dict[tuple[int, int], list[torch.Stream]] = {}
    for stream in streams:
        if stream.device_type != _CPU:
            by_device.setdefault((stream.device_type, stream.device_index), []).append(stream)
    return [_knot(*device, others) for device, others in by_device.items()]


def _knot(kind: int, device: int, others: list[torch.Stream]) -> _LibraryKnot | _TorchKnot:
    if _library_ties(kind, device) is None:
        return _TorchKnot(others)
    numbers = tuple([stream.stream_id for stream in others])
    return _library_knot(device, _compat.current_stream(device), numbers)


@functools.lru_cache(maxsize=1024)
def _library_knot(device: int, current: int, numbers: tuple[int, ...]) -> _LibraryKnot:
    """Of streams by their numbers. torch gives a number to one stream for good: those of its pools
    are never given back, and one from outside has its handle for a number."""
    ties = _library_ties(_CUDA, device)
    assert ties is not None
    return _LibraryKnot(ties, current, [_handle(number, device) for number in numbers])


def _handle(number: int, device: int) -> int:
    return torch.cuda.Stream(stream_id=number, device_index=device,
                             device_type=_CUDA).cuda_stream


@functools.cache
def _library_ties(kind: int, device: int) -> StreamTies | None:
    """None for what is no CUDA device of the driver that the library finds."""
    if kind != _CUDA or torch.version.cuda is None:
        return None
    try:
        return StreamTies(capture_device(device))
    except NativeError:
        return None


def ambient_stream(device: torch.device) -> torch.Stream:
    """Of torch's most special class for it, whose methods take both kinds."""
    if device.type == "cuda":
        return torch.cuda.current_stream(device)
    return torch.accelerator.current_stream(device)


def is_same(one: torch.Stream, other: torch.Stream) -> bool:
    """torch.cuda.Stream says no of every torch.Stream."""
    return (one.device, one.stream_id) == (other.device, other.stream_id)


def is_captured(stream: torch.Stream) -> bool:
    if stream.device.type != "cuda":
        return False
    if is_same(stream, torch.cuda.current_stream()):  # entering it would cost more than asking
        return torch.cuda.is_current_stream_capturing()
    of_cuda: Any = stream
    with torch.cuda.stream(of_cuda):
        return torch.cuda.is_current_stream_capturing()
