# SPDX-License-Identifier: Apache-2.0
"""Calls of recorded modules, which are launched as those of recorded functions.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

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

pytestmark = pytest.mark.oldest
HERE = str(Path(anabranch.__file__).parent)


class Net(nn.Module):
    """Answers the tensors that it uses."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return [self.layer.weight, self.layer.bias, self.scale]


def test_a_launch_is_given_the_tensors_that_stand_in_the_module_now():
    net = Net()
    made = recorded(net)
    made.scale = nn.Parameter(torch.zeros(2))
    assert_launches(made, net)
    net.layer = nn.Linear(2, 2)
    assert_launches(made, net)
    made.load_state_dict(Net().state_dict(), assign=True)
    assert_launches(made, net)
    assert len(made.reports) == 1


def test_what_is_guarded_of_a_model_is_guarded_of_the_module():
    net = Net()
    made = recorded(net)
    made.eval()
    assert_recorded_anew(made, net)
    made.train()
    assert_launches(made, net)
    handle = made.register_forward_hook(lambda *given: None)
    assert_recorded_anew(made, net)
    handle.remove()
    assert_launches(made, net)
    made.scale.requires_grad_(False)
    assert_recorded_anew(made, net)


def test_a_copy_launches_with_its_own_tensors_and_has_no_recordings_at_first():
    made = recorded(Net())
    other = copy.deepcopy(made)
    assert_recorded_anew(other, other.anabranch.__wrapped__)
    assert_launches(made, made.anabranch.__wrapped__)
    assert made.layer.weight is not other.layer.weight


def test_a_launched_call_goes_through_one_frame_more_than_that_of_a_callable():
    net = Net()
    made, counts = recorded(net), []
    for call in (made, made.anabranch):
        assert_launches(call, net)
        counts.append(0)
        sys.setprofile(count_ours(counts))
        try:
            call(X)
        finally:
            sys.setprofile(None)
    assert counts[0] == counts[1] + 1


def count_ours(counts):
    def count(frame, event, argument):
        counts[-1] += event == "call" and frame.f_code.co_filename.startswith(HERE)
    return count


def test_a_recorded_layer_inside_a_recorded_step_is_part_of_that():
    inner = anabranch.record(Net())
    made = anabranch.record(lambda x: inner(x))
    assert [isinstance(made(X), Launched) for _ in range(3)] == [False, False, True]
    assert inner.reports == [] and len(made.reports) == 1
    # Called by itself it is recorded for itself.
    assert [isinstance(inner(X), Launched) for _ in range(3)] == [False, False, True]


def test_a_recorded_layer_in_a_recorded_model_is_found_there():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = anabranch.record(Net())

        def forward(self, x):
            return self.net(x)

    outer = Outer()
    made = recorded(outer)
    outer.net.scale = nn.Parameter(torch.zeros(2))
    assert_launches(made, outer.net.anabranch.__wrapped__)
    outer.net = anabranch.record(Net())
    assert_launches(made, outer.net.anabranch.__wrapped__)
    outer.net.training = False
    assert_recorded_anew(made, outer.net.anabranch.__wrapped__)
