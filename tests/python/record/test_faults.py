# SPDX-License-Identifier: Apache-2.0
"""A mistake of ours costs a program its recordings, and no more: each function of the package that
a call of a recorded step goes through is broken once, on a stand-in for the GPU."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from stand_in_recording import Launched, StandIn
from torch import nn

import anabranch
from anabranch import errors
from anabranch._record import recorded_graph
from anabranch._record.recorded_graph import RecordedGraph
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.signature import ARGUMENTS_ALONE
from anabranch._record.state.cache import StateCache

HERE = str(Path(anabranch.__file__).parent)
CALLS = 4  # plain, and once more with a momentum; recorded; launched
# What catches mistakes and ends what was begun, and what a launch is here: the user's own Python.
NOT_BROKEN = {"RecordedCallable.__call__", "RecordedCallable._call_recorded",
              "behind_answer", "Recorder._behind_answer", "PlainSteps.__exit__", "RecordedCallable._call_flat",
              "run_users", "_told", "SideEffects.__call__.<locals>.<listcomp>",
              "SideEffects._find_mutations", "SideEffects._called", "SideEffects._ours", "run_observed", "Observer.end",
              "_Profiled.end", "_Monitored.end"}


class Broken(Exception):
    pass


@pytest.fixture
def step_of(monkeypatch):
    """Makes a training step, eager, with what it leaves."""
    stand_in = StandIn(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(Launched, "launch", lambda self, given, owners, objects, **how: self._run(
        [ARGUMENTS_ALONE, *given[:stand_in.arguments]]))

    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, lambda: [one.detach().clone() for one in model.parameters()]

    return make


def run(step, left, on_call=lambda number: None):
    found = []
    for number in range(CALLS):
        sys.settrace(on_call(number))
        try:
            found.append(step(torch.full((3, 4), number + 1.0)))
        finally:
            sys.settrace(None)
    return [*found, *left()]


def ours(frame, event):
    return event == "call" and frame.f_code.co_filename.startswith(HERE)


def functions_of(step, left):
    """Each function of ours that calls go through, by the first call that does."""
    first = {}

    def on_call(number):
        def note(frame, event, argument):
            if ours(frame, event):
                first.setdefault(frame.f_code, number)
        return note

    run(step, left, on_call)
    return first


def breaking(code, number):
    def on_call(now):
        def fail(frame, event, argument):
            if ours(frame, event) and frame.f_code is code:
                sys.settrace(None)
                raise Broken("by a test")
        return fail if now == number else None
    return on_call


def test_whatever_of_ours_breaks_a_program_goes_on_and_is_right(step_of):
    wanted = run(*step_of())
    step, left = step_of()
    recorded = anabranch.record(step)
    first = functions_of(recorded, left)
    assert recorded.reports[-1].nodes and set(first.values()) == set(range(CALLS))
    assert len(first) > 300
    for code, number in first.items():
        if code.co_qualname in NOT_BROKEN:
            continue
        step, left = step_of()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.RecordWarning)
            found = run(anabranch.record(step), left, breaking(code, number))
        assert all(map(torch.equal, found, wanted)), (code.co_qualname, number)


def test_a_mistake_is_told_once_and_nothing_is_recorded_any_more(step_of, monkeypatch):
    step, left = step_of()
    recorded = anabranch.record(step)
    monkeypatch.setattr(StateCache, "current", fail)
    with pytest.warns(errors.RecordWarning) as told:
        run(recorded, left)
    assert len(told) == 1
    assert "runs unrecorded: Broken while it was recorded or compared: by a test" in str(
        told[0].message) and "E0318" in str(told[0].message)
    assert [report.code for report in recorded.reports] == [318]


def test_under_strict_a_mistake_raises(step_of, monkeypatch):
    step, _ = step_of()
    monkeypatch.setattr(StateCache, "current", fail)
    with pytest.raises(errors.RecordError) as raised:
        anabranch.record(step, strict=True)(torch.ones(3, 4))
    assert raised.value.code == 318


def test_what_the_step_or_its_guard_raises_is_the_callers(step_of):
    def wrong(x):
        raise Broken("in the step")

    with pytest.raises(Broken, match="in the step"):
        anabranch.record(wrong)(torch.ones(2))
    step, _ = step_of()
    with pytest.raises(Broken, match="by a test"):
        anabranch.record(step, guard=fail)(torch.ones(3, 4))


def test_a_compiled_graph_runs_plainly_behind_a_mistake_unless_its_inputs_are_gone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    calls = []

    def graph(inputs):
        calls.append(inputs.pop())
        return calls[-1] * 2

    made = RecordedGraph(graph, anabranch.config.resolve({}), "graph", CallableKind(), dynamic=False)
    monkeypatch.setattr(recorded_graph.Recorder, "run", fail)
    with pytest.warns(errors.RecordWarning, match="E0318"):
        assert made([torch.tensor(3)]) == 6 and made([torch.tensor(4)]) == 8
    assert len(calls) == 2 and made.is_refused

    def take(self, key, leaves, *rest):
        leaves.clear()
        fail()

    made = RecordedGraph(graph, anabranch.config.resolve({}), "graph", CallableKind(), dynamic=False)
    monkeypatch.setattr(recorded_graph.Recorder, "run", take)
    with pytest.raises(Broken):
        made([torch.tensor(3)])


def fail(*given):
    raise Broken("by a test")


@pytest.mark.usefixtures("step_of")
def test_a_recorded_step_is_called_by_compiled_code():
    """Which traces what it calls, and breaks there."""
    layer = nn.Linear(4, 4)
    recorded = anabranch.record(lambda x: layer(x) * 2)
    called = torch.compile(lambda x: recorded(x * 2) + 1, backend="eager")
    with torch.no_grad():
        found = run(called, list)
        assert all(map(torch.equal, found, run(lambda x: layer(x * 2) * 2 + 1, list)))
    assert recorded.reports[-1].nodes
