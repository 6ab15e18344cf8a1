# SPDX-License-Identifier: Apache-2.0
"""A compiled graph of several streams on streams of a GPU, without a recording.

A call has Inductor's callables of the regions queue their kernels, one after the other in program
order, each on the stream of its region. The core plans which regions wait for which; where a region
is waited for, an event is recorded behind it. Side streams begin behind what the caller's stream,
the ambient one, has queued, and that one goes on behind all of them.

Memory comes from torch's allocator, which gives a freed block to whatever its stream does next. So:

* What regions of one stream alone make and read is let go behind its last reader, and so are
  inputs that the ambient stream alone reads. All else is held until the call ends. By then the
  ambient stream comes behind the side streams and these behind it, so that whichever stream a block
  goes back to comes behind all uses of it, whoever uses that stream next.
* A result is the caller's for as long as they like, to use on the ambient stream. If a side stream
  made it, only the allocator sees it go, and is told of the ambient stream (``record_stream``).
* In a capture the ambient stream joins the side streams, inputs are held as well, and the
  allocator is told nothing: whoever gives out memory of a capture is in it, and the side streams
  begin each call behind the ambient one.

Threads: an instance takes one call at a time and has events of its own; streams may be shared,
since all that is said of them above holds for whatever else they do. Failure: what a region raises,
when the side streams are joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from anabranch._compile.cuda_streams.schedule import Schedule
from anabranch._compile.graph import StreamGraph
from anabranch._compile.regions import CompiledRegion
from anabranch._core.trace import Trace

# By device, ambient stream, name and priority. A call on another ambient stream has others, so that
# two that nothing orders stay so.
_side_streams: dict[tuple[Any, ...], torch.cuda.Stream] = {}


class CudaQueues:
    """What a call needs of its GPU: its streams, and events."""

    new_event = torch.cuda.Event
    is_captured = staticmethod(torch.cuda.is_current_stream_capturing)
    enter = staticmethod(torch.cuda.set_stream)
    record_stream = staticmethod(torch.Tensor.record_stream)

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.device(self._device)

    def ambient(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def side(self, ambient: torch.cuda.Stream, name: str, priority: int) -> torch.cuda.Stream:
        key = self._device, ambient.cuda_stream, name, priority
        stream = _side_streams.get(key)
        if stream is None:
            streams: Any = torch.cuda.Stream
            least, greatest = streams.priority_range()
            made = torch.cuda.Stream(self._device, min(max(priority, greatest), least))
            stream = _side_streams.setdefault(key, made)  # another thread's, if that was first
        return stream


@dataclasses.dataclass
class _Events:
    """Recorded anew by each call: a wait is for what was recorded when it was queued."""

    begin: Any
    end: Any
    behind: list[Any]  # by step; None where nobody waits for it


class CudaInstance:
    """A schedule and its events. ``queues`` are CudaQueues, or what stands for them."""

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion], queues: Any,
                 args: list[Any]) -> None:
        self.planned = Schedule(graph, regions, args)
        self._queues = queues
        self._events = self._new_events()
        self._unmade = [None] * (len(self.planned.values) - len(args))

    def attach_trace(self, trace: Trace | None) -> None:
        """Nobody takes the times of what a GPU does."""

    def run(self, args: list[Any]) -> tuple[Any, ...]:
        with self._queues.on_device():
            is_captured = self._queues.is_captured()
            held = args[:] if is_captured else []
            values = [*args, *self._unmade]
            args.clear()
            answer = self._run(values, is_captured)
            held.clear()
            return answer

    def _run(self, values: list[Any], is_captured: bool) -> tuple[Any, ...]:
        queues, schedule = self._queues, self.planned
        ambient = queues.ambient()
        sides = [queues.side(ambient, *side) for side in schedule.sides]
        # Outside, nobody may wait for an event that was recorded in a capture.
        events = self._new_events() if is_captured else self._events
        ambient.record_event(events.begin)
        for side in sides:
            side.wait_event(events.begin)
        try:
            self._queue_steps(values, [ambient, *sides], events)
        except BaseException:
            # Where a capture has become invalid, nothing can be joined, and nothing will run.
            with contextlib.suppress(RuntimeError):
                _join(ambient, sides)
            raise
        for step in schedule.exits:
            ambient.wait_event(events.behind[step])
        if not is_captured:
            ambient.record_event(events.end)
            for side in sides:
                side.wait_event(events.end)
            for index in schedule.from_sides:
                queues.record_stream(values[index], ambient)
        return tuple([result(values) for result in schedule.results])

    def _queue_steps(self, values: list[Any], streams: list[Any], events: _Events) -> None:
        queues, current = self._queues, streams[0]
        try:
            for step, behind in zip(self.planned.steps, events.behind, strict=True):
                stream = streams[step.stream]
                if stream is not current:
                    queues.enter(stream)
                    current = stream
                for on in step.waits:
                    stream.wait_event(events.behind[on])
                step.run(values)
                if behind is not None:
                    stream.record_event(behind)
                for index in step.gone:
                    values[index] = None
        finally:
            queues.enter(streams[0])

    def _new_events(self) -> _Events:
        new = self._queues.new_event
        return _Events(new(), new(), [new() if step.is_awaited else None
                                      for step in self.planned.steps])


def _join(ambient: Any, sides: Sequence[Any]) -> None:
    for side in sides:
        ambient.wait_stream(side)
    for side in sides:
        side.wait_stream(ambient)
