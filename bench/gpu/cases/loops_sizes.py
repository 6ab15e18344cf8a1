# SPDX-License-Identifier: Apache-2.0
"""Loops whose sizes change from call to call: texts of some lengths in training, batches of some
sizes in inference. For loops.py, which runs each way in a process of its own, since compiling is
part of what is measured."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from steps import RECORD
from torch import Tensor
from turns import frozen, time_call

import anabranch
from cases.llama import Llama, Shape, loss_of, rotation

FROZEN = "frozen graphs"
LENGTHS, CALLS = [64 + 16 * i for i in range(24)], 150
BATCHES, LENGTH, MIXED_CALLS = [*range(1, 65)], 16, 400


def lengths_of_calls() -> list[int]:
    chance = random.Random(0)
    return [chance.choice(LENGTHS) for _ in range(CALLS)]


def timed(call: Callable[[], Any]) -> float:
    return time_call(call)[0] / 1e6


def train_lengths(way: str) -> dict[str, Any]:
    """Seconds of each call of the loop from cold, and of the same calls once more."""
    torch.manual_seed(0)
    shape = Shape(layers=8)
    model = Llama(shape).cuda().bfloat16()
    cos, sin = rotation(shape, "cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=True)
    compiled = torch.compile(model, dynamic=True)

    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(compiled(tokens, cos, sin), tokens)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = anabranch.record(step) if way == RECORD else step
    texts = [torch.randint(0, shape.vocabulary, (1, length), device="cuda")
             for length in lengths_of_calls()]
    torch.cuda.synchronize()
    first = [timed(lambda text=text: call(text)) for text in texts]
    again = [timed(lambda text=text: call(text)) for text in texts]
    reports = call.reports if way == RECORD else []
    return {"first_s": first, "again_s": again,
            "recordings": sum(report.nodes > 0 for report in reports),
            "phases": [dict(report.phase_seconds) for report in reports],
            "captures": [report.captures for report in reports],
            "reasons": sorted({report.reason for report in reports if report.reason})}


def further_seconds(first: list[float]) -> float | None:
    """What recording a length took beside the call itself: the second call of a length less the
    first, in the middle of all lengths but the first three, which compile."""
    calls: dict[int, list[float]] = {}
    for length, seconds in zip(lengths_of_calls(), first, strict=True):
        calls.setdefault(length, []).append(seconds)
    found = [seconds[1] - min(seconds[0], seconds[-1]) for seconds in [*calls.values()][3:]
             if len(seconds) > 2]
    return statistics.median(found) if found else None


def infer_batches(way: str) -> dict[str, Any]:
    """Seconds until all batch sizes are served as they will be, bytes of the device that they
    take, and seconds of calls of mixed sizes in a row."""
    torch.manual_seed(0)
    shape = Shape(layers=8)
    model = Llama(shape).cuda().bfloat16().eval()
    cos, sin = rotation(shape, "cuda", torch.bfloat16)
    compiled = torch.compile(model, dynamic=True)
    tokens = {size: torch.randint(0, shape.vocabulary, (size, LENGTH), device="cuda")
              for size in BATCHES}

    def step(given: Tensor) -> Tensor:
        with torch.no_grad():
            return compiled(given, cos, sin)

    for size in (2, 3):
        step(tokens[size])  # compiled for any size
    step(tokens[1])  # and for one
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, start = torch.cuda.mem_get_info()[0], time.perf_counter()
    serve = frozen_steps(step, tokens) if way == FROZEN else anabranch.record(step)
    if way == RECORD:
        for size in BATCHES:
            for _ in range(3):
                serve(tokens[size])
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    taken = before - torch.cuda.mem_get_info()[0]
    chance = random.Random(1)
    sizes = [chance.choice(BATCHES) for _ in range(MIXED_CALLS)]
    seconds = [timed(lambda: [serve(tokens[size]) for size in sizes]) for _ in range(7)]
    reports = serve.reports if way == RECORD else []
    return {"ready_s": ready, "taken": taken, "mixed_s": seconds,
            "recordings": sum(report.nodes > 0 for report in reports),
            "reasons": sorted({report.reason for report in reports if report.reason})}


def frozen_steps(step: Callable[[Tensor], Tensor],
                 tokens: dict[int, Tensor]) -> Callable[[Tensor], Tensor]:
    """A graph of each size, into whose input a call's is copied."""
    inputs = {size: given.clone() for size, given in tokens.items()}
    replays = {size: frozen(lambda held=held: step(held)) for size, held in inputs.items()}

    def serve(given: Tensor) -> Tensor:
        inputs[len(given)].copy_(given)
        answer: Tensor = replays[len(given)]()
        return answer

    return serve


RUNS = {"lengths": train_lengths, "batches": infer_batches}
