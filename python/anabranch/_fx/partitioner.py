# SPDX-License-Identifier: Apache-2.0
"""How the joint graph is cut into forward and backward: torch's min-cut, kept from a mistake, and
small saved tensors put together (``pack_saved``).

The min-cut partitioner may save less by computing a value again in the backward. Where that
value was read from an input which the forward then overwrites (a counter, a moving average), the
backward would read the new contents: silently wrong gradients, in ``torch.compile`` too. So every
node that reads such an input is marked to be saved before the cut is chosen, and where the backward
reads the input itself (a clone that the user wrote was optimised away) it gets a copy of the value
from before.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.fx import Graph, GraphModule, Node

from anabranch import _compat
from anabranch._fx import pack_saved
from anabranch._fx.schema import is_view


class AroundCut(Protocol):
    """``name`` tells what it does, for keys of caches."""

    name: str

    def before(self, joint: Graph) -> None: ...

    def after(self, forward: GraphModule, backward: GraphModule, results: int) -> None:
        """``results``: how many outputs of the forward are not its saved ones."""


class SavingPartitioner(_compat.CustomPartitionerFn):
    """Min-cut with the readers of overwritten inputs pinned; ``pack`` for a graph of streams.

    ``around`` sees the joint graph before it is cut, and both graphs afterwards, and may change
    what is saved. ``version`` is that of what is done besides, for keys of caches.
    """

    def __init__(self, pack: bool, around: AroundCut | None = None, version: str = "") -> None:
        self._pack = pack
        self._around = around
        self._version = version

    def __call__(
        self, gm: GraphModule, joint_inputs: Any, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        keep_values_for_backward(gm.graph)
        pin_readers_of_overwritten_inputs(gm.graph)
        if self._around is not None:
            self._around.before(gm.graph)
        forward, backward = _compat.min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)
        if self._around is not None:
            self._around.after(forward, backward, kwargs["num_fwd_outputs"])
        if self._pack:
            pack_saved.pack_saved_tensors(forward, backward, kwargs["num_fwd_outputs"])
        return forward, backward

    def uuid(self) -> Any:
        return _compat.get_hash_for_files((__file__, pack_saved.__file__),
                                         f"{self._pack} {self._around and self._around.name} "
                                         f"{self._version}")


def pin_readers_of_overwritten_inputs(graph: Graph) -> list[Node]:
    """Marks them and answers them, in graph order."""
    overwritten = _overwritten_inputs(graph)
    pinned: list[Node] = []
    seen = set(overwritten)
    for node in graph.nodes:  # topological, so a view is met before its readers
        if not seen.intersection(node.all_input_nodes) or node.op == "output":
            continue
        if is_view(node):
            seen.add(node)
        elif node.target is not torch.ops.aten.copy_.default:
            node.meta["recompute"] = _compat.must_save()
            pinned.append(node)
    return pinned


def keep_values_for_backward(graph: Graph) -> list[Node]:
    """Where the backward reads an overwritten input, also through views, lets all readers read a
    copy of it, which the pinning then saves; answers the copies. All, since the partitioner takes
    what only the backward reads for a part of the backward."""
    copies = []
    last_input = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for value in sorted(_read_by_backward(graph), key=lambda node: node.name):
        with graph.inserting_after(last_input):
            copy = graph.call_function(torch.ops.aten.clone.default, (value,))
        copy.meta = dict(value.meta)
        value.replace_all_uses_with(copy, functools.partial(_reads, value, copy))
        copies.append(copy)
    return copies


def _reads(value: Node, copy: Node, user: Node) -> bool:
    """Whether a user of an overwritten input reads it: not its copy, nor the write itself."""
    return user is not copy and not (
        user.target is torch.ops.aten.copy_.default and user.args[0] is value)


def _read_by_backward(graph: Graph) -> set[Node]:
    source = {node: node for node in _overwritten_inputs(graph)}  # input or view of it -> input
    backward = {node for node in graph.nodes if _is_tangent(node)}
    found = set()
    for node in graph.nodes:
        if is_view(node) and node.args[0] in source:
            source[node] = source[node.args[0]]
        elif backward.intersection(node.all_input_nodes) and node.op != "output":
            backward.add(node)
            found |= {source[n] for n in node.all_input_nodes if n in source}
    return found


def _overwritten_inputs(graph: Graph) -> set[Node]:
    return {
        node.args[0]
        for node in graph.nodes
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"
    }


def tangents_in(inputs: Sequence[Node]) -> list[int]:
    """Of a backward's inputs, which are gradients of what the forward has answered."""
    return [i for i, node in enumerate(inputs) if _is_tangent(node)]


def _is_tangent(node: Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)
