# SPDX-License-Identifier: Apache-2.0
"""A plan less one wait, or with a wait for another step, is refused exactly if something loses its
order. Plans are those of the correct programs over streams and of the acceptance list, in two
kinds: of the user's steps with all his syncs, and of what the backend compiles of them, forward and
backward.

Oracle and runs are those of plan_mutants. In a run one step at a time is slow: a plan that is whole
gives the same bits whichever it is, and one that is refused for a conflict gives others.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from compare import compiled
from plan_mutants import PlanFile
from stream_places import Program, compare_with_one_stream, host, note_reports
from stream_programs import PROGRAMS
from test_acceptance_streams import WITH_GRADIENTS, WITHOUT
from test_random_streams import graphs  # noqa: F401

from anabranch._compile.user_streams import check
from anabranch._core.library import NativeError
from anabranch._core.program import Plan

pytestmark = [pytest.mark.own]

_RACE = 201
SEEDS = 2


@dataclasses.dataclass
class Tally:
    plans: int = 0
    dropped: int = 0
    refused: int = 0
    kept: int = 0
    wrong: int = 0


TALLY = Tally()


def mutants_of(file):
    """Waits less one each; then with one that waits for another step of its stream."""
    place = {step: i for i, step in enumerate(file.order)}

    def in_order(wait):
        return place[wait[0]], file.steps[wait[1]].stream

    for i, (step, on) in enumerate(file.waits):
        rest = file.waits[:i] + file.waits[i + 1:]
        yield rest
        for other in file.order[:place[step]]:
            if other != on and file.steps[other].stream == file.steps[on].stream:
                yield sorted([*rest, (step, other)], key=in_order)


def is_refused(data):
    try:
        Plan.from_bytes(data)
    except NativeError as error:
        assert error.code == _RACE, error
        return True
    return False


def check_plan(plan):
    file = PlanFile(plan.to_bytes())
    assert file.waits == plan.waits and file.order == plan.order
    assert not file.lost(file.waits)
    TALLY.plans += 1
    TALLY.dropped += len(file.waits)
    runs = [(slow, seed) for slow in (None, *range(len(file.steps))) for seed in range(SEEDS)]
    right = file.run(file.waits, None, 0)
    assert all(file.run(file.waits, *run) == right for run in runs)
    for waits in mutants_of(file):
        lost = file.lost(waits)
        assert is_refused(file.with_waits(waits)) == bool(lost), (waits, lost)
        is_wrong = any(file.run(waits, *run) != right for run in runs)
        if not lost:
            TALLY.kept += 1
            assert not is_wrong
        elif conflicts := [pair for pair in lost if all(file.steps[i].accesses for i in pair)]:
            TALLY.wrong += is_wrong
            assert is_wrong, conflicts
        TALLY.refused += bool(lost)


@pytest.fixture
def plans(graphs, monkeypatch):  # noqa: F811
    """Of what is compiled in a test, without doubles."""
    programs = []
    make = check._ProgramWalk.program

    def noted(walk):
        programs.append(make(walk))
        return programs[-1]

    monkeypatch.setattr(check._ProgramWalk, "program", noted)

    def read():
        found = [program.make_plan() for program in programs if program.steps]
        found += [graph.last.plan for graph in graphs if graph.last is not None]
        return list({plan.to_bytes(): plan for plan in found}.values())

    return read


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_wait_of_a_correct_program_is_missed_exactly_if_it_is_needed(
        program, plans, monkeypatch):
    place = host()
    if reason := place.why_not(program):
        pytest.skip(reason)
    note_reports(monkeypatch, place)
    compare_with_one_stream(program, place, {"native_regions": False})
    for plan in plans():
        check_plan(plan)


@pytest.mark.parametrize("function", [*WITH_GRADIENTS, *WITHOUT],
                         ids=lambda function: function.__name__)
def test_a_wait_of_the_acceptance_list_is_missed_exactly_if_it_is_needed(function, plans):
    takes_gradients = function in WITH_GRADIENTS
    answer = compiled(function, options={"native_regions": False})(
        *Program(lambda x: x, frozenset(), takes_gradients).inputs(0))
    if takes_gradients:
        sum(part.sum() for part in torch.utils._pytree.tree_leaves(answer)).backward()
    for plan in plans():
        check_plan(plan)


def test_mutants_were_of_all_kinds():
    if TALLY.plans < 100:
        pytest.skip("only some of the plans were made in this run")
    assert TALLY.dropped > 200 and TALLY.refused > 200, TALLY
    assert TALLY.kept >= 10 and TALLY.wrong > 200, TALLY
