# SPDX-License-Identifier: Apache-2.0
"""Modules for Lightning: one that leaves backward and optimizer to it, and one that has a whole step
of its own. It needs lightning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
from clients import randn
from torch import Tensor, nn

BATCHES = 4  # of an epoch; the last is smaller
_DATA = [(randn(i, 16), randn(100 + i, 1)) for i in range(30)]


class Plain(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, index: int) -> Any:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.net.parameters(), lr=1e-2, fused=True)


class Manual(Plain):
    """``around`` is given the step, and answers what is called in its place."""

    def __init__(self, around: Callable[[Any], Any] = lambda step: step) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.around = around

    def on_fit_start(self) -> None:
        net, optimizer = self.net, self.optimizers(use_pl_optimizer=False)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = self.around(step)

    def training_step(self, batch: Any, index: int) -> None:
        self.losses.append(self.step(*batch))
        self.log("loss", self.losses[-1])


def trained(module: Any, accelerator: str = "cpu", epochs: int = 2) -> dict[str, Tensor]:
    """Losses and weights."""
    lightning.Trainer(max_epochs=epochs, accelerator=accelerator, devices=1, logger=False,
                      enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False).fit(
        module, torch.utils.data.DataLoader(_DATA, batch_size=8))
    assert len(module.losses) == BATCHES * epochs
    return {"losses": torch.stack(module.losses).cpu(),
            **{name: tensor.cpu() for name, tensor in module.net.state_dict().items()}}
