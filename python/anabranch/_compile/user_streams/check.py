# SPDX-License-Identifier: Apache-2.0
"""What eager would run of a graph over torch's streams, and what its syncs leave open.

Dynamo's graph is run once on fake tensors, whose storages and strides are those of the real ones
that it was traced with, also where sizes are not fixed: each operator becomes a step that reads and
writes bytes, each sync a step that orders. The core then finds the races that eager would have
(docs/streams.md).

Failure: a graph that cannot be run so has no reports; the reason goes to the log.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from anabranch import _compat, errors
from anabranch._core.program import (
    ORIGIN_USER_SYNCHRONISED,
    READ,
    READ_WRITE,
    ROLE_CONSTANT,
    ROLE_INPUT,
    ROLE_OUTPUT,
    ROLE_TEMPORARY,
    SEVERITY_ERROR,
    SEVERITY_WARNING,
    WRITE,
    ProgramBuilder,
    View,
)
from anabranch._fx.schema import arguments_of, tensors_in
from anabranch._fx.source import source_of

log = logging.getLogger("anabranch.compile")
_UNSYNCHRONISED = 203
_OVERWRITE = ("copy_", "fill_", "zero_")  # do not read what they write to
_AMBIENT = 0


@dataclasses.dataclass
class Syncs:
    """How one node orders work: ``(operation, numbers)`` of Dynamo's table, in their order."""

    operation: str
    numbers: tuple[int | Node | None, ...]


def check_syncs(gm: GraphModule, syncs: Mapping[Node, Syncs], ambient: set[int], *,
          strict: bool) -> list[str]:
    """The reports of a graph: notes and warnings as texts that are logged, each once a graph; an
    error is raised, a PlanError with both orders. ``ambient`` are numbers of the current stream."""
    try:
        program = _ProgramWalk(gm, syncs, ambient).program()
    except Exception as error:
        log.info("streams are not checked: %s: %s", type(error).__name__,
                 str(error).splitlines()[0] if str(error) else "")
        return []
    texts = []
    for report in program.find_reports(strict):
        if report.severity == SEVERITY_ERROR:
            raise errors.from_native(_UNSYNCHRONISED, f"compile: {report.message}")
        level = logging.WARNING if report.severity == SEVERITY_WARNING else logging.INFO
        log.log(level, "anabranch: %s", report.message)
        texts.append(report.message)
    return texts


@dataclasses.dataclass
class _Buffer:
    number: int
    size_bytes: int
    role: int
    name: str


class _ProgramWalk(Interpreter):
    """Runs the graph on fakes of its inputs and tells a builder of it."""

    def __init__(self, gm: GraphModule, syncs: Mapping[Node, Syncs], ambient: set[int]) -> None:
        super().__init__(gm)
        self._syncs = syncs
        self._ambient = ambient
        self._buffers: dict[int, _Buffer] = {}  # by storage
        self._kept: list[Tensor] = []  # so that no storage has the number of another
        self._steps: list[Any] = []  # what to tell the builder, when the buffers' roles are known
        self._cuts = _compat.breaks_around(gm)
        self._stream = _AMBIENT
        self._source = ""

    def program(self) -> Any:
        with _compat.FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.no_grad():
            inputs = [self._fake(node, fake) for node in self.graph.find_nodes(op="placeholder")]
            with _OperatorMode(self):
                answer = self.run(*inputs)
            for tensor in tensors_in(answer):
                buffer = self._buffer(tensor)
                if buffer.role == ROLE_TEMPORARY:
                    buffer.role = ROLE_OUTPUT
        return self._build()

    def _fake(self, node: Node, fake: Any) -> Any:
        example = node.meta.get("example_value")
        if not isinstance(example, Tensor):
            return _compat.example_of(example)
        shape, stride, offset, size_bytes = _compat.tree_map(_compat.example_of, (
            tuple(example.shape), example.stride(), example.storage_offset(),
            example.untyped_storage().nbytes()))
        storage = torch.empty(size_bytes // example.element_size(), dtype=example.dtype,
                              device=example.device)
        made = storage.as_strided(shape, stride, offset)
        self._buffer(made, node.name, ROLE_INPUT)
        return made

    def run_node(self, node: Node) -> Any:
        stream = (node.meta.get("custom") or {}).get("stream")
        self._stream = _AMBIENT if stream is None else self._number(stream)
        self._source = source_of([node])
        if node in self._syncs:
            self._add_sync(node, self._syncs[node])
            return None
        if _compat.is_object_of_graph(node):
            return None
        return super().run_node(node)

    def _number(self, stream: Any) -> int:
        """0 for the ambient stream, one more than Dynamo's number for another."""
        return _AMBIENT if stream in self._ambient else stream + 1

    def _add_sync(self, node: Node, sync: Syncs) -> None:
        numbers, source = sync.numbers, self._source
        if sync.operation == "wait_stream":
            waiting, other = map(self._number, numbers)
            self._steps += [("record_event", other, node, source),
                            ("wait_event", waiting, node, source)]
        elif sync.operation in ("record_event", "wait_event"):
            event, stream = numbers
            self._steps.append((sync.operation, self._number(stream), event, source))
        elif sync.operation == "synchronize_stream":
            self._steps.append(("synchronize", self._number(numbers[0]), None, source))
        elif sync.operation == "synchronize_event":
            self._steps.append(("synchronize_event", _AMBIENT, numbers[0], source))
        elif sync.operation == "synchronize_device":
            self._steps.append(("synchronize_device", _AMBIENT, None, source))

    def add_operator(self, operator: Any, named: list[tuple[Tensor, bool]],
                     made: list[Tensor]) -> None:
        accesses = []
        name = _name_of(operator)
        for tensor, is_written in named:
            changes = WRITE if name in _OVERWRITE else READ_WRITE
            accesses.append((changes if is_written else READ, self._buffer(tensor),
                             _view(tensor)))
        for tensor in made:
            if tensor.untyped_storage()._cdata not in self._buffers:
                buffer = self._buffer(tensor, name, ROLE_TEMPORARY)
                accesses.append((WRITE, buffer, None))
        accesses = [access for access in accesses if access[1].size_bytes]
        if accesses:
            self._steps.append(("compute", self._stream, (operator, accesses), self._source))

    def _buffer(self, tensor: Tensor, name: str = "constant",
                role: int = ROLE_CONSTANT) -> _Buffer:
        """That of the tensor's storage; name and role are those of a new one."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._buffers:
            self._kept.append(tensor)
            self._buffers[storage._cdata] = _Buffer(len(self._buffers), storage.nbytes(), role,
                                                    name)
        return self._buffers[storage._cdata]

    def _between_ends(self) -> list[Any]:
        """The steps, and before and behind them what is not known to be open. An event recorded
        before the graph covers what the caller did. Where a break cuts a function, values and syncs
        on its other side are unknown, and each stream is taken to be tied to the ambient one."""
        working = {stream for kind, stream, *_ in self._steps if kind == "compute"} - {_AMBIENT}
        recorded: set[Any] = set()
        before: list[Any] = []
        steps = []
        for kind, stream, what, source in self._steps:
            if kind in ("wait_event", "synchronize_event") and what not in recorded \
                    and not _compat.is_made_by_graph(what):
                if kind == "wait_event" and stream not in working | {_AMBIENT}:
                    continue  # nothing comes after it
                before.append(("record_event", _AMBIENT, what, ""))
                recorded.add(what)
            if kind == "record_event":
                recorded.add(what)
            steps.append((kind, stream, what, source))
        begins_behind_one, ends_at_one = self._cuts
        if begins_behind_one and working:
            before.append(("record_event", _AMBIENT, "begin", ""))
            before += [("wait_event", stream, "begin", "") for stream in sorted(working)]
        if ends_at_one:
            for stream in sorted({step[1] for step in steps} - {_AMBIENT}):
                steps += [("record_event", stream, ("end", stream), ""),
                          ("wait_event", _AMBIENT, ("end", stream), "")]
        return before + steps

    def _build(self) -> Any:
        builder = ProgramBuilder()
        steps = self._between_ends()
        used = {step[1] for step in steps} - {_AMBIENT}
        streams = {_AMBIENT: 0} | {stream: builder.add_stream(
            f"stream {stream - 1}", ORIGIN_USER_SYNCHRONISED) for stream in sorted(used)}
        buffers = [builder.add_buffer(b.name, b.role, max(b.size_bytes, 1))
                   for b in self._buffers.values()]
        events = {what: builder.add_event(f"event {number}") for number, what in enumerate(
            dict.fromkeys(step[2] for step in steps if step[0].endswith("_event")))}
        for kind, stream, what, source in steps:
            on = streams[stream]
            if kind == "compute":
                operator, accesses = what
                builder.compute(on, _name_of(operator), [
                    (mode, view._replace(buffer=buffers[b.number]) if view else buffers[b.number])
                    for mode, b, view in accesses], source=source)
            elif kind == "record_event":
                builder.record_event(on, events[what], source)
            elif kind == "wait_event":
                builder.wait_event(on, events[what], source)
            elif kind == "synchronize":
                builder.synchronize(on, source)
            elif kind == "synchronize_event":
                builder.wait_event(_waiter(builder, streams), events[what], source)
                builder.synchronize(streams["waiter"], source)
            elif kind == "synchronize_device":
                for each in list(streams.values()):
                    builder.synchronize(each, source)
        return builder.build()


def _name_of(operator: Any) -> str:
    return operator._schema.name.split("::")[1]


def _waiter(builder: Any, streams: dict[Any, int]) -> int:
    """A stream on which nothing runs, by which the host waits for events alone."""
    if "waiter" not in streams:
        streams["waiter"] = builder.add_stream("the host", ORIGIN_USER_SYNCHRONISED)
    return streams["waiter"]


class _OperatorMode(_compat.TorchDispatchMode):
    """Tells a walk of each operator that torch runs."""

    def __init__(self, walk: _ProgramWalk) -> None:
        super().__init__()
        self._walk = walk

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = function(*args, **kwargs)
        named = [(tensor, is_written) for value, is_written in arguments_of(function, args, kwargs)
                 for tensor in tensors_in(value)]
        made = list(tensors_in(answer))
        # Views name bytes, and some operators only ask what a tensor is.
        if not function.is_view and (made or any(is_written for _, is_written in named)):
            self._walk.add_operator(function, named, made)
        return answer


def _view(tensor: Tensor) -> Any:
    """The bytes of it within its storage."""
    item = tensor.element_size()
    return View(0, int(tensor.storage_offset()) * item, item, tuple(tensor.shape),
                tuple(stride * item for stride in tensor.stride()))
