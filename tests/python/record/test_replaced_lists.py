# SPDX-License-Identifier: Apache-2.0
"""Lists and dictionaries that a program replaces between calls, as peft does to switch adapters: what
stands there is looked into, and nothing is searched for.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import copy

import pytest
import torch
from test_guards import Configured
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

pytestmark = pytest.mark.oldest

REPLACEMENTS = {
    "a list": ("rates", [0.1, 0.2], [0.1, 0.3]),
    "a dictionary": ("table", {"beta": 0.5}, {"beta": 0.6}),
}


@pytest.mark.parametrize("name, first, second", REPLACEMENTS.values(), ids=REPLACEMENTS.keys())
def test_containers_that_the_program_replaces_in_each_call_are_looked_into_without_a_search(
        name, first, second, monkeypatch):
    """As peft does to switch adapters."""
    net = Configured()
    made = recorded(lambda x: [net.weight])
    assert vars(net)[name] == first
    setattr(net, name, second)
    assert_recorded_anew(made, lambda x: [net.weight])

    with monkeypatch.context() as patch:
        patch.setattr(StateCache, "find", None)  # whoever searches finds nothing to call
        for values in (first, second, first):
            setattr(net, name, copy.copy(values))
            assert_launches(made, lambda x: [net.weight])
    for change in (lambda: vars(net)[name].clear(), lambda: setattr(net, name, None)):
        change()
        assert_recorded_anew(made, lambda x: [net.weight])
    setattr(net, name, first)
    assert_launches(made, lambda x: [net.weight])


def test_a_switch_of_lists_and_of_what_requires_gradients_is_recorded_once_a_side():
    """As peft's set_adapter is."""
    net = Configured()
    net.other = nn.Parameter(torch.ones(2))
    made = anabranch.record(lambda x: [net.weight, net.other])
    with torch.no_grad():
        for i in range(12):
            net.rates = [("first", "second")[i % 2]]
            net.weight.requires_grad_(i % 2 == 0)
            net.other.requires_grad_(i % 2 == 1)
            assert isinstance(made(X), Launched) == (i > 3), i


def test_a_list_in_two_places_of_which_one_is_replaced():
    net = Configured()
    net.nested = [net.rates]
    made = recorded(lambda x: [net.weight])
    for _ in range(3):
        net.rates = list(net.rates)
        made(X), made(X)
        assert_launches(made, lambda x: [net.weight])
    for change in (lambda: net.nested[0].append(7), lambda: setattr(net, "rates", [9])):
        change()
        assert_recorded_anew(made, lambda x: [net.weight])
