# SPDX-License-Identifier: Apache-2.0
"""Random numbers: those of eager, one after the other, whatever mixes recorded and plain steps."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
import torch.nn.functional as F
from recordings import (
    CALLS,
    DEVICE,
    assert_launched,
    assert_plain,
    launches,
    mlp,
    normal,
    told,
    train_both,
    training,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

import anabranch


def noisy(x):
    return F.dropout(x, 0.5) + torch.randn_like(x), torch.rand(100, device=DEVICE)


def follow(calls, between=lambda i: None, function=noisy):
    """The results of recorded and plain calls, and the generator's states, from one seed."""
    step = anabranch.record(function)
    found = []
    for call in (step, function):
        torch.manual_seed(7)
        found.append([])
        for i in range(calls):
            between(i)
            answer = call(normal(i, 64, 64))
            found[-1].append((*answer, torch.cuda.get_rng_state(), torch.get_rng_state()))
    for i, (mine, theirs) in enumerate(zip(*found, strict=True)):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b), f"call {i}: {told(step)}"
    return step


def test_the_numbers_are_those_of_eager_and_so_is_the_generator_afterwards():
    assert_launched(follow(12), 10)


def test_a_call_whose_launch_is_refused_for_an_address_draws_the_same_numbers():
    """Kernels for other addresses draw others, so that it runs plainly."""
    found = []
    for call in (anabranch.record(noisy), noisy):
        torch.manual_seed(7)
        found.append([])
        for i in range(9):
            given = normal(i, 64 * 64 + 1)[i // 6:][:64 * 64]  # the last three lie badly
            found[-1].append((*call(given), torch.cuda.get_rng_state()))
    for i, (mine, theirs) in enumerate(zip(*found, strict=True)):
        assert all(map(torch.equal, mine, theirs)), f"call {i}"


def test_a_step_that_draws_is_recorded_where_graphs_of_torchs_draw():
    """Python knows the generator's memory then."""
    theirs = torch.compile(lambda x: F.dropout(x, 0.5), mode="reduce-overhead")
    for i in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        theirs(normal(i, 64, 64))
    assert_launched(follow(12), 10)


def test_attention_that_draws_a_number_for_each_weight_is_recorded():
    """Sixteen million a call, by the generator's count."""
    def attend(x):
        query = x.view(1, 4, 2048, 64)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
            return (F.scaled_dot_product_attention(query, query, query, dropout_p=0.1),
                    torch.rand(10, device=DEVICE))

    step = anabranch.record(attend)
    found = []
    for call in (step, attend):
        torch.manual_seed(7)
        found.append([(*call(normal(i, 4 * 2048 * 64)), torch.cuda.get_rng_state())
                      for i in range(6)])
    for mine, theirs in zip(*found, strict=True):
        assert all(map(torch.equal, mine, theirs)), told(step)
    assert_launched(step, 4)


def test_a_seed_between_launches_takes_effect():
    def between(i):
        if i in (5, 8):
            torch.manual_seed(i)
        if i == 10:
            torch.cuda.manual_seed(99)

    assert_launched(follow(13, between), 10)


def test_a_state_set_between_launches_takes_effect():
    states = {}

    def between(i):
        if i == 4:
            states["now"] = torch.cuda.get_rng_state()
        if i in (7, 9):
            torch.cuda.set_rng_state(states["now"])

    assert_launched(follow(12, between), 10)


def test_numbers_that_the_user_draws_between_launches_are_in_turn():
    assert_launched(follow(12, lambda i: torch.rand(1 + 1000 * i, device=DEVICE)), 10)


def test_every_step_draws_other_numbers():
    step = anabranch.record(lambda x: F.dropout(x, 0.5))
    x = torch.ones(4096, device=DEVICE)
    masks = [step(x) for _ in range(CALLS)]
    assert not any(torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])
    assert_launched(step)


def test_two_recordings_draw_from_one_generator_in_turn():
    first, second = anabranch.record(noisy), anabranch.record(lambda x: F.dropout(x, 0.25))
    found = []
    for calls in ((first, second), (noisy, lambda x: F.dropout(x, 0.25))):
        torch.manual_seed(3)
        found.append([])
        for i in range(CALLS):
            x = normal(i, 50)
            found[-1] += [*calls[0](x), calls[1](x)]
    assert all(map(torch.equal, *found))
    assert_launched(first)
    assert_launched(second)


def test_dropout_in_a_training_step():
    def make():
        model = mlp(nn.Dropout(0.5))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, training(model, optimizer)

    assert_launched(train_both(make, calls=12), 8)


def test_a_step_that_is_refused_has_drawn_once():
    """Trials and captures leave no trace in the generators, of the GPU and of the CPU."""
    def function(x):
        noise = torch.rand(3)
        y = F.dropout(x, 0.5)
        y.sum().item()
        return y, noise

    step = follow(6, function=function)
    assert launches(step) == 0 and step.reports[0].reason, told(step)


@pytest.mark.parametrize("draw", [
    lambda: torch.rand(16).to(DEVICE), lambda: float(torch.rand(())), random.random,
    numpy.random.rand], ids=["tensor", "number", "random", "numpy"])
def test_numbers_drawn_on_the_cpu_make_the_step_plain(draw):
    """All runs that a recording is compared with draw the same ones, and launches would for
    ever."""
    def function(x):
        return x + draw()

    step = anabranch.record(function)
    found = []
    for call in (step, function):
        torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
        found.append([call(normal(i, 16)) for i in range(6)])
    assert all(map(torch.equal, *found)), told(step)
    assert_plain(step, "draws random numbers on the CPU")


class Dropping(nn.Module):
    """Layers of which each is skipped now and then, as LayerDrop does."""

    def __init__(self, share):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.1))
                                    for _ in range(4))
        self.last = nn.Linear(32, 4)
        self.share = share

    def forward(self, x):
        for layer in self.layers:
            dropout_probability = torch.rand([])
            if dropout_probability < self.share:
                continue
            x = layer(x)
        return self.last(x)


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_a_number_drawn_on_the_cpu_that_is_only_compared_is_drawn_before_each_launch(
        share, is_compiled):
    def trained(record):
        torch.manual_seed(1)
        model = Dropping(share).to(DEVICE)
        forward = torch.compile(model) if is_compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call = anabranch.record(step) if record else step
        torch.manual_seed(2)
        found = [(call(normal(i, 8, 32)), torch.get_rng_state(), torch.cuda.get_rng_state())
                 for i in range(24)]
        return found, call

    (mine, step), (theirs, _) = trained(True), trained(False)
    for i, (ours, plain) in enumerate(zip(mine, theirs, strict=True)):
        assert all(map(torch.equal, ours[1:], plain[1:])), f"call {i}: {told(step)}"
        torch.testing.assert_close(ours[0], plain[0])
    if share == 0.0:
        assert_launched(step, 20)


def test_a_generator_of_the_users_own_makes_the_step_plain():
    generator = torch.Generator(DEVICE)

    def function(x):
        return (x + torch.rand(x.shape, device=DEVICE, generator=generator),)

    step = anabranch.record(function)
    found = []
    for call in (step, function):
        generator.manual_seed(11)
        found.append([call(normal(i, 20))[0] for i in range(6)])
    assert all(map(torch.equal, *found)), told(step)
    assert launches(step) == 0 and step.reports[0].reason, told(step)


def checkpointed(preserve):
    def make():
        model = mlp(nn.Dropout(0.4)) if preserve else mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            out = checkpoint(model, x, use_reentrant=False, preserve_rng_state=preserve)
            loss = F.mse_loss(out, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    return make


def test_checkpointing_without_random_numbers_is_recorded():
    assert_launched(train_both(checkpointed(False)))


def test_checkpointing_that_keeps_the_generators_state_is_right():
    """torch reads the state on the host, which a capture forbids."""
    step = train_both(checkpointed(True))
    if any(report.reason for report in step.reports):
        assert_plain(step, "while it was captured")


@pytest.mark.parametrize("draws", [1, 3])
def test_many_draws_in_one_step(draws):
    def function(x):
        for _ in range(draws):
            x = F.dropout(x, 0.1) * torch.rand_like(x)
        return (x,)

    assert_launched(follow(8, function=function), 6)
