# SPDX-License-Identifier: Apache-2.0
"""torch's profiler shows launches by names of ours, and nothing of ours is there where it is off."""

from __future__ import annotations

import pytest
import torch
from stand_in_recording import StandIn
from torch.profiler import ProfilerActivity, profile

import anabranch
from anabranch import _compat, config
from anabranch._record.recorder import Recorder
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


def names_in(call):
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        found = call()
    return found, [event.name for event in taken.events() if event.name.startswith("anabranch")]


def test_a_graph_on_streams_is_named_after_them():
    """Of operators that torch has ready: nothing is compiled."""
    def branches(x, weight):
        with anabranch.stream("left"):
            left = x @ weight
        with anabranch.stream("right"):
            right = weight @ x
        return left @ right

    given = torch.randn(2, 8, 8).unbind()
    compiled = torch.compile(branches, backend=anabranch.backend)
    with torch.no_grad():
        wanted = compiled(*given)
        found, names = names_in(lambda: compiled(*given))
    assert torch.equal(found, wanted)
    assert names == ["anabranch: launch of 3 regions on ambient, left, right"]


def test_a_recorded_step_is_named_after_itself(monkeypatch):
    StandIn(monkeypatch)
    recorder = Recorder(lambda leaves: leaves[0] * 2, config.resolve({"max_parallel_kernels": 1}),
                        "train", kind=CallableKind(takes_gradients=True))
    x = torch.ones(4)
    for _ in range(3):
        recorder.run("key", [x], State(), lambda: "train")
    found, names = names_in(lambda: recorder.run("key", [x], State(), lambda: "train"))
    assert torch.equal(found, x * 2) and names == ["anabranch: launch of train"]


def test_without_a_profile_a_function_is_called_as_it_is():
    assert _compat.in_profiles(len, "len") is len
