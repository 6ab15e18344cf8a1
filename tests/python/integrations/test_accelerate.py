# SPDX-License-Identifier: Apache-2.0
"""Loops of one's own with an Accelerator, on the CPU: what they leave is what they leave without
our lines. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("accelerate", reason="accelerate is not installed: make test-clients")

import accelerate
import accelerate.state
from clients import accelerated, randn
from compare import Tolerance, assert_same

import anabranch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")
DATA = [(randn(i, 16), randn(100 + i, 4)) for i in range(22)]


@pytest.fixture(autouse=True)
def fresh_accelerator():
    """Its settings are those of the process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def trained(compiled=False, recorded=False, accumulated=1):
    """All that two epochs leave, of batches of which the last is smaller."""
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    if compiled:
        model.compile(backend=anabranch.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    model, optimizer, schedule, loader = accelerator.prepare(
        model, optimizer, schedule, torch.utils.data.DataLoader(DATA, batch_size=4))

    step = accelerated(accelerator, model, optimizer)
    if recorded:
        step = anabranch.record(step, guards=False, guard=lambda: accelerator.sync_gradients)
    losses = []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                losses.append(step(*batch))
                schedule.step()
    return {"losses": torch.stack(losses), **model.state_dict(),
            "rate": torch.tensor(schedule.get_last_lr())}


@pytest.mark.parametrize("accumulated", (1, 4))
def test_a_step_that_is_recorded_leaves_what_eager_leaves(accumulated):
    assert_same(trained(recorded=True, accumulated=accumulated), trained(accumulated=accumulated))


def test_a_model_that_is_compiled_in_place_is_prepared_and_trains_as_eager_does():
    assert_same(trained(compiled=True, accumulated=2), trained(accumulated=2),
                Tolerance(1e-4, 1e-5))


def test_a_backend_that_accelerate_does_not_know_is_refused_by_its_name():
    with pytest.raises(ValueError, match="'ANABRANCH' is not a valid DynamoBackend"):
        accelerate.Accelerator(cpu=True, dynamo_backend="anabranch")
