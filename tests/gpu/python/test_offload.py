# SPDX-License-Identifier: Apache-2.0
"""Saved tensors in pinned memory between a forward and its backward: the same bits, less memory, in
recordings of whole steps and without any."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from recordings import DEVICE, assert_launched, launches, normal, told
from torch import nn

import anabranch
from anabranch._offload import copies, host_memory
from anabranch._offload.link import measure
from anabranch._offload.recorded import SavingBlocks

ROWS, WIDTH, LAYERS = 2048, 512, 6


class Layers(nn.Module):
    """``wraps`` goes around what saves most."""

    def __init__(self, wraps=lambda function: function):
        super().__init__()
        self.ups = nn.ModuleList(nn.Linear(WIDTH, 4 * WIDTH) for _ in range(LAYERS))
        self.downs = nn.ModuleList(nn.Linear(4 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.mix = wraps(self.mix)

    def mix(self, up, down, x):
        return down(F.gelu(up(x)))

    def forward(self, x):
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + self.mix(up, down, F.layer_norm(x, (WIDTH,)))
        return x


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    return Layers().state_dict()


def made(state, wraps=lambda function: function):
    model = Layers(wraps).to(DEVICE)
    model.load_state_dict(state)
    return model


def call_of(model, **options):
    return torch.compile(model, backend=anabranch.backend, dynamic=False, options=options)


def gradients(model, call, seed):
    x = normal(seed, ROWS, WIDTH).requires_grad_()
    model.zero_grad()
    out = call(x)
    (out * normal(seed + 1000, ROWS, WIDTH)).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


def assert_same_bits(found, wanted):
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def moved(call):
    x = normal(0, ROWS, WIDTH)
    told = anabranch.explain(lambda: call(x.requires_grad_()).sum().backward())
    (planned,) = [graph.activations for graph in told.graphs if graph.kind == "forward"]
    return planned


def assert_close(found, wanted):
    """What runs beside operators that copy may be fused otherwise, and so is what is computed
    again."""
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture(scope="module")
def plain(state):
    model = made(state)
    call = call_of(model, record=False)
    return [gradients(model, call, seed) for seed in range(4)]


@pytest.fixture(scope="module")
def offloading(state):
    model = made(state, anabranch.offload())
    call = call_of(model)
    return model, call, moved(call)


def none(where, size_bytes):
    raise RuntimeError("CUDA error: out of memory")


@pytest.fixture(scope="module")
def kept(offloading):
    """Of the same compiled code, where nothing leaves the GPU."""
    model, call, _ = offloading
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(SavingBlocks, "take", none)
        patch.setattr(host_memory, "pinned", none)
        return [gradients(model, call, seed) for seed in range(4)]


def test_what_is_moved_comes_back_bit_for_bit(offloading, kept, plain):
    model, call, planned = offloading
    assert len(planned.of("offload")) >= LAYERS
    for seed, wanted in enumerate(kept):
        assert_same_bits(gradients(model, call, seed), wanted)
        assert_close(wanted, plain[seed])


def test_it_is_so_whatever_stream_the_caller_is_on(offloading, kept):
    model, call, _ = offloading
    streams = [torch.cuda.Stream() for _ in kept]
    found = []
    for seed, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found.append(gradients(model, call, seed))
        torch.cuda.current_stream().wait_stream(stream)
    for mine, wanted in zip(found, kept, strict=True):
        assert_same_bits(mine, wanted)


def test_forwards_before_their_backwards_have_memory_of_their_own(offloading):
    model, call, _ = offloading
    xs, alone = ([normal(seed, ROWS, WIDTH).requires_grad_() for seed in range(3)]
                 for _ in range(2))
    for out in [call(x).sum() for x in xs]:
        out.backward()
    for x in alone:
        call(x).sum().backward()
    assert_same_bits([x.grad for x in xs], [x.grad for x in alone])


def test_a_second_backward_finds_what_the_first_found(offloading):
    _, call, _ = offloading
    x = normal(5, ROWS, WIDTH).requires_grad_()
    out = call(x).square().sum()
    first, = torch.autograd.grad(out, x, retain_graph=True)
    call(normal(6, ROWS, WIDTH).requires_grad_()).sum().backward()
    second, = torch.autograd.grad(out, x)
    assert torch.equal(first, second)


def peak_bytes(model, call):
    gradients(model, call, 0)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients(model, call, 1)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("budget", [0.6, 0.3])
def test_a_budget_is_kept_and_the_peak_falls(state, plain, budget):
    model, other = made(state), made(state)
    call = call_of(model, activation_memory=budget)
    planned = moved(call)
    assert planned.reason == "" and planned.peak_bytes <= planned.budget_bytes
    for seed, wanted in enumerate(plain):
        assert_close(gradients(model, call, seed), wanted)
    saving = peak_bytes(other, call_of(other, record=False)) - peak_bytes(model, call)
    assert saving > 0.5 * (planned.saved_bytes - planned.budget_bytes), (saving, planned)


def training(model, call):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(x, y):
        loss = F.mse_loss(call(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def test_a_whole_step_that_moves_saved_tensors_is_recorded(state):
    mine, theirs = made(state, anabranch.offload()), made(state, anabranch.offload())
    plain, step = training(theirs, call_of(theirs)), training(mine, call_of(mine))
    step = anabranch.record(step)
    for seed in range(8):
        x, y = normal(seed, ROWS, WIDTH), normal(100 + seed, ROWS, WIDTH)
        assert torch.equal(step(x, y), plain(x, y)), seed
    assert_same_bits(list(mine.parameters()), list(theirs.parameters()))
    assert_launched(step, 5)
    assert any(report.host_copies for report in step.reports), told(step)


def test_a_recorded_step_with_two_micro_batches_is_right(state):
    def accumulating(model, call):
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(x, y):
            for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
                F.mse_loss(call(part), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            return x.sum()

        return step

    mine, theirs = made(state, anabranch.offload()), made(state, anabranch.offload())
    step = anabranch.record(accumulating(mine, call_of(mine)))
    plain = accumulating(theirs, call_of(theirs))
    for seed in range(8):
        x, y = normal(seed, ROWS, WIDTH), normal(100 + seed, ROWS, WIDTH)
        step(x, y), plain(x, y)
    assert_same_bits(list(mine.parameters()), list(theirs.parameters()))
    assert launches(step) >= 5, told(step)


def test_a_forward_and_a_backward_that_move_saved_tensors_are_recorded_each(offloading, kept):
    model, call, _ = offloading
    for seed in [0, 1, 2, 3] * 2:
        assert_same_bits(gradients(model, call, seed), kept[seed])
    told = anabranch.explain(lambda: call(normal(0, ROWS, WIDTH).requires_grad_()).sum().backward())
    graphs = told.to_dict()["graphs"]
    assert {graph["kind"] for graph in graphs} == {"forward", "backward"}
    for graph in graphs:
        assert any(one["nodes"] and one["calls"] > one["plain_calls"]
                   for one in graph["recordings"]), graph


def test_without_pinned_memory_a_step_goes_on_and_says_so(offloading, kept, monkeypatch):
    model, call, _ = offloading
    x = normal(0, ROWS, WIDTH).requires_grad_()
    monkeypatch.setattr(SavingBlocks, "take", none)
    monkeypatch.setattr(host_memory, "pinned", none)
    with pytest.warns(match="stay on the GPU"):
        out = call(x)
    (out * normal(1000, ROWS, WIDTH)).sum().backward()
    assert_same_bits([out.detach(), x.grad], kept[0][:2])


def test_save_on_cpu_around_it_is_right(offloading, kept):
    model, call, _ = offloading
    x = normal(0, ROWS, WIDTH).requires_grad_()
    model.zero_grad()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out = call(x)
    (out * normal(1000, ROWS, WIDTH)).sum().backward()
    assert_same_bits([out.detach(), x.grad], kept[0][:2])


def test_nothing_is_held_when_a_step_has_ended(offloading):
    model, call, _ = offloading
    gradients(model, call, 0)
    assert all(not lanes._begun and not lanes._captured for lanes in copies._lanes.values())


def test_the_measured_link_is_plausible():
    link = measure(torch.device(DEVICE, 0))
    assert link.own_rate > link.out_rate > 1e9 and link.in_rate > 1e9
    assert 0 < link.both_out_rate <= link.out_rate and 100 < link.latency_ns < 1e6
    assert link.pageable_out_rate <= 1.2 * link.out_rate
