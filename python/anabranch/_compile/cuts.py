# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs that cannot be captured as one: their safe parts are recorded, each by itself,
and the rest runs between them.

Inductor puts what lies between operators that no CUDA graph can hold into functions of their own.
Operators of other libraries are cut out as well, since nobody knows of them: a graph that has no
others is recorded as one all the same, and in parts only where that is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from anabranch import _compat, config
from anabranch._compile.asked import asking
from anabranch._fx.schema import tensors_in
from anabranch._fx.source import source_of
from anabranch._record.recorded_graph import RecordedGraph
from anabranch._record.refusals import Cause, Reason
from anabranch._record.signatures.callable_kind import CallableKind

_TORCHS = ("aten", "prim", "prims", "_c10d_functional", "inductor", "rngprims")
_BRANCHES = ("cond", "while_loop", "switch")


@dataclasses.dataclass(frozen=True)
class Cuts:
    """``reasons`` say why the graph cannot be captured as one; none where it perhaps can.
    ``operators`` are those of other libraries, by their full names."""

    reasons: tuple[Reason, ...] = ()
    operators: tuple[str, ...] = ()
    depends_on_data: bool = False  # some sizes do, or numbers
    may_reorder: bool = False  # what cuts, so that there are fewer parts

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """Around the compilation of the graph, on this thread."""
        if not self.reasons and not self.operators:
            return contextlib.nullcontext()
        return _compat.in_parts(self.operators, self.may_reorder)


def find_cuts(gm: GraphModule) -> Cuts:
    constants = {node for node in gm.graph.find_nodes(op="get_attr") if _holds_constant(gm, node)}
    reasons: list[Reason] = []
    others = set()
    for node in (node for node in gm.graph.nodes if node.op == "call_function"):
        if _is_constant(node, constants):
            constants.add(node)
        elif why := _why_not(node):
            reasons.append(why)
        if isinstance(node.target, _compat.OpOverload) and node.target.namespace not in _TORCHS:
            others.add(f"{node.target.name()}.{node.target._overloadname}")
    return Cuts(
        tuple(reasons), tuple(sorted(others)),
        any(_compat.free_unbacked_symbols(node.meta.get("val")) for node in gm.graph.nodes),
        # Copies that wait for nothing would all come first, and all that they bring lie there.
        not any(tensor.dim() for node in gm.graph.nodes for tensor in _on_cpu(node)))


def _why_not(node: Node) -> Reason | None:
    on_data, in_parts, why = Cause.DEPENDS_ON_DATA, Cause.GRAPH_IN_PARTS, None
    if _compat.is_unsafe_in_captures(node):
        why = in_parts.because(f"{node.target} cannot be captured")
    elif _compat.free_unbacked_symbols(node.meta.get("val")):
        why = on_data.because(
            f"what {node.target} answers has a size, or is a number, that depends on data")
    elif isinstance(node.target, _compat.HigherOrderOperator) and node.target.name() in _BRANCHES:
        why = on_data.because(f"{node.target.name()} reads on the CPU which way to go")
    elif _on_cpu(node):
        why = in_parts.because(f"{node.target} answers a tensor on the CPU")
    place = source_of([node]) if why else None
    return why._replace(place=f"at {place}") if why and place else why


def _holds_constant(gm: GraphModule, node: Node) -> bool:
    """Whether its attribute is a number, or a few, on the CPU: torch.tensor(3.0) in the model."""
    value = operator.attrgetter(str(node.target))(gm)
    return isinstance(value, torch.Tensor) and value.device.type == "cpu"


def _is_constant(node: Node, known: set[Node]) -> bool:
    """Whether its value is the same in every call. On the CPU Inductor moves most of these away."""
    random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return not random and known.issuperset(node.all_input_nodes)


def _on_cpu(node: Node) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_in(node.meta.get("val")) if tensor.device.type == "cpu"]


class _Part:
    """A part of a graph. Where that may be recorded as one, by itself only once that is refused."""

    def __init__(self, plain: Callable[[list[Any]], Any], recorded: RecordedGraph,
                 whole: RecordedGraph | None) -> None:
        self._plain = plain
        self._whole = whole
        self.recorded = recorded

    def __call__(self, inputs: list[Any]) -> Any:
        by_itself = self._whole is None or self._whole.is_refused
        return (self.recorded if by_itself else self._plain)(inputs)


def record_parts(compiled: Any, chosen: config.Options, kind: str, dynamic: bool, cuts: Cuts,
                 whole: RecordedGraph | None, asked_lanes: int = 1) -> None:
    """Has the parts of a graph that was compiled with its cuts recorded as they run; once ``whole``
    is refused, where there is one. All of them ask for ``asked_lanes``."""
    parts = _compat.parts_of(compiled)
    alone = [RecordedGraph(asking(asked_lanes, part), chosen, f"part {i} of {kind}",
                           CallableKind(), dynamic=dynamic or cuts.depends_on_data,
                           label=f"part {i} of {len(parts)}: ",
                           may_take_numbers=not cuts.depends_on_data)
             for i, part in enumerate(parts)]
    _compat.replace_parts(compiled, [
        _Part(part, recorded, whole) for part, recorded in zip(parts, alone, strict=True)])


def recordings_of(compiled: Any) -> list[RecordedGraph]:
    """A compiled graph's, whole and in parts."""
    whole = getattr(compiled, "current_callable", None)
    whole = getattr(whole, "recorded", whole)
    return [*([whole] if isinstance(whole, RecordedGraph) else []),
            *(part.recorded for part in _compat.parts_of(compiled) if isinstance(part, _Part))]
