# SPDX-License-Identifier: Apache-2.0
"""The program of a graph's regions, for one set of sizes: what each reads and writes, and on which
stream.

Both the host and streams of a GPU plan it. Only on the host does memory come from the plan; on a
GPU that is torch's, and the plan says who waits for whom.

Threads: immutable once made. Failure: Unsupported, or a NativeError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from anabranch._compile.graph import AMBIENT, GENERATOR, RegionGraph, StreamGraph, value_of
from anabranch._compile.layouts import SymbolValues
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
from anabranch._fx.extents import extent_bytes
from anabranch._fx.pack_saved import is_pack, is_part
from anabranch._fx.schema import is_scalar
from anabranch._fx.source import source_of

ALIGNMENT = 64  # of what regions make, in bytes


@dataclasses.dataclass(frozen=True)
class RegionNeeds:
    """What a region uses beside its values."""

    constants: Sequence[torch.Tensor] = ()
    scratch_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a value lies in the program."""

    buffer: int
    offset_bytes: int = 0
    size_bytes: int | None = None  # None: all of the buffer

    def whole_or_view(self) -> int | View:
        if self.size_bytes is None:
            return self.buffer
        return View(self.buffer, self.offset_bytes, self.size_bytes)


class RegionProgram:
    """A step of ``program`` is a region. Its accesses are, in this order: its tensor inputs, its
    outputs, constants, scratch, torch's generator, and marks of
    ``order``.

    The program's inputs and constants are ``given``, by their numbers among the graph's
    placeholders, and then ``constants``; its outputs are ``outputs``. ``returned`` are the values
    that the graph answers, or views of which it answers. ``order`` has pairs of regions by their
    names, an earlier and a later one: the later waits for it, whatever they use.
    """

    def __init__(self, graph: StreamGraph, regions: Sequence[RegionGraph], numbers: SymbolValues,
                 needs: Sequence[RegionNeeds] | None = None,
                 order: Sequence[tuple[str, str]] = ()) -> None:
        self._graph, self._numbers = graph, numbers
        self.returned = {value_of(n) for n in graph.output.args[0] if isinstance(n, Node)}
        self.given = [i for i, n in enumerate(graph.placeholders) if not is_scalar(n)]
        self.constants: list[torch.Tensor] = []
        self._builder = ProgramBuilder()
        self._places: dict[Any, _Place] = {}
        needs = needs or [RegionNeeds()] * len(regions)
        self._has_drawn, self._generator = False, self._add_generator(regions)
        self._add_given(regions)
        for tensor in (tensor for need in needs for tensor in need.constants):
            self._add_constant(tensor)
        blocks = _blocks_of(graph)
        self.outputs = self._add_made(regions, blocks)
        self._place_in_blocks(regions, blocks)
        streams = {name: self._builder.add_stream(name, priority=graph.priorities.get(name, 0))
                   for name in graph.stream_names if name != AMBIENT}
        self._marks = [(pair, self._builder.add_buffer(f"order {i}", ROLE_TEMPORARY, 1, 1))
                       for i, pair in enumerate(order)]
        for region, need in zip(regions, needs, strict=True):
            self._add_step(streams.get(region.stream, 0), region, need)
        self.program = self._builder.build()

    def offsets(self, region: RegionGraph) -> list[int]:
        """At which byte of their buffers the accesses to a region's values begin."""
        return [self._places[value].offset_bytes for _, value in region.accesses]

    def _add_generator(self, regions: Sequence[RegionGraph]) -> int | None:
        """What orders regions that draw random numbers on the CPU, where a region draws when it
        runs. A GPU's numbers are drawn when kernels are queued, which is in the graph's order."""
        if self._graph.device.type != "cpu" or sum(region.random for region in regions) < 2:
            return None
        return self._builder.add_buffer(GENERATOR, ROLE_TEMPORARY, 1, 1)

    def _add_given(self, regions: Sequence[RegionGraph]) -> None:
        written = {value for region in regions for value in region.written}
        for node in (self._graph.placeholders[i] for i in self.given):
            layout = self._numbers.layout(node)
            role = ROLE_INPUT if node in written else ROLE_CONSTANT
            self._add(node, node.name, role, layout.size_bytes, layout.dtype.itemsize)

    def _add_constant(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._places:
            size = extent_bytes(tensor.shape, tensor.stride(), tensor.dtype)
            self._add(id(tensor), f"constant{len(self.constants)}", ROLE_CONSTANT, size,
                      tensor.dtype.itemsize)
            self.constants.append(tensor)

    def _add_made(self, regions: Sequence[RegionGraph], blocks: dict[Node, Node]) -> list[Node]:
        """Adds what has a buffer of its own, and answers which of it is answered."""
        made = [value for region in regions for value in region.outputs]
        outputs = [*(value for value in made if value in self.returned),
                   *dict.fromkeys(block for block in blocks.values() if is_pack(block))]
        inner = [v for v in made if v not in self.returned and v not in blocks]
        for role, values in ((ROLE_OUTPUT, outputs), (ROLE_TEMPORARY, inner)):
            for value in values:
                self._add(value, value.name, role, self._numbers.layout(value).size_bytes,
                          ALIGNMENT)
        return outputs

    def _place_in_blocks(self, regions: Sequence[RegionGraph], blocks: dict[Node, Node]) -> None:
        """What lies in blocks of saved tensors has its place there."""
        for value in {v: None for region in regions for _, v in region.accesses if v in blocks}:
            size = self._numbers.layout(value).size_bytes
            self._places[value] = _Place(self._places[blocks[value]].buffer,
                                         _offset_in_block(value, blocks[value]), size)

    def _add(self, key: Any, name: str, role: int, size_bytes: int, alignment: int) -> None:
        self._places[key] = _Place(self._builder.add_buffer(name, role, size_bytes, alignment))

    def _add_step(self, stream: int, region: RegionGraph, needs: RegionNeeds) -> None:
        accesses = [(mode, self._places[value].whole_or_view()) for mode, value in region.accesses]
        accesses += [(READ, self._places[id(tensor)].buffer) for tensor in needs.constants]
        if needs.scratch_bytes:
            scratch = self._builder.add_buffer(f"{region.name}.scratch", ROLE_TEMPORARY,
                                               needs.scratch_bytes, ALIGNMENT)
            accesses.append((WRITE, scratch))
        if region.random and self._generator is not None:
            accesses.append((READ_WRITE if self._has_drawn else WRITE, self._generator))
            self._has_drawn = True
        for (earlier, later), mark in self._marks:
            if region.name in (earlier, later):
                accesses.append((WRITE if region.name == earlier else READ, mark))
        self._builder.compute(stream, region.name, accesses, source=source_of(region.nodes))


def _blocks_of(graph: StreamGraph) -> dict[Node, Node]:
    """By value the block of saved tensors in which it lies (``pack_saved``), made or given."""
    blocks: dict[Node, Node] = {}
    for node in graph.gm.graph.nodes:
        if is_pack(node):
            blocks.update((value, node) for value in node.args[0])
        elif is_part(node):
            blocks[node] = node.args[0]
    return blocks


def _offset_in_block(value: Node, block: Node) -> int:
    """In bytes."""
    args: Any = block.args if is_pack(block) else value.args
    first = args[1][args[0].index(value)] if is_pack(block) else args[3]
    return int(first * value.meta["val"].itemsize)
