# SPDX-License-Identifier: Apache-2.0
"""How often a training step's gradients are other bits than before, from one and the same state:
plain, recorded in captured order, and side by side. Eager's atomics may add in another order each
time; a race would show here, too.

    python bench/gpu/repeats.py [results.json] [--runs N] [--attention math]

A gradient that differs is told in the order of the backward, the first one first: what it has, and
not those before it, was computed otherwise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from cases.llama import Llama, Shape, loss_of, rotation
from cases.memory_models import made_on
from steps import IN_ORDER, PLAIN, RECORD, options_of
from turns import save

import anabranch

SHAPE, LENGTH, WARM_UP = Shape(width=2048, layers=6, heads=16, hidden=5632), 1024, 8


class Repeated:
    """A step whose parameters and moments can be put back."""

    def __init__(self, way: str) -> None:
        torch.manual_seed(0)
        cos, sin = rotation(SHAPE, "cuda", torch.bfloat16)
        self.tokens = torch.randperm(SHAPE.vocabulary, device="cuda")[None, :LENGTH].contiguous()
        with made_on("cuda", torch.bfloat16):
            self.model = Llama(SHAPE)
        compiled = torch.compile(self.model)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True, capturable=True)

        def step(tokens: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            found = loss_of(compiled(tokens, cos, sin), tokens)
            found.backward()
            optimizer.step()
            return found.detach()

        self.step: Any = step if way == PLAIN else anabranch.record(step, options=options_of(way))
        for _ in range(WARM_UP):
            self.step(self.tokens)
        self._state = [*self.model.parameters(), *(
            value for values in optimizer.state.values() for value in values.values())]
        self._before = [one.detach().clone() for one in self._state]

    def gradients(self) -> list[torch.Tensor]:
        with torch.no_grad():
            for one, before in zip(self._state, self._before, strict=True):
                one.copy_(before)
        self.step(self.tokens)
        return [one.grad for one in self.model.parameters() if one.grad is not None]


def repeat(way: str, runs: int) -> dict[str, Any]:
    made = Repeated(way)
    names = [name for name, _ in made.model.named_parameters()]
    first, differing = [one.clone() for one in made.gradients()], []
    for _ in range(runs - 1):
        other = [name for name, one, wanted in
                 zip(names, made.gradients(), first, strict=True) if not torch.equal(one, wanted)]
        if other:
            differing.append({"count": len(other), "first": other[-1]})
    row = {"way": way, "runs": runs, "differ": len(differing), "differing": differing,
           "reports": [] if way == PLAIN else [str(report) for report in made.step.reports]}
    print(f"{way:<42} {len(differing)} of {runs - 1} differ from the first, "
          f"first in {sorted({each['first'] for each in differing})}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--attention", choices=("math",), help="by products of matrices alone")
    chosen = parser.parse_args()
    if chosen.attention:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
    rows = [repeat(way, chosen.runs) for way in (PLAIN, RECORD + IN_ORDER, RECORD)]
    save(chosen.results, "repeats", attention=chosen.attention or "torch's choice", repeats=rows)


if __name__ == "__main__":
    main()
