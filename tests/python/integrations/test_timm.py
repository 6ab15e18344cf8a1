# SPDX-License-Identifier: Apache-2.0
"""The step of timm's training script over its own parts: its model, loss, optimizer, scaler,
clipping and average of the weights, on the CPU. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("timm", reason="timm is not installed: make test-clients")

import timm.loss
import timm.optim
import timm.utils
from clients import classifier, pictures
from compare import Tolerance, assert_same

import anabranch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")


def trained(change=lambda model: None, around=lambda step: step, is_mixed=True):
    """All that four steps leave. ``change`` is given the model, ``around`` the step."""
    model = classifier().train()
    average = timm.utils.ModelEmaV3(model, decay=0.9)
    change(model)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.1, momentum=0.9)
    loss_of, scaler = timm.loss.LabelSmoothingCrossEntropy(0.1), timm.utils.NativeScaler("cpu")

    def step(images, classes):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed):
            loss = loss_of(model(images), classes)
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
        return loss.detach()

    step = around(step)
    losses = torch.stack([step(*pictures(seed)) for seed in range(4)])
    return {"losses": losses, **dict(model.state_dict()),
            **{f"average {name}": tensor for name, tensor in average.module.state_dict().items()}}


def test_a_step_that_is_recorded_leaves_what_eager_leaves():
    assert_same(trained(around=anabranch.record), trained())


def test_a_step_over_a_model_that_is_compiled_leaves_what_eager_leaves():
    compiled = trained(lambda model: model.compile(backend=anabranch.backend), is_mixed=False)
    assert_same(compiled, trained(is_mixed=False), Tolerance(1e-3, 1e-4))
