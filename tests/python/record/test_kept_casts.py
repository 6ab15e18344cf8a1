# SPDX-License-Identifier: Apache-2.0
"""Autocast keeps casts of weights until its outermost block ends, and eager uses them after a step
has changed these. A recorded step that trains inside such a block runs plainly, and leaves what
eager leaves; one that is called in a block of its own, and one that changes no weight, is
launched."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tape_recording import OnTape
from torch import nn

import anabranch
from anabranch.errors import RecordWarning

CALLS = 6
X = torch.full((2, 4), 0.5)


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    return OnTape(monkeypatch)


def by_an_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def change():
        optimizer.step()
        optimizer.zero_grad()

    return change


def by_hand(model):
    def change():
        with torch.no_grad():
            for one in model.parameters():
                one.sub_(0.5 * one.grad)
                one.grad = None

    return change


def trained(changed_by, wrap, blocks):
    """What each call answers. ``blocks``: around the loop, and around each call."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    change = changed_by(model)

    def step(x):
        loss = model(x).float().square().mean()
        loss.backward()
        change()
        return loss.detach()

    called, (loop, call) = wrap(step), blocks
    found = []
    with loop():
        for _ in range(CALLS):
            with call():
                found.append(called(X))
    return called, found


def autocast(**how):
    return lambda: torch.autocast("cpu", torch.bfloat16, **how)


@pytest.mark.parametrize("changed_by", [by_an_optimizer, by_hand])
def test_a_step_that_trains_in_one_block_around_all_calls_is_plain(changed_by, tape):
    blocks = autocast(), contextlib.nullcontext
    _, wanted = trained(changed_by, lambda step: step, blocks)
    with pytest.warns(RecordWarning, match="autocast is on around it"):
        step, found = trained(changed_by, anabranch.record, blocks)
    assert all(map(torch.equal, found, wanted)) and tape.launches == 0
    assert [report.code for report in step.reports if report.reason] == [341]


@pytest.mark.parametrize("blocks", [
    (contextlib.nullcontext, autocast()), (autocast(cache_enabled=False), contextlib.nullcontext),
    (contextlib.nullcontext, contextlib.nullcontext)], ids=["each call", "no cache", "none"])
def test_a_step_in_a_block_of_its_own_is_launched(blocks, tape):
    _, wanted = trained(by_an_optimizer, lambda step: step, blocks)
    step, found = trained(by_an_optimizer, anabranch.record, blocks)
    assert all(map(torch.equal, found, wanted))
    assert tape.launches >= CALLS - 3, step.reports


def test_a_step_that_changes_no_weight_is_launched_in_one_block(tape):
    model = nn.Linear(4, 4)
    step = anabranch.record(lambda x: model(x).detach())
    with autocast()():
        for _ in range(CALLS):
            assert torch.equal(step(X), model(X))
    assert tape.launches >= CALLS - 3, step.reports
