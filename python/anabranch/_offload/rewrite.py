# SPDX-License-Identifier: Apache-2.0
"""Puts the copies of saved tensors where a plan has them, in a forward and its backward.

Threads: one at a time for a pair. Failure: none; a plan is one of this pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from anabranch._fx.schema import is_view, results_of
from anabranch._offload.copies import OPERATORS
from anabranch._offload.recompute import take_from_results
from anabranch._offload.saved import Pair, Saved, base_of

HOST = "anabranch_host"  # the block, among the inputs of a backward


class Move(NamedTuple):
    """When a tensor goes and comes back, by steps of the pair: its copy out begins behind step
    ``out_after``, and its memory is free before ``freed_before``; its copy in begins before
    ``in_before`` and is there before ``back_before``. ``offset``: where it lies in the block."""

    saved: Saved
    out_after: int
    freed_before: int
    in_before: int
    back_before: int
    out_order: int
    in_order: int
    offset: int


class _Event(NamedTuple):
    """Something to be inserted before node number ``before``; of those before one node the least
    ``turn`` comes first. ``insert`` is given the block, and answers it as it is afterwards."""

    before: int
    turn: tuple[int, int]
    insert: Callable[[Node], Node]


def move(pair: Pair, moves: Sequence[Move], size_bytes: int, is_allowed: bool) -> None:
    """Rewrites both graphs; ``size_bytes`` of memory on the host hold all that is moved."""
    gone = {answer for move in moves for answer in move.saved.answers}
    first = next(node for node in results_of(pair.forward.graph) if node in gone)
    _send(pair, moves, size_bytes, is_allowed, first)
    _fetch(pair, moves, size_bytes, first.name)
    pair.forward.recompile()
    pair.backward.recompile()


def _send(pair: Pair, moves: Sequence[Move], size_bytes: int, is_allowed: bool,
          first: Node) -> None:
    """The block is answered in the place of the ``first`` that is not any more."""
    graph, steps = pair.forward.graph, pair.forward_steps
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    events = []
    for move in moves:
        value = move.saved.tensor
        behind = max(number[steps[move.out_after]], number[value]) + 1
        if move.freed_before < len(steps):
            freed, let_go = number[steps[move.freed_before]], OPERATORS.copied_out
        else:
            freed, let_go = number[graph.output_node()], OPERATORS.still_copied
        events += [_Event(behind, (1, move.out_order), _copy_out(graph, move)),
                   _Event(max(freed, behind), (0 if freed > behind else 2, move.out_order),
                          _on_block(graph, let_go, value, move.offset))]
    events.sort()
    like = min(moves, key=lambda move: move.out_order).saved.tensor
    with graph.inserting_before(nodes[events[0].before]):
        host = graph.call_function(OPERATORS.host_memory.default, (like, size_bytes, is_allowed))
    host.meta["val"] = _host_value(like, size_bytes)
    for event in events:
        with graph.inserting_before(nodes[event.before]):
            host = event.insert(host)
    output, returned = graph.output_node(), results_of(graph)
    returned[returned.index(first)] = host
    output.args = (tuple(returned),)
    take_from_results(graph, {a for move in moves for a in move.saved.answers})


def _copy_out(graph: Graph, move: Move) -> Callable[[Node], Node]:
    return _on_block(graph, OPERATORS.copy_out, move.saved.tensor, move.offset, move.saved.stride)


def _on_block(graph: Graph, op: Any, *args: Any) -> Callable[[Node], Node]:
    return lambda host: _like(host, graph.call_function(op.default, (host, *args)))


def _like(node: Node, made: Node) -> Node:
    made.meta["val"] = node.meta["val"]
    return made


def _fetch(pair: Pair, moves: Sequence[Move], size_bytes: int, first_name: str) -> None:
    graph, begun = pair.backward.graph, len(pair.forward_steps)
    first = next(n for n in graph.find_nodes(op="placeholder") if n.name == first_name)
    with graph.inserting_before(first):
        host = graph.placeholder(HOST)
    host.meta = {key: value for key, value in first.meta.items() if key == "desc"}
    host.meta["val"] = _host_value(first, size_bytes)
    _sink_views(graph, {given for move in moves for given in move.saved.inputs})
    nodes = list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    body = next(i for i, node in enumerate(nodes) if node.op != "placeholder")
    events = []
    for move in moves:
        back = min(number[pair.steps[move.back_before]],
                   *(number[user] for given in move.saved.inputs for user in given.users))
        begin = min(number[pair.steps[max(begun, move.in_before)]], back)
        arrival = _Arrival(graph, move)
        events += [_Event(max(begin, body), (1, move.in_order), arrival.begin),
                   _Event(back, (2, move.in_order), arrival.end)]
        if move.freed_before >= begun:
            freed = min(number[pair.steps[move.freed_before]], begin)
            events.append(_Event(max(freed, body), (0, move.out_order),
                                 _on_block(graph, OPERATORS.let_go, move.offset)))
    for event in sorted(events):
        with graph.inserting_before(nodes[event.before]):
            host = event.insert(host)
    for given in [given for move in moves for given in move.saved.inputs]:
        graph.erase_node(given)


class _Arrival:
    """A tensor that comes back in place of inputs."""

    def __init__(self, graph: Graph, move: Move) -> None:
        self._graph, self._move = graph, move

    def begin(self, host: Node) -> Node:
        saved, value = self._move.saved, self._move.saved.tensor.meta["val"]
        self._begun = self._graph.call_function(
            OPERATORS.copy_in.default,
            (host, self._move.offset, list(value.shape), saved.stride, value.dtype, value.device))
        with value.fake_mode:
            self._begun.meta["val"] = torch.empty_strided(
                value.shape, saved.stride, dtype=value.dtype, device=value.device)
        return host

    def end(self, host: Node) -> Node:
        saved = self._move.saved
        tensor = _like(self._begun, self._graph.call_function(
            OPERATORS.copied_in.default, (self._begun,)))
        for answer, given in saved.views:
            given.replace_all_uses_with(
                tensor if answer is saved.tensor else self._view(tensor, answer, given))
        return host

    def _view(self, tensor: Node, answer: Node, given: Node) -> Node:
        value: Any = answer.meta["val"]
        return _like(given, self._graph.call_function(
            torch.ops.aten.as_strided.default,
            (tensor, list(value.shape), list(value.stride()),
             value.storage_offset())))


def _sink_views(graph: Graph, given: set[Node]) -> None:
    """Views of these inputs come right before who uses them first: tensors are there no earlier."""
    for node in reversed(list(graph.nodes)):
        if is_view(node) and base_of(node) in given and node.users:
            order = {each: i for i, each in enumerate(graph.nodes)}
            min(node.users, key=order.__getitem__).prepend(node)


def _host_value(like: Node, size_bytes: int) -> torch.Tensor:
    with like.meta["val"].fake_mode:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
