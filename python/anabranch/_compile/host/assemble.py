# SPDX-License-Identifier: Apache-2.0
"""From compiled regions and concrete sizes to a recording: tapes, program, plan."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from anabranch._compile.graph import StreamGraph, Unsupported, value_of
from anabranch._compile.host.part import RegionPart
from anabranch._compile.host.python_region import python_region
from anabranch._compile.host.tape_writer import TapeWriter
from anabranch._compile.host.wrapper_trace import StandInTensor, Storage, trace_wrapper
from anabranch._compile.layouts import SymbolValues
from anabranch._compile.program import RegionNeeds, RegionProgram
from anabranch._compile.regions import CompiledRegion
from anabranch._compile.streamed_graph import RegionReport
from anabranch._core.device import Device
from anabranch._core.record import record
from anabranch._fx.schema import is_scalar

log = logging.getLogger("anabranch.record")
Function = tuple[int, int]  # of a region: its address and that of its context


class Assembly:
    """A recording with what a call of it needs. Raises Unsupported, or a NativeError.

    ``order`` is RegionProgram's. ``around`` is given each part with its function and context, and
    answers those that are recorded in their place, which the caller keeps alive.
    """

    has_arena = True

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion], args: Sequence[Any],
                 device: Device, is_native: bool, order: Sequence[tuple[str, str]] = (),
                 around: Callable[[RegionPart, Function], Function] | None = None) -> None:
        self.graph = graph
        self.numbers = SymbolValues(graph.placeholders, args)
        parts = self.parts = [self._part_of(region, is_native) for region in regions]
        needs = [RegionNeeds(part.constants, part.scratch_bytes) for part in parts]
        made = RegionProgram(graph, [region.graph for region in regions], self.numbers, needs,
                             order)
        self.program, self.given, self.constants = made.program, made.given, made.constants
        self.plan = self.program.make_plan()
        self._keep_alive: list[Any] = []
        self.functions = {
            part.region.graph.name: self._function(part, made.offsets(part.region.graph))
            for part in parts}
        recorded = self.functions if around is None else {
            part.region.graph.name: around(part, self.functions[part.region.graph.name])
            for part in parts}
        self.recording = record(self.plan, device, recorded)
        self.reports = [_report_of(part) for part in parts]
        self.outputs = [self.numbers.layout(value) for value in made.outputs]
        self.results = [self._result_expression(node, made.outputs)
                        for node in graph.output.args[0]]

    def summary(self) -> str:
        plan = self.plan
        streams = len({report.stream for report in self.reports})
        return (f"{len(self.reports)} regions on {streams} streams, "
                f"{self.recording.lane_count} threads, {len(plan.waits)} waits; "
                f"arena {plan.arena_bytes} bytes (lower bound {plan.arena_lower_bound_bytes}, "
                f"without reuse {plan.arena_naive_bytes})")

    def _part_of(self, region: CompiledRegion, is_native: bool) -> RegionPart:
        if not is_native:
            return RegionPart(region, reason="native_regions=False")
        try:
            return self._tape_part(region)
        except Unsupported as error:
            log.info("region %s runs in Python: %s", region.graph.name, error)
            return RegionPart(region, reason=str(error))

    def _tape_part(self, region: CompiledRegion) -> RegionPart:
        inputs: list[Any] = []
        for i, value in enumerate(region.graph.inputs):
            if is_scalar(value):
                inputs.append(self.numbers.scalar(value))
                continue
            layout = self.numbers.layout(value)
            storage = Storage("input", layout.size_bytes, index=i)
            inputs.append(StandInTensor(storage, layout.dtype, layout.sizes, layout.strides))
        part = RegionPart(region, recording=trace_wrapper(region.compiled, inputs))
        for value, result in zip(region.graph.outputs, part.recording.results, strict=True):
            part.place_output(self.numbers.layout(value), result)
        part.plan_scratch()
        return part

    def _function(self, part: RegionPart, offsets: list[int]) -> Function:
        """The region as a C function and its context."""
        part.access_offsets = offsets
        if part.recording is not None:
            tape = TapeWriter(part).finish()
            self._keep_alive.append(tape)
            return tape.region_function, tape.handle_value
        inputs = [self.numbers.layout(v) if not is_scalar(v) else self.numbers.scalar(v)
                  for v in part.region.graph.inputs]
        outputs = [self.numbers.layout(v) for v in part.region.graph.outputs]
        thunk = python_region(part.region.compiled, inputs, outputs, offsets)
        self._keep_alive.append(thunk)
        return ctypes.cast(thunk, ctypes.c_void_p).value or 0, 0

    def _result_expression(self, node: Any, outputs: Sequence[Node]) -> str:
        """Python text for one result of the graph, over a0.. (arguments) and o0.. (outputs)."""
        if not isinstance(node, Node):
            return repr(node)
        if is_scalar(node):
            return repr(self.numbers.scalar(node))
        value = value_of(node)
        if value.op == "placeholder":
            name = f"a{self.graph.placeholders.index(value)}"
        else:
            name = f"o{outputs.index(value)}"
        if node is value:
            return name
        layout, shift = self.numbers.view(node, value)
        return (f"{name}.as_strided({layout.sizes!r}, {layout.strides!r}, "
                f"{name}.storage_offset() + {shift})")


def _report_of(part: RegionPart) -> RegionReport:
    graph = part.region.graph
    return RegionReport(graph.name, graph.stream, len(graph.nodes),
                        len(part.recording.calls) if part.recording else 0, part.scratch_bytes,
                        part.reason)
