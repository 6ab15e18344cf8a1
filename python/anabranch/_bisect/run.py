# SPDX-License-Identifier: Apache-2.0
"""One call of a callable from the state of a snapshot, and everything that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._bisect.snapshot import Snapshot
from anabranch._fx.extents import extent


class Runner:
    """``function`` is the user's own, which is never compiled itself: it leads to the state.

    Tensors among the arguments are copied for each run, so that the user's are not touched and
    their addresses differ. Those that the function leads to as well are given as they are.
    """

    def __init__(self, function: Callable[..., Any], state: Sequence[Any], args: Sequence[Any],
                 kwargs: Mapping[str, Any]) -> None:
        leaves, self._tree = _compat.tree_flatten((tuple(args), dict(kwargs)))
        objects = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        self.snapshot = Snapshot((function, *state), objects)
        self._leaves = [leaf.detach().clone().requires_grad_(leaf.requires_grad)
                        if self._is_copied(leaf) else leaf for leaf in leaves]
        self.has_gpu = any(isinstance(one, Tensor) and one.is_cuda
                           for one in (*leaves, *self.snapshot.tensors().values()))

    def _is_copied(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and not self.snapshot.knows(leaf)

    def run(self, call: Callable[..., Any], rounding: int | None = None) -> dict[str, Any]:
        """What the call answers and leaves, by name: results, gradients, inputs and state. Raises
        what it raises. The state is put back behind it, as it was before.

        ``rounding`` is a seed: floats among arguments and parameters are off by their last bit,
        some up and some down."""
        leaves = [clone(leaf) if self._is_copied(leaf) else leaf for leaf in self._leaves]
        args, kwargs = _compat.tree_unflatten(leaves, self._tree)
        try:
            if rounding is not None:
                self._round([leaf for leaf in leaves if self._is_copied(leaf)], rounding)
            before = self._gradients(leaves)
            answer = call(*args, **kwargs)
            results, tree = _compat.tree_flatten(answer)
            if before == self._gradients(leaves):  # else it has run its own backward
                _run_backward(results)
            return self._left(results, tree, leaves)
        finally:
            self.snapshot.put_back()

    def _round(self, copied: Sequence[Tensor], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        parameters = [one for one in self.snapshot.tensors().values() if one.requires_grad]
        for tensor in (*copied, *parameters):
            if tensor.is_floating_point() and tensor.layout is torch.strided:
                signs = torch.randint(0, 2, tensor.shape, generator=generator,
                                      device="cpu").to(tensor.device)
                last_bits = (2 * signs - 1) * torch.finfo(tensor.dtype).eps
                tensor.data = tensor.data * (1 + last_bits).to(tensor.dtype)

    def _gradients(self, leaves: Sequence[Any]) -> list[tuple[int, int]]:
        """Changes where one is added to or set."""
        tensors = [*self.snapshot.tensors().values(),
                   *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
        return [(id(grad), grad._version) for one in tensors
                if one.is_leaf and (grad := one.grad) is not None]

    def _left(self, results: Sequence[Any], tree: Any, leaves: Sequence[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"the form of the results": str(tree)}
        found |= {f"result {i}": result for i, result in enumerate(results)}
        for i, leaf in enumerate(leaves):
            if self._is_copied(self._leaves[i]):
                found |= {f"input {i} afterwards": leaf, f"gradient of input {i}": leaf.grad}
        for name, tensor in self.snapshot.tensors().items():
            found[name] = tensor
            if tensor.is_leaf and tensor.grad is not None:
                found[f"gradient of {name}"] = tensor.grad
        return {name: value.detach().clone() if isinstance(value, Tensor) else value
                for name, value in found.items()}


def clone(tensor: Tensor) -> Tensor:
    """Of the same sizes and strides, a leaf of its own."""
    return clone_as(tensor).requires_grad_(tensor.requires_grad)


def clone_as(tensor: Tensor) -> Tensor:
    """Of the same sizes and strides, also where elements share memory, and without history."""
    plain = tensor.detach()
    if plain.layout is not torch.strided or plain.is_quantized:
        return plain.clone()
    size = extent(plain.shape, plain.stride())
    if size == 0:
        return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype,
                                   device=plain.device)
    memory = plain.as_strided((size,), (1,)).clone()
    return memory.as_strided(plain.shape, plain.stride(), 0)


def _run_backward(results: Sequence[Any]) -> None:
    """Of a sum in which every element has another weight."""
    total: Any = 0.0
    for result in results:
        if isinstance(result, Tensor) and result.requires_grad:
            real = torch.view_as_real(result) if result.is_complex() else result
            weights = torch.linspace(-1.0, 1.5, real.numel(), device=real.device)
            total = total + (real.float() * weights.reshape(real.shape)).sum().cpu()
    if isinstance(total, Tensor):
        total.backward()
