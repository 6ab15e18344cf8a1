# SPDX-License-Identifier: Apache-2.0
"""What an operator's schema says of memory: views, writes, random numbers."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from ._compat import OpOverload


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


def written_arguments(node: Node) -> list[Node]:
    """The arguments that the operator overwrites."""
    op = overload_of(node)
    if op is None:
        return []
    written = []
    for index, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.kwargs.get(argument.name)
        if index < len(node.args):
            value = node.args[index]
        values = value if isinstance(value, (list, tuple)) else [value]
        written.extend(v for v in values if isinstance(v, Node))
    return written
