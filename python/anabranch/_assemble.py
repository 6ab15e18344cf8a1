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

from anabranch import _compat
from anabranch._core.abi import TensorLibrary
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
from anabranch._core.record import RegionFunction, record, write_region_error
from anabranch._core.tape import (
    Address,
    DataOf,
    HandleOf,
    Integers,
    ListValue,
    SomeValue,
    TapeBuilder,
    TensorValue,
)
from anabranch._fx.pack_saved import is_pack, is_part
from anabranch._fx.schema import is_scalar
from anabranch._fx.source import source_of
from anabranch._graph import AMBIENT, StreamGraph, Unsupported, value_of
from anabranch._layouts import Layout, Numbers
from anabranch._region import CompiledRegion
from anabranch._tape import (
    Call,
    Encoded,
    Recorded,
    Storage,
    extent_bytes,
    float_as_double,
    record_wrapper,
)

log = logging.getLogger("anabranch.record")

_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a value lies in the program."""

    buffer: int
    offset_bytes: int = 0
    size_bytes: int | None = None  # None: all of the buffer

    def whole_or_view(self) -> int | View:
        if self.size_bytes is None:
            return self.buffer
        return View(self.buffer, self.offset_bytes, self.size_bytes)


@dataclasses.dataclass
class StepReport:
    """How one region runs: as a tape of ``calls`` calls, or in Python for ``reason``; on a GPU as
    Inductor's callable, without either."""

    region: str
    stream: str
    nodes: int
    calls: int | None = None
    scratch_bytes: int = 0
    reason: str | None = None


class Assembly:
    """A recording with what a call of it needs. Raises Unsupported, or a NativeError."""

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion], args: Sequence[Any],
                 device: Any, native: bool) -> None:
        self.graph = graph
        self.numbers = Numbers(graph.placeholders, args)
        self.reports: list[StepReport] = []
        self.constants: list[torch.Tensor] = []
        self._keep_alive: list[Any] = []
        self._functions: dict[str, tuple[int, int]] = {}
        self._layouts: dict[Node, Layout] = {}
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

    def _record_region(self, region: CompiledRegion, native: bool) -> _Part:
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
        return _Part(region, offsets, reason=reason)

    def _tape_part(self, region: CompiledRegion, offsets: list[int]) -> _Part:
        inputs: list[Any] = []
        for i, value in enumerate(region.graph.inputs):
            if is_scalar(value):
                inputs.append(self.numbers.scalar(value))
                continue
            layout = self._layouts[value]
            storage = Storage("input", layout.size_bytes, index=i)
            inputs.append(Recorded(storage, layout.dtype, layout.sizes, layout.strides))
        recording = record_wrapper(region.compiled, inputs)
        part = _Part(region, offsets, recording=recording)
        for value, result in zip(region.graph.outputs, recording.results, strict=True):
            part.place_output(self._layouts[value], result)
        part.plan_scratch()
        return part

    # ---- the program

    def _build(self, parts: Sequence[_Part]) -> None:
        builder = ProgramBuilder()
        streams = {name: builder.add_stream(name, priority=self.graph.priorities.get(name, 0))
                   for name in self.graph.stream_names if name != AMBIENT}
        streams[AMBIENT] = 0
        self._places: dict[Any, Place] = {}
        written = {v for part in parts for v in part.region.graph.written}
        self.tensor_arguments = []
        for i, node in enumerate(self.graph.placeholders):
            if is_scalar(node):
                continue
            self.tensor_arguments.append(i)
            layout = self._layouts.setdefault(node, self.numbers.layout(node))
            role = ROLE_INPUT if node in written else ROLE_CONSTANT
            self._places[node] = Place(builder.add_buffer(
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
            self._places[value] = Place(builder.add_buffer(
                value.name, role, self._layouts[value].size_bytes, _ALIGNMENT))

    def _place_parts(self, parts: Sequence[_Part]) -> None:
        """Gives what lies in blocks of saved tensors its place there."""
        block_of = {v: n for n in self.graph.gm.graph.nodes if is_pack(n) for v in n.args[0]}
        for part in parts:
            for value in [*part.region.graph.inputs, *part.region.graph.outputs]:
                if value in self._offset_in_block:
                    block = block_of.get(value) or value.args[0]
                    self._places[value] = Place(
                        self._places[block].buffer, self._offset_in_block[value],
                        self._layouts[value].size_bytes)

    def _add_constant(self, builder: Any, tensor: torch.Tensor) -> None:
        if id(tensor) in self._places:
            return
        size = extent_bytes(tensor.shape, tensor.stride(), tensor.dtype.itemsize)
        self._places[id(tensor)] = Place(builder.add_buffer(
            f"constant{len(self.constants)}", ROLE_CONSTANT, size, tensor.dtype.itemsize))
        self.constants.append(tensor)

    def _add_step(self, builder: Any, streams: dict[str, int], part: _Part) -> None:
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
                                         part.scratch_bytes, _ALIGNMENT)
            accesses.append((WRITE, scratch))
        builder.compute(streams[graph.stream], graph.name, accesses,
                        source=source_of(graph.nodes))
        self._functions[graph.name] = self._function(part)
        calls = len(part.recording.calls) if part.recording else 0
        self.reports.append(StepReport(graph.name, graph.stream, len(graph.nodes), calls,
                                       part.scratch_bytes, part.reason))

    def _function(self, part: _Part) -> tuple[int, int]:
        """The region as a C function and its context."""
        if part.recording is not None:
            tape = TapeWriter(part).finish()
            self._keep_alive.append(tape)
            return tape.region_function, tape.handle_value
        inputs = [self._layouts[v] if not is_scalar(v) else self.numbers.scalar(v)
                  for v in part.region.graph.inputs]
        outputs = [self._layouts[v] for v in part.region.graph.outputs]
        thunk = _python_region(part.region.compiled, inputs, outputs, part.access_offsets)
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


class _Part:
    """One region on its way to a step: its recorded calls and where their memory lies.

    Accesses of the step are, in this order: tensor inputs, outputs, constants, scratch.
    ``access_offsets`` says of the first two where they begin in their buffers, in bytes.
    """

    def __init__(self, region: CompiledRegion, access_offsets: list[int], recording: Any = None,
                 reason: str | None = None) -> None:
        self.access_offsets = access_offsets
        self.region = region
        self.recording = recording
        self.reason = reason
        self.scratch_bytes = 0
        self.constants: list[torch.Tensor] = []
        self.copies: list[tuple[int, Layout, Recorded]] = []  # access, layout, from
        self.offsets: dict[Storage, int] = {}
        self.access_of_input: dict[int, int] = {}
        for i, value in enumerate(region.graph.inputs):
            if not is_scalar(value):
                self.access_of_input[i] = len(self.access_of_input)
        self._first_output = len(self.access_of_input)
        self._outputs_placed = 0
        self._owner: dict[Storage, int] = {}
        if recording is not None:
            self._find_constants()

    def place_output(self, layout: Layout, result: Any) -> None:
        """Lets the region write straight into the output where it can, else copies at the end."""
        if not isinstance(result, Recorded):
            raise Unsupported(f"a region answers {type(result).__name__}")
        if result.sizes != layout.sizes or result.dtype is not layout.dtype:
            raise Unsupported(f"a result has sizes {result.sizes} and not {layout.sizes}")
        access = self._first_output + self._outputs_placed
        self._outputs_placed += 1
        storage = result.storage
        direct = (storage.kind == "scratch" and storage not in self._owner and result.offset == 0
                  and layout.has_strides(result.strides)
                  and storage.size_bytes <= layout.size_bytes)
        if direct:
            self._owner[storage] = access
        else:
            self.copies.append((access, layout, result))

    def place(self, tensor: Recorded) -> tuple[int, int] | None:
        """The access and byte offset of a tensor; None for the result of an operator."""
        storage = tensor.storage
        if storage.kind == "input":
            return self._within(self.access_of_input[storage.index], tensor)
        if storage in self._owner:
            return self._within(self._owner[storage], tensor)
        if storage.kind == "constant":
            position = next(i for i, c in enumerate(self.constants) if c is storage.tensor)
            return self._first_output + self._outputs_placed + position, tensor.offset_bytes
        if storage.kind == "scratch":
            return self._scratch_access, self.offsets[storage] + tensor.offset_bytes
        return None

    def _within(self, access: int, tensor: Recorded) -> tuple[int, int]:
        return access, self.access_offsets[access] + tensor.offset_bytes

    @property
    def _scratch_access(self) -> int:
        return self._first_output + self._outputs_placed + len(self.constants)

    def _find_constants(self) -> None:
        for call in self.recording.calls:
            for tensor in call.tensors:
                constant = tensor.storage.tensor
                if constant is not None and not any(c is constant for c in self.constants):
                    self.constants.append(constant)

    def plan_scratch(self) -> None:
        """Packs what the region allocates for itself, by the planner: one stream, a step a call."""
        copied = {result.storage for _, _, result in self.copies}
        builder = ProgramBuilder()
        buffers: dict[Storage, int] = {}
        for call in self.recording.calls:
            accesses = []
            for storage in dict.fromkeys(t.storage for t in call.tensors):
                if storage.kind != "scratch" or storage in self._owner or not storage.size_bytes:
                    continue
                if storage not in buffers:
                    buffers[storage] = builder.add_buffer(
                        f"s{len(buffers)}", ROLE_TEMPORARY, storage.size_bytes, _ALIGNMENT)
                    accesses.append((WRITE, buffers[storage]))
                else:
                    accesses.append((READ_WRITE, buffers[storage]))
            builder.compute(0, call.name, accesses)
        builder.compute(0, "end", [(READ, buffers[s]) for s in copied if s in buffers])
        plan = builder.build().make_plan()
        self.scratch_bytes = plan.arena_bytes
        self.offsets = {s: plan.offset(b) for s, b in buffers.items()}
        for call in self.recording.calls:
            for tensor in call.tensors:
                self.offsets.setdefault(tensor.storage, 0)  # of no bytes


class TapeWriter:
    """Writes the recorded calls of a part as a tape of the core."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        self._tape = TapeBuilder(tensor_library())
        self._registers: dict[tuple[Any, ...], int] = {}
        self._results: dict[Storage, int] = {}
        self._made: dict[Storage, Recorded] = {}

    def finish(self) -> Any:
        for position, call in enumerate(self._part.recording.calls):
            if call.kind == "dispatch":
                self._dispatch(call)
            else:
                arguments = [a for value in call.arguments for a in self._argument(value, call)]
                self._tape.call(call.name, call.function, arguments,
                                fallible=call.kind == "library")
            self._release(position)
        for access, layout, result in self._part.copies:
            to = self._tape.view(access, self._part.access_offsets[access],
                                 _compat.dtype_code(layout.dtype), layout.sizes, layout.strides)
            self._tape.copy(to, self._handle(result))
        return self._tape.finish()

    def _argument(self, value: Any, call: Call) -> list[Any]:
        if isinstance(value, Recorded):
            if call.kind == "library":
                return [HandleOf(self._handle(value))]
            place = self._part.place(value)
            if place is not None:
                return [Address(*place)]
            if value.offset:
                return [DataOf(self._handle(value))]
            return [DataOf(self._results[value.storage])]
        if isinstance(value, list):
            return [Integers(value)]
        if isinstance(value, float) and call.kind == "kernel":
            return [float_as_double(value)]
        if isinstance(value, (bool, int)):
            return [int(value)]
        if isinstance(value, float):
            return [value]
        raise Unsupported(f"{call.name} is called with {type(value).__name__}")

    def _handle(self, tensor: Recorded) -> int:
        """The register with a tensor of just this view."""
        place = self._part.place(tensor)
        dtype = _compat.dtype_code(tensor.dtype)
        key = (place or id(tensor.storage), tensor.offset, dtype, tensor.sizes, tensor.strides)
        if place is None and self._is_whole_result(tensor):
            return self._results[tensor.storage]
        if key not in self._registers:
            if place is not None:
                register = self._tape.view(*place, dtype, tensor.sizes, tensor.strides)
            else:
                register = self._tape.view_of(self._results[tensor.storage], tensor.offset_bytes,
                                              dtype, tensor.sizes, tensor.strides)
            self._registers[key] = register
        return self._registers[key]

    def _is_whole_result(self, tensor: Recorded) -> bool:
        made = self._made[tensor.storage]
        return (tensor.offset == 0 and tensor.dtype is made.dtype and tensor.sizes == made.sizes
                and tensor.strides == made.strides)

    def _dispatch(self, call: Call) -> None:
        arguments = [self._value(a) for a in call.arguments]
        registers = self._tape.dispatch(call.name, call.overload, arguments, len(call.results))
        for result, register in zip(call.results, registers, strict=True):
            self._results[result.storage] = register
            self._made[result.storage] = result
            self._tape.expect(register, result.sizes, result.strides)

    def _value(self, encoded: Encoded) -> Any:
        if encoded.kind == "tensor":
            return TensorValue(self._handle(encoded.value))
        if encoded.kind == "list":
            return ListValue([self._value(v) for v in encoded.value])
        if encoded.kind == "some":
            return SomeValue(self._value(encoded.value))
        return None if encoded.kind == "none" else encoded.value

    def _release(self, position: int) -> None:
        """Gives back the results of operators that no later call uses."""
        kept = {result.storage for _, _, result in self._part.copies}
        for storage, register in list(self._results.items()):
            if storage.last_use == position and storage not in kept:
                self._tape.release(register)


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


def tensor_library() -> Any:
    """torch's C functions for the tapes."""
    names = ("create_view", "delete_tensor", "new_handle", "data_pointer", "strides", "copy",
             "dispatch", "new_list", "list_push", "delete_list", "last_error")
    functions = {name: _compat.library_function(name) or None for name in names}
    return TensorLibrary(**functions, version=_compat.library_version(), device_type=0,
                         layout=0)


def _python_region(compiled: Any, inputs: Sequence[Any], outputs: Sequence[Layout],
                   offsets: Sequence[int]) -> Any:
    """A region that calls Inductor's function under Python's lock, as a C function."""

    def run(context: Any, call: Any) -> int:
        try:
            given = call.contents.buffers
            buffers = [(given[i] or 0) + offset for i, offset in enumerate(offsets)]
            position = 0
            values = []
            for item in inputs:
                if isinstance(item, Layout):
                    values.append(_tensor_at(buffers[position], item))
                    position += 1
                else:
                    values.append(item)
            with torch.no_grad():
                results = compiled(values)
                for layout, result in zip(outputs, results, strict=True):
                    _tensor_at(buffers[position], layout).copy_(result)
                    position += 1
        except Exception as error:
            write_region_error(call, f"{type(error).__name__}: {error}")
            return 1
        return 0

    return RegionFunction(run)


def _tensor_at(address: int, layout: Layout) -> torch.Tensor:
    if layout.size_bytes == 0:
        return torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype)
    memory = (ctypes.c_char * layout.size_bytes).from_address(address)
    flat = torch.frombuffer(memory, dtype=layout.dtype)
    return flat.as_strided(layout.sizes, layout.strides)
