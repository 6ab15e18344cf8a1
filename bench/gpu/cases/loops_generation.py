# SPDX-License-Identifier: Apache-2.0
"""Generation, a token at a time, over a static cache: the position grows in every step. For
loops.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases.llama import Block, Llama, Shape, rotate, rotation

LONGEST, TOKENS = 1024, 32  # positions of the cache, and steps of a round
SHAPE = Shape(longest=LONGEST)


class CachedBlock(nn.Module):
    """One of Llama's blocks, for one token, whose keys and values so far are in buffers."""

    def __init__(self, block: Block, shape: Shape) -> None:
        super().__init__()
        self.block = block
        size = (1, shape.kv_heads or shape.heads, shape.longest, shape.head_width)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(size))

    def forward(self, x: Tensor, position: Tensor, mask: Tensor, cos: Tensor,
                sin: Tensor) -> Tensor:
        block = self.block
        y = block.attention_norm(x)
        query = rotate(block._heads(block.query(y)), cos, sin)
        self.keys.index_copy_(2, position, rotate(block._heads(block.key(y)), cos, sin))
        self.values.index_copy_(2, position, block._heads(block.value(y)))
        mixed = F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        x = x + block.output(mixed.transpose(1, 2).flatten(2))
        y = block.mlp_norm(x)
        return x + block.down(F.silu(block.gate(y)) * block.up(y))


class Generator(nn.Module):
    """The next token by the one before, which stands at ``position``: (1, 1) and (1,)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Llama(shape)
        self.blocks = nn.ModuleList(CachedBlock(block, shape) for block in self.model.blocks)
        for name, table in zip(("cos", "sin"), rotation(shape, "cpu", torch.float32), strict=True):
            self.register_buffer(name, table)
        self.register_buffer("places", torch.arange(shape.longest))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.model.embedding(token)
        mask = (self.places <= position)[None, None, None]
        for block in self.blocks:
            x = block(x, position, mask, self.cos[position], self.sin[position])
        return self.model.head(self.model.norm(x)).argmax(-1)


@dataclasses.dataclass
class Loop:
    """Of one way to call a generator: each step gets the token of the step before."""

    step: Callable[[Tensor, Tensor], Tensor]
    begin: Callable[[], Any] = lambda: None  # before each step
    device: str = "cuda"

    def restart(self) -> None:
        self.token = torch.ones(1, 1, dtype=torch.long, device=self.device)
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)
        self.count = 0

    def tokens(self, count: int = TOKENS) -> list[Tensor]:
        """The next ones; from the first position again where the cache is full."""
        found = []
        if not hasattr(self, "token") or self.count + count > LONGEST:
            self.restart()
        for _ in range(count):
            self.begin()
            self.token = self.step(self.token, self.position).clone()
            self.position = self.position + 1
            found.append(self.token)
        self.count += count
        return found
