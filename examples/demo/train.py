# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level transformer three times: eager, torch.compile, Anabranch.

Each block has two branches that need nothing of each other, attention and an MLP from the same
norm; under Anabranch they run side by side on two streams. The text is the documentation of
Python's own topics, which comes with Python. All three start from the same weights and see the
same batches, so their losses must agree.

    python examples/demo/train.py
"""

from __future__ import annotations

import copy
import dataclasses
import pydoc_data.topics
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import anabranch

WIDTH, HEADS, BLOCKS, LENGTH, BATCH = 64, 4, 3, 48, 8
STEPS, WARM_UP = 120, 20  # the first steps compile and fill caches; they count for the losses only
OUT = Path("out")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                                 nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        with anabranch.stream("attention"):
            attended = self.attention(normed)
        with anabranch.stream("mlp"):
            mixed = self.mlp(normed)
        return x + attended + mixed  # waits for both; nothing here has to say so


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclasses.dataclass
class Run:
    """One way to train: what came of it."""

    name: str
    step: Callable[[torch.Tensor], torch.Tensor]
    losses: list[float] = dataclasses.field(default_factory=list)
    times_ms: list[float] = dataclasses.field(default_factory=list)
    first_s: float = 0.0


def read_text() -> torch.Tensor:
    text = "".join(pydoc_data.topics.topics.values()).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def make_batches(text: torch.Tensor) -> list[torch.Tensor]:
    """The same for every run: STEPS batches of LENGTH bytes and the one that follows each."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(0, len(text) - LENGTH - 1, (STEPS, BATCH, 1), generator=generator)
    return list(text[starts + torch.arange(LENGTH + 1)])


def make_step(model: nn.Module, call: Callable[..., torch.Tensor]):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        logits = call(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_runs() -> list[Run]:
    torch.manual_seed(0)
    models = [Transformer()]
    models += [copy.deepcopy(models[0]) for _ in range(2)]
    calls = [models[0], torch.compile(models[1]),
             torch.compile(models[2], backend=anabranch.backend)]
    return [Run(name, make_step(model, call)) for name, model, call in
            zip(("eager", "torch.compile", "Anabranch"), models, calls, strict=True)]


def train(runs: list[Run], batches: list[torch.Tensor]) -> None:
    """The three take turns, step by step, so that a busy moment of the machine meets them all."""
    for index, batch in enumerate(batches):
        for run in runs:
            start = time.perf_counter()
            run.losses.append(run.step(batch).item())
            run.times_ms.append((time.perf_counter() - start) * 1000)
            if index == 0:
                run.first_s = run.times_ms[0] / 1000
                print(f"  {run.name}: first step after {run.first_s:.1f} s", flush=True)


def print_table(runs: list[Run]) -> None:
    eager = runs[0].losses
    print(f"\n{'':15}{'ms a step':>10}{'spread':>9}{'last loss':>11}{'largest difference':>21}")
    for run in runs:
        times = run.times_ms[WARM_UP:]
        first, _, third = statistics.quantiles(times, n=4)
        apart = max(abs(a - b) for a, b in zip(run.losses, eager, strict=True))
        print(f"{run.name:<15}{statistics.median(times):>10.2f}{third - first:>9.2f}"
              f"{run.losses[-1]:>11.4f}{apart:>21.1e}")
    print(f"Median and interquartile range of {STEPS - WARM_UP} steps, {torch.get_num_threads()} "
          "threads; difference of the losses from eager's, over all steps.")


def write_reports(step: Callable[..., torch.Tensor], batch: torch.Tensor) -> None:
    """One more step, watched."""
    told = anabranch.explain(step, batch)
    OUT.mkdir(exist_ok=True)
    print(f"\nWhat Anabranch made of it:\n\n{told}")
    plans = told.save_plan(OUT / "plan.anabranch")
    timeline = told.save_timeline(OUT / "timeline.json")
    print("\nSee the plan, and what happened in that step:\n")
    for path in (plans[0], timeline):
        print(f"  anabranch show {path}")
    print(f"""
What to look at next: {told.html(OUT / "report.html")} opens in a browser, with all of this; {timeline}
at https://ui.perfetto.dev, a track a stream.
Take the two `with anabranch.stream(...)` lines out of this file and compare the table.
docs/python.md has the options, docs/layout.md the way through the code.""")


def main() -> int:
    text = read_text()
    model_size = sum(parameter.numel() for parameter in Transformer().parameters())
    print(f"{len(text):,} bytes of text, {model_size:,} parameters, {STEPS} steps of {BATCH} x "
          f"{LENGTH} bytes; torch {torch.__version__}")
    batches = make_batches(text)
    runs = make_runs()
    train(runs, batches)
    print_table(runs)
    write_reports(runs[-1].step, batches[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
