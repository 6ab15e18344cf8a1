# SPDX-License-Identifier: Apache-2.0
"""Graphs of torch.compile(backend=anabranch.backend) on CUDA, forward and backward, against the
same graphs as Inductor runs them; and compiled models inside recorded steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same, compiled
from recordings import (
    CALLS,
    DEVICE,
    assert_launched,
    batch,
    everything,
    mlp,
    normal,
    train_both,
    training,
)
from torch import nn

import anabranch


def recordings_in(function, *args):
    """Reports of the compiled graphs that a call runs, by kind."""
    found = {}
    for graph in anabranch.explain(function, *args).graphs:
        found.setdefault(graph.kind, []).extend(graph.recordings)
    return found


def assert_kinds_launched(found, *kinds):
    assert set(found) == set(kinds), found
    for kind, reports in found.items():
        text = f"{kind}:\n" + "\n".join(map(str, reports))
        assert not any(report.reason for report in reports), text
        assert any(report.launched for report in reports), text


def train_compiled(record, make_model, steps, inputs=batch, dynamic=False):
    """What every step leaves, and a function that does one more."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = make_model()
    call = compiled(model, options={"record": record}, dynamic=dynamic)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = training(call, optimizer)
    torch.manual_seed(1)
    return [everything(step(*inputs(i)), model, optimizer) for i in range(steps)], step


def assert_trains_as_unrecorded(make_model, steps=8, inputs=batch, dynamic=False):
    wanted, _ = train_compiled(False, make_model, steps, inputs, dynamic)
    found, step = train_compiled(True, make_model, steps, inputs, dynamic)
    for mine, theirs in zip(found, wanted, strict=True):
        assert_same(mine, theirs)
    return step


@pytest.mark.parametrize("make_model", [mlp, lambda: mlp(nn.BatchNorm1d(32)),
                                        lambda: mlp(nn.Dropout(0.5))],
                         ids=["plain", "batch norm", "dropout"])
def test_forward_and_backward_are_recorded_each(make_model):
    step = assert_trains_as_unrecorded(make_model)
    assert_kinds_launched(recordings_in(step, *batch(50)), "forward", "backward")


class Rotated(nn.Module):
    """By complex numbers, as Llama was published."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x, turns):
        turns = turns[:x.shape[1]].view(1, x.shape[1], 16)
        q, k = (torch.view_as_complex(part(x).unflatten(-1, (-1, 2))) * turns
                for part in (self.q, self.k))
        return (torch.view_as_real(q) * torch.view_as_real(k)).sum()


def test_a_backward_that_is_given_conjugated_numbers_is_recorded():
    torch.manual_seed(0)
    model = Rotated().to(DEVICE)
    turns = torch.polar(torch.ones(64, 16), torch.rand(64, 16)).to(DEVICE)
    call = compiled(model)

    def gradients(of, x):
        return torch.autograd.grad(of(x, turns), list(model.parameters()))

    for seed in range(6):
        x = normal(seed, 4, 8, 32)
        torch.testing.assert_close(gradients(call, x), gradients(model, x))
    assert_kinds_launched(recordings_in(lambda: gradients(call, x)), "forward", "backward")


def test_inference_is_recorded_and_its_outputs_last():
    model = mlp()
    call = compiled(model)
    reference = torch.compile(model, backend="inductor", dynamic=False)
    with torch.no_grad():
        pairs = [(call(batch(i)[0]), reference(batch(i)[0])) for i in range(8)]
    assert all(torch.equal(found, wanted) for found, wanted in pairs)
    with torch.no_grad():
        assert_kinds_launched(recordings_in(call, batch(0)[0]), "inference")


def test_dynamic_shapes_get_a_recording_each():
    def inputs(i):
        rows = (8, 12, 20)[i % 3]
        return normal(i, rows, 16), normal(i + 500, rows, 4)

    step = assert_trains_as_unrecorded(mlp, steps=15, inputs=inputs, dynamic=True)
    found = recordings_in(step, *inputs(0))
    assert_kinds_launched(found, "forward", "backward")
    assert all(len(reports) == 3 for reports in found.values()), found


def test_two_forwards_of_one_model_before_their_backwards_do_not_meet():
    def twice(model, call):
        found = []
        for i in range(8):
            model.zero_grad()
            (x, y), (z, _) = batch(i), batch(i + 100)
            x.requires_grad_()
            z.requires_grad_()
            first, second = call(x), call(z)
            F.mse_loss(second, y).backward()
            first.square().mean().backward()
            found.append(everything((first, second, x.grad, z.grad), model, None))
        return found

    results = []
    for backend in ("inductor", "anabranch"):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = mlp()
        call = compiled(model) if backend == "anabranch" else torch.compile(model, dynamic=False)
        results.append(twice(model, call))
    for found, wanted in zip(*reversed(results), strict=True):
        assert_same(found, wanted)
    x, y = batch(0)
    x.requires_grad_()
    found = recordings_in(lambda: F.mse_loss(call(x), y).backward())
    assert_kinds_launched(found, "forward", "backward")


def test_a_backward_may_run_twice_through_a_retained_graph():
    results = []
    for backend in ("inductor", "anabranch"):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = mlp()
        call = compiled(model) if backend == "anabranch" else torch.compile(model, dynamic=False)
        found = []
        with torch._functorch.config.patch(donated_buffer=False):
            for i in range(6):
                model.zero_grad()
                x, y = batch(i)
                loss = F.mse_loss(call(x), y)
                loss.backward(retain_graph=True)
                loss.backward()
                found.append(everything(loss, model, None))
        results.append(found)
    for found, wanted in zip(*reversed(results), strict=True):
        assert_same(found, wanted)


@pytest.mark.parametrize("backend", ["inductor", "anabranch"])
def test_a_compiled_model_inside_a_recorded_step(backend):
    def make():
        torch.compiler.reset()
        torch.manual_seed(0)
        model = mlp(nn.Dropout(0.2))
        call = compiled(model) if backend == "anabranch" else torch.compile(
            model, backend=backend, dynamic=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, training(call, optimizer)

    assert_launched(train_both(make))


@pytest.mark.parametrize("asks", [False, True])
def test_a_models_graphs_are_recorded_where_the_step_around_them_cannot_be(asks):
    """A step that is recorded has their kernels itself."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain = training(compiled(model), optimizer)
    step = anabranch.record(lambda x, y: plain(x, y).item() if asks else plain(x, y))
    for i in range(6):
        step(*batch(i))
    if asks:
        assert_kinds_launched(recordings_in(step, *batch(6)), "forward", "backward")
    else:
        assert_launched(step, 4)
        found = recordings_in(plain, *batch(6))
        assert all(report.calls == 1 for reports in found.values() for report in reports), found


def test_a_graph_that_is_not_recorded_says_why():
    call = compiled(lambda x: x * 2 + 1, options={"record": False})
    x = normal(0, 32)
    for _ in range(3):
        assert torch.equal(call(x), x * 2 + 1)
    explanation = anabranch.explain(call, x)
    assert [graph.recordings for graph in explanation.graphs] == [[]]
    assert "record=False" in str(explanation), explanation


def test_explain_shows_recordings_of_graphs_and_of_recorded_callables():
    model = mlp()
    call, step = compiled(model), anabranch.record(lambda x: x * 2 + 1)
    unrecordable = anabranch.record(lambda x: x * x.sum().item())

    def once():
        with torch.no_grad():
            return unrecordable(step(call(batch(0)[0])))

    for _ in range(4):
        once()
    explanation = anabranch.explain(once)
    text = str(explanation)
    assert len(explanation.graphs) == 1 and explanation.graphs[0].recordings[0].nodes
    assert len(explanation.callables) == 2, text
    for part in ("unchanged", "set from the host", "from the device", "plain", "arena",
                 "unrecorded: ", "verified in", "addresses of"):
        assert part in text, f"{part}:\n{text}"


def test_a_backward_without_operators_runs_as_it_is():
    """The gradients of a sum are those it is given: there is nothing to record."""
    call = compiled(lambda x: x + 1)
    for seed in range(CALLS):
        x = normal(seed, 8).requires_grad_()
        call(x).sum().backward()
        assert torch.equal(x.grad, torch.ones_like(x))


class Attention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(16, 48)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        q, k, v = self.inner(x).view(1, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return self.last(F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout).transpose(1, 2).reshape(8, 16))


def test_attention_that_draws_nothing_is_recorded_forward_and_backward():
    """In single precision, whose seeds are on the CPU out of captures too."""
    step = assert_trains_as_unrecorded(lambda: Attention().cuda())
    reports = recordings_in(step, *batch(50))
    assert all(report.nodes and report.reason is None
               for kind in ("forward", "backward") for report in reports[kind]), reports


def test_attention_whose_seeds_are_on_the_cpu_out_of_captures_trains_as_unrecorded():
    """Its backward reads them there, unless it is captured."""
    step = assert_trains_as_unrecorded(lambda: Attention(0.5).cuda())
    reports = recordings_in(step, *batch(50))
    assert any("answers a tensor on the CPU" in (report.reason or "")
               for report in reports["forward"]), reports
