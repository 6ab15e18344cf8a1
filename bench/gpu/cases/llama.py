# SPDX-License-Identifier: Apache-2.0
"""A small transformer of Llama's shape: what the GPU benchmarks train and serve."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes; ``kv_heads`` None is as many as heads."""

    width: int = 1024
    layers: int = 16
    heads: int = 16
    kv_heads: int | None = None
    hidden: int = 2816
    vocabulary: int = 32000
    longest: int = 4096

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def rotation(shape: Shape, device: torch.device | str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, (longest, head width / 2) each."""
    half = shape.head_width // 2
    rates = 10000.0 ** (-torch.arange(half, device=device) / half)
    angles = torch.outer(torch.arange(shape.longest, device=device), rates)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kv_width = (shape.kv_heads or shape.heads) * shape.head_width
        self.head_width = shape.head_width
        self.attention_norm = nn.RMSNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, kv_width, bias=False)
        self.value = nn.Linear(shape.width, kv_width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)
        self.mlp_norm = nn.RMSNorm(shape.width)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.attention_norm(x)
        query = rotate(self._heads(self.query(y)), cos, sin)
        key = rotate(self._heads(self.key(y)), cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, self._heads(self.value(y)),
                                               is_causal=True,
                                               enable_gqa=key.shape[1] != query.shape[1])
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos[:tokens.shape[1]], sin[:tokens.shape[1]])
        return self.head(self.norm(x))


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
