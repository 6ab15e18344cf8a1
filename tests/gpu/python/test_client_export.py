# SPDX-License-Identifier: Apache-2.0
"""Modules of ``torch.export``, recorded, against themselves unrecorded, on the GPU."""

from __future__ import annotations

import torch
from clients import exported
from compare import compiled
from recordings import assert_follows, assert_launched, mlp, normal, train_both, training
from torch import nn


def make_exported(*between):
    return exported(mlp(*between), normal(0, 8, 16))


def test_an_exported_module_is_recorded_for_each_size():
    module = make_exported()
    with torch.no_grad():
        step = assert_follows(lambda x: module(x), lambda i: (normal(i, (8, 12)[i % 2], 16),),
                              calls=12)
    assert_launched(step, 6)


def test_the_training_of_an_exported_module_is_recorded():
    def make():
        module = make_exported(nn.LayerNorm(32))
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
        return module, optimizer, training(module, optimizer)

    assert_launched(train_both(make), 5)


def test_an_exported_module_that_is_compiled_is_recorded_inside_a_step():
    def make():
        torch.compiler.reset()
        module = make_exported()
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)
        return module, optimizer, training(compiled(module), optimizer)

    assert_launched(train_both(make), 5)
