# SPDX-License-Identifier: Apache-2.0
"""What a forward saves for its backward, and where both use it.

Time goes by steps: nodes that run something, those of the forward and then those of the backward,
in graph order. Views and numbers are no steps; who uses a view uses its tensor.

Not counted is what is there anyway: inputs, results, and views of either. Not moved, but counted,
are small tensors, those of which several views are saved, those with gaps and those whose size
changes between calls.

Threads: any. Failure: none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from anabranch import _compat
from anabranch._fx.extents import extent
from anabranch._fx.schema import is_getitem, is_scalar, is_view, results_of, written_arguments

LEAST_BYTES = 64 << 10  # of a tensor that is moved: a copy of less takes as long as one of this


@dataclasses.dataclass(eq=False)
class Saved:
    """A tensor that the backward gets from the forward, as one view or several. Steps count from
    the forward's first; ``stride`` is how it lies when it is moved; ``why_kept`` says why it is
    not, or nothing."""

    tensor: Node
    views: list[tuple[Node, Node]]  # as the forward answers it, and the backward's input
    bytes: int
    made_after: int
    last_forward_use: int
    first_backward_use: int
    last_backward_use: int
    stride: list[int]
    why_kept: str = ""

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def answers(self) -> list[Node]:
        return [answer for answer, _ in self.views]

    @property
    def inputs(self) -> list[Node]:
        return [given for _, given in self.views]


class Pair:
    """A forward and its backward; the first ``results`` outputs of the forward are its results."""

    def __init__(self, forward: GraphModule, backward: GraphModule, results: int) -> None:
        self.forward, self.backward, self.results = forward, backward, results
        self.forward_steps = steps_of(forward.graph)
        self.backward_steps = steps_of(backward.graph)
        self._number = {node: i for i, node in enumerate(self.steps)}
        found = self._find_saved() if self.backward_steps else []
        self.saved = sorted(found, key=lambda saved: saved.made_after)
        for saved in self.saved:
            if saved.tensor.meta["val"].device != self.device:
                saved.why_kept = f"it is not on {self.device}"

    @property
    def steps(self) -> list[Node]:
        return [*self.forward_steps, *self.backward_steps]

    @property
    def device(self) -> torch.device:
        """That the largest saved tensor is on."""
        largest = max(self.saved, key=lambda saved: saved.bytes)
        device: torch.device = largest.tensor.meta["val"].device
        return device

    @property
    def saved_bytes(self) -> int:
        return sum(saved.bytes for saved in self.saved)

    def _find_saved(self) -> Iterator[Saved]:
        returned = results_of(self.forward.graph)
        shown = {base_of(n) for n in returned[:self.results] if isinstance(n, Node)}
        inputs = {n.name: n for n in self.backward.graph.find_nodes(op="placeholder")}
        views: dict[Node, list[tuple[Node, Node]]] = {}
        for node in returned[self.results:]:
            if isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor) \
                    and node.name in inputs:
                views.setdefault(base_of(node), []).append((node, inputs[node.name]))
        for base, of_base in views.items():
            if base.op == "call_function" and base not in shown:
                yield self._saved(base, of_base)

    def _saved(self, base: Node, views: list[tuple[Node, Node]]) -> Saved:
        made = self._number[step_of(base)]
        forward = [made, *self._uses(base)]
        backward = [use for _, given in views for use in self._uses(given)]
        is_used = bool(backward)
        backward = backward or [len(self._number) - 1]
        return Saved(base, views, bytes_of(base.meta["val"]), made, max(forward), min(backward),
                     max(backward), list(base.meta["val"].stride()),
                     _why_kept(base, views, is_used))

    def _uses(self, value: Node) -> list[int]:
        return [self._number[user] for user in users_of(value) if user in self._number]


def _why_kept(base: Node, views: list[tuple[Node, Node]], is_used: bool) -> str:
    value = base.meta["val"]
    if not all(isinstance(n, int) for each in (base, *(view for view, _ in views))
               for n in _numbers(each.meta["val"])):
        return "its size changes between calls"
    if value.numel() * value.itemsize < LEAST_BYTES:
        return "it is small"
    if not is_used or any(is_returned(given) for _, given in views):
        return "the backward answers it"
    if extent(value.shape, value.stride()) != value.numel() or value.storage_offset() != 0:
        return "it has gaps"
    if written_arguments(base) or value.is_complex() or value.is_quantized \
            or any(view.meta["val"].dtype != value.dtype for view, _ in views):
        return "it is written, or of a kind that is not moved"
    # torch saves these another way.
    return "torch saves it unchecked" if any(
        view.meta.get("saved_tensor_with_no_vc_check") for view, _ in views) else ""


def _numbers(value: torch.Tensor) -> tuple[object, ...]:
    return (*value.shape, *value.stride(), value.storage_offset())


def steps_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"
            and not (is_view(node) or is_getitem(node) or is_scalar(node))]


def base_of(node: Node) -> Node:
    """What a chain of views starts from."""
    while not is_scalar(node) and is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def step_of(node: Node) -> Node:
    """That makes a value: the node, or what it is one result of."""
    while is_getitem(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def users_of(node: Node) -> Iterator[Node]:
    """Who uses a value, also through views; the output too."""
    for user in node.users:
        if is_view(user):
            yield from users_of(user)
        yield user


def is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in users_of(node))


def bytes_of(value: Any) -> int:
    """With the sizes of the example where they change between calls."""
    try:
        return int(_compat.example_of(value.numel())) * int(value.itemsize)
    except TypeError:
        return 0
