# SPDX-License-Identifier: Apache-2.0
"""A training as torchtitan sets it up with ``--compile.enable``: each block of the model compiled
whole and in place, and the loss. torchtitan itself brings fifty packages and is not installed; its
settings of torch are made here, over a Llama of transformers. On the CPU nothing is recorded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="transformers is not installed: make test-clients")

from clients import tokens
from trainers import llama

SETTINGS = {"capture_scalar_outputs": True, "skip_fwd_side_effects_in_bwd_under_checkpoint": True}


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def losses(backend):
    """Of a few steps of its loop: clear, forward, backward, clip, update."""
    model, loss_of = llama().train(), cross_entropy
    if backend is not None:
        for _, block in model.model.layers.named_children():
            block.compile(backend=backend, fullgraph=True)
        loss_of = torch.compile(cross_entropy, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    found = []
    for seed in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(tokens(seed), use_cache=False).logits, tokens(seed + 9))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.usefixtures("keep_compiled")
def test_blocks_compiled_as_torchtitan_compiles_them_train_as_eager_does():
    settings = {name: value for name, value in SETTINGS.items()
                if hasattr(torch._dynamo.config, name)}
    with torch._dynamo.config.patch(settings):
        torch._dynamo.utils.counters.clear()
        assert losses("anabranch") == pytest.approx(losses(None), abs=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # a block and the loss
