# SPDX-License-Identifier: Apache-2.0
"""Microbatches of one recorded training step, in captured order and side by side.

    python bench/gpu/microbatches.py [results.json] [--quick] [--rounds N]

A step runs forward, loss and backward of each microbatch and then a fused AdamW, in float32. The
models have six layers: of a transformer (attention written as two products and a softmax, which
adds by no atomics, and an MLP four times as wide), or linear ones with gelu. Eager or compiled, each
step is recorded in captured order, side by side, and, for comparison, over one batch of as many rows
in all. Parameters after some steps are compared, bit for bit, with those of a step that is not
recorded. The table of when it pays is over the linear model in eager code. --quick leaves out the
table, and all but two sizes. A run that is not quick takes some five minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from turns import faster, race, save

import anabranch

IN_TURN, SIDE_BY_SIDE, ONE_BATCH = "in turn", "side by side", "one batch"
LAYERS, HEADS, MOST_TOKENS, CALLS = 6, 8, 128, 6
ROWS, QUICK_ROWS, REACH_ROWS = (16, 64, 256, 1024, 4096), (16, 256), (16, 64, 256)
GRANTED_BYTES, REACH = 8 << 30, 1.3
MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Of (sequences, tokens, width)."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def linear(width: int) -> nn.Module:
    return nn.Sequential(*(module for _ in range(LAYERS)
                           for module in (nn.Linear(width, width), nn.GELU())))


def transformer(width: int) -> nn.Module:
    return nn.Sequential(*(Block(width) for _ in range(LAYERS)))


MODELS: dict[str, Callable[[int], nn.Module]] = {"linear": linear, "transformer": transformer}


@dataclasses.dataclass(frozen=True)
class Case:
    model: str
    is_compiled: bool
    microbatches: int
    width: int
    rows: int  # of a microbatch

    def batch(self) -> Tensor:
        """Of all microbatches."""
        torch.manual_seed(1)
        tokens = min(self.rows, MOST_TOKENS)
        shape = (self.microbatches * self.rows // tokens, tokens, self.width)
        return torch.randn(shape, device="cuda")


class Training:
    """A step of a model of its own, from the same weights as any other of the case."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        torch._dynamo.reset()  # each is compiled by its first call
        self.model = MODELS[case.model](case.width).cuda()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

        def loss_of(x: Tensor) -> Tensor:
            return F.mse_loss(self.model(x), x)

        loss_of = torch.compile(loss_of, dynamic=False) if case.is_compiled else loss_of

        def step(batches: list[Tensor]) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device="cuda")
            for x in batches:
                loss = loss_of(x) / len(batches)
                loss.backward()
                total += loss.detach()
            optimizer.step()
            return total

        self.step = step

    def parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def peak_bytes(call: Callable[[], Any]) -> int:
    """Beside what is allocated before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def recorded(case: Case, way: str) -> tuple[Callable[[], Any], list[Tensor], dict[str, Any]]:
    """What to call, the parameters after its first calls, and what to tell."""
    batch, training = case.batch(), Training(case)
    batches = [batch] if way == ONE_BATCH else list(batch.chunk(case.microbatches))
    lanes = case.microbatches if way == SIDE_BY_SIDE else 1
    record = anabranch.record(training.step, max_parallel_kernels=lanes,
                              parallel_bytes=GRANTED_BYTES)

    def call() -> Any:
        return record(batches)

    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    seconds = round(time.perf_counter() - begin, 2)
    report = max(record.reports, key=lambda each: each.calls)
    told = {"first_calls_s": seconds, "peak_mib": round(peak_bytes(call) / MIB, 1),
            "arena_mib": round(report.arena_bytes / MIB, 1), "nodes": report.nodes,
            "known": report.known, "lanes": report.lanes, "gain": round(report.parallel_gain, 3),
            "verified": report.verified, "why": report.reason or report.why_in_order}
    return call, training.parameters(), told


def plain(case: Case) -> tuple[list[Tensor], float]:
    """Parameters after as many steps, and the peak of one in MiB."""
    training, batches = Training(case), list(case.batch().chunk(case.microbatches))
    for _ in range(CALLS):
        training.step(batches)
    peak = peak_bytes(lambda: training.step(batches))
    return training.parameters(), round(peak / MIB, 1)


def measure(case: Case, rounds: int) -> dict[str, Any]:
    wanted, plain_mib = plain(case)
    calls, told, same = {}, {}, True
    for way in (IN_TURN, SIDE_BY_SIDE, ONE_BATCH):
        calls[way], found, told[way] = recorded(case, way)
        if way != ONE_BATCH:
            same = same and all(map(torch.equal, found, wanted))
    raced = race(calls, rounds)
    times, spread = faster(raced, SIDE_BY_SIDE, IN_TURN)
    is_judged = (case.microbatches, case.width) == (8, 512) and case.rows in REACH_ROWS
    return {**dataclasses.asdict(case), "same_result": same,
            "times": round(times, 3), "iqr": round(spread, 3),
            "reach": REACH if is_judged else None,
            "reached": times >= REACH if is_judged else None,
            "plain_peak_mib": plain_mib, "recordings": told,
            "rows_us": {way: each.row() for way, each in raced.items()},
            "rounds": {way: each.raw() for way, each in raced.items()}}


def cases(is_quick: bool) -> list[Case]:
    found = [Case(model, is_compiled, 8, 512, rows)
             for model, is_compiled, rows in itertools.product(
                 MODELS, (False, True), QUICK_ROWS if is_quick else ROWS)
             if not (is_compiled and rows in (64, 4096))]  # compiling takes the time
    if not is_quick:
        found += [Case("linear", False, *sizes)
                  for sizes in itertools.product((2, 4, 8), (256, 512, 1024, 2048),
                                                 (16, 256, 4096))]
    return list(dict.fromkeys(found))


def tell(answer: dict[str, Any]) -> None:
    us = {way: row["end_to_end_us"] for way, row in answer["rows_us"].items()}
    memory = {way: row["arena_mib"] for way, row in answer["recordings"].items()}
    code = "compiled" if answer["is_compiled"] else "eager"
    print(f"{answer['model']:<11} {code:<8} {answer['microbatches']} x {answer['rows']:>4} rows, "
          f"{answer['width']:>4} wide: {us[IN_TURN]:>8.0f} us in turn, {us[SIDE_BY_SIDE]:>8.0f} "
          f"side by side, {us[ONE_BATCH]:>8.0f} in one; {answer['times']:.2f} +- "
          f"{answer['iqr']:.2f} times; arena {memory[IN_TURN]:.0f} and {memory[SIDE_BY_SIDE]:.0f} "
          f"MiB on {answer['recordings'][SIDE_BY_SIDE]['lanes']} lanes; "
          f"{'same bits' if answer['same_result'] else 'OTHER BITS'} "
          f"{answer['recordings'][SIDE_BY_SIDE]['why']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=31)
    chosen = parser.parse_args()
    answers = []
    for case in cases(chosen.quick):
        answers.append(measure(case, chosen.rounds))
        tell(answers[-1])
    save(chosen.results, "gpu_microbatches", answers=answers)


if __name__ == "__main__":
    main()
