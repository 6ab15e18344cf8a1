# SPDX-License-Identifier: Apache-2.0
"""Independent branches of small kernels inside one recording, in captured order and side by side.

    python bench/gpu/branches.py [results.json] [--rounds N] [--only pairs placed]

`pairs`: four pairs of branches one behind the other, each branch twelve linear layers with gelu,
bf16, compiled by Inductor as one graph. With kernels that fill the GPU nothing can be gained, and
the recording is to stay in captured order.

`placed`: two branches of 150 small products, placed on two named streams, on two of torch's, under
overlap, and not placed, over one branch alone; compiled by the backend, and recorded as they are. A
row says how many bytes more than the plain step it takes. `needs` is how many it would take if it
had them: by that `slack_bytes` is chosen (_record/memory/gpu.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from turns import Step, faster, fresh_code, frozen, race, save

import anabranch

PAIRS, DEPTH = 4, 12
# (width, rows, at least so many times as fast side by side)
SHAPES = ((64, 32, 1.5), (256, 32, 1.5), (1024, 32, 1.5), (1024, 1024, 1.0), (2048, 4096, 0.99))
ORDERED, SIDE_BY_SIDE = "captured order", "side by side"

PRODUCTS, WIDTH, ROWS = 150, 256, 64
MOST = 1.25  # times as long as one branch
ONE, FOUND, BY_HAND = "one branch", "not placed", "frozen graph of torch's streams"


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


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(PRODUCTS))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ weight
        return torch.relu(x)  # lest Inductor makes one of the last two products and their sum


def placements(left: Branch, right: Branch) -> dict[str, Callable[[Tensor], Tensor]]:
    one, other = torch.cuda.Stream(), torch.cuda.Stream()

    def alone(x: Tensor) -> Tensor:
        return left(x) + x

    def not_placed(x: Tensor) -> Tensor:
        return left(x) + right(x)

    def on_named(x: Tensor) -> Tensor:
        with anabranch.stream("left"):
            a = left(x)
        with anabranch.stream("right"):
            b = right(x)
        return a + b

    def on_torchs(x: Tensor) -> Tensor:
        one.wait_stream(torch.cuda.current_stream())
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(one):
            a = left(x)
        with torch.cuda.stream(other):
            b = right(x)
        torch.cuda.current_stream().wait_stream(one)
        torch.cuda.current_stream().wait_stream(other)
        return a + b

    def under_overlap(x: Tensor) -> Tensor:
        with anabranch.overlap():
            return left(x) + right(x)

    return {ONE: alone, FOUND: not_placed, "named streams": on_named, "torch's streams": on_torchs,
            "overlap": under_overlap}


def reports_of(call: Any, x: Tensor) -> list[Any]:
    reports = call.reports if hasattr(call, "reports") else [
        report for graph in anabranch.explain(call, x).graphs for report in graph.recordings]
    return [report for report in reports if report.nodes]


def row_of(report: Any) -> dict[str, Any]:
    return {"lanes": report.lanes, "asked": report.asked_lanes, "gain": report.parallel_gain,
            "bytes_more": report.parallel_bytes, "peak": report.launch_peak_bytes,
            "plain": report.recording.plain, "why_in_order": report.why_in_order}


def placed(kind: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    steps = placements(Branch().cuda(), Branch().cuda())
    x, wanted = torch.randn(ROWS, WIDTH, device="cuda"), {}
    with torch.no_grad():
        calls: dict[str, Any] = {
            way: torch.compile(fresh_code(step), backend=anabranch.backend, dynamic=False)
            if kind == "compiled" else anabranch.record(step) for way, step in steps.items()}
        most = anabranch.record(steps[FOUND], parallel_bytes=1 << 40)
        for way, step in steps.items():
            wanted[way] = step(x)
        same = all(torch.equal(call(x), wanted[way]) for _ in range(8)
                   for way, call in calls.items())
        same = same and all(torch.equal(most(x), wanted[FOUND]) for _ in range(4))
        by_hand = frozen(lambda: steps["torch's streams"](x))
        rivals: dict[str, Step] = {way: (lambda call=call: call(x)) for way, call in calls.items()}
        found = race({**rivals, BY_HAND: by_hand}, rounds)
        reports = {way: [row_of(one) for one in reports_of(call, x)] for way, call in calls.items()}
    judged = []
    for way in [way for way in found if way != ONE]:
        times, spread = faster(found, ONE, way)
        judged.append({"way": way, "over_one_branch": round(times, 3), "iqr": round(spread, 3),
                       "reach": MOST, "reached": round(times, 2) <= MOST})
    return {"kind": kind, "products": PRODUCTS, "width": WIDTH, "rows": ROWS, "same_result": same,
            "judged": judged, "reports": reports,
            "needs": [row_of(one) for one in reports_of(most, x)],
            "rows_us": {way: each.row() for way, each in found.items()},
            "rounds": {way: each.raw() for way, each in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--only", nargs="+", choices=("pairs", "placed"),
                        default=("pairs", "placed"))
    chosen = parser.parse_args()
    answers = []
    if "placed" in chosen.only:
        answers += [placed(kind, chosen.rounds) for kind in ("compiled", "recorded")]
    if "pairs" in chosen.only:
        answers += [measure(*shape, chosen.rounds) for shape in SHAPES]
    for answer in answers:
        print(json.dumps({key: value for key, value in answer.items() if key != "rounds"}),
              flush=True)
    save(chosen.results, "gpu_branches", answers=answers)


if __name__ == "__main__":
    main()
