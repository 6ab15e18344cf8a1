# SPDX-License-Identifier: Apache-2.0
"""Between two calls things may be changed in place that leave all values as they are: the order of a
container, and whether a tensor requires gradients. No launch misses that."""

from __future__ import annotations

import collections
import operator
from types import SimpleNamespace

import pytest
import torch
from tape_recording import OnTape
from torch import nn

import anabranch

X = torch.arange(4.0)
OPERATORS = {"add": operator.add, "multiply": operator.mul, "subtract": operator.sub}
FACTORS = {"add": 1.0, "multiply": 2.0, "subtract": 0.5}


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    return OnTape(monkeypatch)


def assert_recorded(called):
    assert sum(report.calls for report in called.reports if report.nodes) > 4
    assert not [report.reason for report in called.reports if report.reason is not None]


def first_is_last(mapping):
    key = next(iter(mapping))
    mapping[key] = mapping.pop(key)


def swapped(mapping):
    """Two keys for two others, and back, so that their number and the values stay."""
    values = mapping.pop("add"), mapping.pop("multiply")
    mapping["multiply"], mapping["add"] = reversed(values)


@pytest.mark.parametrize("change", [first_is_last, swapped])
@pytest.mark.parametrize("kind", [
    dict, collections.OrderedDict, collections.Counter,
    lambda some: collections.defaultdict(float, some)],
    ids=["dict", "OrderedDict", "Counter", "defaultdict"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_dictionary_in_another_order_is_seen(kind, change, inside):
    factors = kind(FACTORS)
    held = SimpleNamespace(factors=factors, more=[{"factors": factors}])

    def step(x):
        for name, by in (held.more[0]["factors"] if inside else held.factors).items():
            x = OPERATORS[name](x, by)
        return x

    recorded = anabranch.record(step)
    for _ in range(3):
        for _ in range(4):
            assert torch.equal(recorded(X), step(X))
        change(factors)
        assert torch.equal(recorded(X), step(X))
    assert_recorded(recorded)


@pytest.mark.parametrize("others", [0, 2000])
def test_what_an_ordered_dictionary_alone_keeps_in_order_is_seen(others):
    factors = collections.OrderedDict(FACTORS)
    factors.update(dict.fromkeys(range(others)))

    def step(x):
        for name, by in factors.items():
            x = OPERATORS[name](x, by) if name in FACTORS else x
        return x

    recorded = anabranch.record(step)
    for key in ("add", "multiply", "add", "subtract"):
        for _ in range(4):
            assert torch.equal(recorded(X), step(X))
        factors.move_to_end(key)
    assert torch.equal(recorded(X), step(X))


@pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")
@pytest.mark.parametrize(("kind", "change"), [
    (dict, first_is_last), (collections.Counter, first_is_last), (collections.OrderedDict, first_is_last),
    (collections.OrderedDict, lambda ordered: ordered.move_to_end(next(iter(ordered))))],
    ids=["dict", "Counter", "OrderedDict", "move_to_end"])
def test_a_step_that_reorders_what_it_goes_through_runs_plainly(kind, change):
    def made():
        factors = kind(FACTORS)

        def step(x):
            change(factors)
            for name, by in factors.items():
                x = OPERATORS[name](x, by)
            return x

        return step, factors

    (step, wanted), (other, found) = made(), made()
    recorded = anabranch.record(other)
    for _ in range(8):
        assert torch.equal(recorded(X), step(X))
        assert [*found.items()] == [*wanted.items()]
    assert all(not report.nodes for report in recorded.reports)


def test_arguments_that_are_gone_through_in_another_order_are_told_apart():
    def step(some, **named):
        x = X
        for name, by in (*some.items(), *named.items()):
            x = OPERATORS[name](x, by)
        return x

    recorded = anabranch.record(step)
    orders = [FACTORS, dict(reversed(FACTORS.items()))]
    for _ in range(3):
        for some in orders:
            for named in orders:
                tensors = {name: torch.full((4,), by) for name, by in some.items()}
                assert torch.equal(recorded(tensors, **named), step(tensors, **named))


def variable():
    tensor = torch.full((4,), 2.0)
    return tensor, lambda: tensor


def item():
    tensors = [torch.ones(4), torch.full((4,), 2.0)]
    return tensors[1], lambda: tensors[1]


def attribute():
    held = SimpleNamespace(inner=SimpleNamespace(by=torch.full((4,), 2.0)))
    return held.inner.by, lambda: held.inner.by


def buffer():
    layer = nn.Module()
    layer.register_buffer("by", torch.full((4,), 2.0))
    return layer.by, lambda: layer.by


def parameter():
    layer = nn.Module()
    layer.by = nn.Parameter(torch.full((4,), 2.0), requires_grad=False)
    return layer.by, lambda: layer.by


@pytest.mark.parametrize("kind", [variable, item, attribute, buffer, parameter])
def test_a_tensor_that_requires_gradients_from_some_call_on_gets_them(kind):
    def run(record):
        weight, (tensor, found) = torch.ones(4, requires_grad=True), kind()
        given, seen = tensor.detach().clone(), []

        def step(x):
            loss = (x * found() * weight).square().sum()
            loss.backward()
            return loss.detach()

        called = record(step)
        for i in range(15):
            if i in (5, 10):
                tensor.requires_grad_(i == 5)
            seen.append((called(X), weight.grad.clone(),
                         None if tensor.grad is None else tensor.grad.clone()))
        assert torch.equal(tensor, given)
        return seen, called

    (wanted, _), (found, recorded) = run(lambda step: step), run(anabranch.record)
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        for one, other in zip(mine, theirs, strict=True):
            assert one is other is None or torch.equal(one, other), i
    assert_recorded(recorded)
