# SPDX-License-Identifier: Apache-2.0
"""One region on its way to a step of a program: its recorded calls, and where their memory lies."""

from __future__ import annotations

from typing import Any

import torch

from anabranch._compile.graph import Unsupported
from anabranch._compile.host.wrapper_trace import StandInTensor, Storage
from anabranch._compile.layouts import TensorLayout
from anabranch._compile.program import ALIGNMENT
from anabranch._compile.regions import CompiledRegion
from anabranch._core.program import READ, READ_WRITE, ROLE_TEMPORARY, WRITE, ProgramBuilder
from anabranch._fx.schema import is_scalar


class RegionPart:
    """One region on its way to a step: its recorded calls and where their memory lies.

    Accesses are those of the region's step, as RegionProgram has them. ``access_offsets`` says of
    those to values where they begin in their buffers, in bytes; it is known once there is a
    program.
    """

    def __init__(self, region: CompiledRegion, recording: Any = None,
                 reason: str | None = None) -> None:
        self.access_offsets: list[int] = []
        self.region = region
        self.recording = recording
        self.reason = reason
        self.scratch_bytes = 0
        self.constants: list[torch.Tensor] = []
        self.copies: list[tuple[int, TensorLayout, StandInTensor]] = []  # access, layout, from
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

    def place_output(self, layout: TensorLayout, result: Any) -> None:
        """Lets the region write straight into the output where it can, else copies at the end."""
        if not isinstance(result, StandInTensor):
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

    def place(self, tensor: StandInTensor) -> tuple[int, int] | None:
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

    def _within(self, access: int, tensor: StandInTensor) -> tuple[int, int]:
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
                        f"s{len(buffers)}", ROLE_TEMPORARY, storage.size_bytes, ALIGNMENT)
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
