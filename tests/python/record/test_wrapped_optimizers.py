# SPDX-License-Identifier: Apache-2.0
"""An optimizer that wraps another one, as accelerate's does, is walked as the one that it wraps."""

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
    shown = next(cell.cell_contents for cell in step.__closure__
                 if isinstance(cell.cell_contents, Wrapper))
    shown.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not state.is_current()


def test_an_optimizer_that_holds_another_one_of_other_parameters_is_itself():
    """Lookahead and its like step both."""
    model = nn.Linear(4, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.2)
    outer.inner = inner
    assert State((outer,)).optimizers == [outer]
