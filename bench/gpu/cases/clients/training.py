# SPDX-License-Identifier: Apache-2.0
"""Clients that train. Where a step is recorded, what it calls is compiled by Inductor."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from cases.clients import (
    BACKEND,
    COMPILE,
    DEVICE,
    EAGER,
    RECORD,
    Client,
    Made,
    begin,
    compiled_in_place,
    how_compiled,
    llama,
    recorded,
    steps,
    words,
)
from cases.llama import loss_of

LENGTH = 256  # words of a text
PICTURES = 16  # of a batch
UNTIMED, STEPS = 20, 60  # of an epoch of Lightning's


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def accelerated(way: str) -> Made:
    """Under autocast to bfloat16."""
    import accelerate

    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    model, tables = llama(torch.float32)
    model, optimizer = accelerator.prepare(compiled_in_place(model, way), _optimizer(model))

    def train(text: Tensor) -> Tensor:
        loss = loss_of(model(text, *tables), text)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return steps(train, way, words(1, LENGTH))


def torchtitans(way: str) -> Made:
    """As torchtitan 0.3 compiles: each block whole and in place, and the loss."""
    (model, tables), measured = llama(torch.bfloat16), loss_of
    if way != EAGER:
        for block in model.blocks:
            block.compile(fullgraph=True, **how_compiled(way))
        measured = torch.compile(loss_of, **how_compiled(way))
    optimizer = _optimizer(model)

    def train(text: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = measured(model(text, *tables), text)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        return loss.detach()

    return steps(train, way, words(1, LENGTH))


def timms(way: str) -> Made:
    """The step of timm's training script: float16 with a scaler, clipping, an average of the
    weights."""
    import timm
    import timm.loss
    import timm.utils

    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224", num_classes=1000).to(DEVICE).train()
    average = timm.utils.ModelEmaV3(model, decay=0.9)
    optimizer, scaler = _optimizer(model), timm.utils.NativeScaler()
    loss_of = timm.loss.LabelSmoothingCrossEntropy(0.1)
    compiled_in_place(model, way)
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randn(PICTURES, 3, 224, 224, generator=generator).to(DEVICE)
    classes = torch.randint(0, 1000, (PICTURES,), generator=generator).to(DEVICE)

    def train(pictures: Tensor, classes: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = loss_of(model(pictures), classes)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
        return loss.detach()

    return steps(train, way, pictures, classes)


def lightnings(way: str) -> Made:
    """An epoch a round, of which the last steps are timed, with Lightning's loop around them. Where
    a step is recorded, the module optimizes by hand."""
    import lightning

    module = _lightning_module(way)
    clock = _clock(lightning)
    data = [words(1, LENGTH, seed=i)[0].cpu() for i in range(STEPS)]

    def timed() -> float:
        lightning.Trainer(max_epochs=1, accelerator="auto", devices=1, logger=False,
                          enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False, callbacks=[clock]).fit(
            module, torch.utils.data.DataLoader(data, batch_size=1))
        return clock.step_us

    made = Made(timed, lambda: module.last)
    module.made = made
    return made


def _lightning_module(way: str) -> Any:
    import lightning

    model, tables = llama(torch.bfloat16)

    class Automatic(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = compiled_in_place(model, way)
            self.last = torch.zeros(())

        def configure_optimizers(self) -> Any:
            return _optimizer(self.net)

        def training_step(self, text: Tensor, index: int) -> Tensor:
            begin(way)
            loss = loss_of(self.net(text, *tables), text)
            self.last = loss.detach()
            return loss

    class ByHand(Automatic):
        made: Made

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def on_fit_start(self) -> None:
            net, optimizer = self.net, self.optimizers(use_pl_optimizer=False)

            def train(text: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(net(text, *tables), text)
                loss.backward()
                optimizer.step()
                return loss.detach()

            self.step, self.made.recorded = recorded(train, way)

        def training_step(self, text: Tensor, index: int) -> None:
            self.last = self.step(text)

    return ByHand() if way == RECORD else Automatic()


def _clock(lightning: Any) -> Any:
    """Times the last steps of an epoch, from a synchronise to a synchronise."""

    class Clock(lightning.Callback):
        begin = step_us = 0.0

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any,
                               index: int) -> None:
            if index + 1 in (UNTIMED, STEPS):
                torch.cuda.synchronize()
                now = time.perf_counter()
                self.step_us = (now - self.begin) * 1e6 / (STEPS - UNTIMED)
                self.begin = now

    return Clock()


CLIENTS = {
    "accelerate": Client("accelerate", "a step", accelerated),
    "Lightning": Client("lightning", "a step", lightnings, (EAGER, COMPILE, BACKEND, RECORD)),
    "timm": Client("timm", "a step", timms),
    "torchtitan's lines": Client("torch", "a step", torchtitans,
                                 (EAGER, COMPILE, BACKEND, RECORD)),
}
