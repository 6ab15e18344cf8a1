# SPDX-License-Identifier: Apache-2.0
"""torchtitan's own trainer over random words, for as long as it lives in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torchtitan.config import ConfigManager
from torchtitan.models import llama3
from torchtitan.protocols import train_spec
from torchtitan.train import Trainer

LENGTH, VOCABULARY = 64, 2048
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}


class Words:
    """A loader of batches of one text each, which differ."""

    def __init__(self, **_: Any) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            self.drawn += 1
            generator = torch.Generator().manual_seed(self.drawn)
            text = torch.randint(0, VOCABULARY, (1, LENGTH + 1), generator=generator)
            yield {"input": text[:, :-1]}, text[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


@dataclasses.dataclass
class Trained:
    """What the trainer has logged of each step, and the weights that it has left."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, Tensor]


def train(folder: Path, *options: str, steps: int,
          prepare: Callable[[Trainer], None] | None = None) -> Trained:
    """``prepare`` is given the trainer before it trains. Its own files go into ``folder``."""
    with _alone():
        trainer = Trainer(_settings(folder, steps, options))
        if prepare is not None:
            prepare(trainer)
        found = Trained([], [], {})

        def log(step: int, mean: float, largest: float, norm: float, **_: Any) -> None:
            found.losses.append(mean)
            found.norms.append(norm)

        trainer.metrics_processor.log = log
        trainer.train()
        found.weights = {name: value.detach().clone()
                         for name, value in trainer.model_parts[0].state_dict().items()}
        trainer.close()
    return found


def _settings(folder: Path, steps: int, options: tuple[str, ...]) -> Any:
    return ConfigManager().parse_args([
        "--model.name", "words", "--model.flavor", "debugmodel", "--debug.seed", "0",
        "--job.dump_folder", str(folder), "--training.steps", str(steps),
        "--training.seq_len", str(LENGTH), "--training.local_batch_size", "1",
        "--lr_scheduler.warmup_steps", "2",
        "--metrics.log_freq", "1", *options])


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A group of one process, and what a trainer changes in its process as it was."""
    spec = dataclasses.replace(llama3.get_train_spec(), build_dataloader_fn=Words,
                               build_tokenizer_fn=None)
    torch.compiler.reset()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    with mock.patch.dict(os.environ, {**ALONE, "MASTER_PORT": port}), \
            torch._dynamo.config.patch({}), \
            mock.patch.dict(train_spec._extra_train_specs, {"words": spec}):
        try:
            yield
        finally:
            gc.enable()  # the trainer collects by itself
            torch.use_deterministic_algorithms(False)
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
