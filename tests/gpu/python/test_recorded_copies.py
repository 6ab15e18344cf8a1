# SPDX-License-Identifier: Apache-2.0
"""Copies between pinned memory and the GPU in recordings, against the same code unrecorded. What is
in pinned memory changes between calls, and where it lies as well."""

from __future__ import annotations

import pytest
import torch
from recordings import CALLS, assert_launched, assert_plain, normal, told
from torch import nn

import anabranch
from anabranch._record.trial import overlap

LAYERS, WIDTH = 8, 256


@pytest.fixture
def kept_in_any_case(monkeypatch):
    monkeypatch.setattr(overlap, "_LEAST_GAIN", 0.0)
    with anabranch.config.patch(parallel_bytes=1 << 40):
        yield


def pinned(seed, *shape):
    return normal(seed, *shape, device="cpu").div(WIDTH**0.5).pin_memory()


class Streamed(nn.Module):
    """Layers whose weights lie pinned and come to the GPU in each call."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(pinned(seed, WIDTH, WIDTH), False)
                                        for seed in range(LAYERS))

    def forward(self, x):
        for weight in self.weights:
            x = torch.relu(x @ weight.to("cuda", non_blocking=True))
        return x


def change(weights, call):
    """What one of them holds; nobody may be at work with it meanwhile."""
    torch.cuda.synchronize()
    with torch.no_grad():
        weights[call % LAYERS].mul_(-1 if call % 2 else 0.5)


def test_weights_are_streamed_beside_compiled_kernels(kept_in_any_case):
    model = Streamed()
    call = torch.compile(model, dynamic=False)
    step = anabranch.record(call, max_parallel_kernels=4)
    with torch.no_grad():
        for i in range(3 * CALLS):
            x = normal(i, 64, WIDTH)
            assert torch.equal(step(x), call(x)), i
            change(model.weights, i)
    assert_launched(step, 3 * CALLS - 2)
    assert all(report.lanes >= 2 for report in step.reports if report.nodes), told(step)


def test_copies_that_may_not_run_ahead_take_less_memory(kept_in_any_case):
    model = Streamed()
    x, arenas = normal(0, 64, WIDTH), []
    call = torch.compile(model, dynamic=False)
    with torch.no_grad():
        for ahead in (0, 1 << 30):
            step = anabranch.record(call, max_parallel_kernels=4, prefetch_bytes=ahead)
            assert all(torch.equal(step(x), call(x)) for _ in range(CALLS))
            assert_launched(step)
            arenas.append(step.reports[-1].arena_bytes)
    # Three weights at most against all of them; the rest of the arena is about the same.
    assert arenas[1] - arenas[0] >= (LAYERS - 4) * model.weights[0].nbytes


def test_weights_are_streamed_by_eager_operators():
    weights = [pinned(seed, WIDTH, WIDTH) for seed in range(LAYERS)]

    def function(x):
        for weight in weights:
            x = torch.relu(x @ weight.to("cuda", non_blocking=True))
        return x

    step = anabranch.record(function)
    for i in range(2 * CALLS):
        x = normal(i, 64, WIDTH)
        assert torch.equal(step(x), function(x)), i
        change(weights, i)
    assert_launched(step, 2 * CALLS - 2)


def test_results_are_copied_to_pinned_memory():
    host = torch.zeros(64, 64, pin_memory=True)

    def function(x):
        y = x @ x.T
        host.copy_(y, non_blocking=True)
        return y.sum()

    step = anabranch.record(function)
    for i in range(2 * CALLS):
        x = normal(i, 64, WIDTH)
        host.fill_(float("nan"))
        found = step(x)
        torch.cuda.synchronize()
        assert torch.equal(host, (x @ x.T).cpu()) and torch.equal(found, (x @ x.T).sum()), i
    assert_launched(step, 2 * CALLS - 2)


def test_a_state_that_lives_in_pinned_memory_goes_on():
    """It is read and written by each call, and also by those that verify the recording."""
    def make():
        state = torch.zeros(WIDTH, WIDTH, pin_memory=True)

        def function(x):
            now = state.to("cuda", non_blocking=True) + x @ x.T
            state.copy_(now, non_blocking=True)
            return now * 2

        return state, function

    (mine, function), (theirs, other) = make(), make()
    step = anabranch.record(function)
    for i in range(2 * CALLS):
        x = normal(i, WIDTH, 16)
        assert torch.equal(step(x), other(x)), i
        torch.cuda.synchronize()
        assert torch.equal(mine, theirs), i
        if i % 3 == 0:
            for state in (mine, theirs):
                state.add_(1)
    assert_launched(step, 2 * CALLS - 2)


def test_copies_of_compiled_graphs_and_of_eager_code_keep_the_order_of_the_host(kept_in_any_case):
    """A compiled graph reads what an eager copy behind it writes, which the next graph reads."""
    host = torch.ones(WIDTH, WIDTH, pin_memory=True)

    @torch.compile(dynamic=False)
    def layer(x, weight):
        return torch.tanh(x @ weight.to("cuda", non_blocking=True))

    def function(x):
        first = layer(x, host)
        host.copy_(first, non_blocking=True)
        second = layer(first, host)
        host.copy_(x, non_blocking=True)
        return layer(second, host)

    step = anabranch.record(function, max_parallel_kernels=4)
    with torch.no_grad():
        for i in range(2 * CALLS):
            x = normal(i, WIDTH, WIDTH) / WIDTH
            answers = []
            for call in (step, function):
                torch.cuda.synchronize()
                host.fill_(1 / (i + 1))
                answers.append(call(x))
                torch.cuda.synchronize()
                assert torch.equal(host, x.cpu()), i
            assert torch.equal(*answers), i
    assert_launched(step, 2 * CALLS - 2)


def test_another_pinned_tensor_is_recorded_anew():
    weights = [pinned(0, WIDTH, WIDTH)]

    def function(x):
        return x @ weights[0].to("cuda", non_blocking=True)

    step = anabranch.record(function)
    for i in range(4 * CALLS):
        if i % CALLS == CALLS - 1:
            weights[0] = pinned(i, WIDTH, WIDTH)
        x = normal(i, 64, WIDTH)
        assert torch.equal(step(x), function(x)), i
    assert_launched(step, 3 * (CALLS - 3))
    assert len(step.reports) == 5, told(step)


def test_two_streams_that_race_for_pinned_memory_are_refused():
    host, side = torch.zeros(WIDTH, pin_memory=True), torch.cuda.Stream()

    def function(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            host.copy_(x, non_blocking=True)
        y = x + 1
        host.copy_(y, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        return y * 2

    step = anabranch.record(function)
    for i in range(CALLS):
        x = normal(i, WIDTH)
        assert torch.equal(step(x), (x + 1) * 2), i
    assert_plain(step, "writes what copy")
