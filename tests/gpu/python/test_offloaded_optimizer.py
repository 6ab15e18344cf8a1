# SPDX-License-Identifier: Apache-2.0
"""Optimizers with their state in pinned memory, against the same ones with it on the GPU: eager and
recorded, bit for bit."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from recordings import DEVICE, assert_launched, normal, told
from torch import nn

import anabranch
from anabranch._record.trial import overlap

LAYERS, WIDTH, STEPS = 6, 256, 8
IN_FLIGHT = 4 << 20  # some chunks
OPTIMIZERS = {
    "fused AdamW": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW over lists": lambda p: torch.optim.AdamW(p, foreach=True, capturable=True),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p),
}


class Trained:
    """A model and its optimizer, the same ones each time."""

    def __init__(self, make, offload=lambda optimizer: optimizer):
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
                                     for _ in range(LAYERS))).to(DEVICE)
        self.optimizer = offload(make(self.model.parameters()))
        self.call = torch.compile(self.model, dynamic=False)

    def step(self, x):
        loss = F.mse_loss(self.call(x), x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def offloaded(optimizer):
    return anabranch.offload_optimizer(optimizer, in_flight_bytes=IN_FLIGHT)


def assert_same(one, other):
    assert all(map(torch.equal, one.model.parameters(), other.model.parameters()))
    states = [each.optimizer.state_dict()["state"] for each in (one, other)]
    for number, wanted in states[1].items():
        for key, value in wanted.items():
            assert torch.equal(states[0][number][key].cpu(), value.cpu()), (number, key)


def are_pinned(optimizer):
    return [value.is_pinned() for state in optimizer.state.values() for value in state.values()
            if value.numel() == WIDTH * WIDTH]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eager_steps_are_the_same_bit_for_bit(name):
    mine, theirs = Trained(OPTIMIZERS[name], offloaded), Trained(OPTIMIZERS[name])
    for seed in range(STEPS):
        x = normal(seed, 64, WIDTH)
        assert torch.equal(mine.step(x), theirs.step(x)), seed
    assert_same(mine, theirs)
    assert are_pinned(mine.optimizer) and all(are_pinned(mine.optimizer))


@pytest.mark.parametrize("is_kept", [False, True], ids=["as it is", "side by side in any case"])
@pytest.mark.parametrize("name", ["fused AdamW", "AdamW over lists"])
def test_a_recorded_step_is_the_same_bit_for_bit(name, is_kept, monkeypatch):
    if is_kept:
        monkeypatch.setattr(overlap, "_LEAST_GAIN", 0.0)
    mine, theirs = Trained(OPTIMIZERS[name], offloaded), Trained(OPTIMIZERS[name])
    step = anabranch.record(mine.step, parallel_bytes=1 << 40 if is_kept else 0)
    for seed in range(2 * STEPS):
        x = normal(seed, 64, WIDTH)
        assert torch.equal(step(x), theirs.step(x)), seed
    assert_same(mine, theirs)
    assert_launched(step, 2 * STEPS - 2)
    found = [report for report in step.reports if report.nodes]
    assert all(report.host_copies >= 4 * LAYERS for report in found), told(step)
    assert not is_kept or all(report.lanes >= 2 for report in found), told(step)


def test_clipping_between_backward_and_step_is_recorded_too():
    def make(offload):
        made = Trained(OPTIMIZERS["fused AdamW"], offload)

        def step(x):
            loss = F.mse_loss(made.call(x), x)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(made.model.parameters(), 0.01)
            made.optimizer.step()
            made.optimizer.zero_grad()
            return loss.detach(), norm

        return made, step

    (mine, step), (theirs, plain) = make(offloaded), make(lambda optimizer: optimizer)
    step = anabranch.record(step)
    for seed in range(STEPS):
        x = normal(seed, 64, WIDTH)
        assert all(map(torch.equal, step(x), plain(x))), seed
    assert_same(mine, theirs)
    assert_launched(step, STEPS - 2)


def test_state_is_saved_and_loaded_without_room_for_it_on_the_gpu(tmp_path):
    mine, other = (Trained(OPTIMIZERS["fused AdamW"], offloaded) for _ in range(2))
    for seed in range(3):
        mine.step(normal(seed, 64, WIDTH))
    torch.save(mine.optimizer.state_dict(), tmp_path / "state.pt")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    other.optimizer.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.cuda.max_memory_allocated() - before < WIDTH * WIDTH * 4
    other.model.load_state_dict(mine.model.state_dict())
    assert all(are_pinned(other.optimizer))
    plain = Trained(OPTIMIZERS["fused AdamW"])
    plain.model.load_state_dict(mine.model.state_dict())
    plain.optimizer.load_state_dict(copy.deepcopy(mine.optimizer.state_dict()))
    assert not any(are_pinned(plain.optimizer))
    x = normal(9, 64, WIDTH)
    for each in (mine, other, plain):
        each.step(x)
    assert_same(other, mine)
    assert_same(plain, mine)


def test_a_step_takes_no_more_of_the_gpu_than_was_granted():
    parameters = [nn.Parameter(normal(i, 512, 512)) for i in range(40)]
    optimizer = anabranch.offload_optimizer(torch.optim.AdamW(parameters, fused=True),
                                            in_flight_bytes=16 << 20)
    for one in parameters:
        one.grad = torch.ones_like(one)
    optimizer.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
    assert 0 < torch.cuda.max_memory_allocated() - before <= (16 << 20) + (1 << 20)
    assert optimizer.pinned_state_bytes == 40 * 2 * 512 * 512 * 4


def test_halves_under_a_scaler_that_skips_a_step():
    found = []
    for offload in (offloaded, lambda optimizer: optimizer):
        made = Trained(OPTIMIZERS["fused AdamW"], offload)
        scaler = torch.amp.GradScaler(init_scale=4.0)
        for seed in range(4):
            x = normal(seed, 64, WIDTH)
            with torch.autocast("cuda", torch.float16):
                loss = F.mse_loss(made.call(x), x)
            scaler.scale(loss).backward()
            if seed == 1:
                next(made.model.parameters()).grad.fill_(float("inf"))
            scaler.step(made.optimizer)
            scaler.update()
            made.optimizer.zero_grad()
        found.append(made)
    assert_same(*found)
