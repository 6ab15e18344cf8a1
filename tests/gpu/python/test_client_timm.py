# SPDX-License-Identifier: Apache-2.0
"""The step of timm's training script over its own parts, recorded, against the same step, on the
GPU: model, loss, scaler, clipping and the average of the weights."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("timm", reason="timm is not installed")

import timm.loss
import timm.utils
from clients import classifier, pictures
from recordings import DEVICE, assert_launched, train_both
from torch import nn


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_step_that_is_recorded_leaves_what_eager_leaves(precision, monkeypatch):
    """With dropped paths, and convolutions whose sums have an order. Under float16 it is scaled."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def make():
        model = classifier(drop_path_rate=0.1).to(DEVICE).train()
        average = timm.utils.ModelEmaV3(model, decay=0.9)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        loss_of = timm.loss.LabelSmoothingCrossEntropy(0.1)
        scaler = timm.utils.NativeScaler()

        def step(images, classes):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=precision, enabled=precision != torch.float32):
                loss = loss_of(model(images), classes)
            if precision == torch.float16:
                scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
            else:
                loss.backward()
                timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
                optimizer.step()
            average.update(model)
            return loss.detach()

        return nn.ModuleList((model, average.module)), optimizer, step

    step = train_both(make, inputs=lambda i: tuple(one.to(DEVICE) for one in pictures(i)))
    assert_launched(step, 5)
