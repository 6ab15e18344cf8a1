# SPDX-License-Identifier: Apache-2.0
"""What a try to record a step does where a recording breaks, is refused or is wrong."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from anabranch import config
from anabranch._core.library import NativeError
from anabranch._record import attempt as attempt_module
from anabranch._record import refusals
from anabranch._record.capture.step import Step
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.state import State
from anabranch._record.tensors import units_apart, units_of
from anabranch._record.trial import verify
from anabranch._record.trial.earlier import Earlier


def step_of_two():
    """Of two tensors that share memory, one of them its state."""
    whole = torch.zeros(8)
    given = [whole, whole[2:4]]
    return Step(lambda leaves: None, given[:1], [0], given, units_apart(given, 1), 0, [], 0, None)


@pytest.fixture
def making(monkeypatch):
    """A try to record a step that shall be noted, and the steps that it makes recordings of; makers
    and launches fail with what is put into ``failures``, one a time."""
    seen = SimpleNamespace(made=[], failures=[], rewound=0)
    monkeypatch.setattr(attempt_module, "free_bytes", lambda device: 0)
    monkeypatch.setattr(attempt_module, "slack_bytes", lambda device: 0)

    def fail(kinds):
        if seen.failures and isinstance(seen.failures[0], kinds):
            raise seen.failures.pop(0)

    def make(attempt, step, meter):
        seen.made.append(step)
        fail(refusals.NotRecordable)
        return ["recording"]

    def launch(attempt, made, meter):
        fail((verify.Untrusted, NativeError))
        return "answer", made[0]

    monkeypatch.setattr(attempt_module.Attempt, "_make_of", make)
    monkeypatch.setattr(attempt_module.Attempt, "_first_launch", launch)

    def run(**kind):
        def rewind():
            seen.rewound += 1

        step = dataclasses.replace(step_of_two(), is_noted=True, **kind)
        attempt = attempt_module.Attempt(
            "step", Specialization("()", State()), step,
            config.resolve({}), kind=CallableKind(takes_gradients=True),
            earlier=Earlier(), look_farther=lambda ways: None)
        attempt._trial = SimpleNamespace(rewind=rewind, use=lambda step: None)
        return attempt._make_and_launch(None)

    return seen, run


def test_a_step_that_notes_break_or_make_wrong_is_made_again_without_them(making):
    seen, run = making
    assert run() == ("answer", "recording") and [s.is_noted for s in seen.made] == [True]
    for failure in (refusals.BrokeWhileNoted("inside"), verify.Untrusted("differs")):
        seen.made.clear()
        seen.failures.append(failure)
        assert run() == ("answer", "recording")
        assert [step.is_noted for step in seen.made] == [True, False]
    assert seen.rewound == 1
    seen.failures += [verify.Untrusted("differs")] * 2  # and so it does without
    with pytest.raises(verify.Untrusted):
        run()
    seen.failures.clear()
    seen.failures.append(refusals.NotRecordable("an .item()"))
    seen.made.clear()
    with pytest.raises(refusals.NotRecordable):
        run()
    assert len(seen.made) == 1  # no reason to run its Python again


def test_a_backward_whose_stretches_are_refused_or_wrong_is_made_again_as_one_graph(
        making, monkeypatch):
    seen, run = making
    refused = NativeError(402, "two slots share bytes")
    for failure, is_noted in ((refused, True), (verify.Untrusted("differs"), False)):
        seen.made.clear()
        seen.failures.append(failure)
        assert run(is_backward=True) == ("answer", "recording")
        assert [step.is_backward for step in seen.made] == [True, False]
        assert seen.made[-1].is_noted == is_noted
    seen.failures.append(refused)
    with pytest.raises(NativeError):
        run()  # another step is one graph anyway
    seen.failures.append(refused)
    monkeypatch.setattr(attempt_module.Rendezvous, "has_others", True)
    with pytest.raises(NativeError):
        run(is_backward=True)  # other processes have not been refused


def test_captures_that_differ_are_taken_once_more_and_no_more(making):
    seen, run = making
    seen.failures.append(refusals.OtherGraph("its edges"))
    assert run() == ("answer", "recording") and len(seen.made) == 2
    seen.made.clear()
    seen.failures += [refusals.OtherGraph("its edges"), refusals.BrokeWhileNoted("inside"),
                      refusals.OtherGraph("its nodes")]
    with pytest.raises(refusals.OtherGraph, match="nodes"):
        run()
    assert len(seen.made) == 3


def test_where_other_processes_take_part_none_tries_again_by_itself(making, monkeypatch):
    seen, run = making
    for has_others, kind in ((False, refusals.Again), (True, refusals.NotRecordable)):
        monkeypatch.setattr(attempt_module.Rendezvous, "has_others", has_others)
        seen.failures.append(refusals.Again("its numbers", refusals.Cause.RANDOM_ON_CPU))
        with pytest.raises(refusals.NotRecordable, match="its numbers") as raised:
            run()
        assert type(raised.value) is kind
        assert raised.value.reason.code == refusals.Cause.RANDOM_ON_CPU


def test_what_is_named_twice_is_captured_again_as_one(making):
    seen, run = making
    seen.failures.append(refusals.Aliased("twice"))
    assert run() == ("answer", "recording") and len(seen.made) == 2
    apart, joined = seen.made
    assert joined.units == units_of(apart.tensors) and joined.is_noted
