# SPDX-License-Identifier: Apache-2.0
"""Other people's trainers, as docs/clients.md tells to use them. Without a network; what is not
installed is skipped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import anabranch


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_hugging_faces_trainer_trains_a_model_that_is_compiled_in_place(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    tokens = [torch.randint(0, 100, (16,), generator=seeded(i)) for i in range(64)]
    data = [{"input_ids": each, "labels": each} for each in tokens]

    def losses(is_compiled):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=32, attn_pdrop=0.0,
            resid_pdrop=0.0, embd_pdrop=0.0))
        if is_compiled:
            model.compile(backend=anabranch.backend)
        trainer = transformers.Trainer(model, transformers.TrainingArguments(
            str(tmp_path / str(is_compiled)), max_steps=8, per_device_train_batch_size=4,
            report_to=[], logging_steps=1, learning_rate=1e-3, save_strategy="no",
            disable_tqdm=True, seed=1), train_dataset=data)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    assert losses(True) == pytest.approx(losses(False), abs=2e-3)


def test_lightning_trains_a_module_whose_part_is_compiled_in_place():
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
            self.losses = []

        def training_step(self, batch, index):
            x, y = batch
            loss = (self.net(x) - y).square().mean()
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    data = [(torch.randn(16, generator=seeded(i)), torch.randn(1, generator=seeded(-1 - i)))
            for i in range(64)]

    def losses(is_compiled):
        module = Module()
        if is_compiled:
            module.net.compile(backend=anabranch.backend)
        lightning.Trainer(max_epochs=1, devices=1, logger=False, enable_checkpointing=False,
                          enable_progress_bar=False, enable_model_summary=False).fit(
            module, torch.utils.data.DataLoader(data, batch_size=8))
        return [float(loss) for loss in module.losses]

    assert losses(True) == pytest.approx(losses(False), abs=1e-4)
