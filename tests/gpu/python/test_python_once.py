# SPDX-License-Identifier: Apache-2.0
"""The step's Python runs once in each call that records, too, with eager's answers and
state; what callers have of the call whose capture was launched stays as it was."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from counted_runs import count_runs
from torch import nn
from torch.nn import functional as F

import anabranch

CALLS = 8


@pytest.fixture(name="runs")
def counted_runs(monkeypatch):
    return count_runs(monkeypatch)


def model_of(*sizes, dropout=0.0):
    layers = []
    for a, b in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(a, b), nn.GELU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers).cuda()


def inferring():
    model = model_of(64, 256, 64)

    def step(x):
        with torch.no_grad():
            return {"y": model(x), "x": x, "half": model(x)[:8]}

    return step, list(model.parameters())


def training(make):
    model = model_of(64, 512, 64, dropout=0.1)
    optimizer = make(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, list(model.parameters())


def caching():
    cache, place = torch.zeros(32, 64, device="cuda"), torch.zeros((), dtype=torch.long,
                                                                  device="cuda")
    layer = nn.Linear(64, 64).cuda()

    def step(x):
        with torch.no_grad():
            cache.index_copy_(0, place.view(1), layer(x[:1]))
            place.add_(1)
            return F.softmax(x @ cache.mT, -1) @ cache, cache

    return step, [cache, place]


class Counting:
    def __init__(self):
        self.calls, self.last, self.log = 0, None, []
        self.layer = nn.Linear(64, 64).cuda()

    def __call__(self, x):
        self.calls += 1
        self.log.append("called")
        with torch.no_grad():
            self.last = self.layer(x)
            return self.last * 2


def counting():
    step = Counting()
    return step, [step]


def beside_each_other():
    model, side = model_of(64, 256, 64), anabranch.stream("side")

    def step(x):
        with torch.no_grad():
            with side:
                y = model(x)
            return y + torch.tanh(x)

    return step, []


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def values_of(things):
    found = []
    for thing in things:
        if isinstance(thing, Counting):
            found += [torch.tensor([thing.calls, len(thing.log)]), thing.last]
        else:
            found += [thing, thing.grad]
    return [None if one is None else one.detach().clone() for one in found]


def answers_of(answer):
    flat, _ = torch.utils._pytree.tree_flatten(answer)
    return [leaf.detach() for leaf in flat]


def assert_alike(ours, eagers):
    for one, other in zip(ours, eagers, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("program, most", [
    (inferring, 3), (lambda: training(sgd), 4), (lambda: training(adam), 4), (caching, 3),
    (counting, 4), (beside_each_other, 3)],
    ids=["inferring", "sgd", "adam", "caching", "counting", "streams"])
def test_python_runs_once_a_call_and_all_is_as_in_eager(program, most, runs):
    def all_of(wrap):
        torch.manual_seed(3)
        step, state = program()
        called, counts, answers, kept = wrap(step), [], [], []
        for i in range(CALLS):
            begin = runs()
            torch.manual_seed(i)
            kept.append(called(torch.randn(16, 64, device="cuda")))
            counts.append(runs() - begin)
            answers.append((copy.deepcopy(answers_of(kept[-1])), values_of(state)))
        for answer, (then, _) in zip(kept, answers, strict=True):
            if program is not caching:  # whose answers are its cache
                assert_alike(answers_of(answer), then)
        return counts, answers

    _, expected = all_of(lambda step: step)
    counts, found = all_of(lambda step: anabranch.record(step))
    for (answer, state), (of_eager, state_of_eager) in zip(found, expected, strict=True):
        assert_alike(answer, of_eager)
        assert_alike(state, state_of_eager)
    assert counts == [1] * most + [0] * (CALLS - most)


def test_an_answer_that_is_the_next_argument_stays_right(runs):
    layer = nn.Linear(64, 64).cuda()

    def step(x):
        with torch.no_grad():
            return torch.tanh(layer(x))

    recorded = anabranch.record(step)
    x = y = torch.randn(8, 64, device="cuda")
    for _ in range(CALLS):
        x, y = step(x), recorded(y)
        torch.testing.assert_close(x, y)
    assert runs() == 3


def test_the_memory_of_the_kept_call_is_free_once_the_step_is_recorded(runs):
    layer = nn.Linear(2048, 2048).cuda()

    def step(x):
        with torch.no_grad():
            for _ in range(6):
                x = torch.relu(layer(x))
            return x.sum(0)

    def reserved():
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    recorded, x = anabranch.record(step), torch.randn(8192, 2048, device="cuda")
    answers, before = [], reserved()
    for _ in range(6):
        answers.append(recorded(x))
    assert runs() == 3
    assert reserved() - before < 64 << 20
    for answer in answers:
        torch.testing.assert_close(answer, step(x))


def test_constants_of_the_cpu_take_one_run_more_of_the_call_that_is_kept(runs):
    layer, counts = nn.Linear(64, 64).cuda(), []

    def step(x):
        with torch.no_grad():
            return layer(x) * torch.tensor(2.0, device="cuda") + torch.arange(64).cuda()

    recorded, x = anabranch.record(step), torch.randn(8, 64, device="cuda")
    for _ in range(6):
        begin = runs()
        torch.testing.assert_close(recorded(x), step(x))
        counts.append(runs() - begin)
    assert counts == [1, 2, 1, 0, 0, 0]


def test_what_breaks_in_its_capture_is_as_in_eager(runs):
    layer = nn.Linear(64, 64).cuda()

    class Looking:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            with torch.no_grad():
                y = layer(x)
                return y * 2 if y.sum().item() > 0 else y - 1

    step = Looking()
    recorded, x = anabranch.record(step), torch.randn(8, 64, device="cuda")
    for i in range(4):
        torch.testing.assert_close(recorded(x), Looking()(x))
        assert step.calls == i + 1
