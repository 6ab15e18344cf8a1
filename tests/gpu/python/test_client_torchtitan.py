# SPDX-License-Identifier: Apache-2.0
"""A step as torchtitan 0.3 compiles it, each block of the model whole and in place, and the loss:
recorded, against itself unrecorded, on the GPU. torchtitan itself is not needed."""

from __future__ import annotations

import torch
from clients import Decoder, compile_as_torchtitan, tokens, torchtitans_settings
from recordings import DEVICE, assert_launched, train_both

import anabranch


def test_a_step_over_blocks_compiled_as_torchtitan_compiles_them_is_recorded():
    def make():
        torch.compiler.reset()
        model = Decoder().to(DEVICE)
        loss_of = compile_as_torchtitan(model, anabranch.backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

        def step(words, labels):
            optimizer.zero_grad()
            loss = loss_of(model(words), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    with torch._dynamo.config.patch(torchtitans_settings()):
        step = train_both(make, inputs=lambda i: (tokens(i).to(DEVICE), tokens(i + 9).to(DEVICE)))
    assert_launched(step, 5)
