# SPDX-License-Identifier: Apache-2.0
"""Memory that one stream lets go while another may still use it: under a limit, so that it has to
be taken again, and with all that is free poisoned before every call."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from random_streams import at
from recordings import DEVICE, assert_launched, normal, told
from stream_places import gpu, nowhere
from stream_runs import (
    Together,
    assert_alike,
    assert_compiled_alike,
    inputs_of,
    program,
    shown,
    two_kinds_of_streams,
)

import anabranch

SIZE = 1280  # rows and columns: with 8 bytes each a block of its own of torch's allocator
BYTES = SIZE * SIZE * 8
LIMIT_BYTES = 3 << 30
POISONED = 8  # tensors on each stream
SEEDS, AT_A_TIME, CALLS = 16, 4, 5
LINKS = 16
LATE = functools.partial(torch.cuda._sleep, 10_000_000)  # some milliseconds


@pytest.fixture(autouse=True)
def limited():
    """torch may take little more than it has."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + LIMIT_BYTES) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.fixture
def place():
    return two_kinds_of_streams()


def poison(place, reports=()):
    """Fills what is free on each stream with what no program makes: as many tensors, and on the
    current one as much as a launch will take."""
    current = torch.cuda.current_stream()
    arenas = [torch.full((report.arena_bytes // 8,), torch.nan, device=DEVICE,
                         dtype=torch.float64) for report in reports if report.arena_bytes]
    for stream in (current, place.A, place.B, place.C):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            held = [torch.full((SIZE, SIZE), torch.nan, device=DEVICE, dtype=torch.float64)
                    for _ in range(POISONED)]
        current.wait_stream(stream)
        del held
    del arenas


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_random_programs_that_let_tensors_go(first, place):
    for seed in range(first, first + AT_A_TIME):
        writer, function, text = program(seed, size=SIZE, slow=True)
        step = anabranch.record(at(function, place, LATE), strict=True)
        with shown(text):
            for call in range(CALLS):
                poison(place, step.reports)
                assert_alike(step, at(function, nowhere()),
                             functools.partial(inputs_of, writer, CALLS * seed + call))
            assert_launched(step, CALLS - 2)


@pytest.mark.slow
def test_compiled_programs_that_let_tensors_go():
    place = gpu()
    assert_compiled_alike(Together(range(40_000, 40_002), size=SIZE), place, {"strict": True},
                          before=lambda: poison(place))


def matrix(seed):
    return (normal(seed, SIZE, SIZE, dtype=torch.float64),)


def follow(function, plain, place):
    """Calls both; answers the recorded one."""
    step = anabranch.record(function, strict=True)
    for seed in range(CALLS):
        poison(place, step.reports)
        assert_alike(step, plain, lambda seed=seed: matrix(seed))
    assert_launched(step, CALLS - 2)
    return step


@pytest.mark.parametrize("waits", [False, True], ids=["record_stream", "a wait"])
def test_what_is_still_read_elsewhere_is_not_written(place, waits):
    """By what takes the memory behind it: with a wait it may be the same, without it may not."""
    side = place.A

    def function(x):
        home = torch.cuda.current_stream()
        t = x * 2
        side.wait_stream(home)
        with torch.cuda.stream(side):
            LATE()
            a = t + 1
        if waits:
            home.wait_stream(side)
        else:
            t.record_stream(side)
        del t
        u = x * 3
        v = u * u
        home.wait_stream(side)
        return a, v

    follow(function, lambda x: (x * 2 + 1, x * 3 * (x * 3)), place)


def test_a_chain_over_two_streams_takes_the_memory_of_a_few_of_its_links(place):
    """torch cannot give it on while it captures; the order of the graph says that it may be."""
    sides = place.A, place.B

    def function(x):
        home = torch.cuda.current_stream()
        y, of = x, home
        for i in range(LINKS):
            stream = sides[i % 2]
            stream.wait_stream(of)
            with torch.cuda.stream(stream):
                z = y + 1
            if i:
                y.record_stream(stream)
            y, of = z, stream
        for stream in sides:
            home.wait_stream(stream)
        return (y * 2,)

    def plain(x):
        for _ in range(LINKS):
            x = x + 1
        return (x * 2,)

    step = follow(function, plain, place)
    assert BYTES <= step.reports[0].arena_bytes < 4 * BYTES, told(step)
