# SPDX-License-Identifier: Apache-2.0
"""What `anabranch.record` answers, as its user has it: guards of the user's own, reports, a fresh
start, and warnings.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings

import pytest
import torch
from test_walk import Launched, X, as_on_a_gpu, recorded  # noqa: F401
from torch import nn

import anabranch
from anabranch import errors
from anabranch._record import recorded_callable
from anabranch._record import recorder as recorder_module
from anabranch._record.capture import now
from anabranch._record.capture.capture import captured_now
from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.trial.plain_steps import PLAIN_STEPS

pytestmark = pytest.mark.oldest

SHARED = torch.ones(2)
RECORD = recorder_module.Recorder._record  # the fixture above has another one in its place


def is_launched(made, *args):
    return isinstance(made(*args, X), Launched)


def test_what_the_guard_answers_tells_signatures_apart():
    layer, hidden = nn.Linear(2, 2), {"scale": 1.0}
    read = hidden.get
    made = anabranch.record(lambda x: [layer.weight], guard=lambda: read("scale"))
    assert [is_launched(made) for _ in range(3)] == [False, False, True]
    hidden["scale"] = 2.0
    assert [is_launched(made) for _ in range(3)] == [False, False, True]
    hidden["scale"] = 1.0
    assert is_launched(made) and len(made.reports) == 2


def test_a_guard_that_names_what_differs_is_in_the_reason():
    layer, counter = nn.Linear(2, 2), iter(range(100))
    made = anabranch.record(lambda x: [layer.weight], guard=lambda: next(counter),
                            max_recordings=2)
    for _ in range(4):
        made(X)
    assert "differs from the nearest in what guard= answers" in made.reports[-1].reason


def test_a_guard_whose_answer_cannot_be_hashed_is_refused():
    made = anabranch.record(lambda x: x, guard=lambda: [1])
    with pytest.raises(errors.WrongArgument, match=r"what guard= answers is \[1\] \(list\)"):
        made(X)
    with pytest.raises(errors.WrongArgument, match="E0611"):
        anabranch.record(lambda x: x, guard=3)


def test_without_guards_numbers_of_python_are_those_of_the_recording():
    layer, settings = nn.Linear(2, 2), {"rate": 1.0, "names": [1, 2]}

    def step(x):
        return [layer.weight] if settings["rate"] and len(settings["names"]) else []

    watching, made = anabranch.record(step), anabranch.record(step, guards=False)
    for call in (watching, made):
        assert [is_launched(call) for _ in range(3)] == [False, False, True]
    settings["rate"], settings["names"] = 2.0, [1]
    assert is_launched(made) and not is_launched(watching)
    layer.eval()
    assert not is_launched(made)  # torch's own are compared all the same


def test_a_reset_begins_anew():
    layer = nn.Linear(2, 2)
    made = recorded(lambda x: [layer.weight])
    made.reset()
    assert made.reports == []
    assert [is_launched(made) for _ in range(3)] == [False, False, True]


def test_precompile_calls_until_a_launch_serves_the_signature():
    layer, calls = nn.Linear(2, 2), []

    def step(x):
        calls.append(x.shape)
        return [layer.weight]

    made = anabranch.record(step)
    report = made.precompile(X)
    assert report.calls == 2 and report.reason is None
    assert is_launched(made)
    assert made.precompile(torch.ones(3)).inputs == "(float32[3])" and len(made.reports) == 2


class Owner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    @anabranch.record
    def method(self, x):
        return [self.weight]


@pytest.mark.parametrize("inner", [anabranch.record(lambda x: [SHARED]), Owner().method],
                         ids=["a callable", "a method"])
def test_what_is_recorded_inside_a_recorded_step_is_part_of_that(inner):
    inner.reset()
    made = anabranch.record(lambda x: inner(x))
    assert [is_launched(made) for _ in range(3)] == [False, False, True]
    assert inner.reports == [] and len(made.reports) == 1
    # Called by itself it is recorded for itself.
    assert [is_launched(inner) for _ in range(3)] == [False, False, True]


def test_what_is_recorded_already_is_launched_inside_a_step_that_is_tried():
    layer = nn.Linear(2, 2)
    inner = recorded(lambda x: [layer.weight])
    with PLAIN_STEPS:
        assert is_launched(inner) and inner.precompile(X).reason is None
        assert "it ran plainly" in inner.precompile(torch.ones(3)).reason
    assert len(inner.reports) == 1


def test_precompile_ends_where_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: False)
    assert "no GPU" in anabranch.record(lambda x: x).precompile(X).reason


def test_a_report_does_not_change_and_cannot_be_changed():
    layer = nn.Linear(2, 2)
    made = recorded(lambda x: [layer.weight])
    [report] = made.reports
    calls = report.calls
    made(X)
    assert report.calls == calls and made.reports[0].calls == calls + 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.calls = 0


@pytest.mark.parametrize("keywords, words", [
    ({"static": (nn.Linear(2, 2),)}, r"state, as it is called now"),
    ({"overlap": 2}, r"'overlap'\. \[E0701\]\nIt is called max_parallel_kernels now"),
    ({"options": {"ahead_bytes": 2}}, r"It is called prefetch_bytes now"),
    ({"strcit": True}, r"Nearest: strict")])
def test_a_name_of_before_is_refused_with_that_of_now(keywords, words):
    with pytest.raises(anabranch.AnabranchError, match=words):
        anabranch.record(lambda x: x, **keywords)


def test_keywords_that_are_none_are_not_given():
    assert anabranch.record(lambda x: x, strict=None)._chosen.strict is False
    with anabranch.config.patch(strict=True):
        assert anabranch.record(lambda x: x, strict=None)._chosen.strict is True
        assert anabranch.record(strict=False)(lambda x: x)._chosen.strict is False


@pytest.fixture
def refused(monkeypatch):
    def refuse(recorder, spec, leaves):
        raise NotRecordable("it looks at a value", Cause.WAITS_FOR_GPU)

    monkeypatch.setattr(recorder_module.Recorder, "_record", RECORD)
    monkeypatch.setattr(recorder_module.Recorder, "_step", refuse)
    return anabranch.record(lambda x: x + 1)


def test_what_is_not_recorded_is_warned_of_at_the_call(refused):
    with pytest.warns(anabranch.RecordWarning,
                      match=r"runs unrecorded: it looks at a value\n  called at "
                            r"test_recorded_callable\.py:\d+ in test_what\w+ \[E0311\]\n  Choose on "
                            ) as warned:
        for _ in range(4):
            assert torch.equal(refused(X), X + 1)
    assert len(warned) == 1 and warned[0].filename == __file__


def test_a_filter_that_makes_errors_of_warnings_stops_no_program(refused, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            assert torch.equal(refused(X), X + 1)
    assert "runs unrecorded" in caplog.text


def test_is_recording_is_true_in_captures_of_ours_alone(monkeypatch):
    assert not anabranch.is_recording()
    monkeypatch.setattr(now, "_truth", lambda: True)
    assert not anabranch.is_recording()
    with captured_now():
        assert anabranch.is_recording()
    assert not anabranch.is_recording()


def test_is_recording_breaks_no_compiled_graph(monkeypatch):
    monkeypatch.setattr(now, "_truth", lambda: True)

    @functools.partial(torch.compile, backend="eager", fullgraph=True)
    def step(x):
        return x + 1 if anabranch.is_recording() else x + 2

    assert torch.equal(step(X), X + 2)
    with captured_now():
        assert torch.equal(step(X), X + 2)
