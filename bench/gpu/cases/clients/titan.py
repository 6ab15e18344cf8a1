# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own trainer, 0.2.2, as its options configure it, over random words."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import anabranch
from cases.clients import (
    BACKEND,
    COMPILE,
    EAGER,
    HEADS,
    LAYERS,
    RECORD,
    VOCABULARY,
    WIDTH,
    Client,
    Made,
    calls,
    words,
)

LENGTH = 256
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
OPTIONS = {EAGER: [], COMPILE: ["--compile.enable"], RECORD: ["--compile.enable"],
           BACKEND: ["--compile.enable", "--compile.backend=anabranch"]}


class Words:
    """In the place of a dataset: the same text for ever."""

    def __init__(self, **_: Any) -> None:
        self.text = words(1, LENGTH + 1).cpu()

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            yield {"input": self.text[:, :-1]}, self.text[:, 1:]


def torchtitans(way: str) -> Made:
    """A step of its loop, with the loader, clipping, optimizer and schedule. Its autocast is to
    bfloat16, and every second block is checkpointed, which are its defaults."""
    trainer = _trainer(OPTIONS[way])
    parts = _Parts(trainer) if way == RECORD else None
    data, losses = trainer.batch_generator(trainer.dataloader), []
    compute = trainer.forward_backward_step

    def computed(**batch: Any) -> Tensor:
        losses[:] = [compute(**batch)]
        return losses[0]

    def one() -> Tensor:
        trainer.step += 1
        trainer.train_step(data)
        return losses[0].detach()

    trainer.forward_backward_step = computed
    return calls(one, recorded=parts)


class _Parts:
    """Of a trainer's step, those that compute, recorded."""

    def __init__(self, trainer: Any) -> None:
        step, update = trainer.forward_backward_step, trainer.optimizers.step
        self._recorded = anabranch.record(step, guards=False), anabranch.record(update)
        trainer.forward_backward_step, trainer.optimizers.step = self._recorded

    @property
    def reports(self) -> list[Any]:
        return [report for part in self._recorded for report in part.reports]


def _trainer(options: list[str]) -> Any:
    from torchtitan.config import ConfigManager
    from torchtitan.models import llama3
    from torchtitan.models.llama3 import TransformerModelArgs
    from torchtitan.protocols import train_spec
    from torchtitan.train import Trainer

    if not dist.is_initialized():  # the trainer takes the group that it finds
        os.environ.update(ALONE)
        dist.init_process_group("nccl", init_method=f"file://{tempfile.mkdtemp()}/group", rank=0,
                                world_size=1)
    spec = llama3.get_train_spec()
    shape = TransformerModelArgs(dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, vocab_size=VOCABULARY)
    if "words" not in train_spec._extra_train_specs:
        train_spec.register_train_spec("words", dataclasses.replace(
            spec, model_args={"small": shape}, build_dataloader_fn=Words, build_tokenizer_fn=None))
    trainer = Trainer(ConfigManager().parse_args([
        "--model.name", "words", "--model.flavor", "small", "--debug.seed", "0",
        "--job.dump_folder", tempfile.mkdtemp(), "--training.steps", "100000",
        "--training.seq_len", str(LENGTH), "--training.local_batch_size", "1",
        "--metrics.log_freq", "100000", *options]))
    torch.cuda.synchronize()
    return trainer


CLIENTS = {"torchtitan": Client("torchtitan", "a step", torchtitans,
                                (EAGER, COMPILE, BACKEND, RECORD))}
