# SPDX-License-Identifier: Apache-2.0
"""Times inside recordings: what they cost, how much of them has a line, and whether stalls that were
planted are named.

    python bench/gpu/timing.py [results.json] [--rounds N] [--parts costs lines stalls]

A training step of 16 layers is run by three: never timed, timed once by explain(timing=True) and not
asked since, and recorded with timing=True. A round is the mean of some hundred calls, since few of
them are timed; rivals take turns. Each planted stall is a step that has it and next to nothing else.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from cases.llama import Llama, Shape, loss_of, rotation
from cases.planted_stalls import PLANTED
from torch import Tensor
from turns import Sample, ratio, save

import anabranch

NEVER, ONCE, ASKED = "never timed", "timed once", "timing=True"
MOST_ASKED, MOST_NOT_ASKED, LEAST_ATTRIBUTED = 1.02, 1.00, 0.95
CALLS, WARM_UP = 300, 8


class Training:
    """Forward, loss, backward and a fused AdamW; the loss compiled with the model, or in eager."""

    def __init__(self, has_compiled_loss: bool = True, **options: Any) -> None:
        torch.manual_seed(0)
        torch._dynamo.reset()
        shape = Shape()
        self.model = Llama(shape).cuda().bfloat16()
        self.tokens = torch.randint(0, shape.vocabulary, (1, 256), device="cuda")
        cos, sin = rotation(shape, "cuda", torch.bfloat16)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True,
                                      capturable=True)

        def loss(tokens: Tensor) -> Tensor:
            return loss_of(self.model(tokens, cos, sin), tokens)

        compiled = torch.compile(self.model)
        call = torch.compile(loss) if has_compiled_loss else (
            lambda tokens: loss_of(compiled(tokens, cos, sin), tokens))

        def step(tokens: Tensor) -> Tensor:
            found = call(tokens)
            found.backward()
            optimizer.step()
            optimizer.zero_grad()
            return found.detach()

        self.step = anabranch.record(step, **options)
        for _ in range(WARM_UP):
            self.step(self.tokens)
        torch.cuda.synchronize()

    def explained(self) -> dict[str, Any]:
        """The timing of one launch."""
        told = anabranch.explain(self.step, self.tokens, timing=True).to_dict()
        [timing] = [one["timing"] for each in told["callables"] for one in each["recordings"]
                    if one["timing"] is not None and one["timing"]["launches"]]
        return dict(timing)


def mean_us(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS * 1e6


def raced(rivals: Mapping[str, Training], rounds: int) -> dict[str, Sample]:
    found: dict[str, Sample] = {name: Sample([]) for name in rivals}
    for index in range(rounds):
        for name in rivals if index % 2 == 0 else reversed(rivals):
            rival = rivals[name]
            rival.step(rival.tokens)
            found[name].rounds.append(mean_us(lambda: rival.step(rival.tokens)))
    return found


def costs(rounds: int) -> dict[str, Any]:
    rivals = {NEVER: Training(), ONCE: Training(), ASKED: Training(timing=True)}
    rivals[ONCE].explained()
    found = raced(rivals, rounds)
    judged = {name: ratio(found[name], found[NEVER]) for name in (ONCE, ASKED)}
    return {"mean_us": {name: sample.median for name, sample in found.items()},
            "rounds_us": {name: sample.rounds for name, sample in found.items()},
            "times": judged, "report": str(rivals[ASKED].step.reports[-1]),
            "reached": judged[ASKED][0] <= MOST_ASKED and round(judged[ONCE][0], 2)
            <= MOST_NOT_ASKED}


def lines() -> dict[str, Any]:
    """Which share of the kernels' time has a line, by us and in a profile of torch's."""
    found = {}
    for name, has_compiled_loss in (("loss compiled", True), ("loss in eager", False)):
        training = Training(has_compiled_loss, timing=not has_compiled_loss)
        timing = training.explained()
        found[name] = {"attributed": timing["attributed"], "nodes": len(timing["nodes"]),
                       "twin_us": timing["step_ns"] / 1e3, "in_profile": in_profile(training),
                       "lines": timing["lines"][:10]}
    found["reached"] = found["loss compiled"]["attributed"] >= LEAST_ATTRIBUTED
    return found


def in_profile(training: Training) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                                torch.profiler.ProfilerActivity.CUDA]) as taken:
            for _ in range(3):
                training.step(training.tokens)
            torch.cuda.synchronize()
        taken.export_chrome_trace(str(path))
        labelled = anabranch.label_profile(path)
        events = [event for event in json.loads(path.read_text())["traceEvents"]
                  if event.get("cat") == "kernel"]
    took = sum(event["dur"] for event in events)
    with_line = sum(event["dur"] for event in events if "source" in event["args"])
    return {"labelled": labelled, "kernels": len(events),
            "share": with_line / took if took else None}


def stalls() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for planted in PLANTED:
        torch._dynamo.reset()
        told = planted.told()
        found[planted.name] = {"wanted": planted.wanted, "is_named": planted.wanted in told,
                               "told": told}
        print(f"{planted.name}: {'named' if planted.wanted in told else 'NOT named'} {told}",
              flush=True)
    named = sum(one["is_named"] for one in found.values())
    return {"planted": found, "named": named, "reached": named == len(PLANTED)}


PARTS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "costs": costs, "lines": lambda rounds: lines(), "stalls": lambda rounds: stalls()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: torch finds no GPU")
        return
    F.relu(torch.ones(1, device="cuda"))  # the context
    found = {}
    for name in arguments.parts:
        part = found[name] = PARTS[name](arguments.rounds)
        print(f"{name}: {'reached' if part['reached'] else 'NOT reached'}")
        print(json.dumps({key: part[key] for key in ("mean_us", "times", "named") if key in part}))
        save(arguments.results, "timing", **found)


if __name__ == "__main__":
    main()
