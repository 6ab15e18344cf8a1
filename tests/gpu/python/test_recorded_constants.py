# SPDX-License-Identifier: Apache-2.0
"""What a step makes on the CPU and copies to the GPU: constants are recorded, anything that may be
something else in another call is not."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from recordings import (
    DEVICE,
    assert_follows,
    assert_launched,
    assert_plain,
    mlp,
    normal,
    told,
    train_both,
)

import anabranch


def inputs(seed):
    return (normal(seed, 8, 16),)


CONSTANTS = {
    "a number": lambda x: x * torch.tensor(3.0, device=x.device),
    "a list": lambda x: x + torch.tensor([float(i) for i in range(16)], device=DEVICE),
    "of another type": lambda x: x + torch.tensor(range_of(16), device=DEVICE, dtype=x.dtype),
    "as_tensor": lambda x: x + torch.as_tensor([[1.0]], device=DEVICE),
    "new_tensor": lambda x: x @ x.new_tensor([[1.0], [2.0]]).repeat(8, 1),
    "to": lambda x: x * torch.arange(16.0).to(DEVICE),
    "cuda()": lambda x: x * torch.linspace(0, 1, 16).cuda(),
    "computed "
    "there": lambda x: x @ torch.softmax(torch.arange(16.0), 0).outer(torch.ones(4)).to(DEVICE),
    "copy_": lambda x: torch.empty(16, device=DEVICE).copy_(torch.arange(16)) + x,
    "an index": lambda x: x[torch.tensor([3, 1, 2])],
    "a list of indices": lambda x: x[[3, 1, 2]][:, [0, -1]],
    "rows that are put": lambda x: F.relu(x).index_put((torch.tensor([0, 5]),), x.new_tensor(7.0)),
    "a mask": lambda x: x[torch.tensor([True, False] * 4)],
    "a list that is a mask": lambda x: with_item(x.clone(), [True, False] * 4, 3.0),
    "many": lambda x: sum((x * torch.tensor(float(i), device=DEVICE) for i in range(50)), x),
    "one byte": lambda x: x * torch.tensor([True, False] * 8).to(DEVICE),
}


def with_item(x, index, value):
    x[index] = value
    return x


def range_of(count):
    return list(range(count))


@pytest.mark.parametrize("function", CONSTANTS.values(), ids=CONSTANTS.keys())
def test_constants_of_the_cpu_are_recorded(function):
    step = assert_follows(function, inputs, calls=12)
    assert_launched(step, 9)


def test_training_with_constants_in_forward_and_backward():
    def make():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

        def step(x, y):
            optimizer.zero_grad()
            weights = torch.tensor([0.5, 1.0, 1.5, 2.0], device=x.device)
            loss = ((model(x) - y) ** 2 * weights).mean()
            loss.backward(torch.tensor(2.0, device=x.device))
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    assert_launched(train_both(make), 8)


def test_constants_beside_a_compiled_model():
    model = mlp().requires_grad_(False)
    compiled = torch.compile(model, dynamic=False)
    step = assert_follows(lambda x: compiled(x) * torch.tensor(2.0, device=DEVICE), inputs)
    assert_launched(step)


def test_a_number_in_python_that_changes_is_recorded_anew():
    holder = SimpleNamespace(scale=1.0)

    def function(x):
        return x * torch.tensor(holder.scale, device=DEVICE) + holder.scale

    step = anabranch.record(function)
    for i in range(15):
        holder.scale = float(i // 5)
        assert torch.equal(step(*inputs(i)), function(*inputs(i))), told(step)
    assert sum(report.nodes > 0 for report in step.reports) == 3, told(step)


def test_a_loss_whose_weight_is_annealed_in_python_trains_as_eager_does():
    class Annealed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.beta, self.steps = mlp(), 0.0, 0

        def forward(self, x):
            self.steps += 1
            return self.inner(x) + self.beta * self.inner[0](x)[:, :4]

    def make():
        model = Annealed()
        optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

        def step(x, y):
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    def anneal(i, model, optimizer):
        model.beta = i // 6 / 10

    step = train_both(make, calls=24, between=anneal)
    assert_launched(step, 12)


def test_a_tensor_of_the_cpu_in_the_state_is_copied_as_it_is_then():
    table = torch.arange(16.0)
    step = anabranch.record(lambda x: x + table.to(DEVICE))
    for i in range(15):
        if i in (5, 10):
            table.add_(1)
        assert torch.equal(step(*inputs(i)), inputs(i)[0] + table.cuda()), told(step)
    assert sum(report.nodes > 0 for report in step.reports) == 3, told(step)


ARRAY = numpy.arange(16, dtype=numpy.float32)


@pytest.mark.parametrize("function", [
    lambda x: x + torch.from_numpy(ARRAY).to(DEVICE),
    lambda x: x + torch.as_tensor(ARRAY).to(DEVICE),
], ids=["from_numpy", "as_tensor"])
def test_what_may_be_something_else_in_another_call_runs_plainly(function):
    step = anabranch.record(function)
    for seed in range(6):
        ARRAY[:] = seed // 3  # the same for as many calls as come before one that records
        assert torch.equal(step(*inputs(seed)), function(*inputs(seed)))
    assert_plain(step, "not known that each call brings the same")


def test_a_count_in_python_runs_plainly():
    count = itertools.count(1)
    step = anabranch.record(lambda x: x * torch.tensor(float(count.__next__()), device=DEVICE))
    x = normal(0, 20)
    ratios = {round(float((step(x) / x).mean())) for _ in range(6)}
    assert len(ratios) == 6, ratios  # every call counted on
    assert_plain(step, "its Python takes from an iterator")
