# SPDX-License-Identifier: Apache-2.0
"""Lightning over modules of which a part is compiled, or whose step is recorded, on the CPU: losses
and weights are those of the plain module. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="lightning is not installed: make test-clients")

import lightning
from clients import randn
from compare import Tolerance, assert_same

import anabranch

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch finds no GPU:anabranch.RecordWarning", "ignore:.*:UserWarning:lightning")
DATA = [(randn(i, 16), randn(100 + i, 1)) for i in range(30)]


class Plain(lightning.LightningModule):
    """Lightning calls backward and optimizer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=1e-2)


class Manual(Plain):
    """The module has a whole step of its own, ``around`` which something may stand."""

    def __init__(self, around=lambda step: step):
        super().__init__()
        self.automatic_optimization = False
        self.around = around

    def on_fit_start(self):
        net, optimizer = self.net, self.optimizers(use_pl_optimizer=False)

        def step(x, y):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = self.around(step)

    def training_step(self, batch, index):
        self.losses.append(self.step(*batch))
        self.log("loss", self.losses[-1])


def trained(module):
    lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False,
                      enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False).fit(
        module, torch.utils.data.DataLoader(DATA, batch_size=8))
    assert len(module.losses) == 8
    return {"losses": torch.stack(module.losses), **module.net.state_dict()}


def test_a_module_whose_part_is_compiled_in_place_trains_as_eager_does():
    module = Plain()
    module.net.compile(backend=anabranch.backend)
    assert_same(trained(module), trained(Plain()), Tolerance(1e-4, 1e-5))


def test_a_step_that_is_recorded_leaves_what_the_same_step_and_lightnings_own_leave():
    found = trained(Manual(anabranch.record))
    assert_same(found, trained(Manual()))
    assert_same(found, trained(Plain()), Tolerance(1e-6, 1e-7))
