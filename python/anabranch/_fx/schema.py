# SPDX-License-Identifier: Apache-2.0
"""What an operator's schema says of memory: views, writes, random numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from anabranch._compat import OpOverload

# Arguments that some operators write and no schema says so: the statistics of batch norm, and what
# cuDNN's recurrent networks keep from forward for backward, which works in it.
_ALSO_WRITTEN = ("running_", "reserve", "workspace", "weight_buf", "dropout_state")
# Functional collectives whose schema tells what they read and write; not isend, irecv and
# batch_p2p_ops of later releases.
_COLLECTIVE = re.compile(r"_c10d_functional::(all_reduce|all_gather_into_tensor|"
                         r"reduce_scatter_tensor|all_to_all_single|broadcast)(_coalesced)?(_|_out)?")
_WAITS = ("_c10d_functional::wait_tensor", "_c10d_functional::wait_tensors")


def is_collective(called: OpOverload) -> bool:
    """Whether it begins a collective."""
    return _COLLECTIVE.fullmatch(called._schema.name) is not None


def is_wait(called: OpOverload) -> bool:
    """Whether it waits for one; it answers the memory that it is given."""
    return called._schema.name in _WAITS


def overload_of(node: Node) -> OpOverload | None:
    return node.target if isinstance(node.target, OpOverload) else None


def is_view(node: Node) -> bool:
    """Whether the node only names bytes of its first argument again."""
    if is_getitem(node):
        return isinstance(node.args[0], Node) and is_view(node.args[0])
    op = overload_of(node)
    if op is None or len(op._schema.returns) != 1:
        return False
    alias = op._schema.returns[0].alias_info
    return alias is not None and not alias.is_write


def is_getitem(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def results_of(graph: Graph) -> list[Any]:
    """What a graph answers: nodes, and constants."""
    results: Any = graph.output_node().args[0]
    return list(results)


def is_scalar(node: Node) -> bool:
    """Whether the node's value is a number: sizes and what is computed from them."""
    value = node.meta.get("val")
    return isinstance(value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def is_random(node: Node) -> bool:
    """Whether the node takes numbers from the global generator."""
    op = overload_of(node)
    if op is None:
        return False
    return torch.Tag.nondeterministic_seeded in op.tags or op.name().startswith(
        "prims::inductor_seed"
    )


def argument_of(node: Node, name: str) -> Any:
    """What the node's operator is given by this name, or its default; else None."""
    op = overload_of(node)
    for index, argument in enumerate(op._schema.arguments if op is not None else ()):
        if argument.name == name:
            return node.args[index] if index < len(node.args) else \
                node.kwargs.get(name, argument.default_value)
    return None


def written_arguments(node: Node) -> list[Node]:
    """The arguments that the operator overwrites."""
    op = overload_of(node)
    if op is None:
        return []
    written: list[Node] = []
    for index, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.kwargs.get(argument.name)
        if index < len(node.args):
            value = node.args[index]
        values = value if isinstance(value, (list, tuple)) else [value]
        written.extend(v for v in values if isinstance(v, Node))
    return written


def arguments_of(called: OpOverload, args: Sequence[Any],
                 kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Each argument of a call, and whether the operator writes it."""
    for i, argument in enumerate(called._schema.arguments):
        alias = argument.alias_info
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        yield value, argument.name.startswith(_ALSO_WRITTEN) or bool(alias and alias.is_write)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in an argument or a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
