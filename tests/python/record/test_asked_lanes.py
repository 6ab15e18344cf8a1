# SPDX-License-Identifier: Apache-2.0
"""For how many lanes code asks by name: streams and overlap in eager, and in compiled graphs that it
runs."""

from __future__ import annotations

import threading

import pytest

import anabranch
from anabranch._compile.asked import asking
from anabranch.streams import ask, asked_within

pytestmark = pytest.mark.oldest


def test_each_stream_that_is_named_asks_for_a_lane_beside_the_callers():
    with asked_within() as asked:
        assert asked.lanes == 1
        for name in ("left", "right", "left", "ambient"):
            with anabranch.stream(name):
                pass
    assert asked.lanes == 3 and asked.names == {"left", "right"}


def test_overlap_asks_for_as_many_as_it_says():
    with asked_within() as asked, anabranch.overlap(lanes=2):
        with anabranch.overlap(lanes=6), anabranch.offload():
            pass
    assert asked.lanes == 6


def test_a_compiled_graph_asks_wherever_it_is_captured():
    calls = []
    plain, call = asking(1, calls.append), asking(5, calls.append)
    assert plain == calls.append
    call("outside of a capture")
    with asked_within() as step:
        with asked_within() as graph:
            call("a capture of its own")
        assert (graph.lanes, step.lanes) == (5, 1)
        plain("asks for nothing")
        assert step.lanes == 1
        call("part of a step")
    assert step.lanes == 5 and len(calls) == 4


def test_what_other_threads_ask_for_meanwhile_is_theirs():
    with asked_within() as asked:
        thread = threading.Thread(target=lambda: ask("side", 8))
        thread.start()
        thread.join()
    ask("behind", 8)
    assert asked.lanes == 1
