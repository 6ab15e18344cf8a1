# SPDX-License-Identifier: Apache-2.0
"""How tensors of a graph lie in memory, for one set of arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from anabranch._compile.graph import Unsupported
from anabranch._fx.extents import extent_bytes


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """Sizes and strides in elements, all numbers."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return extent_bytes(self.sizes, self.strides, self.dtype)

    def has_strides(self, strides: Sequence[int]) -> bool:
        """Strides of dimensions of one element or none say nothing."""
        return all(size <= 1 or a == b for a, b, size in
                   zip(strides, self.strides, self.sizes, strict=True))


class SymbolValues:
    """The numbers behind the symbols of a graph, for one set of arguments."""

    def __init__(self, placeholders: Sequence[Node], args: Sequence[Any]) -> None:
        self._symbols: dict[Any, Any] = {}
        self._layouts: dict[Node, TensorLayout] = {}
        for node, arg in zip(placeholders, args, strict=True):
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                self._bind(value, arg)
                continue
            for symbol, number in zip((*value.shape, *value.stride()),
                                      (*arg.shape, *arg.stride()), strict=True):
                self._bind(symbol, number)

    def _bind(self, value: Any, number: Any) -> None:
        expression = getattr(getattr(value, "node", None), "expr", None)
        if expression is not None and expression.is_Symbol:
            self._symbols[expression] = sympy.sympify(number)

    def number(self, value: Any) -> Any:
        if isinstance(value, (int, float, bool)):
            return value
        result = value.node.expr.xreplace(self._symbols)
        if result.free_symbols:
            raise Unsupported(f"the size {value} is in no argument")
        if isinstance(value, torch.SymFloat):
            return float(result)
        return bool(result) if isinstance(value, torch.SymBool) else int(result)

    def scalar(self, node: Node) -> Any:
        return self.number(node.meta["val"])

    def layout(self, node: Node) -> TensorLayout:
        if node not in self._layouts:
            value = node.meta["val"]
            self._layouts[node] = TensorLayout(
                value.dtype, tuple(self.number(n) for n in value.shape),
                tuple(self.number(n) for n in value.stride()))
        return self._layouts[node]

    def view(self, node: Node, value: Node) -> tuple[TensorLayout, int]:
        """How a view lies in a value's memory, and how many elements behind its beginning."""
        layout = self.layout(node)
        if layout.dtype is not value.meta["val"].dtype:
            raise Unsupported(f"{node.name} is a view with another dtype")
        shift = node.meta["val"].storage_offset() - value.meta["val"].storage_offset()
        return layout, self.number(shift)
