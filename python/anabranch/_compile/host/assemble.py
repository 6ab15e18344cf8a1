# SPDX-License-Identifier: Apache-2.0
"""From compiled regions and concrete sizes to a recording: tapes, program, plan."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from anabranch._compile.graph import AMBIENT, StreamGraph, Unsupported, value_of
from anabranch._compile.host.part import ALIGNMENT, RegionPart
from anabranch._compile.host.python_region import python_region
from anabranch._compile.host.tape_writer import TapeWriter
from anabranch._compile.host.wrapper_trace import StandInTensor, Storage, trace_wrapper
from anabranch._compile.layouts import SymbolValues, TensorLayout, extent_bytes
from anabranch._compile.regions import CompiledRegion
from anabranch._compile.streamed_graph import RegionReport
from anabranch._core.program import (
    READ,
    READ_WRITE,
    ROLE_CONSTANT,
    ROLE_INPUT,
    ROLE_OUTPUT,
    ROLE_TEMPORARY,
    WRITE,
    ProgramBuilder,
    View,
)
from anabranch._core.record import record
from anabranch._fx.pack_saved import is_pack, is_part
from anabranch._fx.schema import is_scalar
from anabranch._fx.source import source_of

log = logging.getLogger("anabranch.record")


@dataclasses.dataclass(frozen=True)
class ValuePlace:
    """Where a value lies in the program."""

    buffer: int
    offset_bytes: int = 0
    size_bytes: int | None = None  # None: all of the buffer

    def whole_or_view(self) -> int | View:
        if self.size_bytes is None:
            return self.buffer
        return View(self.buffer, self.offset_bytes, self.size_bytes)


class Assembly:
    """A recording with what a call of it needs. Raises Unsupported, or a NativeError."""

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion], args: Sequence[Any],
                 device: Any, native: bool) -> None:
        self.graph = graph
        self.numbers = SymbolValues(graph.placeholders, args)
        self.reports: list[RegionReport] = []
        self.constants: list[torch.Tensor] = []
        self._keep_alive: list[Any] = []
        self._functions: dict[str, tuple[int, int]] = {}
        self._layouts: dict[Node, TensorLayout] = {}
        self._returned = {value_of(n) for n in graph.output.args[0] if isinstance(n, Node)}
        self._offset_in_block = _offsets_in_blocks(graph)
        parts = [self._record_region(region, native) for region in regions]
        self._build(parts)
        self.plan = self.program.make_plan()
        self.recording = record(self.plan, device, self._functions)
        self.outputs = [self._layouts[v] for v in self._output_values]
        self.results = [self._result_expression(n) for n in graph.output.args[0]]

    def summary(self) -> str:
        plan = self.plan
        streams = len({report.stream for report in self.reports})
        return (f"{len(self.reports)} regions on {streams} streams, "
                f"{self.recording.lane_count} threads, {len(plan.waits)} waits; "
                f"arena {plan.arena_bytes} bytes (lower bound {plan.arena_lower_bound_bytes}, "
                f"without reuse {plan.arena_naive_bytes})")

    # ---- recording regions

    def _record_region(self, region: CompiledRegion, native: bool) -> RegionPart:
        graph = region.graph
        for value in [*graph.inputs, *graph.outputs]:
            if not is_scalar(value):
                self._layouts.setdefault(value, self.numbers.layout(value))
        offsets = [self._offset_in_block.get(v, 0) for v in [*graph.inputs, *graph.outputs]
                   if not is_scalar(v)]
        reason = None if native else "native=False"
        if reason is None:
            try:
                return self._tape_part(region, offsets)
            except Unsupported as error:
                reason = str(error)
                log.info("region %s runs in Python: %s", graph.name, reason)
        return RegionPart(region, offsets, reason=reason)

    def _tape_part(self, region: CompiledRegion, offsets: list[int]) -> RegionPart:
        inputs: list[Any] = []
        for i, value in enumerate(region.graph.inputs):
            if is_scalar(value):
                inputs.append(self.numbers.scalar(value))
                continue
            layout = self._layouts[value]
            storage = Storage("input", layout.size_bytes, index=i)
            inputs.append(StandInTensor(storage, layout.dtype, layout.sizes, layout.strides))
        recording = trace_wrapper(region.compiled, inputs)
        part = RegionPart(region, offsets, recording=recording)
        for value, result in zip(region.graph.outputs, recording.results, strict=True):
            part.place_output(self._layouts[value], result)
        part.plan_scratch()
        return part

    # ---- the program

    def _build(self, parts: Sequence[RegionPart]) -> None:
        builder = ProgramBuilder()
        streams = {name: builder.add_stream(name, priority=self.graph.priorities.get(name, 0))
                   for name in self.graph.stream_names if name != AMBIENT}
        streams[AMBIENT] = 0
        self._places: dict[Any, ValuePlace] = {}
        written = {v for part in parts for v in part.region.graph.written}
        self.tensor_arguments = []
        for i, node in enumerate(self.graph.placeholders):
            if is_scalar(node):
                continue
            self.tensor_arguments.append(i)
            layout = self._layouts.setdefault(node, self.numbers.layout(node))
            role = ROLE_INPUT if node in written else ROLE_CONSTANT
            self._places[node] = ValuePlace(builder.add_buffer(
                node.name, role, layout.size_bytes, layout.dtype.itemsize))
        for part in parts:
            for tensor in part.constants:
                self._add_constant(builder, tensor)
        self._add_made_values(builder, [v for p in parts for v in p.region.graph.outputs])
        self._place_parts(parts)
        for part in parts:
            self._add_step(builder, streams, part)
        self.program = builder.build()

    def _add_made_values(self, builder: Any, made: Sequence[Node]) -> None:
        blocks = [n for n in self.graph.gm.graph.nodes if is_pack(n)]
        for block in blocks:
            self._layouts[block] = self.numbers.layout(block)
        self._output_values = [*(v for v in made if v in self._returned), *blocks]
        inner = (v for v in made if v not in self._returned and v not in self._offset_in_block)
        for value in [*self._output_values, *inner]:
            role = ROLE_OUTPUT if value in self._returned else ROLE_TEMPORARY
            self._places[value] = ValuePlace(builder.add_buffer(
                value.name, role, self._layouts[value].size_bytes, ALIGNMENT))

    def _place_parts(self, parts: Sequence[RegionPart]) -> None:
        """Gives what lies in blocks of saved tensors its place there."""
        block_of = {v: n for n in self.graph.gm.graph.nodes if is_pack(n) for v in n.args[0]}
        for part in parts:
            for value in [*part.region.graph.inputs, *part.region.graph.outputs]:
                if value in self._offset_in_block:
                    block = block_of.get(value) or value.args[0]
                    self._places[value] = ValuePlace(
                        self._places[block].buffer, self._offset_in_block[value],
                        self._layouts[value].size_bytes)

    def _add_constant(self, builder: Any, tensor: torch.Tensor) -> None:
        if id(tensor) in self._places:
            return
        size = extent_bytes(tensor.shape, tensor.stride(), tensor.dtype.itemsize)
        self._places[id(tensor)] = ValuePlace(builder.add_buffer(
            f"constant{len(self.constants)}", ROLE_CONSTANT, size, tensor.dtype.itemsize))
        self.constants.append(tensor)

    def _add_step(self, builder: Any, streams: dict[str, int], part: RegionPart) -> None:
        graph = part.region.graph
        accesses = []
        for value in graph.inputs:
            if not is_scalar(value):
                mode = READ_WRITE if value in graph.written else READ
                accesses.append((mode, self._places[value].whole_or_view()))
        accesses += [(WRITE, self._places[v].whole_or_view()) for v in graph.outputs]
        accesses += [(READ, self._places[id(t)].buffer) for t in part.constants]
        if part.scratch_bytes:
            scratch = builder.add_buffer(f"{graph.name}.scratch", ROLE_TEMPORARY,
                                         part.scratch_bytes, ALIGNMENT)
            accesses.append((WRITE, scratch))
        builder.compute(streams[graph.stream], graph.name, accesses,
                        source=source_of(graph.nodes))
        self._functions[graph.name] = self._function(part)
        calls = len(part.recording.calls) if part.recording else 0
        self.reports.append(RegionReport(graph.name, graph.stream, len(graph.nodes), calls,
                                         part.scratch_bytes, part.reason))

    def _function(self, part: RegionPart) -> tuple[int, int]:
        """The region as a C function and its context."""
        if part.recording is not None:
            tape = TapeWriter(part).finish()
            self._keep_alive.append(tape)
            return tape.region_function, tape.handle_value
        inputs = [self._layouts[v] if not is_scalar(v) else self.numbers.scalar(v)
                  for v in part.region.graph.inputs]
        outputs = [self._layouts[v] for v in part.region.graph.outputs]
        thunk = python_region(part.region.compiled, inputs, outputs, part.access_offsets)
        self._keep_alive.append(thunk)
        return ctypes.cast(thunk, ctypes.c_void_p).value or 0, 0

    # ---- results

    def _result_expression(self, node: Any) -> str:
        """Python text for one result of the graph, over a0.. (arguments) and o0.. (outputs)."""
        if not isinstance(node, Node):
            return repr(node)
        if is_scalar(node):
            return repr(self.numbers.scalar(node))
        value = value_of(node)
        if value.op == "placeholder":
            name = f"a{self.graph.placeholders.index(value)}"
        else:
            name = f"o{self._output_values.index(value)}"
        if node is value:
            return name
        layout, shift = self.numbers.view(node, value)
        return (f"{name}.as_strided({layout.sizes!r}, {layout.strides!r}, "
                f"{name}.storage_offset() + {shift})")


def _offsets_in_blocks(graph: StreamGraph) -> dict[Node, int]:
    """In bytes, of the values that lie in blocks of saved tensors (``pack_saved``)."""
    offsets: dict[Node, int] = {}
    for node in graph.gm.graph.nodes:
        if is_pack(node):
            for value, offset in zip(node.args[0], node.args[1], strict=True):
                offsets[value] = offset * value.meta["val"].itemsize
        elif is_part(node):
            offsets[node] = node.args[3] * node.meta["val"].itemsize
    return offsets
