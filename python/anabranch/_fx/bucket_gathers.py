# SPDX-License-Identifier: Apache-2.0
"""Gathers that the user lets run beside other work, several in one call.

A gather of a few MiB takes NCCL about as long as one of twice the size, and multiprocessors all
that time. So gathers that follow each other are begun together, in one call that writes each to
memory of its own: nothing is copied before it or behind. The first comes alone, since nothing can
hide it, and each call then brings up to twice as much as the one before.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from anabranch import _compat
from anabranch._fx.schema import is_collective, is_random, is_wait, overload_of, written_arguments
from anabranch.streams import OVERLAP

_GATHER = "_c10d_functional::all_gather_into_tensor"


@dataclasses.dataclass
class _Group:
    key: tuple[object, ...] | None  # what one call gathers has the same; None: something else
    bytes: int
    members: list[Node]
    moved: dict[Node, None]  # what comes before the first member then, in order


def bucket_gathers(gm: GraphModule, most_bytes: int) -> int:
    """Puts gathers inside ``anabranch.overlap`` together, as long as a call brings no more than
    ``most_bytes``; answers how many calls bring more than one. The order of collectives stays. As
    ever with collectives, each process of a group has to run the same ones."""
    groups = [group for group in _groups(gm, most_bytes) if len(group.members) > 1]
    for group in groups:
        _begin_together(gm, group)
    if groups:
        gm.graph.lint()
        gm.recompile()
    return len(groups)


def _groups(gm: GraphModule, most_bytes: int) -> Iterator[_Group]:
    """All collectives, those together that may be."""
    place = {node: i for i, node in enumerate(gm.graph.nodes)}
    group = _Group(None, 0, [], {})
    limit = 0
    for node in filter(_communicates, list(gm.graph.nodes)):
        key = _key(node)
        size = _bytes(node) if key else 0
        if key is not None and key == group.key and group.bytes + size <= limit:
            moved = _in_the_way(node.args[0], group.members[0], place)
            if moved is not None:
                group.members.append(node)
                group.moved |= moved
                group.bytes += size
                continue
        yield group
        limit = min(most_bytes, 2 * group.bytes) if key == group.key else 0
        group = _Group(key, size, [node], {})
    yield group


def _communicates(node: Node) -> bool:
    op = overload_of(node)
    return op is not None and is_collective(op)


def _key(node: Node) -> tuple[object, ...] | None:
    value = node.meta.get("val")
    op = overload_of(node)
    if op is None or op._schema.name != _GATHER or not isinstance(value, torch.Tensor) \
            or not all(isinstance(size, int) for size in value.shape) \
            or not _compat.annotation(node, OVERLAP):
        return None
    return value.dtype, value.device, *node.args[1:]


def _bytes(node: Node) -> int:
    value = node.meta["val"]
    return value.numel() * value.element_size()


def _in_the_way(source: Node, first: Node, place: dict[Node, int]) -> dict[Node, None] | None:
    """What has to move before ``first`` so that ``source`` is there, in order; None where it
    cannot."""
    if place[source] < place[first]:
        return {}
    op = overload_of(source)
    if not (op is None and source.target is operator.getitem) and (
            op is None or is_collective(op) or is_wait(op) or is_random(source)
            or written_arguments(source)):
        return None
    moved: dict[Node, None] = {}
    for node in source.all_input_nodes:
        more = _in_the_way(node, first, place)
        if more is None:
            return None
        moved |= more
    return moved | {source: None}


def _begin_together(gm: GraphModule, group: _Group) -> None:
    first = group.members[0]
    for node in group.moved:
        first.prepend(node)
    with gm.graph.inserting_before(first):
        together = gm.graph.call_function(
            _compat.gather_together(),
            ([member.args[0] for member in group.members], *first.args[1:]))
        together.meta = {**first.meta, "val": [member.meta["val"] for member in group.members]}
        for i, member in enumerate(group.members):
            item = gm.graph.call_function(operator.getitem, (together, i))
            item.meta = dict(member.meta)
            member.replace_all_uses_with(item)
    for member in group.members:
        gm.graph.erase_node(member)
