# SPDX-License-Identifier: Apache-2.0
"""A compiled graph of several streams on streams of a GPU, without a recording.

A call has Inductor's callables of the regions queue their kernels, one after the other in program
order, each on the stream of its region. The core plans which regions wait for which; where a region
is waited for, an event is recorded behind it. Side streams begin behind what the caller's stream,
the ambient one, has queued, and that one goes on behind all of them.

Memory comes from torch's allocator, which gives a freed block to whatever its stream does next. So:

* What regions of one stream alone make and read is let go behind its last reader, and so are
  inputs that the ambient stream alone reads. All else is held until the call ends. By then the ambient
  stream comes behind the side streams and these behind it, so that whichever stream a block goes
  back to comes behind all uses of it, whoever uses that stream next.
* A result is the caller's for as long as he likes, to use on the ambient stream. If a side stream
  made it, only the allocator sees it go, and is told of the ambient stream (``record_stream``).
* In a capture the ambient stream joins the side streams, and no more: whoever gives out memory of a
  capture is in it, and the side streams begin each call behind the ambient one.

Threads: an instance takes one call at a time and has events of its own; streams may be shared, since
all that is said of them above holds for whatever else they do. Failure: what a region raises, when
the side streams are joined.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from . import _compat, _native
from ._assemble import StepReport
from ._graph import AMBIENT, StreamGraph, value_of
from ._layouts import Layout, Numbers
from ._region import CompiledRegion
from ._schema import is_scalar
from ._source import source_of

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
            least, greatest = torch.cuda.Stream.priority_range()
            made = torch.cuda.Stream(self._device, min(max(priority, greatest), least))
            stream = _side_streams.setdefault(key, made)  # another thread's, if that was first
        return stream


@dataclasses.dataclass
class _Step:
    """One region; values and steps are numbers."""

    stream: int
    call: Callable[[list[Any]], Sequence[Any]]
    reads: list[int]
    makes: list[int]
    layouts: list[Layout]  # of what it makes
    waits: list[int]
    is_awaited: bool
    gone: list[int]  # what is let go behind it
    copied: list[int] | None = None  # which of its results; None before its first run


class Schedule:
    """The regions of a graph planned, for one set of sizes. Unsupported, or a NativeError."""

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion],
                 args: Sequence[Any]) -> None:
        self._graph = graph
        self._numbers = Numbers(graph.placeholders, args)
        self.values = [*graph.placeholders, *(v for r in regions for v in r.graph.outputs)]
        self._slot = {value: i for i, value in enumerate(self.values)}
        self.sides = [(name, graph.priorities.get(name, 0))
                      for name in graph.stream_names if name != AMBIENT]
        self._stream = {AMBIENT: 0} | {name: i + 1 for i, (name, _) in enumerate(self.sides)}
        returned = graph.output.args[0]
        self._returned = {value_of(n) for n in returned if isinstance(n, Node)}
        self.program = self._make_program(regions)
        self.plan = self.program.make_plan()
        self.exits = self.plan.exits
        self.steps = self._make_steps(regions)
        self.results = [self._result(node) for node in returned]
        self.from_sides = [self._slot[v] for r in regions if r.graph.stream != AMBIENT
                           for v in r.graph.outputs if v in self._returned]
        self.reports = [StepReport(r.graph.name, r.graph.stream, len(r.graph.nodes))
                        for r in regions]

    def summary(self) -> str:
        sides = ", ".join(name + (f" of priority {priority}" if priority else "")
                          for name, priority in self.sides)
        return (f"{len(self.steps)} regions on the caller's stream and {sides}, "
                f"{len(self.plan.waits)} waits; memory of torch's allocator")

    def _make_program(self, regions: Sequence[CompiledRegion]) -> _native.Program:
        builder = _native.ProgramBuilder()
        streams = [0, *(builder.add_stream(name, priority=priority)
                        for name, priority in self.sides)]
        written = {value for region in regions for value in region.graph.written}
        buffers = {value: self._add_buffer(builder, value, written)
                   for value in self.values if not is_scalar(value)}
        for graph in (region.graph for region in regions):
            accesses = [(_native.READ_WRITE if v in graph.written else _native.READ, buffers[v])
                        for v in graph.inputs if not is_scalar(v)]
            accesses += [(_native.WRITE, buffers[v]) for v in graph.outputs]
            builder.compute(streams[self._stream[graph.stream]], graph.name, accesses,
                            source=source_of(graph.nodes))
        return builder.build()

    def _add_buffer(self, builder: Any, value: Node, written: set[Node]) -> int:
        if value.op == "placeholder":
            role = _native.ROLE_INPUT if value in written else _native.ROLE_CONSTANT
        else:
            role = _native.ROLE_OUTPUT if value in self._returned else _native.ROLE_TEMPORARY
        layout = self._numbers.layout(value)
        return builder.add_buffer(value.name, role, layout.size_bytes, layout.dtype.itemsize)

    def _make_steps(self, regions: Sequence[CompiledRegion]) -> list[_Step]:
        awaited = {on for _, on in self.plan.waits}.union(self.exits)
        gone = self._let_go(regions)
        return [_Step(stream=self._stream[region.graph.stream],
                      call=region.compiled,
                      reads=[self._slot[v] for v in region.graph.inputs],
                      makes=[self._slot[v] for v in region.graph.outputs],
                      layouts=[self._numbers.layout(v) for v in region.graph.outputs],
                      waits=[on for step, on in self.plan.waits if step == i],
                      is_awaited=i in awaited,
                      gone=gone[i])
                for i, region in enumerate(regions)]

    def _let_go(self, regions: Sequence[CompiledRegion]) -> list[list[int]]:
        """By step, what its stream alone makes and reads, and of which it is the last reader."""
        streams: dict[Node, set[str]] = {}
        last: dict[Node, int] = {}
        for i, graph in enumerate(region.graph for region in regions):
            for value in (*graph.inputs, *graph.outputs):
                streams.setdefault(value, set()).add(graph.stream)
                last[value] = i
        gone: list[list[int]] = [[] for _ in regions]
        for value, i in last.items():
            users = streams[value] | ({AMBIENT} if value.op == "placeholder" else set())
            if len(users) == 1 and value not in self._returned:
                gone[i].append(self._slot[value])
        return gone

    def _result(self, node: Any) -> Callable[[list[Any]], Any]:
        """How one result of the graph comes from the values."""
        if not isinstance(node, Node) or is_scalar(node):
            constant = self._numbers.scalar(node) if isinstance(node, Node) else node
            return lambda values: constant
        value = value_of(node)
        slot = self._slot[value]
        if node is value:
            return lambda values: values[slot]
        layout, shift = self._numbers.view(node, value)
        return lambda values: _compat.reinterpret_tensor(values[slot], layout.sizes,
                                                         layout.strides, shift)


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
        self._room = [None] * (len(self.planned.values) - len(args))

    def attach_trace(self, trace: _native.Trace | None) -> None:
        """Nobody takes the times of what a GPU does."""

    def run(self, args: list[Any]) -> tuple[Any, ...]:
        values = [*args, *self._room]
        args.clear()
        with self._queues.on_device():
            return self._run(values)

    def _run(self, values: list[Any]) -> tuple[Any, ...]:
        queues, schedule = self._queues, self.planned
        ambient = queues.ambient()
        sides = [queues.side(ambient, *side) for side in schedule.sides]
        is_captured = queues.is_captured()
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
            for slot in schedule.from_sides:
                queues.record_stream(values[slot], ambient)
        return tuple([result(values) for result in schedule.results])

    def _queue_steps(self, values: list[Any], streams: list[Any], events: _Events) -> None:
        queues, current = self._queues, streams[0]
        try:
            for step, behind in zip(self.planned.steps, events.behind):
                stream = streams[step.stream]
                if stream is not current:
                    queues.enter(stream)
                    current = stream
                for on in step.waits:
                    stream.wait_event(events.behind[on])
                _run_step(step, values)
                if behind is not None:
                    stream.record_event(behind)
                for slot in step.gone:
                    values[slot] = None
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


def _run_step(step: _Step, values: list[Any]) -> None:
    inputs = [values[slot] for slot in step.reads]
    if step.copied is None:
        results = list(step.call(inputs[:]))
        step.copied = _to_be_copied(inputs, results, step.layouts)
    else:
        results = list(step.call(inputs))
    for i in step.copied:
        layout = step.layouts[i]
        copy = results[i].new_empty_strided(layout.sizes, layout.strides)
        results[i] = copy.copy_(results[i])
    for slot, result in zip(step.makes, results, strict=True):
        values[slot] = result


def _to_be_copied(inputs: Sequence[Any], results: Sequence[torch.Tensor],
                  layouts: Sequence[Layout]) -> list[int]:
    """Results that do not lie in memory as the graph says, or not in memory of their own. It is the
    same in every run of one set of sizes."""
    known = {_memory(value) for value in inputs if isinstance(value, torch.Tensor)} - {0}
    copied = []
    for i, (result, layout) in enumerate(zip(results, layouts, strict=True)):
        if not layout.has_strides(result.stride()) or _memory(result) in known:
            copied.append(i)
        known.add(_memory(result))
    return copied


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
