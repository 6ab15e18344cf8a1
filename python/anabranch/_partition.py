# SPDX-License-Identifier: Apache-2.0
"""How the joint graph is cut into forward and backward: torch's min-cut, kept from a mistake.

The min-cut partitioner may save less by computing a value again in the backward. Where that
value was read from an input which the forward then overwrites (a counter, a moving average), the
backward would read the new contents: silently wrong gradients, in ``torch.compile`` too. So every
node that reads such an input is marked to be saved before the cut is chosen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from . import _compat
from ._schema import is_view


class SavingPartitioner(_compat.CustomPartitionerFn):
    """Min-cut with the readers of overwritten inputs pinned. Stateless, so free to share."""

    def __call__(
        self, gm: GraphModule, joint_inputs: Any, **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        pin_readers_of_overwritten_inputs(gm.graph)
        return _compat.min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> Any:
        return _compat.get_hash_for_files((__file__,))


def pin_readers_of_overwritten_inputs(graph: Graph) -> list[Node]:
    """Marks them and answers them, in graph order."""
    overwritten = {
        node.args[0]
        for node in graph.nodes
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"
    }
    pinned: list[Node] = []
    seen = set(overwritten)
    for node in graph.nodes:  # topological, so a view is met before its readers
        if not seen.intersection(node.all_input_nodes) or node.op == "output":
            continue
        if is_view(node):
            seen.add(node)
        elif node not in overwritten and node.target is not torch.ops.aten.copy_.default:
            node.meta["recompute"] = _compat.must_save()
            pinned.append(node)
    return pinned
