# SPDX-License-Identifier: Apache-2.0
"""An optimizer's state in pinned memory: what does a step take, against state on the GPU?

    python bench/gpu/optimizer.py [results.json] [--parameters 1e9] [--rows 4096] [--rounds N]

Fused AdamW over weights of 2048 x 2048 in float32, by itself and behind the forward and backward of
gelu(x @ w) for each weight, compiled a layer at a time. Steps are eager, or in one recording. The
bound is the longer of two: the same step with its state on the GPU, and the state once over the
link in and once out, one after the other; both ways at once are told beside. Losses and parameters
are compared bit for bit before times. Of memory, a row has what a step takes at most beside what
lies there before it. The host needs 20 bytes a parameter.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from turns import Sample, Times, race, ratio, save

import anabranch

WIDTH, MOST = 2048, 1.05
RESIDENT, PINNED, RECORDED = "on the GPU", "pinned", "pinned, recorded"
RESIDENT_RECORDED = "on the GPU, recorded"
LINK, LINK_BOTH = "in, then out", "in and out at once"
WARM_UP = 4
Step = Callable[[], Tensor]


@torch.compile(dynamic=False)
def layer(x: Tensor, weight: Tensor) -> Tensor:
    return F.gelu(x @ weight)


class Model:
    """Weights and their optimizer; each has the same ones at first."""

    def __init__(self, count: int, is_pinned: bool) -> None:
        torch.manual_seed(0)
        self.weights = [nn.Parameter(torch.randn(WIDTH, WIDTH, device="cuda") * 1.5 / WIDTH**0.5)
                        for _ in range(count)]
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-5, fused=True)
        if is_pinned:
            anabranch.offload_optimizer(self.optimizer)

    def set_gradients(self, gradients: list[Tensor] | None) -> None:
        for i, weight in enumerate(self.weights):
            weight.grad = gradients[i] if gradients else None

    def update(self) -> Tensor:
        self.optimizer.step()
        return self.weights[0][0, 0].detach().clone()

    def train(self, x: Tensor) -> Tensor:
        y = x
        for weight in self.weights:
            y = layer(y, weight)
        loss = y.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Link:
    """All of a state over the link, through one buffer each way; what goes out goes to memory of
    its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.homes = [value for state in optimizer.state.values() for value in state.values()
                      if value.is_pinned()]
        self.into, self.source = (torch.empty_like(self.homes[0], device="cuda") for _ in range(2))
        self.out = torch.empty_like(self.homes[0], pin_memory=True)
        self.side = torch.cuda.Stream()

    @property
    def bytes(self) -> int:
        return sum(home.nbytes for home in self.homes)

    def copy_in(self) -> None:
        for home in self.homes:
            self.into.copy_(home, non_blocking=True)

    def copy_out(self) -> None:
        for _ in self.homes:
            self.out.copy_(self.source, non_blocking=True)

    def in_then_out(self) -> None:
        self.copy_in()
        self.copy_out()

    def at_once(self) -> None:
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            self.copy_out()
        self.copy_in()
        main.wait_stream(self.side)

    def rates(self) -> dict[str, float]:
        """GB a second, each way."""
        found = race({"in": self.copy_in, "out": self.copy_out, "both": self.at_once}, 3)
        return {way: round(self.bytes / times.end_to_end.median / 1e3, 1)
                for way, times in found.items()}


def compare(models: Mapping[str, Model], steps: Mapping[str, list[Step]]) -> bool:
    """Whether some of each, one kind after the other, leave and answer the same, bit for bit."""
    answers = {name: [float(step()) for step in of for _ in range(WARM_UP)]
               for name, of in steps.items()}
    pairs = zip(models[RESIDENT].weights, models[PINNED].weights, strict=True)
    return answers[RESIDENT] == answers[PINNED] and all(torch.equal(*pair) for pair in pairs)


def peak_bytes(step: Step) -> int:
    """Beside what lies there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def to_bound(found: Mapping[str, Times], way: str, resident: str) -> tuple[float, float]:
    """How many times as long as the longer of the resident step and the link, round by round."""
    parts = zip(found[resident].end_to_end.rounds, found[LINK].end_to_end.rounds, strict=True)
    return ratio(Sample([max(pair) for pair in parts]), found[way].end_to_end)


def measure(what: str, models: Mapping[str, Model], step_of: Callable[[Model], Step],
            rounds: int) -> dict[str, Any]:
    eager = {name: step_of(model) for name, model in models.items()}
    recorded = {name: anabranch.record(step_of(model)) for name, model in models.items()}
    # What the first compiles, the second runs as well.
    same = compare(models, {name: [recorded[name], eager[name]] for name in models})
    print(what, *recorded[PINNED].reports, sep="\n  ", flush=True)
    steps = {RESIDENT: eager[RESIDENT], RESIDENT_RECORDED: recorded[RESIDENT],
             PINNED: eager[PINNED], RECORDED: recorded[PINNED]}
    peaks = {way: peak_bytes(step) for way, step in steps.items()}
    link = Link(models[PINNED].optimizer)
    found = race({**steps, LINK: link.in_then_out, LINK_BOTH: link.at_once}, rounds)
    bounds = {PINNED: to_bound(found, PINNED, RESIDENT),
              RECORDED: to_bound(found, RECORDED, RESIDENT_RECORDED)}
    row = {"what": what, "same_result": same, "step_bytes": peaks,
           "phase_seconds": dict(recorded[PINNED].reports[-1].phase_seconds),
           "rows_us": {way: times.row() for way, times in found.items()},
           "times_of_bound": {way: round(times, 3) for way, (times, _) in bounds.items()},
           "iqr": {way: round(spread, 3) for way, (_, spread) in bounds.items()},
           "reach": MOST, "reached": all(times <= MOST for times, _ in bounds.values())}
    print(row, flush=True)
    return {**row, "rounds": {way: times.raw() for way, times in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--parameters", type=float, default=1e9)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    count = max(1, round(chosen.parameters / WIDTH**2))
    models = {name: Model(count, name == PINNED) for name in (RESIDENT, PINNED)}
    gradients = [torch.randn_like(weight) for weight in models[RESIDENT].weights]
    for model in models.values():
        model.set_gradients(gradients)
    answers = [measure("the optimizer alone", models, lambda model: model.update, chosen.rounds)]
    del gradients
    for model in models.values():
        model.set_gradients(None)
    link = Link(models[PINNED].optimizer)
    about = {"parameters": count * WIDTH**2, "layers": count, "width": WIDTH, "rows": chosen.rows,
             "state_bytes": link.bytes, "gb_per_s": link.rates()}
    print(about, flush=True)
    save(chosen.results, "gpu_optimizer", **about, answers=answers)
    x = torch.randn(chosen.rows, WIDTH, device="cuda")
    answers.append(measure("forward, backward and step", models,
                           lambda model: lambda: model.train(x), chosen.rounds))
    save(chosen.results, "gpu_optimizer", **about, answers=answers)


if __name__ == "__main__":
    main()
