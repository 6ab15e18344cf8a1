# SPDX-License-Identifier: Apache-2.0
"""Which region of a graph of streams differs; or, where all are right alone, which one writes
what it does not own, which two nothing keeps apart, or which result is wrongly put together.

Regions are compared with their graphs' operators, on what these have made of the call's arguments,
in an order in which they can run. On the host the plan is then run on one thread, with a look at
all memory behind each region, and with one region late at a time.

Threads: one call at a time. Failure: what a region raises.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node

from anabranch._bisect.compare import Difference, Tolerance
from anabranch._bisect.graphs import GraphCall, copies
from anabranch._bisect.run import clone_as
from anabranch._bisect.snapshot import random_states, set_random_states
from anabranch._bisect.verdict import Blame
from anabranch._compile.graph import AMBIENT, RegionGraph
from anabranch._compile.host.assemble import Assembly, Function
from anabranch._compile.host.instance import HostInstance
from anabranch._compile.host.part import RegionPart
from anabranch._compile.host.python_region import tensor_at
from anabranch._compile.layouts import SymbolValues, TensorLayout
from anabranch._compile.regions import CompiledRegion
from anabranch._compile.threads import HostOptions
from anabranch._core.record import RegionFunction, run_region
from anabranch._fx.pack_saved import is_part
from anabranch._fx.schema import is_scalar
from anabranch._fx.source import source_of

_LATE_S = 0.005
_RUNS = 3
_ALIGNMENT = 64
_POISON = 0xFF


class RegionValues:
    """The values of a graph as its operators make them, region by region."""

    def __init__(self, call: GraphCall) -> None:
        assert call.streamed is not None
        self.graph = call.streamed.graph
        self._made: dict[Node, Any] = dict(zip(self.graph.placeholders, copies(call.args),
                                               strict=True))
        self.numbers = SymbolValues(self.graph.placeholders, call.args)

    def of(self, value: Node) -> Any:
        """As it is now; a region that overwrites it changes what was answered."""
        if is_scalar(value):
            return self.numbers.scalar(value)
        if value not in self._made and is_part(value):
            block, *layout = value.args
            return self._made[block].as_strided(*layout)  # type: ignore[index]
        return self._made[value]

    def is_there(self, value: Node) -> bool:
        return value in self._made or is_part(value)

    def inputs(self, region: RegionGraph) -> list[Any]:
        """Copies, laid out as the region was compiled for."""
        return [self.laid_out(value) for value in region.inputs]

    def laid_out(self, value: Node) -> Any:
        now = self.of(value)
        return now if is_scalar(value) else _laid_out(now, self.numbers.layout(value))

    def run(self, region: RegionGraph) -> dict[str, Any]:
        """Runs its operators, and answers what they leave, by name."""
        inputs = [self.of(value) for value in region.inputs]
        results = Interpreter(region.module).run(*inputs)
        self._made.update((value, clone_as(result)) for value, result in
                          zip(region.outputs, results, strict=True))
        return self.left_by(region)

    def left_by(self, region: RegionGraph) -> dict[str, Any]:
        return {value.name: self.of(value) for value in (*region.outputs, *region.inputs)
                if value in region.written or value in region.outputs}


def find_race(call: GraphCall, number: int, options: HostOptions, tolerance: Tolerance,
              ) -> Blame | None:
    """Two regions of a graph on the host that nothing keeps apart, if there are such."""
    with torch.no_grad():
        return _Finder(call, number, options, tolerance).in_order()


def find_place(call: GraphCall, number: int, options: HostOptions, tolerance: Tolerance,
               ) -> Blame | None:
    """The culprit in a graph of streams that differs; None where nothing is found."""
    assert call.streamed is not None
    finder = _Finder(call, number, options, tolerance)
    with torch.no_grad():
        return finder.alone() if call.streamed.graph.device.type != "cpu" else \
            finder.alone() or finder.in_memory() or finder.in_order()


class _Finder:
    def __init__(self, call: GraphCall, number: int, options: HostOptions,
                 tolerance: Tolerance) -> None:
        assert call.streamed is not None
        self._call, self._number, self._tolerance = call, number, tolerance
        self._options = options._replace(delay_seed=None)
        self._graph, self._regions = call.streamed.graph, call.streamed.regions
        self._wanted = call.wanted()
        self._functions: list[Any] = []  # what recordings call

    def alone(self) -> Blame | None:
        """The first region that differs on the inputs that it should have."""
        set_random_states(self._call.random)
        values, on_host = RegionValues(self._call), self._graph.device.type == "cpu"
        assembly = self._instance(on_one_thread=True).planned if on_host else None
        for i, region in enumerate(self._regions):
            given, tape = values.inputs(region.graph), values.inputs(region.graph)
            random = random_states()
            wanted = values.run(region.graph)
            set_random_states(random)
            found = _left(region.graph, given, region.compiled(list(given)))
            if difference := self._tolerance.compare(found, wanted):
                return self._place("kernel", "Inductor's code of it differs from its operators",
                                   [region], difference)
            if assembly is not None and assembly.parts[i].recording is not None:
                found = _run_tape(assembly, assembly.parts[i], tape, values.numbers)
                if difference := self._tolerance.compare(found, wanted):
                    return self._place("tape", "its calls from C++ differ from Inductor's",
                                       [region], difference)
        return None

    def in_memory(self) -> Blame | None:
        """On one thread, in the order of the plan, with its memory: the first region behind which a
        value is wrong that somebody still needs. If none is, results are wrongly put together."""
        watch = _MemoryWatch(self._call, self._tolerance)
        instance = self._instance(on_one_thread=True, around=lambda part, function: self._kept(
            watch.around(part, function)))
        difference = self._tolerance.compare(self._call.call(instance.run), self._wanted)
        if watch.found is not None:
            region, value, wrong = watch.found
            what = "it writes it wrongly there" if value in region.graph.outputs else \
                "it writes where that lies"
            return self._place("memory", f"right alone, and behind it {value.name} is wrong in the "
                               f"plan: {what}", [region], wrong)
        if difference is None:
            return None
        return Blame("answers", f"{self._name()}: all values are right, and {difference} when they "
                     "are answered", self._number, self._call.kind,
                     value=difference.name, difference=difference.largest)

    def in_order(self) -> Blame | None:
        """Which two regions have to be kept apart: the first one for which a later one has to wait
        to make all right, whichever region is late, and the last such one. Regions that come before
        the first do not help, and those behind the second are only led to."""
        names = [region.graph.name for region in self._regions]
        difference = next(filter(None, map(self._late, names)), None)
        if difference is None:
            return None
        for i, first in enumerate(self._regions):
            for second in reversed(self._regions[i + 1:]):
                order = [(first.graph.name, second.graph.name)]
                if first.graph.stream != second.graph.stream \
                        and not any(self._late(name, order) for name in names):
                    return self._place("order", "right alone and one after the other, and nothing "
                                       "keeps the second behind the first", [first, second],
                                       difference)
        return None

    def _late(self, name: str, order: Sequence[tuple[str, str]] = ()) -> Difference | None:
        """What differs where this region begins late. A launch with other arguments comes before,
        so that memory does not hold what is right from the last time."""
        def around(part: RegionPart, function: Function) -> Function:
            if part.region.graph.name != name:
                return function
            return self._kept(_delayed(function))

        instance = self._instance(order=order, around=around)
        for _ in range(_RUNS):
            instance.run([_other(arg) for arg in copies(self._call.args)])
            if difference := self._tolerance.compare(self._call.call(instance.run), self._wanted):
                return difference
        return None

    def _instance(self, on_one_thread: bool = False, **how: Any) -> HostInstance:
        """With a thread for each stream else, however few cores there are."""
        streams = len({region.graph.stream for region in self._regions})
        options = self._options._replace(max_threads=1 if on_one_thread else streams)
        return HostInstance(self._graph, self._regions, self._call.args, options, **how)

    def _kept(self, function: Any) -> Function:
        """As recordings take it."""
        self._functions.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value or 0, 0

    def _name(self) -> str:
        return f"graph {self._number} ({self._call.kind})"

    def _place(self, kind: str, why: str, regions: Sequence[CompiledRegion],
               difference: Difference) -> Blame:
        names = tuple(region.graph.name for region in regions)
        source = source_of(regions[0].graph.nodes) or None
        where = " and ".join(f"region {name} ({source_of(region.graph.nodes) or 'of no line'})"
                             for name, region in zip(names, regions, strict=True))
        return Blame(kind, f"{self._name()}, {where}: {why}; {difference}", self._number,
                     self._call.kind, names, source, difference.name, difference.largest)


class _MemoryWatch:
    """Looks at all values behind each region of a launch on one thread."""

    def __init__(self, call: GraphCall, tolerance: Tolerance) -> None:
        assert call.streamed is not None
        set_random_states(call.random)
        self._values, self._tolerance = RegionValues(call), tolerance
        self._regions = {one.graph.name: one for one in call.streamed.regions}
        self._left = list(self._regions)  # to run
        self._at: dict[Node, int] = {}  # addresses
        self.found: tuple[CompiledRegion, Node, Difference] | None = None

    def around(self, part: RegionPart, function: Function) -> Any:
        def run(context: Any, call: Any) -> int:
            code: int = RegionFunction(function[0])(function[1] or None, call)
            if code == 0 and self.found is None:
                with torch.no_grad():
                    self._look(part, call.contents.buffers)
            return code

        return RegionFunction(run)

    def _look(self, part: RegionPart, buffers: Any) -> None:
        region = part.region.graph
        for i, ((_, value), offset) in enumerate(zip(region.accesses, part.access_offsets,
                                                     strict=True)):
            self._at[value] = (buffers[i] or 0) + offset
        random = random_states()
        self._values.run(region)
        set_random_states(random)
        self._left.remove(region.name)
        for value in self._needed(region):
            now = tensor_at(self._at[value], self._values.numbers.layout(value))
            if difference := self._tolerance.of(value.name, now, self._values.of(value)):
                self.found = self._regions[region.name], value, difference
                return

    def _needed(self, region: RegionGraph) -> list[Node]:
        """Values in memory that are read later or answered, those of the region first."""
        read = {value for name in self._left for value in self._regions[name].graph.inputs}
        answered = {value for one in self._regions.values() for value in one.graph.outputs
                    if any(user.op == "output" for user in value.users)}
        return sorted((value for value in self._at if value in read or value in answered),
                      key=lambda value: value not in region.outputs)


def _left(region: RegionGraph, inputs: Sequence[Any], results: Sequence[Any]) -> dict[str, Any]:
    left = {value.name: result for value, result in zip(region.outputs, results, strict=True)}
    return left | {value.name: given for value, given in zip(region.inputs, inputs, strict=True)
                   if value in region.written}


def _run_tape(assembly: Assembly, part: RegionPart, inputs: Sequence[Any],
              numbers: SymbolValues) -> dict[str, Any]:
    """The region's calls from C++, on memory of its own."""
    region = part.region.graph
    tensors = [one for one in inputs if isinstance(one, Tensor)]
    outputs = [_new(numbers.layout(value)) for value in region.outputs]
    addresses = [one.data_ptr() - offset for one, offset in
                 zip([*tensors, *outputs], part.access_offsets, strict=True)]
    scratch = torch.empty(part.scratch_bytes + _ALIGNMENT, dtype=torch.uint8, device="cpu")
    addresses += [constant.data_ptr() for constant in part.constants]
    addresses.append(-(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT)
    run_region(assembly.functions[region.name], addresses)
    return _left(region, inputs, outputs)


def _delayed(function: Function) -> Any:
    def run(context: Any, call: Any) -> int:
        time.sleep(_LATE_S)  # without Python's lock
        code: int = RegionFunction(function[0])(function[1] or None, call)
        return code

    return RegionFunction(run)


def _other(arg: Any) -> Any:
    """Of other values, where these lead to no place in memory."""
    return 1 - arg if isinstance(arg, Tensor) and arg.is_floating_point() else arg


def _laid_out(tensor: Tensor, layout: TensorLayout) -> Tensor:
    if tensor.stride() == layout.strides:
        return clone_as(tensor)
    return torch.empty_strided(layout.sizes, layout.strides, dtype=layout.dtype,
                               device=tensor.device).copy_(tensor)


def _new(layout: TensorLayout) -> Tensor:
    """Filled with what nobody would have written there."""
    memory = torch.full((layout.size_bytes,), _POISON, dtype=torch.uint8, device="cpu")
    return memory.view(layout.dtype).as_strided(layout.sizes, layout.strides) \
        if memory.numel() else torch.empty_strided(
            layout.sizes, layout.strides, dtype=layout.dtype, device="cpu")


def streams_of(regions: Sequence[CompiledRegion]) -> list[str | None]:
    """By region the stream's name, None for that of the caller."""
    return [None if one.graph.stream == AMBIENT else one.graph.stream for one in regions]
