# SPDX-License-Identifier: Apache-2.0
"""What a call of a model leaves behind, and whether two calls left the same.

Not only outputs are compared: gradients of parameters and inputs, buffers, inputs that may have
been written to, and which outputs share memory with inputs.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

BACKEND = os.environ.get("ANABRANCH_TEST_BACKEND", "anabranch")
Inputs = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    relative: float = 1e-5
    absolute: float = 1e-5


def compiled(function: Callable[..., Any], *, options: dict[str, Any] | None = None,
             dynamic: bool | None = False) -> Callable[..., Any]:
    """`function` through the backend that is tested; other backends know none of our options."""
    if BACKEND != "anabranch":
        return torch.compile(function, backend=BACKEND, dynamic=dynamic)
    import anabranch

    return torch.compile(function, backend=anabranch.backend, options=options, dynamic=dynamic)


def tensors_of(value: Any, path: str = "output") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested tuples, lists and dicts, with where it stands."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors_of(item, f"{path}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tensors_of(item, f"{path}[{key!r}]")


def weighted_sum(value: Any) -> torch.Tensor:
    """A scalar whose gradient differs from element to element, so that no mix-up goes unseen."""
    total = torch.zeros(())
    for _, tensor in tensors_of(value):
        if not tensor.requires_grad:
            continue
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        weights = torch.linspace(-1.0, 1.5, real.numel()).reshape(real.shape)
        total = total + (real.float() * weights).sum()
    return total


def observe(function: Callable[..., Any], model: torch.nn.Module | None, inputs: Inputs,
            *, train: bool = True, seed: int = 11) -> dict[str, torch.Tensor]:
    """Calls `function`, and backward if `train`; answers everything that can be seen afterwards."""
    if model is not None:
        model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    with torch.set_grad_enabled(train):
        outputs = function(*inputs)
        if train:
            weighted_sum(outputs).backward()
    seen = {path: tensor.detach().clone() for path, tensor in tensors_of(outputs)}
    for path, tensor in tensors_of(outputs):
        shares = [tensor.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
                  and tensor.numel() > 0 for given in inputs]
        seen[f"{path} shares memory with input"] = torch.tensor(shares)
    for index, tensor in enumerate(inputs):
        seen[f"input {index} after"] = tensor.detach().clone()
        if tensor.grad is not None:
            seen[f"input {index} gradient"] = tensor.grad.clone()
    if model is not None:
        seen |= {f"{name} gradient": parameter.grad.clone()
                 for name, parameter in model.named_parameters() if parameter.grad is not None}
        seen |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    return seen


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor],
                tolerance: Tolerance | None = None) -> None:
    """`tolerance` None: bit for bit."""
    assert list(found) == list(wanted)
    relative, absolute = (tolerance.relative, tolerance.absolute) if tolerance else (0.0, 0.0)
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=relative, atol=absolute,
                                   equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


def compare_with_eager(make_model: Callable[..., torch.nn.Module],
                       make_inputs: Callable[[int], Inputs], *, streams: bool = True,
                       train: bool = True, tolerance: Tolerance = Tolerance(),
                       options: dict[str, Any] | None = None, calls: int = 3,
                       oracle: str = "eager") -> None:
    """Several calls on other data, so that what one leaves behind (state, moved addresses, an
    output whose memory is used again) meets the next."""
    torch.manual_seed(1)
    model = make_model(streams).train(train)
    reference = copy.deepcopy(model)
    reference_call = reference if oracle == "eager" else torch.compile(
        reference, backend=oracle, dynamic=False)
    call = compiled(model, options=options)
    for seed in range(calls):
        wanted = observe(reference_call, reference, make_inputs(seed), train=train, seed=seed)
        found = observe(call, model, make_inputs(seed), train=train, seed=seed)
        assert_same(found, wanted, tolerance)
