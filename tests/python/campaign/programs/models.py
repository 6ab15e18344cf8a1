# SPDX-License-Identifier: Apache-2.0
"""Models that answer, as their users call them."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import DEVICE, batches, numbers
from torch import nn
from torch.nn.utils import parametrizations


def _inference(model):
    model = model.to(DEVICE).eval()

    @torch.no_grad()
    def step(x):
        return model(x)

    return step, batches(2, 6, 8)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.drop, self.scale = nn.Dropout(0.0), 0.5

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(x)))) * self.scale


def mlp():
    return _inference(nn.Sequential(nn.LayerNorm(8), Mlp()))


class Attention(nn.Module):
    def __init__(self, heads=2):
        super().__init__()
        self.heads, self.is_causal, self.scale = heads, True, None
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for one in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, scale=self.scale)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def attention():
    return _inference(nn.Sequential(Attention(), Mlp()))


class Local(nn.Module):
    """Attention to what is near, written out."""

    window = 3

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.shape[1], device=x.device)
        is_far = (at[:, None] - at).abs() >= self.window
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(is_far, float("-inf"))
        return scores.softmax(-1) @ v


def local_attention():
    return _inference(Local())


class Rotary:
    """Beside of the modules, with a cache."""

    def __init__(self, base=100.0):
        self.base, self.cache = base, {}

    def __call__(self, x):
        if x.shape[1] not in self.cache:
            angles = torch.arange(x.shape[1], device=x.device)[:, None] / self.base
            self.cache[x.shape[1]] = angles.cos(), angles.sin()
        cos, sin = self.cache[x.shape[1]]
        return x * cos + x.roll(1, -1) * sin


class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.rotary, self.inner = Rotary(), Mlp()

    def forward(self, x):
        return self.inner(self.rotary(x))


def rotary():
    return _inference(Rotated())


def convolution():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    model = model.to(DEVICE).eval()

    @torch.no_grad()
    def step(x):
        return model(x[:, None]).softmax(-1)

    return step, batches(2, 6, 8)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.active, self.alpha = nn.Linear(8, 8), "a", 2.0
        self.down = nn.ModuleDict({name: nn.Linear(8, 2, bias=False) for name in "ab"})
        self.up = nn.ModuleDict({name: nn.Linear(2, 8, bias=False) for name in "ab"})

    def forward(self, x):
        y = self.base(x)
        if self.active in self.down:
            y = y + self.up[self.active](self.down[self.active](x)) * self.alpha
        return y


def adapters():
    return _inference(nn.Sequential(Adapted(), nn.SiLU(), Adapted()))


class Routed(nn.Module):
    """Experts by a list of numbers."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.config = SimpleNamespace(routes=[0, 2, 1], weights=(0.5, 0.3, 0.2), top=2)

    def forward(self, x):
        chosen = list(zip(self.config.routes, self.config.weights))[:self.config.top]
        return sum(self.experts[i](x) * weight for i, weight in chosen)


def experts():
    return _inference(Routed())


def hooks():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    strength = {"now": 0.5}
    model[0].register_forward_hook(lambda module, args, out: out * strength["now"])
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1.0,))
    return _inference(model)


def parametrized():
    return _inference(nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU()))


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(10, 8), nn.Embedding(6, 8)
        self.register_buffer("order", torch.arange(6))
        self.norm, self.eps = nn.LayerNorm(8), 1e-5

    def forward(self, tokens):
        x = self.table(tokens) + self.positions(self.order[:tokens.shape[1]])
        return F.layer_norm(x, (8,), self.norm.weight, self.norm.bias, self.eps)


def embedding():
    model = Embedded().to(DEVICE).eval()

    @torch.no_grad()
    def step(x):
        return model((x.abs() * 3).long().clamp(max=9)[:, :, 0])

    return step, batches(2, 6, 8)


def transformer_layer():
    return _inference(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True,
                                                 norm_first=True))


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.steps, self.keep = nn.GRUCell(8, 8), 3, 0.9

    def forward(self, x):
        h = torch.zeros_like(x[:, 0])
        for i in range(self.steps):
            h = self.cell(x[:, i], h) * self.keep
        return h


def recurrent():
    return _inference(Cell())


def ensemble():
    models = [Mlp().to(DEVICE).eval() for _ in range(3)]
    weights = {"model 0": 0.5, "model 1": 0.3, "model 2": 0.2}

    @torch.no_grad()
    def step(x):
        return sum(model(x) * weights[f"model {i}"] for i, model in enumerate(models))

    return step, batches(2, 6, 8)


def guidance():
    model = Mlp().to(DEVICE).eval()
    options = SimpleNamespace(strength=3.0, schedule=[1.0, 0.6, 0.3], clip=(-4.0, 4.0))

    @torch.no_grad()
    def step(x):
        for rate in options.schedule:
            plain, guided = model(x * 0), model(x)
            x = x - rate * (plain + options.strength * (guided - plain))
        return x.clamp(*options.clip)

    return step, batches(2, 6, 8)


def bound_method():
    class Server:
        def __init__(self):
            self.model, self.temperature = Mlp().to(DEVICE).eval(), 0.7

        @torch.no_grad()
        def answer(self, x, top=2):
            return torch.topk((self.model(x) / self.temperature).softmax(-1), top).values

    return Server().answer, batches(2, 6, 8)


def partial_step():
    model, weight = Mlp().to(DEVICE).eval(), numbers(9, 8)

    def run(model, weight, x, by=1.0):
        with torch.no_grad():
            return model(x * weight) * by

    return functools.partial(run, model, weight, by=2.0), batches(2, 6, 8)


PROGRAMS = [mlp, attention, local_attention, rotary, convolution, adapters, experts, hooks,
            parametrized, embedding, transformer_layer, recurrent, ensemble, guidance,
            bound_method, partial_step]
