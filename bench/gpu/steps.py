# SPDX-License-Identifier: Apache-2.0
"""Training and serving steps of a 16-layer transformer on one GPU, against what torch offers.

    python bench/gpu/steps.py [results.json] [--only NAME ...] [--rounds N]

Rivals take turns (turns.py). Memory is measured in a process of its own a rival, after the
warm-up and without what it left cached.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from cases.llama import Block, Llama, Shape, loss_of, rotation
from turns import Step, Times, faster, frozen, race, save

import anabranch

SHAPE = Shape()
WARM_UP = 8
IN_ORDER = ", max_parallel_kernels=1"  # behind a way's name


def options_of(way: str) -> dict[str, Any]:
    return {"max_parallel_kernels": 1} if way.endswith(IN_ORDER) else {}


class Case:
    """A model, its tokens, and ways to run a step of it."""

    def __init__(self, batch: int, length: int, way: str) -> None:
        torch.manual_seed(0)
        self.model = Llama(SHAPE).cuda().bfloat16()
        self.tokens = torch.randint(0, SHAPE.vocabulary, (batch, length), device="cuda")
        self.cos, self.sin = rotation(SHAPE, "cuda", torch.bfloat16)
        self.way = way.removesuffix(IN_ORDER)
        self.options = options_of(way)
        torch._dynamo.reset()
        self.compiled = self._compile()

    def _compile(self) -> Any:
        if self.way == BACKEND:
            return torch.compile(self.model, backend=anabranch.backend, options=self.options)
        mode = "reduce-overhead" if self.way == "reduce-overhead" else None
        return torch.compile(self.model, mode=mode)

    def _recorded(self, step: Callable[..., Any]) -> Any:
        return anabranch.record(step, options=self.options) \
            if self.way == RECORD else step

    def _mark(self) -> None:
        if self.way == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()

    def gradients(self) -> Step:
        """Forward, loss, backward."""

        def step() -> torch.Tensor:
            self._mark()
            self.model.zero_grad(set_to_none=True)
            loss = loss_of(self.compiled(self.tokens, self.cos, self.sin), self.tokens)
            loss.backward()
            return loss.detach()

        return step

    def training(self) -> Step:
        """Forward, loss, backward and a fused AdamW."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True,
                                      capturable=True)

        def step(tokens: torch.Tensor) -> torch.Tensor:
            self._mark()
            loss = loss_of(self.compiled(tokens, self.cos, self.sin), tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        self.recorded = self._recorded(step)
        if self.way == "frozen graph":
            return frozen(lambda: step(self.tokens))
        return lambda: self.recorded(self.tokens)

    def inference(self) -> Step:
        def step(tokens: torch.Tensor) -> torch.Tensor:
            self._mark()
            with torch.no_grad():
                return self.compiled(tokens, self.cos, self.sin)

        self.recorded = self._recorded(step)
        return lambda: self.recorded(self.tokens)


def warm(steps: dict[str, Step]) -> dict[str, Step]:
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    return steps


KINDS = {
    "gradients B1 S256": (1, 256, "gradients"),
    "training B1 S256": (1, 256, "training"),
    "training B4 S1024": (4, 1024, "training"),
    "inference B1 S16": (1, 16, "inference"),
}
PLAIN, BACKEND, RECORD = "torch.compile", "anabranch backend", "anabranch.record"
WAYS = {
    "gradients": ("torch.compile", "reduce-overhead", BACKEND, BACKEND + IN_ORDER),
    "training": ("torch.compile", "reduce-overhead", "frozen graph", RECORD,
                 RECORD + IN_ORDER),
    "inference": ("torch.compile", "reduce-overhead", BACKEND, RECORD, RECORD + IN_ORDER),
}
# kind -> (ours, rival, at least)
REACH = {
    "gradients B1 S256": [(BACKEND, "torch.compile", 3.3),
                          (BACKEND, "reduce-overhead", 1.0)],
    "training B1 S256": [(RECORD, "torch.compile", 3.7),
                         (RECORD, "reduce-overhead", 1.0)],
    "training B4 S1024": [(RECORD, "torch.compile", 1.0),
                          (RECORD, "reduce-overhead", 1.0)],
    "inference B1 S16": [(RECORD, "reduce-overhead", 1.1)],
}


def judge(found: dict[str, Times], ours: str, rival: str, least: float) -> dict[str, Any]:
    times, spread = faster(found, ours, rival)
    return {"ours": ours, "rival": rival, "times": round(times, 3), "iqr": round(spread, 3),
            "reach": least, "reached": round(times, 2) >= least}


def measure(kind: str, rounds: int) -> dict[str, Any]:
    batch, length, what = KINDS[kind]
    cases = {way: Case(batch, length, way) for way in WAYS[what]}
    found = race(warm({way: getattr(case, what)() for way, case in cases.items()}), rounds)
    answer: dict[str, Any] = {
        "kind": kind, "rows": {way: times.row() for way, times in found.items()},
        "judged": [judge(found, ours + side, rival, least)
                   for ours, rival, least in REACH[kind] for side in ("", IN_ORDER)
                   if ours + side in cases],
        "rounds": {way: times.raw() for way, times in found.items()}}
    answer["recording"] = {way: [str(report) for report in case.recorded.reports]
                           for way, case in cases.items() if case.way == RECORD}
    print(*(line for lines in answer["recording"].values() for line in lines), sep="\n", flush=True)
    return answer


def memory(kind: str, way: str) -> dict[str, int]:
    """MiB at the peak of some steps: held by tensors, and reserved."""
    batch, length, what = KINDS[kind]
    step = getattr(Case(batch, length, way), what)()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    return {"allocated_mib": torch.cuda.max_memory_allocated() >> 20,
            "reserved_mib": torch.cuda.max_memory_reserved() >> 20}


def blocks(rounds: int, count: int = 48) -> dict[str, Any]:
    """One block's code with the weights of many, one after the other."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layers = [Block(SHAPE).cuda().bfloat16() for _ in range(count)]
    cos, sin = (part[:256] for part in rotation(SHAPE, "cuda", torch.bfloat16))
    weights = [dict(layer.named_parameters()) for layer in layers]
    x = torch.randn(1, 256, SHAPE.width, device="cuda", dtype=torch.bfloat16)

    def call(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layers[0], parameters, (x, cos, sin))

    compiled = torch.compile(call)
    recorded = anabranch.record(compiled)
    in_order = anabranch.record(compiled, max_parallel_kernels=1)

    def through(block: Callable[..., torch.Tensor]) -> Step:
        def run() -> torch.Tensor:
            with torch.no_grad():
                y = x
                for parameters in weights:
                    y = block(parameters, y)
                return y

        return run

    steps = {"torch.compile": through(compiled), RECORD: through(recorded),
             RECORD + IN_ORDER: through(in_order)}
    plain = steps["torch.compile"]()
    same = all(torch.equal(plain, step()) for step in steps.values())
    found = race(warm(steps), rounds)
    return {"kind": f"one block, {count} weights", "same_result": same,
            "recordings": sum(report.nodes > 0 for report in recorded.reports),
            "recording": {RECORD: [str(report) for report in recorded.reports]},
            "rows": {way: times.row() for way, times in found.items()},
            "judged": [judge(found, ours, "torch.compile", 2.0)
                       for ours in (RECORD, RECORD + IN_ORDER)],
            "rounds": {way: times.raw() for way, times in found.items()}}


def memories() -> dict[str, Any]:
    """Each rival in a process of its own, a few at a time."""
    kinds = ("training B1 S256", "training B4 S1024")
    pairs = [(kind, way) for kind in kinds for way in WAYS["training"]]

    def run(pair: tuple[str, str]) -> Any:
        command = [sys.executable, __file__, "--memory", *pair]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return json.loads(said.splitlines()[-1])

    with ThreadPoolExecutor(5) as at_once:
        rows = {", ".join(pair): row for pair, row in
                zip(pairs, at_once.map(run, pairs), strict=True)}
    judged = []
    for kind in kinds:
        plain = rows[f"{kind}, torch.compile"]
        judged += [{"what": f"{kind}, {RECORD + side}, {part}",
                    "ours": rows[f"{kind}, {RECORD + side}"][part], "rival": plain[part],
                    "reached": rows[f"{kind}, {RECORD + side}"][part] <= plain[part]}
                   for side in ("", IN_ORDER) for part in ("allocated_mib", "reserved_mib")]
    return {"kind": "memory", "rows": rows, "judged": judged}


def show(answer: dict[str, Any]) -> None:
    print(f"\n{answer['kind']}")
    for way, row in answer["rows"].items():
        print(f"  {way:<40} " + "  ".join(f"{key} {value:.0f}" for key, value in row.items()))
    for row in answer["judged"]:
        print(f"  {row}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", default=[*KINDS, "blocks", "memory"])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--memory", nargs=2, metavar=("KIND", "WAY"))
    chosen = parser.parse_args()
    if chosen.memory:
        print(json.dumps(memory(*chosen.memory)))
        return
    answers = []
    for name in chosen.only:
        answers.append(blocks(chosen.rounds) if name == "blocks" else memories()
                       if name == "memory" else measure(name, chosen.rounds))
        show(answers[-1])
        save(chosen.results, "gpu_steps", answers=answers)  # of a run that is cut, what there is
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
