# SPDX-License-Identifier: Apache-2.0
"""Saved tensors that a backward computes again, by the forward's own nodes.

A backward starts from other saved tensors and from inputs of the forward. Those that it does not
have anyway, biases above all, are handed over: they are there in any case. Nodes that draw random
numbers, write, communicate or are no plain operators of torch are not run twice.

Threads: any. Failure: none.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import torch
from torch.fx import Graph, Node

from anabranch._fx.schema import (
    argument_of,
    is_getitem,
    is_random,
    is_scalar,
    is_view,
    overload_of,
    results_of,
    written_arguments,
)
from anabranch._offload.durations import is_apart
from anabranch._offload.saved import Pair, Saved, base_of

_PURE = ("aten", "prims")
_WORTH = 4


@dataclasses.dataclass(frozen=True)
class Way:
    """How a tensor is computed: nodes of the forward in graph order, and the saved tensors and
    inputs of the forward that they start from."""

    nodes: list[Node]
    needs: list[Saved]
    inputs: list[Node]


def find_ways(pair: Pair) -> dict[Saved, Way]:
    """Of the tensors that can be computed again."""
    given = {node.name for node in pair.backward.graph.find_nodes(op="placeholder")}
    written = {base_of(node) for each in pair.forward.graph.nodes
               for node in written_arguments(each)}
    order = {node: i for i, node in enumerate(pair.forward.graph.nodes)}
    saved = {answer: each for each in pair.saved for answer in each.answers}
    ways = {}
    for each in pair.saved:
        nodes = None if each.why_kept else _nodes_of(each.answers, given, written)
        if nodes is not None:
            starts = sorted({n for node in nodes for n in node.all_input_nodes if n not in nodes},
                            key=order.__getitem__)
            ways[each] = Way(sorted(nodes, key=order.__getitem__),
                             list(dict.fromkeys(saved[n] for n in starts if n in saved)),
                             [n for n in starts if n.op == "placeholder"])
    return ways


def _nodes_of(values: list[Node], given: set[str], written: set[Node]) -> set[Node] | None:
    """What computes values from what else the backward is or can be given; None where that cannot
    be."""
    found: set[Node] = set()
    pending = list(values)
    while pending:
        node = pending.pop()
        if not _is_pure(node) or base_of(node) in written:
            return None
        found.add(node)
        for argument in node.all_input_nodes:
            is_there = (argument.name in given and argument not in values) or _is_tensor(argument)
            if is_there and base_of(argument) in written:
                return None
            if not is_there and argument not in found:
                pending.append(argument)
    return found


def _is_tensor(node: Node) -> bool:
    return node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)


def _is_pure(node: Node) -> bool:
    if is_getitem(node) or (is_scalar(node) and node.op == "call_function"):
        return True
    op = overload_of(node)
    return op is not None and op.namespace in _PURE and not op._schema.is_mutable \
        and (is_view(node) or not is_random(node) or argument_of(node, "dropout_p") == 0)


def compute_again(pair: Pair, chosen: Sequence[tuple[Saved, Way]], calls: Calls) -> Pair:
    """Both graphs without these tensors; the pair as it is then. Those that others need come before
    them in the list."""
    _hand_over(pair, list(dict.fromkeys(node for _, way in chosen for node in way.inputs)))
    for saved, way in reversed(chosen):
        _compute(pair.backward.graph, saved, way, calls)
        take_from_results(pair.forward.graph, set(saved.answers))
    for module in (pair.forward, pair.backward):
        module.graph.eliminate_dead_code()
        module.recompile()
    return Pair(pair.forward, pair.backward, pair.results)


def _hand_over(pair: Pair, inputs: list[Node]) -> None:
    """Inputs of the forward that the backward does not have: before what is saved first, among what
    autograd watches for changes."""
    graph, output = pair.backward.graph, pair.forward.graph.output_node()
    there = _inputs_of(graph)
    missing = [node for node in inputs if node.name not in there]
    returned = results_of(pair.forward.graph)
    place = next(i for i, node in enumerate(returned[pair.results:], pair.results)
                 if isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor))
    first = there[returned[place].name]
    with graph.inserting_before(first):
        for node in missing:
            graph.placeholder(node.name).meta = dict(node.meta)
    output.args = ((*returned[:place], *missing, *returned[place:]),)
    if output.meta.get("desc"):
        desc = list(output.meta["desc"])
        output.meta["desc"] = [*desc[:place], *[desc[place]] * len(missing), *desc[place:]]


def _inputs_of(graph: Graph) -> dict[str, Node]:
    """By the names that they have in the forward."""
    return {str(node.target): node for node in graph.find_nodes(op="placeholder")}


def _compute(graph: Graph, saved: Saved, way: Way, calls: Calls) -> None:
    """In place of inputs, right before the first use of each of groups()."""
    there = _inputs_of(graph)
    for users in groups(saved, way, calls):
        made: dict[Node, Node] = {}

        def in_backward(node: Node, made: dict[Node, Node] = made) -> Node:
            return made[node] if node in made else there[node.name]

        with graph.inserting_before(users[0]):
            for node in way.nodes:
                made[node] = graph.node_copy(node, in_backward)
                calls.note(made[node], node)
        for answer, given in saved.views:
            given.replace_all_uses_with(made[answer], users.__contains__)
    for given in saved.inputs:
        graph.erase_node(given)


class Calls:
    """The calls of libraries in a backward, such as products, and how long steps take, in ns.
    ``near_peak``: the steps at which memory is short, in their order. ``again_ns``: of all that has
    been noted."""

    def __init__(self, graph: Graph, step_ns: Mapping[Node, int],
                 near_peak: Sequence[Node]) -> None:
        self._nodes, self._ns = list(filter(is_apart, graph.nodes)), dict(step_ns)
        self._near_peak = near_peak
        self.again_ns = 0

    def ns_between(self, first: Node, second: Node) -> int:
        """Of the calls between two nodes of the graph."""
        begin = bisect.bisect_right(self._nodes, first)
        end = bisect.bisect_left(self._nodes, second)
        return sum(self._ns[node] for node in self._nodes[begin:end])

    def is_short_between(self, first: Node, second: Node) -> bool:
        """Whether memory is, between two nodes of the graph."""
        return bisect.bisect_right(self._near_peak, first) \
            < bisect.bisect_left(self._near_peak, second)

    def ns_of(self, way: Way) -> int:
        return ns_of(way, self._ns)

    def note(self, copy: Node, original: Node) -> None:
        """A copy that is in the graph now."""
        self._ns[copy] = self._ns.get(original, 0)
        self.again_ns += self._ns[copy]
        if is_apart(original):
            bisect.insort(self._nodes, copy)


def ns_of(way: Way, step_ns: Mapping[Node, int]) -> int:
    """How long it takes once."""
    return sum(step_ns.get(node, 0) for node in way.nodes)


def groups(saved: Saved, way: Way, calls: Calls) -> list[list[Node]]:
    """Who uses a saved tensor in the backward, in the graph's order: those for whom it is computed
    once. It is computed again where memory is short between two uses, and libraries' calls there
    take many times as long as that: the tensor would lie there meanwhile. What takes such a call to
    compute is computed once for all."""
    users = sorted({user for given in saved.inputs for user in given.users})
    if any(map(is_apart, way.nodes)):
        return [users]
    found, worth_ns = [users[:1]], _WORTH * calls.ns_of(way)
    for last, user in itertools.pairwise(users):
        if calls.is_short_between(last, user) and calls.ns_between(last, user) > worth_ns:
            found.append([])
        found[-1].append(user)
    return found


def take_from_results(graph: Graph, gone: set[Node]) -> None:
    """A forward no longer answers these nodes."""
    output, returned = graph.output_node(), results_of(graph)
    kept = [i for i, node in enumerate(returned) if not (isinstance(node, Node) and node in gone)]
    output.args = (tuple(returned[i] for i in kept),)
    if output.meta.get("desc"):
        output.meta["desc"] = [output.meta["desc"][i] for i in kept]
