# SPDX-License-Identifier: Apache-2.0
"""Attention's random seeds, in graphs that draw no random numbers.

For its backward to read, torch's memory-efficient attention answers them on the CPU, and on the GPU
where it is captured (Note [Seed and Offset Device] in its ``attention.cu``), so that a recording
would answer something else than a run. Without dropout nobody reads them: a number on the GPU
stands for both then. Threads: any; a graph is its compiler's. Failure: none.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from anabranch._fx.schema import overload_of

_aten = torch.ops.aten
_SEEDS = (2, 3)  # among the results
_DROPOUT: dict[object, int] = {  # where its probability is
    _aten._scaled_dot_product_efficient_attention.default: 5,
    _aten._efficient_attention_forward.default: 8,
}


def drop_unused_seeds(gm: GraphModule) -> None:
    """In a graph before it is compiled."""
    number: Node | None = None
    for node in [node for node in gm.graph.nodes if _draws_nothing(node)]:
        for seed in [user for user in node.users
                     if user.target is operator.getitem and user.args[1] in _SEEDS]:
            number = number or _number(gm, node)
            seed.replace_all_uses_with(number)
            gm.graph.erase_node(seed)
    if number is not None:
        gm.recompile()


def _draws_nothing(node: Node) -> bool:
    overload = overload_of(node)
    if overload not in _DROPOUT:
        return False
    place = _DROPOUT[overload]
    dropped = node.args[place] if len(node.args) > place else node.kwargs.get("dropout_p", 0.0)
    return bool(dropped == 0.0)


def _number(gm: GraphModule, attention: Node) -> Node:
    """Before the first attention, and so before all that read a seed."""
    output = attention.meta["val"][0]
    with gm.graph.inserting_before(attention):
        node = gm.graph.call_function(_aten.full.default, ([], 0), {
            "dtype": torch.int64, "layout": torch.strided, "device": output.device,
            "pin_memory": False})
    node.meta["val"] = output.new_zeros((), dtype=torch.int64)
    return node
