# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests share: tensors by seed, programs run both plainly and recorded, reports.

Comparisons are bit for bit. A recording repeats the kernels that the step queued when it was
captured, in their order, so there is nothing to tolerate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from compare import assert_same, tensors_of
from torch import Tensor, nn

import anabranch

DEVICE = "cuda"
CALLS = 7  # plain, captured, recorded, launched four times; captured and recorded may be one


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32,
           device: torch.device | str = DEVICE) -> Tensor:
    """The same numbers for the same seed; torch's own generators are left alone."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=dtype)


def launches(step: Any) -> int:
    return sum(report.launched for report in step.reports)


def told(step: Any) -> str:
    return "\n".join(map(str, step.reports))


def assert_launched(step: Any, least: int = CALLS - 3) -> None:
    """Everything was recorded, and launched as often as that: the results were no plain runs'."""
    assert not [report.reason for report in step.reports if report.reason is not None], told(step)
    assert any(report.nodes for report in step.reports), told(step)
    assert launches(step) >= least, told(step)


def assert_plain(step: Any, reason: str) -> None:
    """Nothing was launched, and the report says why."""
    assert launches(step) == 0 and step.reports, told(step)
    assert any(reason in (report.reason or "") for report in step.reports), told(step)


def tensors_by_name(**things: Any) -> dict[str, Tensor]:
    """The tensors themselves, not copies: what overwrites them later is seen."""
    return {name: tensor.detach() for path, thing in things.items()
            for name, tensor in tensors_of(thing, path)}


def assert_follows(function: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]],
                   calls: int = CALLS, **options: Any) -> Any:
    """Calls ``function`` plainly and recorded with equal inputs: answers, and inputs afterwards,
    are equal. All are looked at when the last call has been made. Answers the recorded one."""
    step = anabranch.record(function, **options)
    pairs = []
    for seed in range(calls):
        mine, theirs = inputs(seed), inputs(seed)
        found = tensors_by_name(answer=step(*mine), input=mine)
        pairs.append((found, tensors_by_name(answer=function(*theirs), input=theirs)))
    for found, wanted in pairs:
        assert_same(found, wanted)
    return step


def mlp(*between: nn.Module) -> nn.Sequential:
    """Two layers and what is to stand between them."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), *between, nn.Linear(32, 4)).to(DEVICE)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Inputs of an mlp and what it should answer."""
    return normal(1000 + seed, 8, 16), normal(2000 + seed, 8, 4)


def training(model: nn.Module, optimizer: torch.optim.Optimizer, *, clear: str = "before",
             to_none: bool = True) -> Callable[[Tensor, Tensor], Tensor]:
    """A whole training step. Gradients are cleared "before" it, "after" it, or "never"."""
    def step(x: Tensor, y: Tensor) -> Tensor:
        if clear == "before":
            optimizer.zero_grad(set_to_none=to_none)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if clear == "after":
            optimizer.zero_grad(set_to_none=to_none)
        return loss.detach()

    return step


Made = tuple[nn.Module, "torch.optim.Optimizer | None", Callable[..., Any]]


def everything(answer: Any, model: nn.Module,
               optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    """Copies of all that a training step leaves behind."""
    seen = dict(tensors_of(answer, "answer"))
    for name, parameter in model.named_parameters():
        seen[name] = parameter
        if parameter.grad is not None:
            seen[f"{name} gradient"] = parameter.grad
    seen |= dict(model.named_buffers())
    if optimizer is not None:
        seen |= dict(tensors_of([dict(state) for state in optimizer.state.values()], "state"))
    seen["generator"] = torch.cuda.get_rng_state()
    return {name: tensor.detach().clone() for name, tensor in seen.items()}


def train_both(make: Callable[[], Made], *, calls: int = 10,
               inputs: Callable[[int], tuple[Any, ...]] = batch,
               between: Callable[[int, nn.Module, Any], None] = lambda i, model, optimizer: None,
               options: Mapping[str, Any] | None = None) -> Any:
    """Trains twice from the same state, plainly and recorded: after every step all is equal.

    ``make()`` answers model, optimizer and step; ``between(i, model, optimizer)`` is what the user
    does before call i. Answers the recorded step.
    """
    histories = []
    for recorded in (False, True):
        torch.manual_seed(0)
        model, optimizer, step = make()
        call = anabranch.record(step, options=options) if recorded else step
        torch.manual_seed(1)
        history = []
        for i in range(calls):
            between(i, model, optimizer)
            history.append(everything(call(*inputs(i)), model, optimizer))
        histories.append(history)
    for i, (wanted, found) in enumerate(zip(*histories, strict=True)):
        try:
            assert_same(found, wanted)
        except AssertionError as error:
            raise AssertionError(f"call {i}: {error}\n{told(call)}") from None
    return call
