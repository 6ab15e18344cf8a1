# SPDX-License-Identifier: Apache-2.0
"""Autograd's graphs of what a step answers.

A launch answers tensors without history. Nobody misses it where the step itself has run a backward
through it: what the graph saved has been freed, and another backward would fail.

Threads: one at a time. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

_MOST_NODES, _MOST_ALIVE = 1000, 16  # of a graph that are looked at


class Histories:
    """Those that tensors have before a run."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._before = {id(tensor): tensor.grad_fn for tensor in tensors
                        if tensor.grad_fn is not None}

    def is_new(self, leaf: Any) -> bool:
        """Of the run's. What the run was given, and answers as it was, is answered so by launches:
        graphs of forwards save such tensors, which other graphs have made."""
        if not isinstance(leaf, Tensor) or not leaf.requires_grad or leaf.is_leaf:
            return False
        return self._before.get(id(leaf)) is not leaf.grad_fn

    def clear(self) -> None:
        self._before.clear()


def detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.grad_fn is not None else leaf


def is_behind_backward(tensor: Tensor) -> bool | None:
    """Whether a backward has freed what the tensor's graph saved, or some of it: of the nodes next
    to the tensor those tell that have saved tensors. None where none has, as with sums. Where they
    are still there, hooks that unpack them are called."""
    nodes, alive = [tensor.grad_fn], 0
    known = set(nodes)
    for node in nodes:
        try:
            alive += any(isinstance(value, Tensor) for value in _saved_by(node))
        except RuntimeError as error:
            if "freed" in str(error):
                return True
        if alive == _MOST_ALIVE or len(nodes) >= _MOST_NODES:
            break
        new = [before for before, _ in getattr(node, "next_functions", ())
               if before is not None and before not in known]
        known.update(new)
        nodes.extend(new)
    return False if alive else None


def _saved_by(node: Any) -> Iterator[Any]:
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            value = getattr(node, name)
            yield from value if isinstance(value, (list, tuple)) else (value,)
