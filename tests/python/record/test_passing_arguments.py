# SPDX-License-Identifier: Apache-2.0
"""Objects that are given to a recorded step once, batches: what was found from the step and from
what is given again is not searched anew for them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_walk import (  # noqa: F401
    Launched,
    X,
    as_on_a_gpu,
    assert_launches,
    assert_recorded_anew,
    recorded,
)
from torch import nn

import anabranch
from anabranch._record.state.cache import StateCache
from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.scales = nn.Linear(2, 2), [torch.ones(2), {"last": torch.ones(2)}]


def batch(**more):
    return SimpleNamespace(x=torch.ones(2), inner={"y": torch.ones(3), "n": [1, "two"]}, **more)


@pytest.fixture
def searches(monkeypatch):
    """How often all has been searched."""
    count = []
    find = StateCache.find
    monkeypatch.setattr(StateCache, "find", lambda *args: count.append(1) or find(*args))
    return count


def step_of(net, batch, x):
    return [batch.x, batch.inner["y"], *net.head.parameters(), net.scales[1]["last"]]


def test_a_new_batch_in_each_call_is_launched_at_and_nothing_else_searched(searches):
    net = Net()

    def step(batch, x):
        return step_of(net, batch, x)

    for made, given in ((recorded(step, batch()), ()), (recorded(step_of, net, batch()), (net,))):
        searches.clear()
        for _ in range(20):
            assert_launches(made, step_of if given else step, *given, batch())
        assert not searches


def test_what_is_given_again_may_change_meanwhile(searches):
    net = Net()

    def step(batch, x):
        return step_of(net, batch, x)

    made = recorded(step, batch())
    searches.clear()
    net.head.weight = nn.Parameter(torch.zeros(2, 2))  # another tensor in a place that is known
    assert_launches(made, step, batch())
    assert not searches
    net.scales[1] = {"last": torch.zeros(2)}  # another object on the way to one
    assert_launches(made, step, batch())
    assert searches
    net.head = nn.Linear(2, 2)
    assert_launches(made, step, batch())
    net = Net()
    assert_launches(made, step, batch())
    net.head = nn.Bilinear(1, 2, 2)
    assert_recorded_anew(made, step, batch())


def test_a_batch_of_another_make_is_recorded_anew():
    def step(batch, x):
        return [batch.x] if batch.scale else []

    made = recorded(step, batch(scale=1.0))
    assert_launches(made, step, batch(scale=1.0))
    for other in (batch(scale=2.0), batch(scale=1.0, z=torch.ones(1)),
                  SimpleNamespace(x=torch.ones(2), scale=1.0),
                  SimpleNamespace(x=torch.ones(5), inner={}, scale=1.0)):
        assert not isinstance(made(other, X), Launched)
    assert_launches(made, step, batch(scale=1.0))


def test_tensors_that_a_batch_shares_with_the_step_may_not_become_two():
    net = Net()

    def step(batch, x):
        return [batch.weight, net.head.weight, batch.x]

    made = recorded(step, batch(weight=net.head.weight))
    assert_launches(made, step, batch(weight=net.head.weight))
    assert not isinstance(made(batch(weight=nn.Parameter(torch.ones(2, 2))), X), Launched)
    assert not isinstance(made(batch(weight=net.head.bias), X), Launched)


def test_a_batch_may_lead_to_what_the_step_has():
    net = Net()

    def step(batch, x):
        return [*batch.net.head.parameters(), batch.scales[0], batch.x]

    made = recorded(step, batch(net=net, scales=net.scales))
    assert_launches(made, step, batch(net=net, scales=net.scales))
    other = Net()
    assert_launches(made, step, batch(net=other, scales=other.scales))


def test_an_answer_that_is_the_batch_or_in_it_is_that_of_the_call(searches):
    net = Net()

    def step(batch, x):
        return [batch.x, net.head.weight, net.scales, batch, batch.inner, batch.inner["n"]]

    made = recorded(step, batch())
    searches.clear()
    for _ in range(3):
        assert_launches(made, step, batch())
    net.head.weight = nn.Parameter(torch.zeros(2, 2))
    assert_launches(made, step, batch())
    assert not searches
    net.scales = [torch.ones(2), {"last": torch.ones(2)}]
    assert_launches(made, step, batch())


def test_a_model_that_is_answered_is_the_one_of_the_call():
    made = recorded(lambda net, x: [net.head.weight, net], Net())
    for _ in range(3):
        assert_launches(made, lambda net, x: [net.head.weight, net], Net())


def found(state):
    """What there is to know of a state, whatever the order in which it was found."""
    places = {path: id(place.get()) for path, place in state.by_path().items()}
    ways = {id(thing) for _, (_, thing) in state._ways}
    return places, ways, sorted(map(repr, (path for path, _ in state.fingerprint))), \
        sorted(map(id, state.tensors())), {id(thing) for thing in state.modules}, \
        [id(tensor) for tensor in sorted(state.parameters(), key=id)]


@pytest.mark.parametrize("seed", range(40))
def test_a_state_with_a_base_has_what_one_without_has(seed):
    """Of random objects that lead to one another."""
    generator = torch.Generator().manual_seed(seed)

    def pick(things):
        return things[int(torch.randint(len(things), (), generator=generator))]

    nets = [Net() for _ in range(2)]
    things = [torch.ones(i + 1) for i in range(4)] + [nets[0].head.weight, nets[0].scales, nets[1]]

    def make():
        made = SimpleNamespace(**{f"a{i}": pick(things) for i in range(3)}, n=seed)
        return pick([made, [made, pick(things)], {"made": made}, made])

    for _ in range(4):
        things.append(make())
    held = [pick(things) for _ in range(3)]

    def step():
        return held

    for _ in range(5):
        passing = SimpleNamespace(**{f"b{i}": pick(things) for i in range(3)})
        base = State([step], [nets[0], None])
        with_base = State([step], [nets[0], passing], base=base)
        assert found(with_base) == found(State([step], [nets[0], passing]))
        assert with_base.is_current() and with_base.base is base


def test_batches_are_let_go():
    import gc
    import weakref

    net = Net()
    made = anabranch.record(lambda batch, x: step_of(net, batch, x))
    gone = []
    for _ in range(10):
        given = batch()
        gone.append(weakref.ref(given.x))
        made(given, X)
    del given
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= 1
