# SPDX-License-Identifier: Apache-2.0
"""Results that are new in eager are new in compiled code.

Inductor's first passes replace ``x * 1`` by ``x``, also where it is answered: who writes into the
result would then write into the argument. Threads: any; a graph is its compiler's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from . import _compat

# What eager answers in an input's memory.
_OF_INPUTS = ("written", "alias_of_input", "is_input")


def copy_inputs_among(gm: GraphModule) -> None:
    """In a graph of a forward or of inference, before it is compiled: results that have become
    inputs, or views of inputs, and are neither in eager, become copies."""
    output = gm.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    for i, (result, kind) in enumerate(zip(results, _compat.kinds_of_results(), strict=False)):
        if kind in _OF_INPUTS or not _is_of_an_input(result):
            continue
        with gm.graph.inserting_before(output):
            copy = gm.graph.call_function(torch.ops.aten.clone.default, (result,))
        copy.meta = {**result.meta, "val": result.meta["val"].clone()}
        results[i] = copy
    output.args = (type(output.args[0])(results),)  # type: ignore[call-arg]


def _is_of_an_input(node: Any) -> bool:
    while isinstance(node, Node) and isinstance(node.target, _compat.OpOverload) \
            and node.target.is_view:
        node = node.args[0]
    return isinstance(node, Node) and node.op == "placeholder" \
        and isinstance(node.meta.get("val"), torch.Tensor)
