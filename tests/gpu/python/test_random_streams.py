# SPDX-License-Identifier: Apache-2.0
"""The random programs over torch's streams of tests/python on the GPU's: recorded as they are, and
compiled, bit for bit what eager gives on one stream; and less some of their syncs.

Some lines of recorded ones are late by a tenth of a millisecond.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import re

import pytest
import torch
from random_streams import SyncWriter, at, inputs, left_by, seed_parts, takes_gradients
from recordings import assert_launched, told
from stream_places import gpu, note_reports, nowhere
from stream_runs import (
    CALLS,
    SLOW,
    Together,
    assert_alike,
    assert_compiled_alike,
    inputs_of,
    program,
    shown,
    two_kinds_of_streams,
)

import anabranch

RECORDED, AT_A_TIME = 900, 50
COMPILED, TOGETHER = 100, 10
WITH_GRADIENTS = 20  # of those compiled
LACKING = 40
RACE = re.compile(r".+ \d+.* (reads|writes) what .+ \d+.* (reads|writes), and the captured")


@pytest.fixture(scope="module", autouse=True)
def quick_collection():
    """Every capture collects garbage, and what there is already is none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def place():
    return two_kinds_of_streams()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seed_parts(RECORDED, AT_A_TIME), ids=str)
def test_a_recorded_program_gives_the_bits_of_one_stream(seeds, place):
    for seed in seeds:
        writer, function, text = program(seed, slow=True)
        step = anabranch.record(at(function, place, SLOW), strict=True)
        with shown(text):
            for call in range(CALLS):
                assert_alike(step, at(function, nowhere()),
                             functools.partial(inputs_of, writer, CALLS * seed + call))
            assert_launched(step, 1)
            assert step.reports[0].plain_calls == 0, told(step)


# ---- compiled


def eager_takes_gradients(seed):
    """It refuses those of what was overwritten since."""
    _, function, _ = program(seed)
    with contextlib.suppress(RuntimeError):
        left_by(at(function, nowhere()), inputs(seed, wants_gradients=True))
        return True
    return False


@functools.cache
def group(number):
    """Seeds of programs that are compiled together; gradients are wanted of the last ones."""
    forward = (COMPILED - WITH_GRADIENTS) // TOGETHER
    if number < forward:
        return range(10_000 + number * TOGETHER, 10_000 + (number + 1) * TOGETHER)
    seeds = (seed for seed in itertools.count(20_000)
             if takes_gradients(seed) and eager_takes_gradients(seed))
    first = (number - forward) * TOGETHER
    return list(itertools.islice(seeds, first, first + TOGETHER))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(COMPILED // TOGETHER))
def test_compiled_programs_give_the_bits_of_one_stream_and_nothing_is_told(number, monkeypatch):
    place, together = gpu(), Together(group(number))
    told_of = note_reports(monkeypatch, place)
    wants_gradients = number >= (COMPILED - WITH_GRADIENTS) // TOGETHER
    call = assert_compiled_alike(together, place, {"strict": True}, wants_gradients)
    assert told_of == [], together.text
    found = anabranch.explain(call, *together.inputs(0, wants_gradients))
    assert found.graphs and all(graph.reason is None for graph in found.graphs), found
    assert any(report.launched for graph in found.graphs for report in graph.recordings), found


# ---- less some syncs


def lacking(count, wanted):
    """Seeds of programs less half of their waits, of whose races this is true."""
    found = ((seed, SyncWriter(seed, less=0.5)) for seed in itertools.count(30_000))
    return list(itertools.islice((seed for seed, writer in found if writer.text() and writer.races
                                  and wanted(writer.races)), count))


def are_flows(races):
    return all(race.is_flow for race in races)


def is_any_certain(races):
    return any(race.is_certain for race in races)


def recorded_less_syncs(seed, place):
    """Its report after some calls, whose answers are left to chance, as eager's are."""
    writer, function, text = program(seed, less=0.5, slow=True)
    step = anabranch.record(at(function, place, SLOW))
    for call in range(CALLS):
        step(*inputs_of(writer, CALLS * seed + call))
    torch.cuda.synchronize()
    [report] = step.reports
    return report, text


@pytest.mark.slow
def test_copies_that_meet_without_a_sync_are_never_recorded(place):
    for seed in lacking(LACKING, is_any_certain):
        report, text = recorded_less_syncs(seed, place)
        assert RACE.search(report.reason or "") and report.code == 201, (report.reason, text)


@pytest.mark.slow
def test_what_lacks_a_sync_is_refused_or_was_like_a_plain_run(place):
    """Of operators without notes a graph does not tell who writes: such races are eager's own, and
    a recording that repeats them has been compared with eager."""
    for seed in lacking(LACKING, lambda races: not is_any_certain(races)):
        report, text = recorded_less_syncs(seed, place)
        if report.reason is None:
            assert report.verified != "no" and report.launched, text
        elif report.code == 201:
            assert RACE.search(report.reason), report.reason


@pytest.mark.slow
def test_compiled_programs_whose_order_has_one_meaning_have_that(monkeypatch):
    place, together = gpu(), Together(lacking(TOGETHER, are_flows), less=0.5)
    told_of = note_reports(monkeypatch, place)
    assert_compiled_alike(together, place, {})
    assert any("race-flow" in text for text in told_of)
    assert not any("race-mutation" in text for text in told_of)


@pytest.mark.slow
def test_compiled_programs_whose_order_has_two_meanings_are_refused():
    """But for those whose bytes turn out to be apart."""
    place, refused = gpu(), 0
    seeds = lacking(TOGETHER, lambda races: not are_flows(races))
    for seed in seeds:
        try:
            assert_compiled_alike(Together([seed], less=0.5), place, {})
        except AssertionError as error:
            if "E0203" not in str(error):
                raise
            refused += 1
        torch.compiler.reset()
    assert refused >= len(seeds) // 2
