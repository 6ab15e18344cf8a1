# SPDX-License-Identifier: Apache-2.0
"""Calls of compiled graphs, each against the operators of its graph on the same arguments."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter

from anabranch import _compat
from anabranch._bisect.compare import Difference, Tolerance
from anabranch._bisect.run import clone_as
from anabranch._bisect.snapshot import random_states, set_random_states
from anabranch._compile.graph import value_of
from anabranch._compile.report import Collector, GraphReport, copy_of
from anabranch._compile.streamed_graph import StreamedGraph
from anabranch._fx.pack_saved import is_pack
from anabranch._fx.schema import results_of, written_arguments
from anabranch._fx.source import source_of


@dataclasses.dataclass
class GraphCall:
    """``run`` takes a list of arguments, which it empties, as AOTAutograd calls graphs. ``gm`` is
    the graph as it was compiled; ``random`` the generators' states before the call."""

    kind: str
    gm: GraphModule
    run: Callable[[list[Any]], Any]
    args: list[Any]
    random: Any
    streamed: StreamedGraph | None = None

    @property
    def source(self) -> str | None:
        return source_of(list(self.gm.graph.nodes)) or None

    def call(self, run: Callable[[list[Any]], Any]) -> dict[str, Any]:
        """What a run of copies of the arguments leaves, by name. Of these only what the graph
        writes: Inductor's backward may put its own into the memory of others."""
        args = copies(self.args)
        set_random_states(self.random)
        with torch.no_grad():
            results = run(list(args))
        return {**named_results(self.gm, results),
                **{f"argument {i} afterwards": args[i] for i in self._written}}

    @functools.cached_property
    def _written(self) -> list[int]:
        nodes = self.gm.graph.nodes
        written = {value_of(one) for node in nodes for one in written_arguments(node)}
        return [i for i, node in enumerate(self.gm.graph.find_nodes(op="placeholder"))
                if node in written]

    def wanted(self) -> dict[str, Any]:
        """What the graph's operators leave."""
        return self.call(lambda args: Interpreter(self.gm).run(*args))

    def difference(self, tolerance: Tolerance) -> Difference | None:
        return tolerance.compare(self.call(self.run), self.wanted())


def copies(args: Sequence[Any]) -> list[Any]:
    return [clone_as(arg) if isinstance(arg, Tensor) else arg for arg in args]


def named_results(gm: GraphModule, results: Sequence[Any]) -> dict[str, Any]:
    """Of a block of saved tensors the parts: between them lies what nobody has written."""
    found: dict[str, Any] = {}
    for i, (node, result) in enumerate(zip(results_of(gm.graph), results, strict=True)):
        if node is None or not is_pack(node):
            found[f"result {i}"] = result
            continue
        for value, offset in zip(*node.args[:2], strict=True):
            shape = value.meta["val"]
            found[f"result {i}, {value.name}"] = result.as_strided(shape.shape, shape.stride(),
                                                                   offset)
    return {name: value.clone() if isinstance(value, Tensor) else value
            for name, value in found.items()}


class GraphCalls:
    """The calls of one run, in order. Used as a context around that run."""

    def __init__(self, collector: Collector) -> None:
        self.calls: list[GraphCall] = []
        self._collector = collector

    def __enter__(self) -> GraphCalls:
        self._collector.on_call = self._note
        return self

    def __exit__(self, *error: object) -> None:
        self._collector.on_call = None

    def _note(self, report: GraphReport, args: list[Any]) -> None:
        compiled = report.compiled()
        if report.kept is None or compiled is None:
            return
        streamed = report.streamed
        run = compiled if streamed is not None else compiled.current_callable
        self.calls.append(GraphCall(report.kind, report.kept, run, copies(args),
                                    random_states(), streamed))


class InductorCalls:
    """The same of graphs that Inductor compiles by itself: ``backend`` is one of torch.compile.
    Nothing is noted unless ``is_on``."""

    def __init__(self) -> None:
        self.calls: list[GraphCall] = []
        self.is_on = False

    def backend(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
        with _compat.without_autograd_cache():
            return _compat.compile_fx(gm, example_inputs, inner_compile=self._compile)

    def _compile(self, gm: GraphModule, example_inputs: Sequence[Any], **keywords: Any) -> Any:
        kept, kind = copy_of(gm), "backward" if keywords.get("is_backward") else "forward"
        compiled: Any = _compat.compile_fx_inner(gm, example_inputs, **keywords)
        if _compat.is_inductors_graph(compiled):
            compiled.current_callable = functools.partial(
                self._call, kind, kept, compiled.current_callable)
        return compiled

    def _call(self, kind: str, kept: GraphModule, run: Callable[[list[Any]], Any],
              args: list[Any]) -> Any:
        if self.is_on:
            self.calls.append(GraphCall(kind, kept, run, copies(args), random_states()))
        return run(args)
