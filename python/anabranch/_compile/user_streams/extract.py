# SPDX-License-Identifier: Apache-2.0
"""Streams and events of torch in what Dynamo traced: taken out of the graph, to be tied to its
ends.

A program without races means what its steps mean one after the other. So the graph is compiled as
such, on the stream that is current when it is called, and the user's streams are tied to it at
both ends: it begins behind what they have queued and behind the events it waits for, and they go
on behind it, with its events recorded. Whoever waits for one of them outside then waits for
everything inside, writes to inputs included, which torch's compiler puts behind the last wait.
What may run beside what inside is found anew, like that of named streams.

Threads: immutable once made. Failure: NotUnderstood where the graph does something else with a
stream or event; it is then left as it was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from anabranch import _compat
from anabranch._compile.user_streams.check import Syncs, check_syncs
from anabranch._compile.user_streams.ties import Ties, ambient_stream, is_same
from anabranch.streams import ANNOTATION

_TORCHS = "stream"  # Dynamo's key for the stream of a node: a number of the table of objects


class NotUnderstood(Exception):
    """What a graph does with a stream or event, that no tie can stand for."""


def take_out(gm: GraphModule, *, check: bool = False, strict: bool = False) -> Ties | None:
    """Takes streams and events out of a graph; None where there are none. Nodes of a stream are
    annotated as if it were named, unless they are on a named one. With ``check`` what the syncs
    leave open is told first, see ``check``; a PlanError where nobody knows what is meant.
    """
    if not any(_compat.is_object_of_graph(node) or _compat.stream_operation(node)
               for node in gm.graph.nodes):
        return None
    finder = _Finder(gm)
    for node in gm.graph.nodes:
        finder.look_at(node)
    if check:
        check_syncs(gm, finder.syncs, _ambient_of(finder.ties), strict=strict)
    for node in gm.graph.nodes:
        custom = node.meta.get("custom") or {}
        if _TORCHS in custom:
            named = {ANNOTATION: f"stream {custom[_TORCHS]}", **custom}
            node.meta["custom"] = {key: value for key, value in named.items() if key != _TORCHS}
    for node in reversed(finder.gone):
        gm.graph.erase_node(node)
    gm.recompile()
    return finder.ties


def _ambient_of(ties: Ties) -> set[int]:
    """Which streams are the current one. Those of the CPU are told apart by their numbers alone."""
    streams = {i: _compat.object_of_graph(i) for i in ties.streams}
    return {i for i, stream in streams.items() if stream.device.type != "cpu"
            and is_same(stream, ambient_stream(stream.device))}


class _Finder:
    def __init__(self, gm: GraphModule) -> None:
        self.ties = Ties()
        self.syncs: dict[Node, Syncs] = {}
        self.gone: list[Node] = []
        self._arguments = {node: i for i, node in
                           enumerate(gm.graph.find_nodes(op="placeholder"))}
        self._made: set[Node] = set()  # events that the graph makes: nobody else has them

    def look_at(self, node: Node) -> None:
        stream = (node.meta.get("custom") or {}).get(_TORCHS)
        if stream is not None and node.op != "placeholder":
            self.ties.streams[stream] = None
        if _compat.is_object_of_graph(node):
            self.gone.append(node)
            return
        does = _compat.stream_operation(node)
        if does is None:
            if any(_compat.is_object_of_graph(n) or n in self._made for n in node.all_input_nodes):
                raise NotUnderstood(f"{node.format_node()} uses a stream or event")
            return
        self.gone.append(node)
        getattr(self, f"_{does}", self._refuse)(node)

    def _refuse(self, node: Node) -> None:
        raise NotUnderstood(f"{node.format_node()} has no meaning at the ends of a graph")

    def _number(self, value: Any) -> Any:
        """Of an object in Dynamo's table; the node itself of an event that the graph makes."""
        if isinstance(value, int):
            return value
        if isinstance(value, Node) and _compat.is_object_of_graph(value):
            return value.args[0]
        if value in self._made:
            return value
        raise NotUnderstood(f"{value} is no stream or event of the table")

    def _wait_stream(self, node: Node) -> None:
        numbers = tuple(map(self._number, node.args))
        self.ties.streams.update(dict.fromkeys(numbers))
        self.syncs[node] = Syncs("wait_stream", numbers)

    def _wait_event(self, node: Node) -> None:
        first, second = node.args
        if node.op == "call_method":  # stream.wait_event(event)
            first, second = second, first
        event, stream = self._number(first), self._number(second)
        self.ties.streams[stream] = None
        self.syncs[node] = Syncs("wait_event", (event, stream))
        if event not in self._made and event not in self.ties.recorded:
            self.ties.awaited[event] = None

    def _record_event(self, node: Node) -> None:
        first, second = (*node.args, None)[:2]
        if node.op == "call_method":  # stream.record_event(event), or without one
            first, second = second, first
            if first is None:
                self._made.add(node)
        stream = self._number(second)
        event: Any = node if first is None else self._number(first)
        self.ties.streams[stream] = None
        self.syncs[node] = Syncs("record_event", (event, stream))
        if event not in self._made:
            self.ties.recorded.pop(event, None)  # the last record is the one
            self.ties.recorded[event] = stream

    def _record_stream(self, node: Node) -> None:
        tensor, stream = node.args
        number = self._number(stream)
        self.ties.streams[number] = None
        self.syncs[node] = Syncs("record_stream", ())
        # Others are the graph's own, used on its stream alone.
        if isinstance(tensor, Node) and tensor in self._arguments:
            self.ties.used_on.append((self._arguments[tensor], number))

    def _synchronize_stream(self, node: Node) -> None:
        stream = self._number(node.args[0])
        self.ties.streams[stream] = None
        self.ties.barriers.append(stream)
        self.syncs[node] = Syncs("synchronize_stream", (stream,))

    def _synchronize_event(self, node: Node) -> None:
        """Of an event that the graph has recorded its stream is the one; of any other, all."""
        event = self._number(node.args[0])
        self.ties.barriers.append(self.ties.recorded.get(event))
        self.syncs[node] = Syncs("synchronize_event", (event,))

    def _synchronize_device(self, node: Node) -> None:
        self.ties.barriers.append(None)
        self.syncs[node] = Syncs("synchronize_device", ())

    def _synchronize(self, node: Node) -> None:
        """A method, of a stream or an event."""
        number = self._number(node.args[0])
        is_event = number in self._made or not isinstance(
            _compat.object_of_graph(number), torch.Stream)
        (self._synchronize_event if is_event else self._synchronize_stream)(node)
