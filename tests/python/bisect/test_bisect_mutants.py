# SPDX-License-Identifier: Apache-2.0
"""Each planted fault is found: its rung, and down to the region, the two regions or the recording.

Regions run as torch's own operators, but where Inductor's code is what is wrong. Faults in
recordings are planted into stood-in ones: their launches run the step's Python.
"""

from __future__ import annotations

import runpy

import pytest
import torch
from bisect_mutants import (
    IN_PYTHON,
    MUTANTS,
    NATIVE,
    Mutant,
    as_operators,
    inputs,
    lost_call,
    program,
    wrong_kernel,
    wrong_relu,
)
from stand_in_recording import Launched, StandIn

import anabranch
from anabranch import _compat

pytestmark = pytest.mark.own


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_planted_fault_is_found(mutant, monkeypatch, tmp_path):
    if not mutant.is_native:
        monkeypatch.setattr(_compat, "compile_fx_inner", as_operators)
    mutant.plant(monkeypatch)
    with mutant.around(), torch.no_grad():
        verdict = anabranch.bisect(program, *inputs(), reproducer=tmp_path / "wrong.py")
    assert verdict.place is not None, str(verdict)
    assert (verdict.place.kind, verdict.place.regions) == (mutant.kind, mutant.regions), str(verdict)
    if mutant.kind == "order":  # how soon a race shows is for the scheduler to say
        assert verdict.rung in ("threads", "delays")
    else:
        assert verdict.rung == mutant.rung, str(verdict)
    if mutant.regions:
        assert verdict.place.source.startswith("bisect_mutants.py:")
    assert (verdict.reproducer is None) == (mutant.kind == "passes"), str(verdict)


def add(x, y):
    return torch.sin(x) + y


def launched(given):
    return add(*given)


def with_a_wrong_node(given):
    """In launches that nobody verifies, a node computes something else."""
    return add(*given) + 1


def with_a_wrong_site():
    """A site is not led to its new address: it goes on with the one of the first launch."""
    first = []

    def run(given):
        first.append(given[0].clone() * 2)  # what has come to lie there since
        return add(first[0], given[1])

    return run


def record_add(monkeypatch, run):
    StandIn(monkeypatch, arguments=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Launched, "launch", lambda self, given, *rest, **how: run(given[:2]))
    return anabranch.record(add)


@pytest.mark.parametrize("run", [with_a_wrong_node, with_a_wrong_site()])
def test_a_fault_in_a_recording_is_found(run, monkeypatch):
    with torch.no_grad():
        verdict = anabranch.bisect(record_add(monkeypatch, run), torch.ones(4), torch.ones(4))
    assert verdict.rung == "recordings, in captured order", str(verdict)
    assert verdict.place.kind == "recording" and "of add" in verdict.place.text, str(verdict)


def test_a_right_recording_is_blamed_for_nothing(monkeypatch):
    with torch.no_grad():
        verdict = anabranch.bisect(record_add(monkeypatch, launched), torch.ones(4), torch.ones(4))
    assert verdict.rung is None and [rung.status for rung in verdict.rungs] == ["agrees"] * 3, \
        str(verdict)
    assert not verdict.notes


EVERYWHERE = [  # a region has another name in a program of its own
    Mutant("kernel", IN_PYTHON, wrong_kernel(None)),
    Mutant("tape", NATIVE, lost_call(None), is_native=True),
    *(mutant for mutant in MUTANTS if str(mutant) in ("order ambient.0 b.2", "memory b.2"))]


@pytest.mark.parametrize("mutant", EVERYWHERE, ids=str)
def test_a_reproducer_fails_with_the_fault_and_not_without(mutant, monkeypatch, tmp_path):
    path = tmp_path / "wrong.py"
    with monkeypatch.context() as planted, torch.no_grad():
        if not mutant.is_native:
            planted.setattr(_compat, "compile_fx_inner", as_operators)
        mutant.plant(planted)
        verdict = anabranch.bisect(program, *inputs(), reproducer=path)
        assert verdict.reproducer == path and verdict.place.kind == mutant.kind, str(verdict)
        with pytest.raises(AssertionError, match="differs from eager by"):
            runpy.run_path(str(path))
    torch.compiler.reset()
    runpy.run_path(str(path))


def test_a_reproducer_runs_in_a_process_of_its_own(run_python, tmp_path):
    path = tmp_path / "wrong.py"
    with wrong_relu(), torch.no_grad():
        assert anabranch.bisect(program, *inputs(), reproducer=path).reproducer == path
    told = run_python(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')")
    assert told.returncode == 1 and "AssertionError: differs from eager by" in told.stderr, told


def test_all_twenty_are_listed():
    assert len(MUTANTS) + 2 == 20
