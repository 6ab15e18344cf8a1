# SPDX-License-Identifier: Apache-2.0
"""What the user wants of single tensors: ``anabranch.offload()`` and torch's CheckpointPolicy.

torch's cut saves what must be saved, and knows nothing of the members of CheckpointPolicy for the
CPU. So nodes with one of these are marked before the cut, to be saved, and moved afterwards.

Threads: any. Failure: none.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from anabranch import _compat
from anabranch._core.offload import Choice
from anabranch._offload.saved import step_of
from anabranch.streams import OFFLOAD

_WISH = "anabranch_wish"


def mark(joint: Graph) -> None:
    """Before the cut."""
    for node in joint.nodes:
        if _compat.is_cpu_offload(node.meta.get("recompute")):
            node.meta[_WISH] = Choice.OFFLOAD
            node.meta["recompute"] = _compat.must_save()
        elif _compat.annotation(node, OFFLOAD):
            node.meta[_WISH] = Choice.OFFLOAD


def wish_of(value: Node) -> Choice:
    """That was for it, or for the operator that it is one result of."""
    return Choice(value.meta.get(_WISH) or step_of(value).meta.get(_WISH, Choice.NONE))


def must_be_saved(value: Node) -> bool:
    """Whether it may not be computed again."""
    return _compat.must_save() in (value.meta.get("recompute"),
                                   step_of(value).meta.get("recompute"))
