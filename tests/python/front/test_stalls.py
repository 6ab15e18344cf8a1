# SPDX-License-Identifier: Apache-2.0
"""What held a timed step up is named with how long, where and what to do."""

from __future__ import annotations

import dataclasses

import pytest
from timed_steps import contents, node, report, timing

from anabranch._explain.stalls import stalls_of
from anabranch._explain.text import describe_stalls
from anabranch._record.report import RecordingReport

pytestmark = [pytest.mark.oldest, pytest.mark.own]


def stalls(*nodes, idle_us=0.0, **fields):
    return stalls_of(contents(dataclasses.replace(report(timing(*nodes, idle_us=idle_us)),
                                                  **fields)))


def named(*nodes, **how):
    return [row["what"] for row in stalls(*nodes, **how)]


STEADY = [node(50, line=i) for i in range(1, 4)]  # three branches of one kernel each


def test_a_step_without_a_stall_names_none():
    assert named(*STEADY) == []


def test_a_host_that_comes_late_is_named_with_how_long_the_gpu_was_idle():
    [row] = stalls(*STEADY, idle_us=30)
    assert row["what"] == "the host comes late" and row["took_ns"] == 30_000
    assert "0.030 ms before the step" in row["why"] and "item()" in row["remedy"]
    assert row["where"] == "step, (float32[4])"


def test_a_slow_copy_is_named_with_its_rate():
    copy = node(100, kind="host copy", size_bytes=100_000, line=7)
    [row] = stalls(copy, node(50, [0], line=1), node(60, [0], line=2), node(55, [0], line=3))
    assert row["what"] == "a slow copy" and row["took_ns"] == 100_000
    assert "1.0 GB/s" in row["why"] and "model.py:7" in row["why"]


def test_a_fast_copy_that_nothing_runs_beside_is_a_missed_overlap():
    copy = node(100, kind="host copy", size_bytes=2_000_000)
    found = named(copy, *(node(50 + i, [0], line=i) for i in (1, 2, 3)))
    assert found == ["a copy that nothing runs beside"]
    beside = node(100, lane=1, line=4)
    assert named(copy, beside, *(node(50 + i, [0], line=i) for i in (1, 2, 3))) == []


def test_a_lane_that_waits_is_named_with_what_it_waits_for():
    first, late = node(20, line=1), node(90, name="late", lane=1, line=2)
    for lane in (0, 1):  # of what joins them
        rows = stalls(first, late, node(40, [0, 1], line=3, lane=lane), node(50, [2], line=4))
        assert [row["what"] for row in rows] == ["a lane waits for a late one"]
    assert rows[0]["took_ns"] == 70_000 and "late (aten::add) of lane 1, most at model.py:2" in (
        rows[0]["why"])


def test_many_short_kernels_are_named():
    chain = [node(2, [i - 1] if i else [], line=i + 1) for i in range(20)]
    assert named(*chain) == ["kernels that mostly start"]
    with_events = [node(6, [i - 1] if i else [], line=i + 1) for i in range(20)]
    assert named(*with_events) == []
    timed = timing(*with_events)
    timed = dataclasses.replace(timed, sample=timed.sample._replace(plain_ns=40_000.0))
    assert [row["what"] for row in stalls_of(contents(report(timed)))] == [
        "kernels that mostly start"]


def test_functions_of_the_host_and_collectives_are_named_where_nothing_hides_them():
    call = node(20, kind="host call")
    assert named(call, *(node(50 + i, [0], line=i) for i in (1, 2, 3))) == [
        "the GPU waits for the host"]
    gather = node(45, name="ncclDevKernel_AllGather", operator="_c10d_functional::all_gather")
    assert named(gather, *(node(50 + i, [0], line=i) for i in (1, 2, 3))) == [
        "collectives that nothing hides"]
    assert named(gather, node(50, lane=1, line=1), node(50, [0, 1], line=2),
                 node(51, [0], line=3)) == []


def test_copies_within_the_gpu_are_named():
    clone = node(40, name="direct_copy_kernel_cuda", operator="aten::clone", line=9)
    [row] = stalls(clone, *STEADY)
    assert row["what"] == "copies within the GPU" and "model.py:9" in row["why"]
    for name in ("anabranch_copy", "anabranch_fill"):  # which stand for the driver's
        assert named(node(40, name=name), *STEADY) == ["copies within the GPU"]


def test_a_line_that_takes_most_of_the_step_is_named():
    [row] = stalls(node(300, line=12), node(50, [0], line=1))
    assert row["what"] == "most of the time is one line's" and "model.py:12" in row["why"]


def test_kernels_that_nobody_tried_side_by_side_are_named():
    chain = [node(50 + i, [i - 1] if i else [], line=i + 1) for i in range(3)]
    off = {"lanes": 1, "parallel_gain": 0.0}
    assert named(*chain, **off) == ["kernels run one after the other"]
    assert named(*chain, **off, why_in_order="no two of its kernels may run at once") == []


def test_calls_that_are_not_launched_are_named():
    assert named(*STEADY, calls=40, plain_calls=4) == ["calls that are not launched"]
    assert named(*STEADY, calls=10, plain_calls=2) == []  # warming up
    recorded = dataclasses.replace(report(timing(*STEADY)), calls=40)
    refused = RecordingReport("(float32[5])", calls=10, reason="it has no place")
    [row] = stalls_of(contents(recorded, refused))
    assert row["what"] == "calls that are not launched" and "10 of 50 calls" in row["why"]


def test_the_longest_comes_first_and_the_text_tells_what_to_do():
    rows = stalls(node(300, line=12), node(50, [0], line=1), idle_us=400)
    assert [row["took_ns"] for row in rows] == [400_000, 300_000]
    text = describe_stalls(rows)
    assert text.startswith("what held the timed steps up:\n  the host comes late: ")
    assert "\n    Look for what waits for the GPU" in text
