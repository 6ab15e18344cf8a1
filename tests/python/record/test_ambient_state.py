# SPDX-License-Identifier: Apache-2.0
"""Calls of a recorded step in another ambient state of torch than that of its recording: never
launched as if nothing were different.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import pytest
import torch
from ambient_states import HOOKS, SEEN, VALUES
from test_walk import Launched, X, as_on_a_gpu, assert_launches, recorded  # noqa: F401
from torch import nn

import anabranch
from anabranch import _compat
from anabranch._record import quick, recorded_callable
from anabranch._record.signatures import call_plans
from anabranch._record.trial.plain_steps import PLAIN_STEPS

pytestmark = pytest.mark.oldest
NET = nn.Linear(2, 2)
TOLD = VALUES | HOOKS


def trains(x):
    return list(NET.parameters())


def uses_nothing(x):
    return []


EACH = pytest.mark.parametrize("name, step", [
    *((name, trains) for name in TOLD), *((name, uses_nothing) for name in HOOKS)])


@pytest.fixture(params=["compiled", "Python's"], autouse=True)
def way(request, monkeypatch):
    """How the state is asked for."""
    if request.param == "compiled":
        if not quick.tells_modes:
            pytest.skip("there is no compiled module")
        return
    monkeypatch.setattr(quick, "tells_modes", False)
    for module in (quick, call_plans):
        monkeypatch.setattr(module, "modes_told", _compat.modes)
    monkeypatch.setattr(recorded_callable, "is_intercepted", _compat.is_intercepted)


@EACH
def test_a_call_in_another_state_has_a_recording_of_its_own(name, step):
    made, around = recorded(step), TOLD[name]
    with around():
        assert not any(isinstance(made(X), Launched) for _ in range(2))
        assert_launches(made, step)
    assert_launches(made, step)
    assert len(made._recorder.specializations) == 2


@pytest.mark.parametrize("name", VALUES)
def test_a_state_that_comes_back_has_the_recording_that_it_had(name):
    made, around = recorded(trains), VALUES[name]
    for i in range(6):
        with around():
            assert isinstance(made(X), Launched) == (i > 1)
        assert_launches(made, trains)


@EACH
def test_what_was_recorded_in_a_state_is_not_launched_without_it(name, step):
    around = TOLD[name]
    with around():
        made = recorded(step)
    for _ in range(2):
        assert not isinstance(made(X), Launched)
    assert_launches(made, step)


@pytest.mark.parametrize("name", SEEN)
def test_where_somebody_sees_operators_calls_run_plainly(name):
    made, around = recorded(trains), SEEN[name]
    for _ in range(3):
        with around():
            assert not isinstance(made(X), Launched)
    assert_launches(made, trains)
    with around():
        made = anabranch.record(trains)
        for _ in range(4):
            assert not isinstance(made(X), Launched)
    assert len(made._recorder.specializations) == 0
    for _ in range(2):
        assert not isinstance(made(X), Launched)
    assert_launches(made, trains)


@pytest.mark.parametrize("transform", [
    lambda call: torch.vmap(call)(torch.ones(3, 2)),
    lambda call: torch.func.grad(lambda x: call(x).sum())(X),
    lambda call: torch.func.jvp(call, (X,), (X,)),
    lambda call: torch.jit.trace(call, (X,)),
], ids=["vmap", "grad", "jvp", "trace"])
def test_transforms_and_tracers_get_the_step_itself(transform):
    made, answers = recorded(trains), []

    def call(x):
        answers.append(made(x))
        return x * 2

    transform(call)
    assert answers and not any(isinstance(answer, Launched) for answer in answers)
    assert_launches(made, trains)


def test_a_default_device_that_is_set_for_good_keeps_no_call_from_being_launched():
    torch.set_default_device("meta")
    try:
        made = recorded(trains)
        torch.set_default_device("meta")  # another mode for the same device
        assert_launches(made, trains)
    finally:
        torch.set_default_device(None)
    assert not isinstance(made(X), Launched)
    with torch.device("meta"):
        assert_launches(made, trains)


@pytest.mark.parametrize("name", SEEN)
def test_reports_say_under_what_calls_ran_plainly_and_one_warning_does(name):
    made = recorded(trains)
    with SEEN[name](), pytest.warns(anabranch.RecordWarning, match="E0342") as told:
        for _ in range(3):
            made(X)
    assert len(told) == 1 and made.reports[-1].reason in str(told[0].message)
    assert (made.reports[-1].code, made.reports[-1].calls) == (342, 3)
    assert made.reports[0].code is None and len(made.reports) == 2


def test_precompile_ends_where_somebody_sees_operators():
    made = anabranch.record(trains, strict=True, allow=["E0342"])
    with SEEN["hooks on saved tensors"]():
        assert made.precompile(X).code == 342
    assert made.precompile(X).code is None


def test_a_step_inside_one_that_is_being_recorded_tells_of_no_mode_of_ours():
    made = recorded(trains)
    with PLAIN_STEPS, SEEN["a mode that sees operators"]():
        made(X)
    assert len(made.reports) == 1


def test_torch_fx_gets_the_step_itself_once_and_nothing_is_recorded():
    weight, runs = torch.ones(2), []

    def step(x):
        runs.append(x)
        return x * weight

    made = anabranch.record(step)
    for times in range(1, 4):
        traced = torch.fx.symbolic_trace(lambda x: made(x) + 1)
        assert len(runs) == times and torch.equal(traced(torch.ones(2) * 3), torch.ones(2) * 4)
    assert made.reports == []
