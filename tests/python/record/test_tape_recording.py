# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a GPU's recordings by which other tests see what a launch has missed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tape_recording import OnTape
from torch import nn

import anabranch


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    return OnTape(monkeypatch)


def called(step, *args, times=3):
    for _ in range(times):
        answer = step(*args)
    return answer


def reasons(step):
    return [report.code for report in step.reports]


def test_a_launch_runs_none_of_the_steps_python_and_misses_what_nothing_guards(tape):
    hidden = {"scale": 2.0}
    step = anabranch.record(lambda x: x * hidden["scale"], guards=False)
    called(step, torch.ones(2))
    hidden["scale"], launches = 5.0, tape.launches
    assert torch.equal(step(torch.full((2,), 3.0)), torch.full((2,), 6.0))
    assert tape.launches == launches + 1


def test_a_launch_takes_the_tensors_that_stand_there_now_and_writes_them():
    model, total = nn.BatchNorm1d(3), torch.zeros(3)

    def step(x):
        with torch.no_grad():
            y = model(x)
            total.add_(y.sum(0))
            return y, total, total[1:]

    recorded, x = anabranch.record(step), torch.randn(4, 3)
    called(recorded, x)
    model.weight = nn.Parameter(torch.full((3,), 5.0))
    model.running_mean = torch.ones(3)
    total.zero_()
    y, same, part = recorded(x)
    assert same is total and part.data_ptr() == total[1:].data_ptr()
    assert torch.equal(total, y.sum(0)) and not torch.equal(model.running_mean, torch.ones(3))
    assert torch.equal(y, nn.functional.batch_norm(x, None, None, model.weight, model.bias, True))


def test_gradients_and_an_optimizer_are_as_eager_leaves_them():
    def trained(wrap):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @wrap
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = [step(torch.full((2, 3), float(i))) for i in range(8)]
        return [*losses, *model.parameters(), *(p.grad for p in model.parameters())]

    assert all(map(torch.equal, trained(lambda step: step), trained(anabranch.record)))


def test_one_recording_serves_the_values_of_a_float(tape):
    rate = {"now": 1.0}
    step = anabranch.record(lambda x: x * (1 - 2 * rate["now"]) + torch.tensor([3.0]))
    for i in range(12):
        rate["now"] = 1.0 + i // 3
        assert torch.equal(step(torch.ones(2)), torch.ones(2) * (1 - 2 * rate["now"]) + 3)
    assert [report.reason for report in step.reports] == [None, None] and tape.launches >= 9


def test_what_a_capture_of_a_gpu_refuses_is_refused():
    kept = {}
    x = torch.ones(3)
    asks = anabranch.record(lambda x: x * x.sum().item())
    keeps = anabranch.record(lambda x: kept.update(last=SimpleNamespace(x=x * 2)) or x + 1)
    counts = anabranch.record(lambda x: x[x > 0])
    with pytest.warns(anabranch.RecordWarning):
        for step in (asks, keeps, counts):
            called(step, x)
    assert reasons(asks) == [311] and reasons(counts) == [311] and reasons(keeps)[-1] == 323


def test_a_tensor_that_nothing_leads_to_at_first_is_found_when_a_capture_names_it():
    class Table:
        rows = torch.ones(2, 3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.helper = [Table()]

        def forward(self, x):
            return x + self.helper[0].rows[1]

    step, x = anabranch.record(Model()), torch.ones(3)
    called(step, x, times=6)
    Table.rows = torch.zeros(2, 3)
    assert torch.equal(step(x), x) and step.reports[-1].code is None
