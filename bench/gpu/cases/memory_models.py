# SPDX-License-Identifier: Apache-2.0
"""The steps whose memory memory.py measures: models with random weights, and what they are fed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from steps import BACKEND, RECORD
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import anabranch
from anabranch._compile import report as report_module
from anabranch._record.report import RecordingReport
from cases.llama import Llama, Shape, loss_of, rotation

QUANTILES = (0.1, 0.5, 0.9)


class Workload(NamedTuple):
    """A step, how the recordings of it stand, and how many bytes it overwrites in place."""

    step: Callable[[], Tensor]
    reports: Callable[[], Sequence[RecordingReport]]
    written: Callable[[], int] = lambda: 0


def compiled(way: str, function: Any) -> Any:
    return torch.compile(function, backend=anabranch.backend) if way == BACKEND else \
        torch.compile(function)


def workload(way: str, step: Callable[..., Tensor], inputs: Sequence[Tensor],
             written: Callable[[], int] = lambda: 0) -> Workload:
    if way != RECORD:
        return Workload(lambda: step(*inputs), of_graphs if way == BACKEND else list, written)
    recorded = anabranch.record(step)
    return Workload(lambda: recorded(*inputs), lambda: recorded.reports, written)


def of_graphs() -> list[RecordingReport]:
    """Of the backend's graphs that are alive. ``explain`` would have the step run once more."""
    return [report for graph in report_module._known for report in graph.recordings]


def training(way: str, model: nn.Module, loss: Callable[..., Tensor],
             inputs: Sequence[Tensor]) -> Workload:
    """Gradients are let go when a step begins, as most programs do it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)

    def step(*inputs: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        found = loss(*inputs)
        found.backward()
        optimizer.step()
        return found.detach()

    def written() -> int:
        moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
        return sum(tensor.nbytes for tensor in [*model.parameters(), *moments])

    return workload(way, step, inputs, written)


@contextlib.contextmanager
def made_on(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Parameters come into being where and as they stay, so that no copy sets the peak."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


# Transformers.


def train_llama(way: str, shape: Shape, length: int, blocks_apart: bool = False,
                device: str = "cuda") -> Workload:
    """One sequence, bf16. No token comes twice, so that atomics in the embedding's gradient have
    nothing to reorder. ``blocks_apart``: as torchtitan does it, each block checkpointed, and
    compiled by itself."""
    torch.manual_seed(0)
    cos, sin = rotation(shape, device, torch.bfloat16)
    tokens = torch.randperm(shape.vocabulary, device=device)[None, :length].contiguous()
    with made_on(device, torch.bfloat16):
        model = Llama(shape)
    call: Any = model
    if blocks_apart:
        model.blocks = nn.ModuleList(map(Checkpointed, model.blocks))
        for block in model.blocks:
            block.compile(backend=anabranch.backend if way == BACKEND else "inductor",
                          fullgraph=True)
    else:
        call = compiled(way, model)
    return training(way, model, lambda tokens: loss_of(call(tokens, cos, sin), tokens), [tokens])


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def save_some_products() -> Any:
    """torchtitan's choice: attention is saved, and every second product of matrices."""
    products: collections.Counter[bool] = collections.Counter()

    def choose(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = operator == torch.ops.aten.mm.default
        products[context.is_recompute] += is_product
        if operator in _ATTENTION or (is_product and products[context.is_recompute] % 2):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(choose)


class Checkpointed(nn.Module):
    """A block whose backward computes anew what is not saved."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return checkpoint(self.block, x, cos, sin, use_reentrant=False,
                          context_fn=save_some_products, preserve_rng_state=False)


def parameters_of(shape: Shape) -> int:
    of_keys = (shape.kv_heads or shape.heads) * shape.head_width
    layer = shape.width * (2 * shape.width + 2 * of_keys + 3 * shape.hidden + 2)
    return shape.layers * layer + shape.width * (2 * shape.vocabulary + 1)


def bytes_of(shape: Shape, length: int) -> int:
    """About what a checkpointed training step takes at its peak, which is one of two.

    When the backward begins there are parameters, moments, what layers saved, and the logits: in
    bf16, and in fp32 as they are and as logarithms, both with gradients. When it has ended there
    are parameters, moments and gradients."""
    of_keys = (shape.kv_heads or shape.heads) * shape.head_width
    saved = 2 * length * shape.layers * (3 * shape.width + of_keys + shape.hidden)
    begun = 6 * parameters_of(shape) + saved + 16 * length * shape.vocabulary
    return max(begun, 8 * parameters_of(shape))


def filling(size: int, shape: Shape, length: int) -> Shape:
    """With as many layers as take at least so many bytes."""
    deeper = (dataclasses.replace(shape, layers=layers) for layers in itertools.count(1))
    return next(shape for shape in deeper if bytes_of(shape, length) >= size)


def infer_bert(way: str, batch: int = 32, length: int = 128) -> Workload:
    """BERT base in bf16; ImportError where its package is missing."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    with made_on("cuda", torch.bfloat16):
        model = BertModel(BertConfig()).eval()
    words = torch.randint(0, model.config.vocab_size, (batch, length), device="cuda")
    call = compiled(way, model)

    def step(words: Tensor) -> Tensor:
        with torch.no_grad():
            return call(words).last_hidden_state

    return workload(way, step, [words])


# Recurrent ones.


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int = 10_000, width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(words))[0])


def train_lstm(way: str, batch: int = 16, length: int = 64, device: str = "cuda") -> Workload:
    torch.manual_seed(0)
    model = LanguageModel().to(device)
    words = torch.randint(0, 10_000, (batch, length), device=device)
    call = compiled(way, model)
    return training(way, model, lambda words: loss_of(call(words), words), [words])


class Gate(nn.Module):
    """A gated linear unit over ``x``, added to ``beside`` and normalized."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(inputs, 2 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, beside: Tensor) -> Tensor:
        return self.norm(F.glu(self.linear(self.dropout(x)), dim=-1) + beside)


class Residual(nn.Module):
    """The gated residual network, with a context or without."""

    def __init__(self, inputs: int, width: int, outputs: int, dropout: float,
                 has_context: bool = False) -> None:
        super().__init__()
        self.skip = nn.Linear(inputs, outputs) if inputs != outputs else nn.Identity()
        self.first = nn.Linear(inputs, width)
        self.context = nn.Linear(width, width, bias=False) if has_context else None
        self.second = nn.Linear(width, width)
        self.gate = Gate(width, outputs, dropout)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.first(x)
        if self.context is not None and context is not None:
            y = y + self.context(context)
        return self.gate(self.second(F.elu(y)), self.skip(x))


class Selection(nn.Module):
    """Each variable through a network of its own, weighted by another one over all of them."""

    def __init__(self, variables: int, width: int, dropout: float, has_context: bool) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Linear(1, width) for _ in range(variables))
        self.networks = nn.ModuleList(Residual(width, width, width, dropout)
                                      for _ in range(variables))
        self.weights = Residual(variables * width, width, variables, dropout, has_context)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        embedded = [embed(x[..., i:i + 1]) for i, embed in enumerate(self.embeddings)]
        weights = self.weights(torch.cat(embedded, dim=-1), context).softmax(dim=-1)
        each = [network(y) for network, y in zip(self.networks, embedded, strict=True)]
        return (torch.stack(each, dim=-1) * weights[..., None, :]).sum(dim=-1)


class InterpretableAttention(nn.Module):
    """Heads share their values, and their answers are averaged, so that weights can be read."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value = nn.Linear(width, width // heads)
        self.output = nn.Linear(width // heads, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        query, key = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                      for part in (self.query, self.key))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(scores.masked_fill(later, float("-inf")).softmax(dim=-1))
        return self.output((weights @ self.value(x)[:, None]).mean(dim=1))


class FusionTransformer(nn.Module):
    """The temporal fusion transformer: what was seen, what is known ahead, and what stays."""

    def __init__(self, width: int = 32, seen: int = 8, known: int = 4, lasting: int = 4,
                 heads: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.quantiles: Tensor
        self.lasting = Selection(lasting, width, dropout, has_context=False)
        self.contexts = nn.ModuleList(Residual(width, width, width, dropout) for _ in range(4))
        self.seen = Selection(seen, width, dropout, has_context=True)
        self.known = Selection(known, width, dropout, has_context=True)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.behind_lstm = Gate(width, width, dropout)
        self.enrichment = Residual(width, width, width, dropout, has_context=True)
        self.attention = InterpretableAttention(width, heads, dropout)
        self.behind_attention = Gate(width, width, dropout)
        self.feed_forward = Residual(width, width, width, dropout)
        self.behind_all = Gate(width, width, dropout)
        self.output = nn.Linear(width, len(QUANTILES))
        self.register_buffer("quantiles", torch.tensor(QUANTILES))

    def forward(self, seen: Tensor, known: Tensor, lasting: Tensor) -> Tensor:
        stays = self.lasting(lasting)
        select, hidden, cell, enrich = (context(stays) for context in self.contexts)
        past = self.seen(seen, select[:, None])
        ahead = self.known(known, select[:, None])
        past_out, state = self.encoder(past, (hidden[None], cell[None]))
        ahead_out, _ = self.decoder(ahead, state)
        chosen = torch.cat((past, ahead), dim=1)
        x = self.behind_lstm(torch.cat((past_out, ahead_out), dim=1), chosen)
        enriched = self.enrichment(x, enrich[:, None])
        y = self.behind_attention(self.attention(enriched), enriched)
        y = self.behind_all(self.feed_forward(y), x)
        return self.output(y[:, seen.shape[1]:])


def quantile_loss(found: Tensor, wanted: Tensor, quantiles: Tensor) -> Tensor:
    missed = wanted[..., None] - found
    return torch.maximum(quantiles * missed, (quantiles - 1) * missed).sum(dim=-1).mean()


def train_fusion(way: str, batch: int = 64, steps: int = 48, device: str = "cuda") -> Workload:
    """A quarter of the steps lies ahead."""
    torch.manual_seed(0)
    model, ahead = FusionTransformer().to(device), steps // 4
    inputs = [torch.randn(batch, steps - ahead, 8, device=device),
              torch.randn(batch, ahead, 4, device=device), torch.randn(batch, 4, device=device),
              torch.randn(batch, ahead, device=device)]
    call = compiled(way, model)

    def loss(seen: Tensor, known: Tensor, lasting: Tensor, wanted: Tensor) -> Tensor:
        return quantile_loss(call(seen, known, lasting), wanted, model.quantiles)

    return training(way, model, loss, inputs)
