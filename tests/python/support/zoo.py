# SPDX-License-Identifier: Apache-2.0
"""Small modules, one for each thing that real models do; each with and without streams.

make(streams) builds a module, inputs(seed) its arguments. With streams=False the module holds no
annotation at all, so both forms are programs that a user could have written.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from compare import Inputs, Tolerance
from torch import nn

import anabranch


def lane(name: str, on: bool) -> contextlib.AbstractContextManager:
    return anabranch.stream(name) if on else contextlib.nullcontext()


def normal(seed: int, *shape: int, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 7919 + sum(shape))
    return torch.randn(shape, generator=generator).requires_grad_(grad)


class Mlp(nn.Module):
    """A chain that changes streams midway."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.up, self.mid, self.down = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        with lane("a", self.streams):
            x = F.gelu(self.up(x))
        with lane("b", self.streams):
            x = F.gelu(self.mid(x))
        return self.down(x)


class ConvTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))).flatten(1)


class Cnn(nn.Module):
    """Two towers whose BatchNorm statistics are written while they run side by side."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.left, self.right = ConvTower(), ConvTower()
        self.head = nn.Linear(72, 5)

    def forward(self, image):
        with lane("a", self.streams):
            left = self.left(image)
        with lane("b", self.streams):
            right = self.right(image)
        return self.head(torch.cat([left, right], dim=1))


class Recurrent(nn.Module):
    """Both directions over a short sequence, with a cell of its own each."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.onward, self.backward_cell = nn.LSTMCell(6, 5), nn.GRUCell(6, 5)

    @staticmethod
    def scan(cell, steps):
        hidden = steps[0].new_zeros(steps[0].shape[0], 5)
        state = (hidden, hidden) if isinstance(cell, nn.LSTMCell) else hidden
        outputs = []
        for step in steps:
            state = cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return outputs

    def forward(self, x):
        steps = list(x.unbind(1))
        with lane("a", self.streams):
            onward = self.scan(self.onward, steps)
        with lane("b", self.streams):
            backward = self.scan(self.backward_cell, steps[::-1])[::-1]
        return torch.cat([torch.stack(onward, 1), torch.stack(backward, 1)], dim=2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    """Attention and MLP side by side from one norm."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.norm, self.attention = nn.LayerNorm(16), Attention(16, 2)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        normed = self.norm(x)
        with lane("a", self.streams):
            attended = self.attention(normed)
        with lane("b", self.streams):
            mixed = self.mlp(normed)
        return x + attended + mixed


class Decoder(nn.Module):
    """One token a call; keys and values are cached in place at `position`, a stream for each."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("keys", torch.zeros(2, 6, 8))
        self.register_buffer("values", torch.zeros(2, 6, 8))

    def forward(self, token, position):
        with lane("a", self.streams):
            self.keys.index_copy_(1, position, self.key(token).detach())
        with lane("b", self.streams):
            self.values.index_copy_(1, position, self.value(token).detach())
        scores = self.query(token) @ self.keys.transpose(1, 2) / 8**0.5
        hidden = torch.arange(6) > position
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=2)
        return token + weights @ self.values


class Dropout(nn.Module):
    """Random numbers on two streams and on none."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = F.dropout(x, 0.2, self.training)
        with lane("a", self.streams):
            left = F.dropout(self.left(x), 0.3, self.training)
        with lane("b", self.streams):
            right = F.dropout(self.right(x), 0.4, self.training)
        return left * right


class Bag(nn.Module):
    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.users, self.items = nn.EmbeddingBag(20, 6, mode="mean"), nn.EmbeddingBag(30, 6)

    def forward(self, indices, offsets):
        with lane("a", self.streams):
            users = self.users(indices, offsets)
        with lane("b", self.streams):
            items = self.items(indices, offsets)
        return (users * items).sum(dim=1)


class Experts(nn.Module):
    """Two experts, weighted for each token by a gate."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.SiLU()) for _ in range(2))

    def forward(self, x):
        weights = self.gate(x).softmax(dim=-1)
        with lane("a", self.streams):
            first = weights[:, :1] * self.experts[0](x)
        with lane("b", self.streams):
            second = weights[:, 1:] * self.experts[1](x)
        return first + second, weights


class Towers(nn.Module):
    """Two residual blocks of two towers each: streams fork and join twice."""

    def __init__(self, streams: bool = True, width: int = 8) -> None:
        super().__init__()
        self.streams = streams
        self.left = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.right = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x):
        for left, right in zip(self.left, self.right):
            with lane("a", self.streams):
                a = F.gelu(left(x))
            with lane("b", self.streams):
                b = torch.tanh(right(x))
            x = x + a * b
        return x


class Views(nn.Module):
    """Outputs that are views of an input or of one another, beside others that are not."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        with lane("a", self.streams):
            turned, tail = x.t(), x[1:]
            shifted = tail + self.scale
        with lane("b", self.streams):
            scaled = x * self.scale
        return turned, tail, shifted, scaled, scaled.reshape(-1)


class Writer(nn.Module):
    """Writes to its inputs, each on its own stream, and reads one on the other's stream."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 6))

    def forward(self, x, y, z):
        before = x.clone() * self.weight  # autograd keeps the clone; x changes below
        with lane("a", self.streams):
            x.mul_(2)
        with lane("b", self.streams):
            y.add_(x)
        return before + x.sin() + y * z


class Counter(nn.Module):
    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        with lane("a", self.streams):
            self.calls.add_(1)
        with lane("b", self.streams):
            x = self.linear(x)
        return x * self.calls, self.calls.clone()


class Kinds(nn.Module):
    """Integer and boolean outputs."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        with lane("a", self.streams):
            x = self.linear(x)
            best, positive = x.argmax(dim=1), x > 0
        with lane("b", self.streams):
            count, rounded = positive.sum(dim=0), (x * 3).to(torch.int32)
        return {"x": x, "best": best, "positive": positive, "count": count, "rounded": rounded}


class Spectrum(nn.Module):
    """Complex numbers inside and outside."""

    def __init__(self, streams: bool) -> None:
        super().__init__()
        self.streams = streams
        self.turn = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        with lane("a", self.streams):
            turned = spectrum * self.turn
        with lane("b", self.streams):
            size = spectrum.abs()
        return torch.fft.irfft(turned, n=8) + size.sum(dim=1, keepdim=True), turned


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[bool], nn.Module]
    inputs: Callable[[int], Inputs]
    tolerance: Tolerance = Tolerance()
    oracle: str = "eager"  # dropout draws other numbers in eager than when compiled
    oldest: bool = False  # belongs to the smaller set


def _batch(*shape: int, grad: bool = True) -> Callable[[int], Inputs]:
    return lambda seed: (normal(seed, *shape, grad=grad),)


def _token(seed: int) -> Inputs:
    return normal(seed, 2, 1, 8, grad=True), torch.tensor([seed])


def _bags(seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 20, (9,), generator=generator), torch.tensor([0, 2, 5])


def _written(seed: int) -> Inputs:
    return normal(seed, 3, 6), normal(seed + 50, 3, 6), normal(seed + 90, 3, 6, grad=True)


ZOO: dict[str, Case] = {
    "mlp": Case(Mlp, _batch(3, 8), oldest=True),
    "cnn": Case(Cnn, _batch(2, 3, 8, 8), Tolerance(1e-4, 1e-4), oldest=True),
    "recurrent": Case(Recurrent, _batch(2, 2, 6)),
    "encoder": Case(Encoder, _batch(2, 5, 16), oldest=True),
    "decoder": Case(Decoder, _token, oldest=True),
    "dropout": Case(Dropout, _batch(2, 4, 8), oracle="inductor", oldest=True),
    "bag": Case(Bag, _bags),
    "experts": Case(Experts, _batch(5, 8)),
    "towers": Case(Towers, _batch(3, 8), oldest=True),
    "views": Case(Views, _batch(4, 6), oldest=True),
    "writer": Case(Writer, _written, oldest=True),
    "counter": Case(Counter, _batch(3, 4)),
    "kinds": Case(Kinds, _batch(4, 5)),
    "spectrum": Case(Spectrum, _batch(3, 8)),
}
