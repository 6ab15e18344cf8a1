# SPDX-License-Identifier: Apache-2.0
"""Results that are new in eager are new in compiled code.

Inductor's first passes replace ``x * 1`` by ``x``, also where it is answered: who writes into the
result would then write into the argument. Threads: any; a graph is its compiler's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from anabranch import _compat
from anabranch._fx.schema import results_of

# What eager answers in an input's memory.
_OF_INPUTS = ("written", "alias_of_input", "is_input")


def clone_aliased_outputs(gm: GraphModule) -> None:
    """In a graph of a forward or of inference, before it is compiled: results that have become
    inputs, or views of inputs, and are neither in eager, become copies."""
    results = zip(results_of(gm.graph), _compat.kinds_of_results(), strict=False)
    clone_outputs(gm, {i: result.meta["val"].clone() for i, (result, kind) in enumerate(results)
                       if kind not in _OF_INPUTS and _is_of_an_input(result)})


def clone_outputs(gm: GraphModule, copies: Mapping[int, torch.Tensor], **keywords: Any) -> None:
    """These results, by their places, become copies that are to look so; ``keywords`` of clone."""
    output, results = gm.graph.output_node(), results_of(gm.graph)
    for i, value in copies.items():
        with gm.graph.inserting_before(output):
            copy = gm.graph.call_function(torch.ops.aten.clone.default, (results[i],), keywords)
        copy.meta = {**results[i].meta, "val": value}
        results[i] = copy
    output.args = (results if isinstance(output.args[0], list) else tuple(results),)


def _is_of_an_input(node: Any) -> bool:
    while isinstance(node, Node) and isinstance(node.target, _compat.OpOverload) \
            and node.target.is_view:
        node = node.args[0]
    return isinstance(node, Node) and node.op == "placeholder" \
        and isinstance(node.meta.get("val"), torch.Tensor)
