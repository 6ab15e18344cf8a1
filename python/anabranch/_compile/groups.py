# SPDX-License-Identifier: Apache-2.0
"""Joining small groups of steps to their neighbours.

The planner's groups lose no concurrency at all, and so a lone addition between two waits becomes
a region of its own. What that could win is less than what it costs: a pass over memory that
Inductor would have fused. So a group of nothing but pointwise operators and reductions joins the
group of its stream that it feeds, or the one that feeds it, where nobody else is held up by more
than its own small work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from anabranch._fx.schema import overload_of

_REDUCTIONS = {"sum", "mean", "amax", "amin", "var", "var_mean", "any", "all", "squeeze", "copy_",
               "full", "iota", "inductor_lookup_seed", "inductor_random", "inductor_seeds",
               "convert_element_type", "_to_copy", "clone", "cat", "embedding", "index",
               "constant_pad_nd", "where", "gather"}


def is_small(node: Node) -> bool:
    """Whether Inductor writes code for the node that fuses with its neighbours."""
    op = overload_of(node)
    if op is None:
        return False
    name = op.name().split("::")[1].split(".")[0]
    return torch.Tag.pointwise in op.tags or name in _REDUCTIONS


def merge_small_groups(
    steps: Sequence[Node],
    groups: Sequence[int],
    streams: dict[Node, str],
    accesses: Callable[[Node], tuple[set[Any], set[Any]]],
) -> list[int]:
    """The group of each step after merging, numbered in an order in which groups can run."""
    members: dict[int, list[Node]] = defaultdict(list)
    for node, group in zip(steps, groups, strict=True):
        members[group].append(node)
    edges = _edges(steps, accesses)
    group_of = dict(zip(steps, groups, strict=True))
    for group in sorted(members):
        if all(is_small(node) for node in members[group]):
            target = _target(group, members, group_of, edges, streams)
            if target is not None:
                for node in members[group]:
                    group_of[node] = target
                members[target] += members.pop(group)
    numbers = {group: i for i, group in enumerate(sorted(members))}
    return [numbers[group_of[node]] for node in steps]


def _edges(
    steps: Sequence[Node], accesses: Callable[[Node], tuple[set[Any], set[Any]]]
) -> list[tuple[Node, Node]]:
    """Pairs of steps of which the second must come after the first."""
    writer: dict[Any, Node] = {}  # by what it has written last: a value, the generator
    readers: dict[Any, list[Node]] = defaultdict(list)
    edges = []
    for node in steps:
        reads, writes = accesses(node)
        edges += [(writer[v], node) for v in reads | writes if v in writer]
        edges += [(reader, node) for v in writes for reader in readers[v] if reader is not node]
        for value in writes:
            writer[value] = node
            readers[value] = []
        for value in reads:
            readers[value].append(node)
    return edges


def _target(
    group: int,
    members: dict[int, list[Node]],
    group_of: dict[Node, int],
    edges: Iterable[tuple[Node, Node]],
    streams: dict[Node, str],
) -> int | None:
    """The group to join, or None.

    Later: all that needs the group is on its stream, so that only it waits longer; the nearest
    such group, since no path can lead there through another. Earlier: all that the group needs is
    one group of its stream, which then ends later by this group's small work.
    """
    after = {group_of[b] for a, b in edges if group_of[a] == group != group_of[b]}
    before = {group_of[a] for a, b in edges if group_of[b] == group != group_of[a]}
    stream = streams[members[group][0]]

    def on_stream(others: set[int]) -> bool:
        return bool(others) and all(streams[members[g][0]] == stream for g in others)

    if on_stream(after):
        return min(after)
    if len(before) == 1 and on_stream(before):
        return before.pop()
    return None
