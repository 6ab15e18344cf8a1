# SPDX-License-Identifier: Apache-2.0
"""Calls of a recorded step inside of what sees or derives each operator: a launch would show it
none.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import pytest
import torch
from test_walk import Launched, X, as_on_a_gpu, assert_launches, recorded  # noqa: F401
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.oldest

WEIGHT = torch.ones(2)


def step(x):
    return [WEIGHT]


class Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("around", [Seeing, torch.autograd.detect_anomaly, forward_ad.dual_level])
def test_calls_inside_run_plainly(around):
    made = recorded(step)
    with around():
        assert not isinstance(made(X), Launched)
    assert_launches(made, step)


@pytest.mark.parametrize("transform", [
    lambda call: torch.vmap(call)(torch.ones(3, 2)),
    lambda call: torch.func.grad(lambda x: call(x).sum())(X),
    lambda call: torch.func.jvp(call, (X,), (X,)),
], ids=["vmap", "grad", "jvp"])
def test_transforms_get_the_step_itself(transform):
    made, answers = recorded(step), []

    def call(x):
        answers.append(made(x))
        return x * 2

    transform(call)
    assert answers and not any(isinstance(answer, Launched) for answer in answers)
    assert_launches(made, step)


def test_a_default_device_is_none_of_these():
    made = recorded(step)
    with torch.device("cpu"):
        assert_launches(made, step)
