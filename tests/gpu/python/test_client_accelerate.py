# SPDX-License-Identifier: Apache-2.0
"""Steps with an Accelerator, recorded, against the same steps, on the GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("accelerate", reason="accelerate is not installed")

import accelerate
import accelerate.state
from clients import accelerated
from compare import assert_same
from recordings import assert_launched, batch, everything, mlp, told, train_both

import anabranch

CALLS = 32


@pytest.fixture(autouse=True)
def fresh_accelerator():
    """Its settings are those of the process, and other tests have some."""
    _reset()
    yield
    _reset()


def _reset():
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def prepared(**settings):
    """Accelerator, model, the optimizer as it is and as the accelerator has it, and a step."""
    accelerator = accelerate.Accelerator(**settings)
    model = mlp()
    raw = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    model, optimizer = accelerator.prepare(model, raw)

    return accelerator, model, raw, accelerated(accelerator, model, optimizer)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_step_that_is_recorded_leaves_what_eager_leaves(precision):
    step = train_both(lambda: prepared(mixed_precision=precision)[1:])
    assert_launched(step, 5)


def accumulated(is_recorded):
    """What each of the calls leaves, of which four make one step of the optimizer."""
    _reset()
    torch.manual_seed(0)
    accelerator, model, raw, step = prepared(gradient_accumulation_steps=4)
    if is_recorded:
        step = anabranch.record(step, guards=False, guard=lambda: accelerator.sync_gradients)
    torch.manual_seed(1)
    history = []
    for i in range(CALLS):
        with accelerator.accumulate(model):
            history.append(everything(step(*batch(i)), model, raw))
    return history, step


def test_accumulation_around_a_recorded_step_leaves_what_eager_leaves():
    wanted, _ = accumulated(False)
    found, step = accumulated(True)
    for mine, theirs in zip(found, wanted, strict=True):
        assert_same(mine, theirs)
    assert_launched(step, 10)


def test_the_count_of_an_accumulation_is_followed_by_no_recording_without_the_guard():
    """The accelerator counts its calls in Python, so that each has another signature."""
    accelerator, model, _, step = prepared(gradient_accumulation_steps=4)
    recorded = anabranch.record(step)
    with pytest.warns(anabranch.RecordWarning, match="step changes from call to call"):
        for i in range(12):
            with accelerator.accumulate(model):
                recorded(*batch(i))
    assert not any(report.nodes for report in recorded.reports), told(recorded)
