# SPDX-License-Identifier: Apache-2.0
"""A training as torchtitan 0.3 sets it up where it compiles: each block of the model whole and in
place, and the loss. torchtitan itself brings fifty packages and is not installed; its settings of
torch are made here, over a small decoder. On the CPU, where nothing is recorded."""

from __future__ import annotations

import pytest
import torch
from clients import Decoder, compile_as_torchtitan, cross_entropy, tokens, torchtitans_settings


def losses(backend):
    """Of a few steps of its loop: clear, forward, backward, clip, update."""
    model = Decoder()
    loss_of = compile_as_torchtitan(model, backend) if backend else cross_entropy
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    found = []
    for seed in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(tokens(seed)), tokens(seed + 9))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def test_blocks_compiled_as_torchtitan_compiles_them_train_as_eager_does():
    with torch._dynamo.config.patch(torchtitans_settings()):
        torch._dynamo.utils.counters.clear()
        assert losses("anabranch") == pytest.approx(losses(None), abs=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # a block and the loss
