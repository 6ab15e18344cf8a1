# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over two GPUs: each block compiled and sharded, fp32 AdamW, a whole step recorded.

    python bench/gpu/fsdp.py [results.json]

Starts itself under torchrun. The rivals of one race work on one model and take turns: the compiled
step as it is, the whole step captured by hand into one frozen graph, and anabranch.record(step).
Losses are compared over 20 steps with eager FSDP2, which is run twice to see whether it equals
itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from cases.llama import Llama, Shape, loss_of, rotation
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from turns import Step, compare_over_gpus, faster, frozen, race

import anabranch

SHAPE = Shape(width=2048, layers=16, heads=16, kv_heads=4, hidden=7168, longest=512)
LENGTH = 512
STEPS = 20
GPUS = 2


class Case:
    def __init__(self, compiled: bool) -> None:
        torch.manual_seed(0)
        torch._dynamo.reset()
        with torch.device("cuda"):
            self.model = Llama(SHAPE)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in self.model.blocks:
            if compiled:
                block.compile()
            fully_shard(block, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True,
                                           capturable=True)
        self.cos, self.sin = rotation(SHAPE, "cuda", torch.bfloat16)
        generator = torch.Generator(device="cuda").manual_seed(dist.get_rank())
        self.tokens = torch.randint(0, SHAPE.vocabulary, (1, LENGTH), device="cuda",
                                    generator=generator)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.model(tokens, self.cos, self.sin), tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def losses(recorded: bool) -> list[str]:
    """Of some steps, to the last bit."""
    case = Case(compiled=False)
    step = anabranch.record(case.step) if recorded else case.step
    found = [step(case.tokens) for _ in range(STEPS)]
    if recorded and dist.get_rank() == 0:
        print(*step.reports, sep="\n", flush=True)
    return [loss.item().hex() for loss in found]


def compare(rounds: int) -> dict[str, Any]:
    eager = losses(False), losses(False)
    is_equal = losses(True) == eager[0]
    case = Case(compiled=True)
    recorded = anabranch.record(case.step)
    steps: dict[str, Step] = {"torch.compile": lambda: case.step(case.tokens),
                              "anabranch.record": lambda: recorded(case.tokens)}
    for step in steps.values():
        for _ in range(5):
            step()
    steps["frozen graph"] = frozen(steps["torch.compile"], capture_error_mode="thread_local")
    found = race(steps, rounds, begin_together=dist.barrier)
    over, spread = faster(found, "frozen graph", "anabranch.record")
    return {"eager_equals_itself": eager[0] == eager[1], "recorded_equals_eager": is_equal,
            "report": [str(report) for report in recorded.reports],
            "rows": {name: times.row() for name, times in found.items()},
            "over_frozen": {"median": over, "iqr": spread, "reach": 1.03, "reached": over <= 1.03},
            "rounds": {name: times.raw() for name, times in found.items()}}


if __name__ == "__main__":
    compare_over_gpus(GPUS, "gpu_fsdp", __file__, compare)
