# SPDX-License-Identifier: Apache-2.0
"""The regions of a graph, planned for streams of a GPU: what each reads, makes, waits for and lets
go.

Threads: a schedule is one instance's, since a step notes in its first run what it has to copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from anabranch import _compat
from anabranch._compile.graph import AMBIENT, StreamGraph, value_of
from anabranch._compile.layouts import SymbolValues, TensorLayout
from anabranch._compile.program import RegionProgram
from anabranch._compile.regions import CompiledRegion
from anabranch._compile.streamed_graph import RegionReport
from anabranch._fx.schema import is_scalar


@dataclasses.dataclass
class ScheduledRegion:
    """One region; values and steps are numbers."""

    stream: int
    call: Callable[[list[Any]], Sequence[Any]]
    reads: list[int]
    makes: list[int]
    layouts: list[TensorLayout]  # of what it makes
    waits: list[int]
    is_awaited: bool
    gone: list[int]  # what is let go behind it
    copied: list[int] | None = None  # which of its results; None before its first run

    def run(self, values: list[Any]) -> None:
        """Queues the region on the current stream."""
        inputs = [values[index] for index in self.reads]
        if self.copied is None:
            results = list(self.call(inputs[:]))
            self.copied = _to_be_copied(inputs, results, self.layouts)
        else:
            results = list(self.call(inputs))
        for i in self.copied:
            layout = self.layouts[i]
            copy = results[i].new_empty_strided(layout.sizes, layout.strides)
            results[i] = copy.copy_(results[i])
        for index, result in zip(self.makes, results, strict=True):
            values[index] = result


class Schedule:
    """The regions of a graph planned, for one set of sizes. Unsupported, or a NativeError."""

    has_arena = False

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion],
                 args: Sequence[Any]) -> None:
        self._graph = graph
        self._numbers = SymbolValues(graph.placeholders, args)
        self.values = [*graph.placeholders, *(v for r in regions for v in r.graph.outputs)]
        self._index = {value: i for i, value in enumerate(self.values)}
        self.sides = [(name, graph.priorities.get(name, 0))
                      for name in graph.stream_names if name != AMBIENT]
        self._stream = {AMBIENT: 0} | {name: i + 1 for i, (name, _) in enumerate(self.sides)}
        made = RegionProgram(graph, [region.graph for region in regions], self._numbers)
        self._returned = made.returned
        self.program, self.plan = made.program, made.program.make_plan()
        self.exits = self.plan.exits
        self.steps = self._make_steps(regions)
        self.results = [self._result(node) for node in graph.output.args[0]]
        self.from_sides = [self._index[v] for r in regions if r.graph.stream != AMBIENT
                           for v in r.graph.outputs if v in self._returned]
        self.reports = [RegionReport(r.graph.name, r.graph.stream, len(r.graph.nodes))
                        for r in regions]

    def summary(self) -> str:
        sides = ", ".join(name + (f" of priority {priority}" if priority else "")
                          for name, priority in self.sides)
        return (f"{len(self.steps)} regions on the caller's stream and {sides}, "
                f"{len(self.plan.waits)} waits; memory of torch's allocator")

    def _make_steps(self, regions: Sequence[CompiledRegion]) -> list[ScheduledRegion]:
        awaited = {on for _, on in self.plan.waits}.union(self.exits)
        gone = self._let_go(regions)
        return [ScheduledRegion(stream=self._stream[region.graph.stream],
                                call=region.compiled,
                                reads=[self._index[v] for v in region.graph.inputs],
                                makes=[self._index[v] for v in region.graph.outputs],
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
                gone[i].append(self._index[value])
        return gone

    def _result(self, node: Any) -> Callable[[list[Any]], Any]:
        """How one result of the graph comes from the values."""
        if not isinstance(node, Node) or is_scalar(node):
            constant = self._numbers.scalar(node) if isinstance(node, Node) else node
            return lambda values: constant
        value = value_of(node)
        index = self._index[value]
        if node is value:
            return lambda values: values[index]
        layout, shift = self._numbers.view(node, value)
        return lambda values: _compat.reinterpret_tensor(values[index], layout.sizes,
                                                         layout.strides, shift)


def _to_be_copied(inputs: Sequence[Any], results: Sequence[torch.Tensor],
                  layouts: Sequence[TensorLayout]) -> list[int]:
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
