# SPDX-License-Identifier: Apache-2.0
"""Adapters of peft that are switched, left out and swapped between the calls of a recorded forward,
on the GPU: each call answers bit for bit what eager answers with the adapter of then. Their training
is in test_recorded_models.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("peft", reason="peft is not installed")

from clients import adapted, lora, tokens, weights_of_adapter
from compare import assert_same
from peft.utils.hotswap import hotswap_adapter_from_state_dict, prepare_model_for_compiled_hotswap
from recordings import DEVICE, assert_launched, told

import anabranch

ORDER = ("first", "second", "first", None, "second", None) * 4  # None: without an adapter


def forward_of(model):
    def forward(x):
        return model(input_ids=x).logits

    return forward


def switched(model, call):
    found = {}
    with torch.no_grad():
        for i, name in enumerate(ORDER):
            x = tokens(i).to(DEVICE)
            if name is None:
                with model.disable_adapter():
                    found[f"call {i}"] = call(x)
            else:
                model.set_adapter(name)
                found[f"call {i}"] = call(x)
    return found


def test_adapters_that_are_switched_between_launches_are_those_of_the_call():
    model = adapted("first", "second").to(DEVICE)
    forward = forward_of(model)
    step = anabranch.record(forward)
    found = switched(model, step)
    assert_same(found, switched(model, forward))
    assert_launched(step, len(ORDER) // 2)


def swapped(is_recorded):
    """Answers before and after the weights of an adapter of another rank have come in the place of
    the first one's, and what was called."""
    model, config = adapted("default").to(DEVICE), lora(rank=2, alpha=16)
    prepare_model_for_compiled_hotswap(model, target_rank=4)
    call = anabranch.record(forward_of(model)) if is_recorded else forward_of(model)
    other = adapted("default", config=config, seed=5)
    with torch.no_grad():
        found = {f"before {i}": call(tokens(i).to(DEVICE)) for i in range(6)}
        hotswap_adapter_from_state_dict(model, weights_of_adapter(other), "default", config)
        found |= {f"after {i}": call(tokens(i).to(DEVICE)) for i in range(6)}
    return found, call


def test_an_adapter_that_is_swapped_is_followed_by_the_same_recording():
    found, step = swapped(True)
    wanted, _ = swapped(False)
    assert_same(found, wanted)
    assert not torch.equal(found["before 0"], found["after 0"])
    assert_launched(step, 8)
    assert sum(report.nodes > 0 for report in step.reports) == 1, told(step)
