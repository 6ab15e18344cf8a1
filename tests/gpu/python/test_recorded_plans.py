# SPDX-License-Identifier: Apache-2.0
"""Calls of which something is another than in the last one are launched by their plans, with what
is there now."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
from recordings import DEVICE, assert_launched, normal, told
from torch import Tensor, nn

import anabranch

CALLS, KNOWN = 12, 5  # after so many there is a plan


@dataclasses.dataclass
class Batch:
    x: Tensor
    w: Tensor


class Encoding(collections.UserDict):
    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def product(batch):
    return torch.relu(batch.x @ batch.w)


def made(i):
    return {"x": normal(i, 64, 64), "w": normal(500 + i, 64, 64)}


def slow_calls(step):
    return sum(report.slow_calls for report in step.reports)


@pytest.mark.parametrize("call", [
    lambda step, i: step(Batch(**made(i))), lambda step, i: step(Encoding(made(i))),
    lambda step, i: step(batch=Batch(**made(i)))], ids=["dataclass", "encoding", "keyword"])
def test_fresh_objects_are_launched_with_their_tensors(call):
    step = anabranch.record(product)
    for i in range(CALLS):
        if i == KNOWN:
            before = slow_calls(step)
        assert torch.equal(call(step, i), call(product, i)), i
    assert_launched(step, CALLS - 2)
    assert slow_calls(step) == before, told(step)


def test_weights_that_were_replaced_are_launched_with():
    net = nn.Sequential(*(nn.Linear(64, 64, bias=False, device=DEVICE) for _ in range(3)))

    @torch.no_grad()
    def forward(x):
        return net(x)

    step = anabranch.record(forward)
    for i in range(CALLS):
        if i == KNOWN:
            before = slow_calls(step)
        net[i % 3].weight = nn.Parameter(normal(i, 64, 64) / 8)
        x = normal(100 + i, 16, 64)
        assert torch.equal(step(x), forward(x)), i
    assert_launched(step, CALLS - 2)
    assert slow_calls(step) == before, told(step)


def test_training_and_not_in_turn_and_two_shapes_in_turn_have_plans_of_their_own():
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(DEVICE)
    other = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(DEVICE)
    other.load_state_dict(net.state_dict())
    step = anabranch.record(torch.no_grad()(lambda x: net(x)))
    for i in range(4 * CALLS):
        net.train(i % 4 < 2), other.train(i % 4 < 2)
        x = normal(i, 16 + i % 2, 64)
        with torch.no_grad():
            assert torch.equal(step(x), other(x)), i
        if i == 4 * KNOWN:
            before = slow_calls(step)
    assert_launched(step, 4 * (CALLS - 2))
    assert slow_calls(step) == before, told(step)
    for mine, wanted in zip(net.buffers(), other.buffers(), strict=True):
        assert torch.equal(mine, wanted)


def test_gradients_that_stay_are_those_of_eager():
    net = nn.Linear(64, 64, device=DEVICE)
    other = nn.Linear(64, 64, device=DEVICE)
    other.load_state_dict(net.state_dict())

    def train(net, x):
        net.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss.detach()

    step = anabranch.record(lambda x: train(net, x))
    for i in range(CALLS):
        x = normal(i, 16, 64).requires_grad_(i % 2 == 0)
        mirror = x.detach().clone().requires_grad_(i % 2 == 0)
        assert torch.equal(step(x), train(other, mirror)), i
        for mine, wanted in zip(net.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine.grad, wanted.grad), i
        assert (x.grad is None) == (mirror.grad is None)
        assert x.grad is None or torch.equal(x.grad, mirror.grad)
    assert_launched(step, CALLS - 4)
