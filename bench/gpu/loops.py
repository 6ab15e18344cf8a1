# SPDX-License-Identifier: Apache-2.0
"""Loops whose numbers change from call to call, recorded, against torch.compile.

    python bench/gpu/loops.py [results.json] [--only rates lengths batches numbers generation]
        [--rounds N]

`rates`: an optimizer's rate, a float that a scheduler changes in every step. The losses of whole
loops are compared with plain ones bit for bit, under torch's deterministic algorithms; the time of
a step is compared with that of the same step whose rate is a tensor on the GPU, or a float that
stays where the optimizer takes no tensor. Rivals take turns (turns.py).

`lengths`: 150 texts of 24 lengths, from cold, and once more. `batches`: inference with batches of 1
to 64. `numbers`: a step all of whose addresses change in each call, and its thousand numbers too,
against the same with numbers that stay. `generation`: a token at a time over a static cache, against
Graph Trees (mode="reduce-overhead").
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cases.llama import Llama, Shape, loss_of, rotation
from cases.loops_generation import LONGEST, TOKENS, Generator, Loop
from cases.loops_generation import SHAPE as GENERATOR
from cases.loops_sizes import (
    BATCHES,
    CALLS,
    FROZEN,
    LENGTHS,
    MIXED_CALLS,
    RUNS,
    further_seconds,
)
from steps import PLAIN, RECORD
from torch import Tensor, nn
from torch.optim import lr_scheduler
from turns import faster, race, save

import anabranch

SHAPE, BATCH, LENGTH = Shape(layers=8), 1, 256
STEPS = 200
RATE = 3e-4
MOST = 1.03  # times the step with a tensor
TREES = "reduce-overhead"

Schedule = Callable[[torch.optim.Optimizer], Any]
SCHEDULES: dict[str, Schedule] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=RATE, total_steps=10 * STEPS),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.9, patience=3),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + 0.01 * i)),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.01, total_iters=STEPS // 2),
            lr_scheduler.CosineAnnealingLR(o, 10 * STEPS)], [STEPS // 2]),
}


class Lion(torch.optim.Optimizer):
    """Signs of a momentum, written by hand in foreach operators (Chen and others 2023)."""

    def __init__(self, parameters: Any, lr: Any, betas: tuple[float, float] = (0.9, 0.99),
                 decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "decay": decay})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            lr, decay, (first, second) = group["lr"], group["decay"], group["betas"]
            owners = [one for one in group["params"] if one.grad is not None]
            gradients = [one.grad for one in owners]
            momenta = [self.state[one]["momentum"] for one in owners]
            updates = torch._foreach_mul(momenta, first)
            torch._foreach_add_(updates, gradients, alpha=1 - first)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(updates, lr)
            torch._foreach_mul_(owners, 1 - lr * decay)
            torch._foreach_sub_(owners, updates)
            torch._foreach_mul_(momenta, second)
            torch._foreach_add_(momenta, gradients, alpha=1 - second)


def muon(parameters: list[nn.Parameter], lr: float) -> list[torch.optim.Optimizer]:
    """torch's Muon for matrices, and its fused AdamW for what else there is."""
    return [torch.optim.Muon([one for one in parameters if one.ndim == 2], lr=lr),
            torch.optim.AdamW([one for one in parameters if one.ndim != 2], lr=lr, fused=True,
                              capturable=True)]


Make = Callable[[list[nn.Parameter], Any], list[torch.optim.Optimizer]]
OPTIMIZERS: dict[str, tuple[Make, bool]] = {  # and whether they take a tensor for a rate
    "AdamW, fused": (lambda p, lr: [torch.optim.AdamW(p, lr=lr, fused=True, capturable=True)],
                     True),
    "SGD with momentum": (lambda p, lr: [torch.optim.SGD(p, lr=lr, momentum=0.9, fused=True)],
                          True),
    "Lion by hand": (lambda p, lr: [Lion(p, lr)], True),
    "Muon": (muon, False),
}
CASES = [*((optimizer, "cosine") for optimizer in OPTIMIZERS),
         *(("AdamW, fused", schedule) for schedule in SCHEDULES if schedule != "cosine")]


class Trainer:
    """A compiled model, whose weights every loop begins with anew."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Llama(SHAPE).cuda().bfloat16()
        self.compiled = torch.compile(self.model)
        self.tokens = torch.randint(0, SHAPE.vocabulary, (BATCH, LENGTH), device="cuda")
        self.cos, self.sin = rotation(SHAPE, "cuda", torch.bfloat16)
        self._weights = [one.detach().clone() for one in self.model.parameters()]

    def begin(self) -> None:
        with torch.no_grad():
            for parameter, weight in zip(self.model.parameters(), self._weights, strict=True):
                parameter.copy_(weight)
                parameter.grad = None

    def step(self, optimizers: list[torch.optim.Optimizer]) -> Callable[[Tensor], Tensor]:
        def step(tokens: Tensor) -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = loss_of(self.compiled(tokens, self.cos, self.sin), tokens)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            return loss.detach()

        return step


def scheduled(step: Callable[[Tensor], Tensor], schedulers: list[Any],
              tokens: Tensor) -> Callable[[], Tensor]:
    """A call of the step, and the schedulers'. One for plateaus is told a loss that stays."""
    def call() -> Tensor:
        loss = step(tokens)
        for scheduler in schedulers:
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(1.0)
            else:
                scheduler.step()
        return loss

    return call


def losses_of(call: Callable[[], Tensor]) -> list[str]:
    return [float(loss).hex() for loss in [call() for _ in range(STEPS)]]


def rate_case(trainer: Trainer, name: str, schedule: str, rounds: int) -> dict[str, Any]:
    make, takes_tensors = OPTIMIZERS[name]
    losses, calls, steps = {}, {}, {}
    for way in (PLAIN, "float", "tensor" if takes_tensors else "constant"):
        trainer.begin()
        rate: Any = torch.tensor(RATE, device="cuda") if way == "tensor" else RATE
        optimizers = make(list(trainer.model.parameters()), rate)
        step: Any = trainer.step(optimizers)
        if way != PLAIN:
            step = steps[way] = anabranch.record(step)
        calls[way] = (lambda step=step: step(trainer.tokens)) if way == "constant" else \
            scheduled(step, [*map(SCHEDULES[schedule], optimizers)], trainer.tokens)
        losses[way] = losses_of(calls[way])
    other = "tensor" if takes_tensors else "constant"
    found = race({way: calls[way] for way in ("float", other, PLAIN)}, rounds)
    more, spread = faster(found, other, "float")
    kept = [spec.current_report() for spec in steps["float"]._recorder.specializations.values()]
    served = [report for report in kept if report.nodes]
    answer = {"case": f"{name}, {schedule}", "other": other,
              "rows": {way: times.row() for way, times in found.items()},
              "recordings": len(served), "launched": sum(report.launched for report in served),
              "losses_equal": losses["float"] == losses[PLAIN],
              "over_other": round(more, 3), "iqr": round(spread, 3),
              "over_compile": round(faster(found, "float", PLAIN)[0], 2),
              "reports": [str(report) for report in kept]}
    print(f"  {answer['case']:<28} {answer['over_other']:.3f} of the time with a {other} "
          f"(IQR {spread:.3f}), {answer['over_compile']:.2f} times as fast as torch.compile; "
          f"{answer['recordings']} recording(s), {answer['launched']} launches, losses "
          f"{'equal' if answer['losses_equal'] else 'NOT equal'}", flush=True)
    return answer


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """So that a step repeats itself bit for bit."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def rates(chosen: argparse.Namespace) -> dict[str, Any]:
    print(f"\nrates: {SHAPE.layers} layers, {BATCH} x {LENGTH} tokens, {STEPS} steps", flush=True)
    with deterministic():
        trainer = Trainer()
        cases = [rate_case(trainer, *case, chosen.rounds) for case in CASES]
    return {"kind": "rates", "cases": cases, "judged": [
        {"what": f"rates, {case['case']}: {what}", "figure": figure, "at_most": most,
         "reached": figure <= most}
        for case in cases for what, figure, most in (
            (f"time over that with a {case['other']}", case["over_other"], MOST),
            ("recordings", case["recordings"], 1),
            ("losses that differ from plain ones", int(not case["losses_equal"]), 0))]}


def in_process(part: str, way: str, cache: str) -> dict[str, Any]:
    """What a process of its own found, whose compiled code is kept in a folder."""
    done = subprocess.run([sys.executable, __file__, "--one", part, way],
                          stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache})
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def from_cold(part: str, way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        return in_process(part, way, cache)


def judged(part: str, *rows: tuple[str, float | None, float, bool]) -> list[dict[str, Any]]:
    """Rows of what, figure, bound, and whether the bound is the most."""
    return [{"what": f"{part}: {what}", "figure": None if figure is None else round(figure, 3),
             "at_most" if is_most else "at_least": bound,
             "reached": figure is not None and (figure <= bound if is_most else figure >= bound)}
            for what, figure, bound, is_most in rows]


def lengths(chosen: argparse.Namespace) -> dict[str, Any]:
    print(f"\nlengths: {CALLS} texts of {len(LENGTHS)} lengths, training", flush=True)
    found = {way: from_cold("lengths", way) for way in (PLAIN, RECORD)}
    sums = {way: (sum(row["first_s"]), sum(row["again_s"])) for way, row in found.items()}
    for way, (first, again) in sums.items():
        print(f"  {way:<18} {first:.1f} s from cold, {again:.2f} s once more, "
              f"{found[way]['recordings']} recordings; {'; '.join(found[way]['reasons'])}")
    (plain, plain_again), (ours, ours_again) = sums[PLAIN], sums[RECORD]
    return {"kind": "lengths", "rows": found, "judged": judged(
        "lengths", ("from cold, over torch.compile's time", ours / plain, 1.1, True),
        ("once more, times as fast", plain_again / ours_again, 2.5, False),
        ("a further length, seconds", further_seconds(found[RECORD]["first_s"]), 0.15, True))}


def batches(chosen: argparse.Namespace) -> dict[str, Any]:
    print(f"\nbatches: {len(BATCHES)} sizes, inference", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        found = {way: in_process("batches", way, cache) for way in (FROZEN, RECORD)}
    for way, row in found.items():
        print(f"  {way:<18} ready in {row['ready_s']:.1f} s, {row['taken'] >> 20} MiB, "
              f"{statistics.median(row['mixed_s']) / MIXED_CALLS * 1e6:.0f} us a call; "
              f"{'; '.join(row.get('reasons', []))}")
    frozen, ours = found[FROZEN], found[RECORD]
    return {"kind": "batches", "rows": found, "judged": judged(
        "batches", ("a call over a frozen graph's", statistics.median(ours["mixed_s"])
                    / statistics.median(frozen["mixed_s"]), 1.02, True),
        ("memory over that of frozen graphs", ours["taken"] / frozen["taken"], 1 / 8, True),
        ("seconds until all are ready", ours["ready_s"], 15, True))}


def numbers(chosen: argparse.Namespace) -> dict[str, Any]:
    """Two recordings of one step, in turn: one follows a thousand numbers."""
    count = 1000
    print(f"\nnumbers: {count} floats that all change in each call", flush=True)
    xs, ys = ([torch.randn(1 << 16, device="cuda") for _ in range(2)] for _ in range(2))

    def step(x: Tensor, y: Tensor, rates: list[float]) -> Tensor:
        for rate in rates:
            x = torch.add(x, y, alpha=rate)
        return x

    def made(changes: bool) -> Callable[[], Tensor]:
        recorded, calls = anabranch.record(step), itertools.count(1)

        def call() -> Tensor:
            number = next(calls)
            scale = 1 / number if changes else 1.0
            return recorded(xs[number & 1], ys[number & 1],
                            [scale * (0.001 + i * 1e-6) for i in range(count)])

        for _ in range(12):
            call()
        return call

    found = race({"changing": made(True), "the same": made(False)}, chosen.rounds)
    more, spread = faster(found, "the same", "changing")
    print(f"  {more:.3f} of the time without changes (IQR {spread:.3f})", flush=True)
    return {"kind": "numbers", "rows": {way: times.row() for way, times in found.items()},
            "judged": judged("numbers", ("time over that without changes", more, 1.02, True))}


def generation(chosen: argparse.Namespace) -> dict[str, Any]:
    print(f"\ngeneration: {GENERATOR.layers} layers, {LONGEST} positions, {TOKENS} tokens a round",
          flush=True)
    torch.manual_seed(0)
    with torch.no_grad(), deterministic():
        model = Generator(GENERATOR).cuda().bfloat16().eval()
        trees = Loop(torch.compile(model, mode="reduce-overhead"),
                     torch.compiler.cudagraph_mark_step_begin)
        recorded = anabranch.record(torch.compile(model))
        loops = {TREES: trees, RECORD: Loop(recorded)}
        answers = {}
        for way, loop in loops.items():
            loop.tokens(12)  # compiled and recorded
            loop.restart()
            answers[way] = torch.cat(loop.tokens(LONGEST)).flatten().tolist()
        found = race({way: loop.tokens for way, loop in loops.items()}, chosen.rounds)
    more, spread = faster(found, TREES, RECORD)
    count = sum(report.nodes > 0 for report in recorded.reports)
    apart = sum(a != b for a, b in zip(*answers.values(), strict=True))
    print(f"  {more:.3f} of Graph Trees' time a token (IQR {spread:.3f}), {count} recording(s), "
          f"{apart} of {LONGEST} tokens differ", flush=True)
    return {"kind": "generation", "rows": {way: times.row() for way, times in found.items()},
            "reports": [str(report) for report in recorded.reports], "judged": judged(
                "generation", ("time a token over Graph Trees'", more, 0.85, True),
                ("recordings", count, 1, True), ("tokens that differ", apart, 0, True))}


PARTS = {"rates": rates, "lengths": lengths, "batches": batches, "numbers": numbers,
         "generation": generation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        part, way = chosen.one
        print(json.dumps(RUNS[part](way)), flush=True)
        return
    answers: list[dict[str, Any]] = []
    for part in chosen.only:
        answers.append(PARTS[part](chosen))
        print(*(f"  {row}" for row in answers[-1]["judged"]), sep="\n", flush=True)
        save(chosen.results, "gpu_loops", answers=answers)


if __name__ == "__main__":
    main()
