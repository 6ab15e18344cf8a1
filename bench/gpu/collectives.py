# SPDX-License-Identifier: Apache-2.0
"""Layers whose weights are spread over two GPUs, each gathered right before it is used.

    python bench/gpu/collectives.py [results.json]

Question: how much of the gathers does a recording hide under the layers before? 32 layers of relu(x
@ weight), in bf16, with as many rows of x as make the layers shorter than the gathers, about as
long, and longer. Starts itself under torchrun. The group's stream has a high priority: a gather
that becomes ready beside a large product finds no multiprocessor free otherwise. All rows are
recorded: the layers alone, with whole weights; the gathers alone, into memory of their own, one by
one as the layers ask for them and in the groups in which the backend puts them; the layers with
their gathers in captured order; side by side with gathers one by one, and in groups, which is what
anabranch.overlap does; and with each gather begun by hand a layer ahead, in captured order. Judged
is what overlap takes over the longer of layers and gathers one by one. Answers are compared first.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from turns import Step, faster, fresh_code, over_gpus, race, save

import anabranch

LAYERS = 32
WIDTH = 2048  # a weight has 8 MiB
ROWS = (1024, 2048, 8192)
GPUS = 2
LANES = 4
LARGEST_GROUP = 8  # of 64 MiB, which is the backend's gather_bytes
REACH = 1.05
LAYERS_ALONE, GATHERS_ALONE, OVERLAP = "layers", "gathers", "overlap"
GROUPED_ALONE = "gathers in groups"


class Weights:
    def __init__(self) -> None:
        self.group = dist.group.WORLD.group_name
        generator = torch.Generator("cuda").manual_seed(0)  # whole ones alike on both
        self.whole = [torch.randn(WIDTH, WIDTH, device="cuda", generator=generator)
                      .mul_((2 / WIDTH) ** 0.5).bfloat16() for _ in range(LAYERS)]
        self.shards = [weight.chunk(GPUS)[dist.get_rank()].clone() for weight in self.whole]
        self.gathered = [torch.empty_like(weight) for weight in self.whole]

    def begin(self, layer: int) -> torch.Tensor:
        return torch.ops._c10d_functional.all_gather_into_tensor(
            self.shards[layer], GPUS, self.group)


def wait(gathered: torch.Tensor) -> torch.Tensor:
    return torch.ops._c10d_functional.wait_tensor(gathered)


def steps_over(weights: Weights) -> dict[str, tuple[Callable[..., Any], int]]:
    """By name the step, and on how many lanes it is recorded."""
    def alone(x: torch.Tensor) -> torch.Tensor:
        for weight in weights.whole:
            x = torch.relu(x @ weight)
        return x

    def gathers(x: torch.Tensor) -> torch.Tensor:
        for shard, gathered in zip(weights.shards, weights.gathered, strict=True):
            dist.all_gather_into_tensor(gathered, shard)
        return x

    def grouped(x: torch.Tensor) -> torch.Tensor:
        begin, count = 0, 1
        while begin < LAYERS:
            group = weights.shards[begin:begin + count]
            for gathered in torch.ops._c10d_functional.all_gather_into_tensor_coalesced(
                    group, GPUS, weights.group):
                wait(gathered)
            begin, count = begin + count, min(2 * count, LARGEST_GROUP)
        return x

    def in_order(x: torch.Tensor) -> torch.Tensor:
        for layer in range(LAYERS):
            x = torch.relu(x @ wait(weights.begin(layer)))
        return x

    def ahead(x: torch.Tensor) -> torch.Tensor:
        begun = weights.begin(0)
        for layer in range(LAYERS):
            weight = wait(begun)
            if layer + 1 < LAYERS:
                begun = weights.begin(layer + 1)
            x = torch.relu(x @ weight)
        return x

    def overlapped(x: torch.Tensor) -> torch.Tensor:
        with anabranch.overlap():
            for layer in range(LAYERS):
                x = torch.relu(x @ wait(weights.begin(layer)))
        return x

    def compiled(function: Callable[..., Any], **backend: Any) -> Callable[..., Any]:
        return torch.compile(fresh_code(function), dynamic=False, **backend)

    return {LAYERS_ALONE: (compiled(alone), 1),
            GATHERS_ALONE: (gathers, 1),
            GROUPED_ALONE: (grouped, 1),
            "captured order": (compiled(in_order), 1),
            "ahead by hand": (compiled(ahead), 1),
            "side by side, one by one": (compiled(in_order), LANES),
            OVERLAP: (compiled(overlapped, backend=anabranch.backend), LANES)}


def compare(weights: Weights, rows: int, rounds: int) -> dict[str, Any]:
    torch._dynamo.reset()
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows, WIDTH, device="cuda", generator=generator).bfloat16()
    recorded = {name: anabranch.record(step, state=[weights.whole, weights.shards,
                                                     weights.gathered], max_parallel_kernels=lanes)
                for name, (step, lanes) in steps_over(weights).items()}
    steps: dict[str, Step] = {name: lambda step=step: step(x) for name, step in recorded.items()}
    with torch.no_grad():
        answers = {name: [step() for _ in range(5)][-1] for name, step in steps.items()}
        wanted = answers.pop(LAYERS_ALONE)
        del answers[GATHERS_ALONE], answers[GROUPED_ALONE]
        equal = {name: torch.equal(answer, wanted) for name, answer in answers.items()}
        found = race(steps, rounds, begin_together=dist.barrier)
    longer = max((LAYERS_ALONE, GATHERS_ALONE), key=lambda name: found[name].end_to_end.median)
    over, spread = faster(found, longer, OVERLAP)
    return {"rows_of_x": rows, "equal": equal, "longer": longer,
            "over_longer": {"median": over, "iqr": spread, "reach": REACH,
                            "reached": over <= REACH},
            "rows": {name: times.row() | {"arena_bytes": recorded[name].reports[0].arena_bytes,
                                          "lanes": recorded[name].reports[0].lanes}
                     for name, times in found.items()},
            "report": {name: [str(report) for report in step.reports]
                       for name, step in recorded.items()},
            "rounds": {name: times.raw() for name, times in found.items()}}


def worker(rounds: int) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    dist.init_process_group("nccl", pg_options=options, device_id=torch.device("cuda", rank))
    weights = Weights()
    cases = [compare(weights, rows, rounds) for rows in ROWS]
    if rank == 0:
        print(json.dumps(cases), flush=True)
    torch.cuda.synchronize()
    dist.barrier()
    os._exit(0)  # graphs with collectives go before their communicator, and here both just go


def show(case: dict[str, Any]) -> None:
    print(f"{case['rows_of_x']} rows of x: {case['over_longer']} over {case['longer']}")
    for name, row in case["rows"].items():
        print(f"  {name:<24} {row['end_to_end_us']:10.1f} us (iqr {row['iqr']:.1f})   "
              f"{row['lanes']} lanes, arena {row['arena_bytes'] >> 20} MiB")
    if not all(case["equal"].values()):
        print(f"  NOT EQUAL: {case['equal']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    if "RANK" in os.environ:
        return worker(chosen.rounds)
    cases = over_gpus(GPUS, __file__, "--rounds", str(chosen.rounds))
    if cases is None:
        return None
    for case in cases:
        show(case)
    nccl = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    save(chosen.results, "gpu_collectives", gpus=GPUS, layers=LAYERS, width=WIDTH,
         nccl=".".join(map(str, torch.cuda.nccl.version())), nccl_settings=nccl, cases=cases)
    return None


if __name__ == "__main__":
    main()
