# SPDX-License-Identifier: Apache-2.0
"""Steps that give their weights other memory, on the GPU: they run plainly, with the reason, and
are right in every call."""

from __future__ import annotations

import pytest
import torch
from recordings import DEVICE, assert_plain
from torch import nn

import anabranch


class Offloaded(nn.Module):
    """Brings its weights to the GPU for each call, and takes them back to the CPU."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        self.layer.to(DEVICE)
        answer = self.layer(x)
        self.layer.to("cpu")
        return answer


class Doubled(nn.Module):
    """Has its weights in new memory after each call."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8, device=DEVICE)

    def forward(self, x):
        self.layer.weight.data = self.layer.weight.data * 2
        return self.layer(x)


@pytest.mark.parametrize("make", [Offloaded, Doubled])
def test_a_step_that_gives_its_weights_other_memory_is_right_and_plain(make):
    inputs = [torch.full((2, 8), 1.0 + i, device=DEVICE) for i in range(6)]
    with torch.no_grad():
        model = make()
        wanted = [model(x) for x in inputs]
        step = anabranch.record(make())
        found = [step(x) for x in inputs]
    assert all(map(torch.equal, found, wanted))
    assert_plain(step, "other memory")
