# SPDX-License-Identifier: Apache-2.0
"""Two equal independent branches on two streams, against torch.compile.

Question: how much faster is a model whose two branches run side by side than the faster of
torch.compile with one thread and with two? Each branch is 12 layers of linear and gelu; batch 32.
A training step is forward, a sum as loss, backward and clearing the gradients; no optimizer, which
would be the same work for all. Anabranch runs with two threads to share out.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch_common import (
    MISSED,
    Rival,
    Row,
    Sample,
    arguments,
    compile_with,
    microseconds,
    print_table,
    race,
    ratio,
    raw,
    save,
)

import anabranch

LAYERS, BATCH, THREADS = 12, 32, 2
REACH = {"inference": {64: 1.5, 128: 1.5, 256: 1.2, 512: 0.98},
         "training": {64: 1.3, 128: 1.3, 256: 1.15, 512: 0.98}}
MODES = tuple(REACH)


class Branches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = (nn.ModuleList(nn.Linear(width, width) for _ in range(LAYERS))
                                 for _ in range(2))


def forward(model: Branches, x: torch.Tensor) -> torch.Tensor:
    with anabranch.stream("left"):
        left = x
        for layer in model.left:
            left = F.gelu(layer(left))
    with anabranch.stream("right"):
        right = x
        for layer in model.right:
            right = F.gelu(layer(right))
    return left + right


def make_call(model: Branches, x: torch.Tensor, backend: str, mode: str):
    """A call without arguments; its result is what is compared with eager."""
    function = forward if backend == "eager" else compile_with(forward, backend)

    def infer():
        with torch.no_grad():
            return function(model, x)

    def train():
        for parameter in model.parameters():
            parameter.grad = None
        function(model, x).sum().backward()

    return infer if mode == "inference" else train


def result_of(model: Branches, call, mode: str) -> list[torch.Tensor]:
    found = call()
    return [found] if mode == "inference" else [p.grad.clone() for p in model.parameters()]


def measure(width: int, mode: str, backend: str, rounds: int) -> tuple[Row, dict[str, Sample]]:
    torch.manual_seed(width)
    model, x = Branches(width), torch.randn(BATCH, width)
    wanted = result_of(model, make_call(model, x, "eager", mode), mode)
    rivals = []
    for name, rival_backend, threads in (("1 thread", "inductor", 1),
                                         ("2 threads", "inductor", 2),
                                         ("ours", backend, THREADS)):
        torch.set_num_threads(threads)
        own = copy.deepcopy(model)
        call = make_call(own, x, rival_backend, mode)
        torch.testing.assert_close(result_of(own, call, mode), wanted, rtol=1e-4, atol=1e-4)
        rivals.append(Rival(name, call, threads))
    samples = race(rivals, rounds)
    torch.compiler.reset()
    best = min((name for name in samples if name != "ours"), key=lambda n: samples[n].median)
    figure, figure_spread = ratio(samples["ours"], samples[best])
    row = Row(f"{mode}, hidden {width}", microseconds(samples["ours"]),
              f"{microseconds(samples[best])} ({best})", figure, figure_spread,
              REACH[mode][width])
    return row, samples


def main() -> bool:
    chosen = arguments(__doc__.splitlines()[0])
    rows, details = [], {}
    for mode in MODES:
        for width in ((64, 256) if chosen.quick else REACH[mode]):
            row, samples = measure(width, mode, chosen.backend, chosen.rounds)
            rows.append(row)
            details[row.what] = raw(samples)
    print_table("Two branches of 12 linear + gelu, batch 32, two cores", rows, chosen.backend)
    save("torch_branches", __doc__, chosen, rows, rounds_us=details)
    return all(row.reached for row in rows)


if __name__ == "__main__":
    raise SystemExit(0 if main() else MISSED)
