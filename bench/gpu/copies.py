# SPDX-License-Identifier: Apache-2.0
"""Weights that lie in pinned memory and come to the GPU in each step, inside one recording.

    python bench/gpu/copies.py [results.json] [--rounds N]

64 layers of gelu(x @ w), bf16, compiled by Inductor as one graph that copies each weight to the GPU
before it is used. Nothing can be faster than the longer of the two: the same layers with weights
that are there, and the copies alone. How many rows x has is chosen by what the machine takes for
either, so that both take about as long, or one twice as long as the other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from turns import Sample, Times, race, ratio, save

import anabranch

LAYERS, WIDTH, MOST = 64, 4096, 1.02
COMPUTE_TO_COPY = (1.0, 2.0, 0.5)
COMPUTE, COPIES, OURS = "compute only", "copies only", "ours"
ORDERED, BY_HAND = "captured order", "eager by hand"
WARM_UP = 4


class Layers(nn.Module):
    """``weights`` may lie where they like; those that are there are not copied."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(weight, False) for weight in weights)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = F.gelu(x @ weight.to("cuda", non_blocking=True))
        return x


class ByHand:
    """The same in eager, with a stream for copies and two buffers by turns."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights, self.side = weights, torch.cuda.Stream()
        self.buffers = [torch.empty_like(weights[0], device="cuda") for _ in range(2)]
        self.filled, self.used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def __call__(self, x: Tensor) -> Tensor:
        main = torch.cuda.current_stream()
        for i, weight in enumerate(self.weights):
            turn = i % 2
            with torch.cuda.stream(self.side):
                self.side.wait_event(self.used[turn])
                self.buffers[turn].copy_(weight, non_blocking=True)
                self.filled[turn].record()
            main.wait_event(self.filled[turn])
            x = F.gelu(x @ self.buffers[turn])
            self.used[turn].record()
        return x


def make_weights() -> list[Tensor]:
    torch.manual_seed(0)
    make = torch.empty(LAYERS, WIDTH, WIDTH, dtype=torch.bfloat16, pin_memory=True)
    scale = 1.5 / WIDTH**0.5
    for weight in make:
        weight.copy_(torch.randn(WIDTH, WIDTH, device="cuda") * scale)
    return list(make)


def seconds(call: Callable[[], Any]) -> float:
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def copy_all(weights: Sequence[Tensor]) -> Callable[[], Tensor]:
    """Into one buffer, which a recording finds as it finds the weights."""
    buffer = torch.empty_like(weights[0], device="cuda")

    def step() -> Tensor:
        for weight in weights:
            buffer.copy_(weight, non_blocking=True)
        return buffer[0, 0] + 1

    return step


def rows_for(compute_to_copy: float, resident: nn.Module, weights: Sequence[Tensor]) -> int:
    probe = 8192
    x = torch.randn(probe, WIDTH, device="cuda", dtype=torch.bfloat16)
    compute, copies = seconds(lambda: resident(x)), seconds(copy_all(weights))
    return max(256, round(compute_to_copy * copies / compute * probe / 256) * 256)


def record_all(x: Tensor, resident: nn.Module, pinned: nn.Module,
               weights: Sequence[Tensor]) -> tuple[dict[str, Callable[[], Any]], bool]:
    """The ways to run a step, warmed up, and whether all give what the compiled model gives."""
    torch._dynamo.reset()
    streamed = torch.compile(pinned, dynamic=False)
    recorded = {  # the first is called first: what it compiles the second records as well
        OURS: anabranch.record(streamed), ORDERED: anabranch.record(streamed, max_parallel_kernels=1),
        COMPUTE: anabranch.record(torch.compile(resident, dynamic=False), max_parallel_kernels=1),
        COPIES: anabranch.record(copy_all(weights), max_parallel_kernels=1), BY_HAND: ByHand(weights)}
    ways: dict[str, Any] = {way: (lambda call=call: call(x)) if way != COPIES else call
                            for way, call in recorded.items()}
    found = {way: [call() for _ in range(WARM_UP)] for way, call in ways.items()}
    wanted = streamed(x)
    same = all(torch.equal(one, wanted) for way in (OURS, ORDERED, COMPUTE) for one in found[way])
    apart = (found[BY_HAND][0].float() - wanted.float()).norm() / wanted.float().norm()
    assert apart < 0.05, f"{BY_HAND} is {apart:.3f} away"
    for way in (OURS, ORDERED, COMPUTE, COPIES):
        print(way, *recorded[way].reports, sep="\n  ", flush=True)
    return ways, same


def to_bound(found: dict[str, Times], way: str) -> tuple[float, float]:
    """How many times as long as the longer of compute and copies, round by round."""
    parts = zip(found[COMPUTE].end_to_end.rounds, found[COPIES].end_to_end.rounds, strict=True)
    return ratio(Sample([max(pair) for pair in parts]), found[way].end_to_end)


def measure(compute_to_copy: float, weights: Sequence[Tensor], rounds: int) -> dict[str, Any]:
    with torch.no_grad():
        resident = Layers([weight.cuda() for weight in weights])
        rows = rows_for(compute_to_copy, resident, weights)
        x = torch.randn(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
        ways, same = record_all(x, resident, Layers(weights), weights)
        found = race(ways, rounds)
    times, spread = to_bound(found, OURS)
    return {"compute_to_copy": compute_to_copy, "rows": rows, "width": WIDTH, "layers": LAYERS,
            "same_result": same, "rows_us": {way: each.row() for way, each in found.items()},
            "times_of_bound": {way: round(to_bound(found, way)[0], 3)
                               for way in (OURS, ORDERED, BY_HAND)},
            "iqr": round(spread, 3), "reach": MOST, "reached": times <= MOST,
            "rounds": {way: each.raw() for way, each in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=31)
    chosen = parser.parse_args()
    weights, answers = make_weights(), []
    for compute_to_copy in COMPUTE_TO_COPY:
        answers.append(measure(compute_to_copy, weights, chosen.rounds))
        print({key: value for key, value in answers[-1].items() if key != "rounds"}, flush=True)
    save(chosen.results, "gpu_copies", answers=answers)


if __name__ == "__main__":
    main()
