# SPDX-License-Identifier: Apache-2.0
"""Modules of ``torch.export``, compiled and recorded, on the CPU: they answer and learn what the
module did that was exported. Nothing is recorded here."""

from __future__ import annotations

import pytest
import torch
from clients import exported, randn
from compare import Tolerance, assert_same, compiled, observe
from torch import nn

import anabranch

pytestmark = [pytest.mark.usefixtures("keep_compiled"),
              pytest.mark.filterwarnings("ignore:.*torch finds no GPU:anabranch.RecordWarning")]


class Scaled(nn.Module):
    """With a parameter, a buffer that each call changes, and two streams."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(8, 16)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        with anabranch.stream("left"):
            left = torch.tanh(self.first(x))
        with anabranch.stream("right"):
            right = torch.relu(self.second(x))
        return left * right * self.seen


def seen(call, model, sizes=(4, 6, 4)):
    return {f"call {i} {name}": tensor for i, size in enumerate(sizes)
            for name, tensor in observe(call, model, (randn(i, size, 8),)).items()}


def test_an_exported_module_that_is_compiled_answers_and_learns_as_the_module():
    original, module = Scaled(), exported(Scaled(), randn(0, 4, 8))
    call = compiled(module, dynamic=None)
    assert_same(seen(call, module), seen(original, original), Tolerance(1e-5, 1e-6))


def test_an_exported_module_keeps_its_streams():
    module = exported(Scaled(), randn(0, 4, 8))
    with torch.no_grad():
        report = anabranch.explain(torch.compile(module, backend=anabranch.backend),
                                   randn(0, 4, 8))
    assert {"left", "right"} <= {region.stream for graph in report.graphs
                                 for region in graph.streamed.last.graph.regions()}


def test_an_exported_module_that_is_recorded_answers_and_learns_as_the_module():
    original, module = Scaled(), exported(Scaled(), randn(0, 4, 8))
    assert_same(seen(anabranch.record(module), module), seen(original, original))
