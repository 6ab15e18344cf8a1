# SPDX-License-Identifier: Apache-2.0
"""Random programs over streams against eager on one stream: results, gradients, inputs afterwards
and what shares memory with them. Over named streams, and over torch's with the syncs they need, of
which nothing may be told; then with some syncs left out.

Regions run as torch's own operators instead of Inductor's code, which takes seconds a program: what
is tested is how a graph is cut, ordered and laid out in memory. Each step is delayed by a seed.
"""

from __future__ import annotations

import pytest
import torch
from compare import assert_same, compiled
from random_streams import (
    SEEDS,
    SyncWriter,
    Writer,
    at,
    function_of,
    inputs,
    left_by,
    seed_parts,
    takes_gradients,
)
from stream_places import host, note_reports, nowhere
from stream_reports import check_graphs

from anabranch import _compat
from anabranch._compile import backend
from anabranch._compile.streamed_graph import StreamedGraph

pytestmark = pytest.mark.own

SEEDS_AT_A_TIME = 30
LACKING = 20


@pytest.fixture
def graphs(monkeypatch):
    """The graphs of several streams that were made so far, their regions run as operators."""
    made = []

    def compile_whole(module, example_inputs, **keywords):
        def call(values):
            given = list(values)
            values.clear()
            return module(*given)

        call._boxed_call = True
        call.current_callable = call  # as Inductor's has
        return call

    class Noted(StreamedGraph):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(_compat, "compile_fx_inner", compile_whole)
    monkeypatch.setattr(backend, "StreamedGraph", Noted)
    return made


def in_parts(count, at_a_time):
    return pytest.mark.parametrize("seeds", [
        pytest.param(part, id=str(part.start), marks=pytest.mark.oldest if i == 0 else ())
        for i, part in enumerate(seed_parts(count, at_a_time))])


def compare(function, plain, seed, options, text, **given):
    """Whether eager takes it: not the gradients of what was overwritten since."""
    wants = takes_gradients(seed)
    try:
        wanted, wanted_shared = left_by(plain, inputs(seed, wants_gradients=wants, **given))
    except RuntimeError:
        return False
    call = compiled(function, options={"native_regions": False, "delay_seed": seed, **options})
    try:
        found, shared = left_by(call, inputs(seed, wants_gradients=wants, **given))
        assert_same(found, wanted)
        assert shared == wanted_shared
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}\n{text}") from None
    except torch._dynamo.exc.BackendCompilerFailed:
        if not is_refused_by_autograd(plain, inputs(seed, wants_gradients=wants, **given)):
            raise
        return False
    finally:
        torch.compiler.reset()
    return True


def is_refused_by_autograd(plain, given):
    """Whether torch's tracing of gradients refuses it, whoever compiles: it takes gradients of
    overwritten inputs that eager is never asked for."""
    torch.compiler.reset()
    try:
        left_by(torch.compile(plain, backend="aot_eager"), given)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return "modified by an inplace operation" in str(error)
    return False


@in_parts(SEEDS, SEEDS_AT_A_TIME)
def test_named_streams_change_nothing(seeds, graphs):
    compared = 0
    for seed in seeds:
        text = Writer(seed).text()
        function = function_of(text, f"program {seed}")
        compared += compare(function, function, seed, {"strict": True}, text)
    assert compared >= len(seeds) // 2
    assert len(graphs) >= compared and max(len(graph.regions) for graph in graphs) >= 5


def over_torchs_streams(seed, place, less=0.0):
    """A program, and what compare() is given of it."""
    writer = SyncWriter(seed, less=less, lacks=place.lacks)
    text = writer.text()
    function = function_of(text, f"program {seed}")
    return writer, (at(function, place), at(function, nowhere()), seed), text


@in_parts(SEEDS, SEEDS_AT_A_TIME)
def test_torchs_streams_change_nothing_and_nothing_is_told(seeds, graphs, monkeypatch):
    place, compared = host(), 0
    told = note_reports(monkeypatch, place)
    for seed in seeds:
        writer, program, text = over_torchs_streams(seed, place)
        compared += compare(*program, {"strict": True}, text, is_aliased=writer.is_aliased)
        assert told == [], text
    assert compared >= len(seeds) // 2
    assert max(len(graph.regions) for graph in graphs) >= 5


@in_parts(LACKING, LACKING)
def test_less_some_syncs_a_program_means_the_same_or_is_refused(seeds, graphs, monkeypatch):
    """Where no order is the only one that has a meaning, and then alone, it may be refused."""
    place, compared, refused = host(), 0, 0
    note_reports(monkeypatch, place)  # and there is a current stream
    for seed in seeds:
        writer, program, text = over_torchs_streams(seed, place, less=0.5)
        try:
            compared += compare(*program, {}, text, is_aliased=writer.is_aliased)
        except RuntimeError as error:
            assert "E0203" in str(error) and not all(race.is_flow for race in writer.races), text
            refused += 1
    assert compared and refused


@in_parts(LACKING, LACKING)
def test_every_sync_that_is_left_out_is_told_exactly_if_it_is_missed(seeds):
    place = host()
    for seed in seeds:
        writer, (function, _, _), text = over_torchs_streams(seed, place)
        given = tuple(inputs(seed, is_aliased=writer.is_aliased))
        for graph in check_graphs(function, given, place):
            assert graph[""].texts() == [], text
            for checked in graph.values():
                checked.oracle.check(checked.told)
        torch.compiler.reset()
