# SPDX-License-Identifier: Apache-2.0
"""How the views of a graph lie in memory, before it is split.

Inductor goes by its own indexing; regions and what is answered go by what the nodes say. Passes of
Inductor drop a copy of a view and leave the copy's layout with the view (2.11 and 2.15). Threads:
any; a graph is its compiler's. Failure: Unsupported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node, map_arg

from anabranch._compile.graph import Unsupported, is_view
from anabranch._fx.clone_outputs import clone_outputs
from anabranch._fx.schema import results_of


def refresh_view_strides(gm: GraphModule) -> None:
    """Asks of what they are views of how views lie. One that is answered becomes the copy again
    that it was, since the caller goes by that layout."""
    was: dict[Any, torch.Tensor] = {}
    for node in filter(is_view, gm.graph.nodes):
        said = node.meta.get("val")
        found = _view_again(node, said)
        if isinstance(said, torch.Tensor) and _strides(found) != _strides(said):
            was[node] = said
        node.meta["val"] = found
    copies = {i: was[result] for i, result in enumerate(results_of(gm.graph)) if result in was}
    if not all(said.is_contiguous() for said in copies.values()):
        raise Unsupported("a view is answered with strides that are not its own")
    clone_outputs(gm, copies, memory_format=torch.contiguous_format)


def _view_again(node: Node, said: Any) -> Any:
    """What is said of it where its arguments are not known."""
    mode = getattr(said[0] if isinstance(said, (list, tuple)) else said, "fake_mode", None)
    if mode is None or any("val" not in given.meta for given in node.all_input_nodes):
        return said
    args, kwargs = map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    try:
        with mode:
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except RuntimeError as error:
        raise Unsupported(f"{node} is no view of {node.args[0]} as that lies") from error


def _strides(tensor: torch.Tensor) -> list[str]:
    """As text: to compare symbols would be to decide about them."""
    return [str(stride) for stride in tensor.stride()]
