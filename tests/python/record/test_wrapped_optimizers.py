# SPDX-License-Identifier: Apache-2.0
"""Optimizers of users: one that wraps another, as accelerate's does, is walked as the one that it
wraps; one that holds others, as torchtitan's does, is walked with them; and what a step reads of their
attributes is guarded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


class Wrapper(torch.optim.Optimizer):
    """Shows what another optimizer has, and calls that."""

    def __init__(self, wrapped):
        self.optimizer, self.counts = wrapped, 0

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def step(self, closure=None):
        self.optimizer.step(closure)


def made(wrap):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    shown = wrap(optimizer)

    def step(x):
        model(x).sum().backward()
        shown.step()

    return model, optimizer, step


@pytest.mark.parametrize("wrap", [Wrapper, lambda one: Wrapper(Wrapper(one))],
                         ids=["once", "twice"])
def test_the_wrapped_optimizer_its_state_and_its_numbers_are_found(wrap):
    model, optimizer, step = made(wrap)
    state, plain = State((step,)), State((made(lambda one: one)[2],))
    assert state.optimizers == [optimizer]
    assert state.on_host() and len(state.on_host()) == len(plain.on_host())
    before = state.guards()
    assert state.is_current()
    optimizer.param_groups[0]["lr"] = 0.2
    assert state.is_current() and state.guards() != before


def test_another_optimizer_in_the_wrapper_is_another_state():
    model, optimizer, step = made(Wrapper)
    state = State((step,))
    shown_of(step).optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not state.is_current()


class Container(torch.optim.Optimizer):
    """Steps the optimizers of its list, and shows their parameters."""

    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)
        super().__init__([parameter for one in optimizers
                          for group in one.param_groups for parameter in group["params"]], {})

    def step(self, closure=None):
        for one in self.optimizers:
            one.step(closure)


def test_an_optimizer_that_holds_others_is_walked_with_them():
    model, optimizer, step = made(Container)
    shown = shown_of(step)
    state = State((step,))
    assert state.optimizers == [shown, optimizer]
    assert len(state.on_host()) == len(State((optimizer,)).on_host()) > 0
    before = state.guards()
    optimizer.param_groups[0]["lr"] = 0.2
    assert state.is_current() and state.guards() != before
    shown.optimizers[0] = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not state.is_current()


def test_an_optimizer_in_an_attribute_of_another_one_is_found():
    """Lookahead and its like step both."""
    model = nn.Linear(4, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.2)
    outer.inner = inner
    assert State((outer,)).optimizers == [outer, inner]


class Scaled(torch.optim.SGD):
    by_class = 1.0

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.factor, self.table, self.unread = 1.0, {"all": 1.0}, 0
        self.slow = torch.zeros(3)

    @torch.no_grad()
    def step(self, closure=None):
        scale = self.factor * self.table["all"] * self.by_class
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad * scale * group["lr"])
        self.slow.add_(1)


CHANGES = {
    "an attribute": lambda one: setattr(one, "factor", 2.0),
    "an item of a dictionary": lambda one: one.table.update(all=2.0),
    "an attribute that hides the class's": lambda one: setattr(one, "by_class", 2.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_step_reads_of_an_optimizers_attributes_is_guarded(change):
    model = nn.Linear(4, 4)
    optimizer = Scaled(model.parameters())

    def step(x):
        model(x).sum().backward()
        optimizer.step()

    state = State((step,))
    assert any(found is optimizer.slow for found in state.on_host())
    before = state.guards()
    optimizer.unread = 1
    assert state.is_current() and state.guards() == before
    change(optimizer)
    assert not (state.is_current() and state.guards() == before)
    assert State((step,)).guards() != before


def test_what_a_step_reads_of_a_wrappers_attributes_is_guarded():
    _, _, step = made(Skipping)
    state = State((step,))
    before = state.guards()
    shown_of(step).skips = True
    assert not state.is_current() and State((step,)).guards() != before


class Skipping(Wrapper):
    skips = False

    def step(self, closure=None):
        if not self.skips:
            super().step(closure)


def shown_of(step):
    return next(cell.cell_contents for cell in step.__closure__
                if isinstance(cell.cell_contents, (Wrapper, Container)))
