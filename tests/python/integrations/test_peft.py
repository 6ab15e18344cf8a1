# SPDX-License-Identifier: Apache-2.0
"""Adapters of peft that are switched, left out and swapped between calls, on the CPU: each call
answers what eager answers with the adapter of then. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: make test-clients")
pytest.importorskip("peft", reason="peft is not installed: make test-clients")

from clients import adapted, lora, tokens, weights_of_adapter
from compare import Tolerance, assert_same
from peft.utils.hotswap import hotswap_adapter_from_state_dict, prepare_model_for_compiled_hotswap

import anabranch

ORDER = ("first", "second", "first", None, "second", "first")  # None: without an adapter
CLOSE = Tolerance(1e-5, 1e-6)
pytestmark = pytest.mark.usefixtures("keep_compiled")


def layers(model):
    return model.base_model.model.model.layers


def logits(call, seed):
    with torch.no_grad():
        return call(input_ids=tokens(seed), use_cache=False).logits


def switched(model, call=None):
    """The answers of calls between which adapters are switched."""
    found = {}
    for i, name in enumerate(ORDER):
        if name is None:
            with model.disable_adapter():
                found[f"call {i}"] = logits(call or model, i % 2)
        else:
            model.set_adapter(name)
            found[f"call {i}"] = logits(call or model, i % 2)
    return found


def test_adapters_that_are_switched_between_calls_are_those_of_the_call():
    wanted = switched(adapted("first", "second"))
    assert not torch.allclose(wanted["call 1"], wanted["call 5"], atol=1e-2)
    assert not torch.allclose(wanted["call 1"], wanted["call 3"], atol=1e-2)
    model = adapted("first", "second")
    for layer in layers(model):
        layer.compile(backend=anabranch.backend, fullgraph=True)
    assert_same(switched(model), wanted, CLOSE)


@pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")
def test_a_recorded_model_follows_its_adapters():
    model = adapted("first", "second")
    assert_same(switched(model, anabranch.record(model)), switched(adapted("first", "second")))


def swapped(compiled):
    """Answers before and after the weights of an adapter of another rank have come in the place of
    the first one's."""
    model, config = adapted("default"), lora(rank=2, alpha=16)
    prepare_model_for_compiled_hotswap(model, target_rank=4)
    if compiled:
        for layer in layers(model):
            layer.compile(backend=anabranch.backend, fullgraph=True)
    found = {"before": logits(model, 0)}
    other = adapted("default", config=config, seed=5)
    with torch._dynamo.config.patch(error_on_recompile=True):
        hotswap_adapter_from_state_dict(model, weights_of_adapter(other), "default", config)
        found["after"] = logits(model, 0)
    assert_same({"after": found["after"]}, {"after": logits(other, 0)}, CLOSE)
    return found


def test_an_adapter_that_is_swapped_is_followed_without_compiling_anew():
    wanted = swapped(compiled=False)
    assert not torch.allclose(wanted["before"], wanted["after"], atol=1e-2)
    assert_same(swapped(compiled=True), wanted, CLOSE)


def test_adapters_are_trained_and_the_model_below_stays():
    def trained(compiled):
        model = adapted("first").train()
        if compiled:
            for layer in layers(model):
                layer.compile(backend=anabranch.backend, fullgraph=True)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        losses = []
        for seed in range(3):
            optimizer.zero_grad()
            loss = model(input_ids=tokens(seed), labels=tokens(seed), use_cache=False).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        after = model.state_dict()
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed == set(weights_of_adapter(model))
        return {"losses": torch.stack(losses), **{name: after[name] for name in sorted(changed)}}

    assert_same(trained(True), trained(False), Tolerance(1e-4, 1e-5))
