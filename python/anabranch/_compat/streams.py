# SPDX-License-Identifier: Apache-2.0
"""Streams and events in what Dynamo traced. They stand in a table that each call fills anew."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import graph_bytecode_inputs
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._ops import OpOverload

_REFUSAL = "check_event_record_after_input_mutation"


def take_events_behind_writes(ours: Callable[..., Any]) -> None:
    """Lets graphs for the backend ``ours`` record an event behind a write to an input. Dynamo
    refuses that since 2.15, because torch's compiler writes inputs behind the last record; ``ours``
    records events behind that. Other backends are refused as before."""
    refuse = getattr(OutputGraph, _REFUSAL, None)
    if refuse is None:
        return

    @functools.wraps(refuse)
    def check(graph: Any, *args: Any) -> None:
        if _innermost_backend(graph.compiler_fn) is not ours:
            refuse(graph, *args)

    setattr(OutputGraph, _REFUSAL, check)


def _innermost_backend(backend: Any) -> Any:
    while inner := (getattr(backend, "_torchdynamo_orig_backend", None)
                    or getattr(backend, "compiler_fn", None)):
        backend = inner
    return backend


# The object that stands at a number of Dynamo's table.
object_of_graph: Callable[[int], Any] = graph_bytecode_inputs.get_external_object_by_index


def is_made_by_graph(number: int) -> bool:
    """Whether each call of the graph makes that object of the table anew, while the graph is
    compiled. Dynamo keeps apart by the function that puts it there alone."""
    make = graph_bytecode_inputs.index_to_bytecode_constructor[number]
    return "construct_fn" in make.__code__.co_freevars


def is_object_of_graph(node: torch.fx.Node) -> bool:
    return node.target is graph_bytecode_inputs.get_external_object_by_index


_METHODS = ("wait_stream", "wait_event", "record_event", "record_stream", "synchronize")


def breaks_around(gm: torch.fx.GraphModule) -> tuple[bool, bool]:
    """Whether Dynamo cut the function that a graph is of: before the graph, and behind it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None:
        return False, False
    frames = [frame.name for frame in reason.user_stack]
    return any(name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX) for name in frames), \
        reason.graph_break


def stream_operation(node: torch.fx.Node) -> str | None:
    """What a node does with streams or events, by torch's name for it. Up to 2.12 some stand in the
    graph as methods and functions, all of them as operators later."""
    if node.target is torch.accelerator.synchronize:
        return "synchronize_device"
    if node.op == "call_method":
        takes = node.args[1 if node.target == "record_stream" else 0]
        is_theirs = isinstance(takes, torch.fx.Node) and (
            is_object_of_graph(takes) or stream_operation(takes) is not None)
        return str(node.target) if node.target in _METHODS and is_theirs else None
    name = getattr(node.target, "_qualified_op_name", None)
    if isinstance(node.target, OpOverload):
        name = node.target._schema.name
    kind, _, operation = str(name).partition("::")
    return operation if node.op == "call_function" and kind == "streams" else None
