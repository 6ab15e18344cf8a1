# SPDX-License-Identifier: Apache-2.0
"""Numbers of Python's that a step changes, which no launch would."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from anabranch._record.effects.stepped_by_hand import SteppedByHand
from anabranch._record.refusals import NotRecordable


class ByHand(torch.optim.Optimizer):
    """Counts its steps in Python, where it is told to."""

    def __init__(self, parameters, counted):
        super().__init__(parameters, {"lr": 0.1})
        self.counted = counted
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].update(momentum=torch.zeros_like(parameter), step=0)

    def step(self):
        if self.counted == "a group":
            self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        for state in self.state.values():
            state["step"] += self.counted == "each parameter"
            state["momentum"] += 1


@pytest.mark.parametrize("counted", ("a group", "each parameter", "nothing"))
def test_an_optimizer_that_counts_in_python_is_no_step_for_a_launch(counted):
    optimizer = ByHand(nn.Linear(2, 2).parameters(), counted)
    stepped = SteppedByHand([optimizer], [])
    optimizer.step()
    if counted == "nothing":
        stepped.check()
    else:
        with pytest.raises(NotRecordable, match="changes an optimizer's numbers in Python"):
            stepped.check()
