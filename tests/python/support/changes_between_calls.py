# SPDX-License-Identifier: Apache-2.0
"""Programs in which something changes in the middle that a step's Python reads, or writes: each is
called with what wraps its step, and answers what is to be the same whatever that is.

Kept from reports of people who replay CUDA graphs: hooks, modes and functions that came later,
settings in context variables, long lists of scales, steps that take their batch themselves.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CALLS = 14
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def on_device(model: nn.Module) -> nn.Module:
    """With the same weights each time."""
    for i, parameter in enumerate(model.parameters()):
        parameter.data = numbers(100 + i, *parameter.shape) / 3
    return model.to(DEVICE)


def perceptron(*widths: int) -> nn.Module:
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.Tanh())]
    return on_device(nn.Sequential(*layers[:-1]))


def training(model: nn.Module, rate: float = 0.1) -> Callable[[Tensor], Any]:
    optimizer = torch.optim.SGD(model.parameters(), rate)

    def step(x: Tensor) -> Any:
        loss = (model(x) - x[:, :1]).square().mean()
        loss.backward()
        size = next(model.parameters()).grad.norm()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), size

    return step


def called(step: Callable[..., Any], width: int, around: Callable[[int], Any]) -> list[Any]:
    """The answers of some calls, each inside of ``around(its number)``."""
    answers = []
    for k in range(CALLS):
        x = numbers(k, 6, width)
        with around(k) or contextlib.nullcontext():
            answers.append(step(x))
    return answers


def hooks_that_write(wrap: Wrap) -> Any:
    """Forward hooks fill a dict and a list; one comes later, and one goes."""
    model, features, norms = perceptron(8, 8, 4), {}, []
    first = model[0].register_forward_hook(
        lambda module, args, out: features.update(first=out.detach()))
    model[2].register_forward_hook(lambda module, args, out: norms.append(out.detach().norm()))
    counts = []

    def around(k: int) -> None:
        counts.append((len(norms), sorted(features)))
        if k == 6:
            model[1].register_forward_hook(
                lambda module, args, out: features.update(second=out.detach()))
        if k == 10:
            first.remove()
            del features["first"]

    with torch.no_grad():
        answers = called(wrap(model), 8, around)
    return answers, norms, features, counts


def hook_of_all_modules(wrap: Wrap) -> Any:
    model = perceptron(8, 16, 16, 1)
    handles: list[Any] = []

    def coarse(module: nn.Module, args: Any, out: Tensor) -> Any:
        return out + ((out * 4).round() / 4 - out).detach() if type(module) is nn.Linear else None

    def around(k: int) -> None:
        if k in (6, 12):
            handles.append(nn.modules.module.register_module_forward_hook(coarse))
        if k == 10:
            handles.pop().remove()

    try:
        return called(wrap(training(model)), 8, around), list(model.parameters())
    finally:
        for handle in handles:
            handle.remove()


def saved_tensor_hooks(wrap: Wrap) -> Any:
    model, packed = perceptron(8, 16, 16, 1), []

    def pack(tensor: Tensor) -> Any:
        packed.append(1)
        return (tensor * 4).round() / 4 if tensor.is_floating_point() else tensor

    answers = called(wrap(training(model)), 8, lambda k: torch.autograd.graph.saved_tensors_hooks(
        pack, lambda tensor: tensor) if 6 <= k < 10 else None)
    return answers, list(model.parameters()), len(packed)


WINDOW = contextvars.ContextVar("window", default=8)
SCALE = contextvars.ContextVar("scale", default=1.0)


@contextlib.contextmanager
def attending(window: int, scale: float) -> Iterator[None]:
    tokens = WINDOW.set(window), SCALE.set(scale)
    try:
        yield
    finally:
        WINDOW.reset(tokens[0])
        SCALE.reset(tokens[1])


def context_variables(wrap: Wrap) -> Any:
    mix = perceptron(8, 8)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        at = torch.arange(x.shape[0], device=x.device)
        near = (at[:, None] >= at) & (at[:, None] - at < WINDOW.get())
        scores = (x @ x.mT * SCALE.get()).masked_fill(~near, float("-inf"))
        return scores.softmax(-1) @ mix(x)

    return called(wrap(step), 8, lambda k: attending(2, 2.0) if k in (5, 6, 7, 11) else None)


def function_that_is_replaced(wrap: Wrap) -> Any:
    """In torch's own module, and put back."""
    project, theirs = perceptron(8, 24), F.scaled_dot_product_attention

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        q, k, v = (one[None, None] for one in project(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v)[0, 0]

    def coarse(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ((q @ (k * 3).round().mT / 3) / q.shape[-1] ** 0.5).softmax(-1) @ v

    def around(k: int) -> None:
        F.scaled_dot_product_attention = coarse if 5 <= k < 9 or k == 12 else theirs

    try:
        return called(wrap(step), 8, around)
    finally:
        F.scaled_dot_product_attention = theirs


def many_scales(wrap: Wrap) -> Any:
    """128 of them, in a list and in a dict, that are calibrated anew."""
    scales, shifts = [1.0] * 128, {f"layers.{i}": 0.0 for i in range(128)}

    def step(x: Tensor) -> Tensor:
        for i, scale in enumerate(scales):
            x = x * scale + shifts[f"layers.{i}"]
        return x

    def around(k: int) -> None:
        if k in (4, 9):
            scales[:] = [1 + (i * k) % 7 / 50 for i in range(128)]
            shifts.update({f"layers.{i}": (i + k) % 5 / 10 for i in range(128)})
        if k == 12:
            scales[-1] = 3.0

    return called(wrap(step), 8, around)


class Coarse(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return (out * 8).round() / 8 if function is F.linear else out


def function_mode(wrap: Wrap) -> Any:
    """And torch's default device, which is one as well."""
    model = perceptron(8, 16, 4)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return model(x) + torch.linspace(0, 1, 4)

    def around(k: int) -> Any:
        stack = contextlib.ExitStack()
        stack.enter_context(torch.device(DEVICE))
        if k in (5, 6, 7, 11):
            stack.enter_context(Coarse())
        return stack

    return called(wrap(step), 8, around)


class Loop:
    """Batches that lie on the GPU, again and again."""

    def __init__(self) -> None:
        self.data = [(numbers(i, 6, 8), numbers(50 + i, 6, 1)) for i in range(5)]
        self.given, self.batches = 0, iter(())

    def __next__(self) -> tuple[Tensor, Tensor]:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.data)
            batch = next(self.batches)
        self.given += 1
        return batch


def step_that_takes_its_batch(wrap: Wrap) -> Any:
    model, loop = perceptron(8, 16, 1), Loop()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> Tensor:
        x, y = next(loop)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    recorded = wrap(step)
    return [recorded() for _ in range(CALLS)], list(model.parameters()), loop.given


def optimizer_that_counts(wrap: Wrap) -> Any:
    """In an integer of Python's, from which kernels' words follow."""
    weight, mean, counted = numbers(1, 8), torch.zeros(8, device=DEVICE), {"t": 0}

    def step(x: Tensor) -> Tensor:
        counted["t"] += 1
        grad = 2 * (weight * x).mean(0) * x.mean(0)
        mean.lerp_(grad, 0.1)
        weight.sub_(mean, alpha=0.1 / (1 - 0.9 ** counted["t"]))
        return grad

    return called(wrap(step), 8, lambda k: None), weight, counted


def adapters_by_name(wrap: Wrap) -> Any:
    """One of some, in four layers, which a server chooses for each request."""
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.active = nn.Linear(8, 8), "a"
            self.adapters = nn.ModuleDict({name: nn.Linear(8, 8) for name in "abc"})

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.base(x) + self.adapters[self.active](x))

    model = on_device(nn.Sequential(*(Layer() for _ in range(4))))

    def around(k: int) -> None:
        for layer in model:
            layer.active = "abc"[k // 2 % 3]

    with torch.no_grad():
        return called(wrap(model), 8, around)


def seed_of_each_call(wrap: Wrap) -> Any:
    """An integer that is another one in each call."""
    step = wrap(lambda x, seed: (x * 1000).long().mul(seed).remainder(97).float())
    return [step(numbers(k, 6, 8), 3 * k + 1) for k in range(CALLS)]


CASES = [hooks_that_write, hook_of_all_modules, saved_tensor_hooks, context_variables,
         function_that_is_replaced, many_scales, function_mode, step_that_takes_its_batch,
         optimizer_that_counts, adapters_by_name, seed_of_each_call]
BY_NAME = {case.__name__: case for case in CASES}


@functools.cache
def eager(name: str) -> Any:
    return BY_NAME[name](lambda step: step)


def are_same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(are_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_same, one, other))
    return bool(one == other)
