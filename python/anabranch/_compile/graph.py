# SPDX-License-Identifier: Apache-2.0
"""From a graph of AOTAutograd to regions: who reads and writes what, on which stream.

A *value* is a node with memory of its own: a placeholder, an operator's result, one part of a
tuple, or a saved tensor's part of a block. Views name bytes of a value again and numbers are no
memory at all: both are copied into every region that uses them, so only values cross from one
region to another.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from anabranch import _compat
from anabranch._compile.asked import AskedStreams
from anabranch._compile.groups import merge_small_groups
from anabranch._core.program import (
    READ,
    READ_WRITE,
    ROLE_INPUT,
    ROLE_TEMPORARY,
    WRITE,
    ProgramBuilder,
)
from anabranch._fx.pack_saved import is_pack, is_part
from anabranch._fx.schema import (
    is_collective,
    is_getitem,
    is_random,
    is_scalar,
    is_wait,
    overload_of,
    written_arguments,
)
from anabranch._fx.schema import is_view as names_bytes_again
from anabranch.streams import ANNOTATION

AMBIENT = "ambient"
GENERATOR = "generator"  # torch's, of the device: among the values that a step reads and writes
# Of all collectives, whatever stream they are written on: all processes have to begin theirs in one
# order, and who runs on two streams begins in any.
COMMUNICATION = "communication"
_HOST = torch.device("cpu")
_DISTRIBUTED = ("_c10d_functional", "c10d_functional", "c10d", "_dtensor", "symm_mem")


class Unsupported(Exception):
    """This graph or region cannot be run as asked; the text is the reason told to the user."""


@dataclasses.dataclass
class RegionGraph:
    """One region: a graph of its own, and how it hangs in the whole.

    ``inputs`` are values or scalar placeholders of the whole graph, in the order of the region's
    placeholders; ``outputs`` the values it makes for others, in the order of its results;
    ``written`` those of ``inputs`` that it overwrites. ``alone`` where no other region can run
    beside it.
    """

    name: str
    stream: str
    nodes: list[Node]
    module: GraphModule
    inputs: list[Node]
    outputs: list[Node]
    written: set[Node]
    random: bool
    alone: bool = False

    @functools.cached_property
    def accesses(self) -> list[tuple[int, Node]]:
        """To values, each with its mode: the tensors it is given, then those that it makes."""
        given = [(READ_WRITE if value in self.written else READ, value)
                 for value in self.inputs if not is_scalar(value)]
        return [*given, *((WRITE, value) for value in self.outputs)]


class StreamGraph:
    """A graph with its streams found: raises Unsupported where it cannot be split. All of it is on
    one ``device``."""

    def __init__(self, gm: GraphModule, asked: AskedStreams, device: torch.device = _HOST) -> None:
        self.gm = gm
        self.device = device
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.output = next(n for n in reversed(gm.graph.nodes) if n.op == "output")
        self.steps = [n for n in gm.graph.nodes if _is_step(n)]
        for node in gm.graph.nodes:
            _refuse_unsupported(node, device)
        self._begun = _begun_collectives(self.steps)
        self.streams = _assign_streams(self.steps)
        self.priorities = asked.priorities

    @property
    def stream_names(self) -> list[str]:
        """The ambient stream and the side streams in the order in which they appear."""
        return list(dict.fromkeys([AMBIENT, *self.streams.values()]))

    def regions(self) -> list[RegionGraph]:
        """In an order in which they can run."""
        groups: dict[int, list[Node]] = {}
        for node, group in zip(self.steps, self._groups(), strict=True):
            groups.setdefault(group, []).append(node)
        region_of = {node: group for group, nodes in groups.items() for node in nodes}
        regions = [self._region(k, groups[k], region_of) for k in sorted(groups)]
        for region, alone in zip(regions, _are_alone(regions), strict=True):
            region.alone = alone
        return regions

    def _groups(self) -> list[int]:
        """The region of each step: the planner's, small ones merged. A collective and the waits for
        it are in one: its memory is not there before, and a wait knows it by its tensor."""
        builder = ProgramBuilder()
        streams = {name: builder.add_stream(name) for name in self.stream_names[1:]}
        streams[AMBIENT] = 0
        buffers: dict[Node | str, int] = {
            GENERATOR: builder.add_buffer(GENERATOR, ROLE_INPUT, 1)}
        for node in self.gm.graph.nodes:
            if _is_value(node):
                given = node.op == "placeholder" or is_part(node)
                role = ROLE_INPUT if given else ROLE_TEMPORARY
                buffers[node] = builder.add_buffer(node.name, role, 1)
        begun = [node for node in self.steps if node not in self._begun]
        for node in begun:
            reads, writes = _accesses(node)
            for wait in (wait for wait, start in self._begun.items() if start is node):
                writes |= set(_values_of(wait))
            accesses = [(READ, buffers[v]) for v in reads - writes]
            accesses += [(READ_WRITE if v in reads else WRITE, buffers[v])
                         for v in _in_graph_order(writes, buffers)]
            builder.compute(streams[self.streams[node]], node.name, accesses)
        groups = dict(zip(begun, builder.build().find_regions(), strict=True))
        return merge_small_groups(self.steps,
                                  [groups[self._begun.get(node, node)] for node in self.steps],
                                  self.streams, _accesses)

    def _region(
        self, index: int, nodes: list[Node], region_of: dict[Node, int]
    ) -> RegionGraph:
        inside = set(nodes)
        copier = _Copier(self.gm, inside)
        written: set[Node] = set()
        for node in nodes:
            copier.copy(node)
            written |= {value_of(n) for n in written_arguments(node)} - inside
        outputs = [v for n in nodes for v in _values_of(n) if self._leaves(v, index, region_of)]
        module = copier.finish(outputs)
        stream = self.streams[nodes[0]]
        return RegionGraph(
            name=f"{stream}.{index}",
            stream=stream,
            nodes=nodes,
            module=module,
            inputs=copier.inputs,
            outputs=outputs,
            written=written,
            random=any(is_random(n) for n in nodes),
        )

    def _leaves(self, value: Node, index: int, region_of: dict[Node, int]) -> bool:
        """Whether another region or the caller uses the value, directly or through views."""
        for user in _users_through_views(value):
            if user.op == "output" or is_pack(user) or region_of.get(user, index) != index:
                return True
        return False


class _Copier:
    """Copies nodes of a graph into a new one, with the views and numbers they need.

    Names are given anew, so that two regions of equal structure have equal graphs and share what
    the compiler caches by content.
    """

    def __init__(self, gm: GraphModule, inside: set[Node]) -> None:
        self._gm = gm
        self._inside = inside
        self._graph = Graph()
        self._map: dict[Node, Node] = {}
        self._attributes: dict[str, torch.Tensor] = {}
        self._last_input: Node | None = None
        self.inputs: list[Node] = []

    def copy(self, node: Node) -> Node:
        if node in self._map:
            return self._map[node]
        if not self._is_local(node):
            return self._add_input(value_of(node))
        for argument in node.all_input_nodes:
            self.copy(argument)
        new = self._graph.node_copy(node, self._map.__getitem__)
        new._rename(f"n{len(self._map)}")
        if node.op == "get_attr":
            new.target = f"constant{len(self._attributes)}"
            self._attributes[new.target] = getattr(self._gm, str(node.target))
        _drop_stale_meta(new)
        self._map[node] = new
        return new

    def _is_local(self, node: Node) -> bool:
        if node.op == "placeholder":
            return False
        if is_view(node) or is_scalar(node) or node.op == "get_attr":
            return True
        return (node.args[0] if is_getitem(node) else node) in self._inside

    def _add_input(self, value: Node) -> Node:
        if value in self._map:
            return self._map[value]
        new = self._graph.placeholder(f"in{len(self.inputs)}")
        new.meta = {"val": value.meta["val"]}
        if self._last_input is not None:
            self._last_input.append(new)
        else:
            next(iter(self._graph.nodes)).prepend(new)
        self._last_input = new
        self._map[value] = new
        self.inputs.append(value)
        return new

    def finish(self, outputs: list[Node]) -> GraphModule:
        for value in outputs:
            self.copy(value)
        result = self._graph.output(tuple(self._map[v] for v in outputs))
        # Every result keeps the strides the rest of the graph was traced with.
        result.meta["user_visible_output_idxs"] = list(range(len(outputs)))
        result.meta["original_output_strides"] = [v.meta["val"].stride() for v in outputs]
        root = torch.nn.Module()
        for name, tensor in self._attributes.items():
            setattr(root, name, tensor)
        return GraphModule(root, self._graph)


def value_of(node: Node) -> Node:
    """The value whose bytes a node names: itself, or what a chain of views starts from."""
    while True:
        if is_view(node):
            node = node.args[0]  # type: ignore[assignment]
        elif (written := written_arguments(node)) and not _is_value(node):
            node = written[0]  # copy_ answers the tensor it wrote
        else:
            return node


def is_view(node: Node) -> bool:
    return names_bytes_again(node) and not is_part(node)


def _is_step(node: Node) -> bool:
    return node.op == "call_function" and not (
        is_view(node) or is_getitem(node) or is_scalar(node) or is_pack(node) or is_part(node)
    )


def _is_value(node: Node) -> bool:
    if node.op == "placeholder" or is_part(node):
        return isinstance(node.meta.get("val"), torch.Tensor)
    if node.op == "call_function" and is_getitem(node):
        return isinstance(node.meta.get("val"), torch.Tensor)
    if not _is_step(node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    return not written_arguments(node)


def _values_of(node: Node) -> list[Node]:
    """The values a step makes."""
    if _is_value(node):
        return [node]
    return [user for user in node.users if is_getitem(user) and _is_value(user)]


def _accesses(node: Node) -> tuple[set[Node | str], set[Node | str]]:
    """What it reads and writes: values, and torch's generator."""
    reads: set[Node | str]
    writes: set[Node | str]
    reads = {value_of(n) for n in node.all_input_nodes if not is_scalar(n) and n.op != "get_attr"}
    writes = {value_of(n) for n in written_arguments(node)}
    if overload_of(node) is torch.ops.aten.copy_.default:
        reads -= writes - {value_of(node.args[1])}  # type: ignore[arg-type]
    drawn = {GENERATOR} if is_random(node) else set()
    return reads | drawn, writes | drawn | set(_values_of(node))


def _are_alone(regions: list[RegionGraph]) -> list[bool]:
    """Which regions all others come before or after, by streams and values."""
    before: list[int] = []  # bit j: region j comes before
    latest: dict[object, int] = {}  # the last region of a stream, or to write a value
    readers: dict[Node, list[int]] = {}
    for i, region in enumerate(regions):
        makers = [latest.get(key) for key in (f"stream {region.stream}", *region.inputs)]
        for value in region.written:
            makers += readers.pop(value, [])
        if region.random:
            makers.append(latest.get(GENERATOR))
            latest[GENERATOR] = i
        before.append(0)
        for maker in makers:
            if maker is not None:
                before[i] |= before[maker] | 1 << maker
        latest[f"stream {region.stream}"] = i
        latest.update((value, i) for value in (*region.written, *region.outputs))
        for value in region.inputs:
            readers.setdefault(value, []).append(i)
    return [mask == (1 << i) - 1 and all(later >> i & 1 for later in before[i + 1:])
            for i, mask in enumerate(before)]


def _in_graph_order(nodes: Iterable[Node | str],
                    order: dict[Node | str, int]) -> list[Node | str]:
    return sorted(nodes, key=order.__getitem__)


def _users_through_views(value: Node) -> Iterator[Node]:
    pending = [value]
    while pending:
        for user in pending.pop().users:
            if is_view(user):
                pending.append(user)
            elif is_scalar(user):
                continue
            else:
                yield user


def _assign_streams(steps: list[Node]) -> dict[Node, str]:
    """The annotated stream of each step. What the compiler adds carries no annotation (write-backs,
    seeds, a node between two others): where all around it is on one stream, it is too."""
    streams: dict[Node, str] = {}
    lost = []
    for node in steps:
        name = COMMUNICATION if _communicates(node) else _compat.annotation(node, ANNOTATION)
        streams[node] = name or AMBIENT
        if name is None:
            lost.append(node)
    for node in lost:
        makers = {streams[m] for m in _makers(node)}
        users = {streams[u] for v in _values_of(node) for u in _users_through_views(v)
                 if u in streams}
        if overload_of(node) is torch.ops.aten.copy_.default:
            users = makers  # a write-back runs where its value was made
        if len(users) == 1 and (makers == users or (is_random(node) and not makers)):
            streams[node] = users.pop()
    return streams


def has_collectives(gm: GraphModule) -> bool:
    return any(map(_communicates, gm.graph.nodes))


def _communicates(node: Node) -> bool:
    op = overload_of(node)
    return op is not None and (is_collective(op) or is_wait(op))


def _begun_collectives(steps: list[Node]) -> dict[Node, Node]:
    """By wait the collective that it waits for. Both have to be in the graph: memory that leaves it
    is not the tensor by which a wait knows a collective."""
    begun: dict[Node, Node] = {}
    for node in filter(_communicates, steps):
        if is_wait(overload_of(node)):  # type: ignore[arg-type]
            makers = {maker for maker in _makers(node) if _communicates(maker)}
            if len(makers) != 1 or makers & begun.keys():
                raise Unsupported(f"{node.name} waits for what is no collective of the graph")
            begun[node] = makers.pop()
    for node in filter(_communicates, steps):
        values = [] if node in begun else _values_of(node)
        if not all(any(user in begun for user in value.users) for value in values):
            raise Unsupported(f"nothing in the graph waits for {node.name}")
    return begun


def _makers(node: Node) -> Iterator[Node]:
    for argument in node.all_input_nodes:
        value = value_of(argument)
        value = value.args[0] if is_getitem(value) else value  # type: ignore[assignment]
        if _is_step(value):
            yield value


def _drop_stale_meta(node: Node) -> None:
    for key in ("custom", "stack_trace", "nn_module_stack", "fwd_nn_module_stack",
                "source_fn_stack", "from_node", "seq_nr", "recompute", "partitioner_tag"):
        node.meta.pop(key, None)


def _refuse_unsupported(node: Node, device: torch.device) -> None:
    if node.op in ("call_module", "call_method"):
        raise Unsupported(f"{node.op} {node.target} is left in the graph")
    if node.op == "get_attr" and not isinstance(node.meta.get("val"), torch.Tensor):
        raise Unsupported(f"{node.target} is a sub-graph")
    op = overload_of(node)
    if _is_step(node) and op is None:
        raise Unsupported(f"{getattr(node.target, '__name__', node.target)} is no plain operator")
    if _is_step(node) and op and op.namespace in _DISTRIBUTED and not _communicates(node):
        raise Unsupported(f"of {node.target} is not known what it reads and writes")
    values = node.meta.get("val")
    for value in values if isinstance(values, (list, tuple)) else [values]:
        _refuse_value(node, value, device)


def _refuse_value(node: Node, value: object, device: torch.device) -> None:
    if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)) \
            and _compat.free_unbacked_symbols(value):
        raise Unsupported(f"the size of {node.name} depends on data")
    if not isinstance(value, torch.Tensor):
        return
    if value.device != device and not _is_number_of_the_host(node, value):
        raise Unsupported(f"{node.name} is on {value.device}, and not all on {device}")
    if value.layout is not torch.strided:
        raise Unsupported(f"{node.name} has layout {value.layout}")
    if value.is_complex() or value.is_quantized:
        raise Unsupported(f"{node.name} is {value.dtype}")


def _is_number_of_the_host(node: Node, value: torch.Tensor) -> bool:
    """What is given to kernels as a number, read when they are queued. Nobody writes it: what an
    operator makes on the host is refused, and so is a write."""
    return value.device == _HOST and value.dim() == 0 and node.op in ("placeholder", "get_attr")
