# SPDX-License-Identifier: Apache-2.0
"""Independent branches of small kernels inside one recording, in captured order and side by side.

    python bench/gpu/branches.py [results.json] [--rounds N]

Four pairs of branches one behind the other, each branch twelve linear layers with gelu, bf16,
compiled by Inductor as one graph. With kernels that fill the GPU nothing can be gained, and the
recording is to stay in captured order.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from turns import faster, race, save

import anabranch

PAIRS, DEPTH = 4, 12
# (width, rows, at least so many times as fast side by side)
SHAPES = ((64, 32, 1.5), (256, 32, 1.5), (1024, 32, 1.5), (1024, 1024, 1.0), (2048, 4096, 0.99))
ORDERED, SIDE_BY_SIDE = "captured order", "side by side"


class Pair(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width) for _ in range(DEPTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        ends = []
        for branch in self.branches:
            y = x
            for layer in branch:
                y = F.gelu(layer(y))
            ends.append(y)
        return ends[0] + ends[1]


def measure(width: int, rows: int, least: float, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Pair(width) for _ in range(PAIRS))).cuda().bfloat16()
    x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    recorded, same = {}, True
    with torch.no_grad():
        for way, overlap in ((ORDERED, 1), (SIDE_BY_SIDE, 4)):
            torch._dynamo.reset()  # each is compiled by its first call
            compiled = torch.compile(model)
            recorded[way] = anabranch.record(compiled, max_parallel_kernels=overlap)
            found = [recorded[way](x) for _ in range(8)]
            same = same and all(torch.equal(one, compiled(x)) for one in found)
        found = race({way: (lambda call=call: call(x)) for way, call in recorded.items()}, rounds)
    times, spread = faster(found, SIDE_BY_SIDE, ORDERED)
    return {"width": width, "rows": rows, "same_result": same,
            "rows_us": {way: each.row() for way, each in found.items()},
            "times": round(times, 3), "iqr": round(spread, 3), "reach": least,
            "reached": round(times, 2) >= least,
            "recording": {way: [str(report) for report in call.reports]
                          for way, call in recorded.items()},
            "rounds": {way: each.raw() for way, each in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=31)
    chosen = parser.parse_args()
    answers = []
    for shape in SHAPES:
        answers.append(measure(*shape, chosen.rounds))
        print({key: value for key, value in answers[-1].items() if key != "rounds"}, flush=True)
    save(chosen.results, "gpu_branches", answers=answers)


if __name__ == "__main__":
    main()
