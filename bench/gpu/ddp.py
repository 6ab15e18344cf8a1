# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel over two GPUs: a small Llama in bfloat16, fused AdamW.

    python bench/gpu/ddp.py [results.json]

Starts itself under torchrun. Rivals have a model each, from the same weights, and take turns:
eager, compiled in place by Inductor and by the backend, and the step over Inductor's code recorded.
Losses are compared over the first steps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.config
import torch.distributed as dist
from cases.clients import (
    BACKEND,
    COMPILE,
    EAGER,
    RECORD,
    compiled_in_place,
    llama,
    recorded,
    words,
)
from cases.llama import loss_of
from torch.nn.parallel import DistributedDataParallel
from turns import Step, compare_over_gpus, faster, race

GPUS, LENGTH, STEPS = 2, 256, 20
RIVALS = (EAGER, COMPILE, BACKEND, RECORD)


def step_of(way: str) -> tuple[Step, Any]:
    """A step on this process's own text, and what has been recorded."""
    model, tables = llama(torch.bfloat16)
    with torch.cuda.stream(torch.cuda.Stream()):
        shared = DistributedDataParallel(compiled_in_place(model, way),
                                         device_ids=[torch.cuda.current_device()])
    torch.cuda.synchronize()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    text = words(1, LENGTH, seed=dist.get_rank())

    def train(text: torch.Tensor) -> torch.Tensor:
        loss = loss_of(shared(text, *tables), text)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step, made = recorded(train, way)
    return lambda: step(text), made


def compare(rounds: int) -> dict[str, Any]:
    torch._dynamo.config.recompile_limit *= len(RIVALS)  # they share the code it counts for
    made = {way: step_of(way) for way in RIVALS}
    losses = {way: [step().item() for _ in range(STEPS)] for way, (step, _) in made.items()}
    found = race({way: step for way, (step, _) in made.items()}, rounds,
                 begin_together=dist.barrier)
    return {"report": [str(report) for report in made[RECORD][1].reports],
            "losses_apart": {way: max(abs(one - other) for one, other in
                                      zip(losses[way], losses[EAGER], strict=True))
                             for way in RIVALS},
            "rows": {way: times.row() for way, times in found.items()},
            "over_compile": {way: faster(found, way, COMPILE) for way in (BACKEND, RECORD)},
            "rounds": {way: times.raw() for way, times in found.items()}}


if __name__ == "__main__":
    compare_over_gpus(GPUS, "gpu_ddp", __file__, compare)
