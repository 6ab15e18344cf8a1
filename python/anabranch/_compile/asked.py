# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a graph ask for, read in one pass.

Threads: immutable. Failure: CompileError [E0608] where a stream has two priorities, when these are
asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.fx import GraphModule, Node

from anabranch import _compat, errors, streams
from anabranch._fx.source import source_of
from anabranch.streams import ANNOTATION, OVERLAP, PRIORITY


class AskedStreams(streams.Asked):
    """``streams`` are the names of streams, in the order in which they appear."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self._priorities: dict[str, dict[int, Node]] = {}  # by stream, each where it first stands
        for node in nodes_of(gm):
            name = _compat.annotation(node, ANNOTATION)
            self.add(name, _compat.annotation(node, OVERLAP))
            if name is not None:
                priority = _compat.annotation(node, PRIORITY) or 0
                self._priorities.setdefault(name, {}).setdefault(priority, node)

    @property
    def streams(self) -> list[str]:
        return list(self._priorities)

    @functools.cached_property
    def priorities(self) -> dict[str, int]:
        """By stream."""
        for name, found in self._priorities.items():
            (one, at), *others = found.items()
            if others:
                other, also_at = others[0]
                raise errors.CompileError(
                    608, f"compile: the stream {name!r} has the priority {one} at {_place_of(at)}, "
                         f"and {other} at {_place_of(also_at)}.", "Give a name one priority.")
        return {name: next(iter(found)) for name, found in self._priorities.items()}


def asking(lanes: int, call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """``call`` of what was compiled, which asks for so many lanes wherever it is captured: by
    itself, or as part of a step."""
    if lanes < 2:
        return call

    def asks(inputs: list[Any]) -> Any:
        streams.ask(None, lanes)
        return call(inputs)

    return asks


def nodes_of(gm: GraphModule) -> Iterator[Any]:
    for module in gm.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _place_of(node: Node) -> str:
    """In the user's code; where nothing is known of that, what the node does."""
    return source_of([node]) or str(getattr(node.target, "__name__", node.target))
