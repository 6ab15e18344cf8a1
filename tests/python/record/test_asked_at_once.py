# SPDX-License-Identifier: Apache-2.0
"""A call that finds everything where the one before had it asks for all of it at once."""

from __future__ import annotations

import pytest
import torch
from test_walk import as_on_a_gpu, assert_launches, assert_recorded_anew, recorded  # noqa: F401
from torch import nn

from anabranch._record.state.watch_list import WatchList

pytestmark = pytest.mark.oldest
SCALE = 1.0


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(2)), 1.0

    def forward(self, x):
        return x * self.weight * self.scale * SCALE


def test_where_nothing_has_moved_all_is_asked_at_once(monkeypatch):
    """Of a closure, an optimizer, modules, numbers and a global."""
    model, rate = Scaled(), 0.5
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        model(x * rate)
        return list(model.parameters())

    made = recorded(step)
    seen, look = [], WatchList.look
    monkeypatch.setattr(WatchList, "look", lambda watch: (seen.append(watch), look(watch))[1])
    assert_launches(made, step)
    assert not seen
    for change in (lambda: setattr(model, "scale", 2.0), model.eval,
                   lambda: optimizer.param_groups[0].update(lr=0.2),
                   lambda: setattr(optimizer, "param_groups", [*optimizer.param_groups, {
                       "params": [], "lr": 1.0}]),
                   lambda: monkeypatch.setitem(globals(), "SCALE", 2.0)):
        change()
        assert_recorded_anew(made, step)
