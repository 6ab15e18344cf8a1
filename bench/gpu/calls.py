# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded callable takes of the CPU, until the launch is queued.

    python bench/gpu/calls.py [results.json] [--only small training] [--calls N]

`small`: one kernel over eight tensors, called in a row. `training`: a step of a 16-layer transformer
with fused AdamW, one call at a time with the GPU idle: alone, and right behind a step of
torch.compile, which leaves nothing of ours in the processor's caches. Once the step's gradients are
gone when it ends, and once they stay, each a tensor that a launch allocates. `frozen`: a graph of
CUDA with as many nodes, which torch replays, in both ways. It tells machines apart: some take twice
as long for it as others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases.llama import Llama, Shape, loss_of, rotation
from turns import save

import anabranch
from anabranch._record import quick

INPUTS, LENGTH = 8, 256
WARM_UP = 30
REACH = {"small": 7, "training alone": 40, "training behind torch.compile": 150}


def small(calls: int) -> dict[str, Any]:
    @anabranch.record
    def join(*parts: torch.Tensor) -> torch.Tensor:
        return torch.cat(parts)

    given = [torch.ones(16, device="cuda") for _ in range(INPUTS)]
    for _ in range(WARM_UP):
        join(*given)
    rounds = []
    for _ in range(11):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            join(*given)
        rounds.append((time.perf_counter() - start) / calls * 1e6)
    return {"kind": "small", "nodes": join.reports[-1].nodes, "cpu_us": rounds,
            "judged": [judged("small", rounds)]}


def training(calls: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    shape = Shape()
    model = Llama(shape).cuda().bfloat16()
    cos, sin = rotation(shape, "cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    compiled = torch.compile(model)
    tokens = torch.randint(0, shape.vocabulary, (1, LENGTH), device="cuda")

    def step_of(do_gradients_stay: bool) -> Callable[[], torch.Tensor]:
        def step() -> torch.Tensor:
            if do_gradients_stay:
                optimizer.zero_grad()
            loss = loss_of(compiled(tokens, cos, sin), tokens)
            loss.backward()
            optimizer.step()
            if not do_gradients_stay:
                optimizer.zero_grad()
            return loss.detach()

        return step

    found = [_of_step(step_of(stay), stay, calls) for stay in (False, True)]
    return [frozen(found[0]["nodes"], step_of(False), calls), *found]


def frozen(nodes: int, other_work: Callable[[], Any], calls: int) -> dict[str, Any]:
    """A kernel a node, each over a tensor of its own."""
    some = [torch.ones(64, device="cuda") for _ in range(nodes)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in some:
            one.add_(1)
    for _ in range(WARM_UP):
        graph.replay()
    return {"kind": "frozen", "nodes": nodes, "judged": [],
            "cpu_us": alone_and_behind(graph.replay, other_work, calls)}


def alone_and_behind(call: Callable[[], Any], other_work: Callable[[], Any],
                     calls: int) -> dict[str, list[float]]:
    """Microseconds of single calls."""
    alone = [seconds_of(call) * 1e6 for _ in range(calls)]
    behind = []
    for _ in range(max(15, calls // 10)):
        other_work()
        behind.append(seconds_of(call) * 1e6)
    return {"alone": alone, "behind": behind}


def _of_step(step: Callable[[], torch.Tensor], do_gradients_stay: bool,
             calls: int) -> dict[str, Any]:
    recorded = anabranch.record(step)
    for _ in range(WARM_UP):
        recorded()
    us = alone_and_behind(recorded, step, calls)
    name = "gradients stay" if do_gradients_stay else "no gradients left"
    report = recorded.reports[-1]
    return {"kind": f"training, {name}", "cpu_us": us, "slots": report.slots, "nodes": report.nodes,
            "judged": [] if do_gradients_stay else [
                judged("training alone", us["alone"]),
                judged("training behind torch.compile", us["behind"])]}


def seconds_of(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def judged(name: str, us: list[float]) -> dict[str, Any]:
    figure = round(statistics.median(us), 1)
    return {"what": f"{name}: us of the CPU a call", "figure": figure, "at_most": REACH[name],
            "reached": figure <= REACH[name]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", choices=["small", "training"],
                        default=["small", "training"])
    parser.add_argument("--calls", type=int, default=200)
    chosen = parser.parse_args()
    answers: list[dict[str, Any]] = []
    if "small" in chosen.only:
        answers.append(small(chosen.calls))
    if "training" in chosen.only:
        answers += training(chosen.calls)
    for answer in answers:
        us = answer["cpu_us"] if isinstance(answer["cpu_us"], dict) else {"": answer["cpu_us"]}
        print(answer["kind"], {name: round(statistics.median(found), 1)
                               for name, found in us.items()})
        for figure in answer["judged"]:
            print("  ", figure)
    save(chosen.results, "gpu_calls", is_compiled=quick.is_compiled, answers=answers)


if __name__ == "__main__":
    main()
