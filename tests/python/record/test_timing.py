# SPDX-License-Identifier: Apache-2.0
"""Which launches of a recording are timed, and what is made of their times. A twin in Python stands
in for the driver's."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from anabranch._core.library import NativeError
from anabranch._core.timed_recording import RecordedNode, _node_of
from anabranch._fx.source import SourceLine
from anabranch._record.capture.labels import Label
from anabranch._record.launch import timing as timing_module
from anabranch._record.launch.timing import Timer
from anabranch._record.launch.timing_tables import contents_of_timing, text_of_timing

pytestmark = [pytest.mark.oldest, pytest.mark.own]

NORM, HEAD = SourceLine("/m/model.py", 7, "forward", "x = self.norm(x)"), None
NODES = [RecordedNode("kernel", "void at::native::sum<4, f>(int)", 0, 0, ()),
         RecordedNode("kernel", "triton_poi_0", 0, 1, ()),
         RecordedNode("kernel", "void at::native::(anonymous namespace)::sum<8, f>(int)", 0, 0,
                      (0, 1))]
LABELS = [Label("aten::sum", NORM), None, Label("aten::sum", NORM)]
TIMES = [(0, 2_000), (0, 5_000), (5_000, 8_000)]


class Twin:
    """In the place of TimedRecording."""

    made: list[Twin] = []
    why_not: NativeError | None = None

    def __init__(self, recording, addresses):
        if Twin.why_not is not None:
            raise Twin.why_not
        Twin.made.append(self)
        self.launched, self.marks, self.is_over, self.is_closed = [], [], True, False
        self.error = None

    def launch(self, addresses, stream):
        if self.error is not None:
            raise self.error
        self.launched.append((addresses, stream))

    def mark_plain(self, is_end, stream):
        self.marks.append(is_end)

    def times(self):
        return TIMES

    def plain_times(self):
        return 6_000, 1_000

    def close(self):
        self.is_closed = True


@pytest.fixture
def clock(monkeypatch):
    """Time stands still but for what a test adds."""
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr(timing_module.time, "perf_counter_ns", lambda: now.ns)
    return now


@pytest.fixture
def recording(monkeypatch):
    Twin.made, Twin.why_not = [], None
    monkeypatch.setattr(timing_module, "TimedRecording", Twin)
    monkeypatch.setattr(timing_module, "nodes_of", lambda recording: NODES)
    made = SimpleNamespace(plain=[])
    made.launch = lambda addresses, stream: made.plain.append((addresses, stream))
    return made


def launched(timer, times):
    for _ in range(times):
        timer.launch(b"at", 7)


def test_few_launches_are_timed_and_the_one_before_each_is_marked(recording, clock):
    timer = Timer(recording, LABELS)
    launched(timer, 2)
    [twin] = Twin.made
    assert twin.launched == [(b"at", 7)] and twin.marks == [False, True]
    assert len(recording.plain) == 1
    launched(timer, 63)
    assert len(twin.launched) == 1 and len(recording.plain) == 64
    launched(timer, 1)
    assert len(twin.launched) == 2 and twin.marks == [False, True] * 2


def test_so_many_are_timed_that_the_mean_step_stays_within_a_hundredth(recording, clock):
    timer = Timer(recording, LABELS)
    clock.ns += 1_000  # of each of the launches below
    launched(timer, 2)
    for _ in range(timer.every):
        clock.ns += 100
        launched(timer, 1)
    # A timed launch takes 2 µs more than a plain one, of a step that takes 100 ns of the host.
    more, period = 8_000 - 6_000, 100
    assert timer.every == pytest.approx(more / (0.01 * period), rel=0.02)


def test_a_timer_that_is_told_how_often_times_every_launch(recording, clock):
    timer = Timer(recording, LABELS, every=1)
    launched(timer, 3)
    assert len(Twin.made[0].launched) == 3 and not recording.plain and not Twin.made[0].marks


def test_launches_that_have_not_ended_are_not_read_and_those_that_have_are_averaged(recording,
                                                                                  clock):
    timer = Timer(recording, LABELS, every=1)
    assert timer.timing().sample is None
    launched(timer, 1)
    Twin.made[0].is_over = False
    assert timer.timing().sample is None
    Twin.made[0].is_over = True
    sample = timer.timing().sample
    assert sample.launches == 1 and list(sample.node_ns) == [2_000, 5_000, 3_000]
    assert (sample.step_ns, sample.plain_ns, sample.idle_ns) == (8_000, 6_000, 1_000)
    assert timer.timing().sample.launches == 1  # read once


def test_no_launch_is_timed_before_the_last_one_has_been_read(recording, clock):
    """Marks of a plain launch would take the place of those that are still to be read."""
    timer = Timer(recording, LABELS)
    launched(timer, 2)
    [twin] = Twin.made
    twin.is_over = False
    launched(timer, 200)
    assert len(twin.launched) == 1 and twin.marks == [False, True]
    twin.is_over = True
    launched(timer, 2)
    assert len(twin.launched) == 2 and twin.marks == [False, True] * 2


@pytest.mark.parametrize("when", ["made", "launched"])
def test_where_a_twin_cannot_be_had_launches_go_the_plain_way_and_the_reason_is_told(
        recording, clock, when):
    timer = Timer(recording, LABELS, every=1)
    error = NativeError(406, "no room")
    if when == "made":
        Twin.why_not = error
    else:
        launched(timer, 1)
        Twin.made[0].error = error
    launched(timer, 2)
    assert len(recording.plain) == 2
    assert "no room" in timer.timing().why_not and "no room" in contents_of_timing(
        timer.timing())["why_not"]


def test_a_twin_that_is_busy_is_tried_again(recording, clock):
    timer = Timer(recording, LABELS, every=1)
    launched(timer, 1)
    Twin.made[0].error = NativeError(401, "it runs")
    launched(timer, 1)
    Twin.made[0].error = None
    launched(timer, 1)
    assert len(recording.plain) == 1 and len(Twin.made[0].launched) == 2
    assert not timer.timing().why_not


def test_while_one_thread_is_timed_others_launch_the_plain_way(recording, clock):
    timer = Timer(recording, LABELS, every=1)
    launched(timer, 1)
    timer._lock.acquire()
    other = threading.Thread(target=lambda: timer.launch(b"other", 9))
    other.start()
    other.join()
    timer._lock.release()
    assert recording.plain == [(b"other", 9)]


def test_a_timer_that_is_closed_gives_its_twin_back(recording, clock):
    timer = Timer(recording, LABELS, every=1)
    launched(timer, 1)
    timer.close()
    assert Twin.made[0].is_closed
    launched(timer, 1)
    assert len(recording.plain) == 1


@pytest.fixture
def told(recording, clock):
    timer = Timer(recording, LABELS, every=1)
    launched(timer, 1)
    return timer.timing()


def test_times_are_summed_by_line_kernel_and_lane(told):
    contents = contents_of_timing(told)
    assert [(row["line"] and row["line"]["line"], row["nodes"], row["mean_ns"])
            for row in contents["lines"]] == [(7, 2, 5_000), (None, 1, 5_000)]
    assert [(row["name"], row["mean_ns"]) for row in contents["kernels"]] == [
        ("at::native::sum (aten::sum)", 5_000), ("triton_poi_0", 5_000)]
    assert contents["lanes"] == [{"lane": 0, "busy_ns": 5_000, "idle_ns": 3_000},
                                 {"lane": 1, "busy_ns": 5_000, "idle_ns": 3_000}]
    assert contents["attributed"] == 0.5 and contents["nodes"][2]["after"] == [0, 1]


def test_the_text_names_lines_and_kernels_with_their_shares(told):
    text = "\n".join(text_of_timing(told))
    assert "timed in 1 launches, one in 1: 0.008 ms on the GPU, 0.006 ms where" in text
    assert "50.0 %  0.005 ms  model.py:7  x = self.norm(x)" in text
    assert "no line known" in text and "at::native::sum (aten::sum), 2 times" in text
    assert "busy: lane 0 0.005 ms, lane 1 0.005 ms" in text


def test_a_recording_that_was_not_launched_yet_says_so(recording):
    assert list(text_of_timing(Timer(recording, []).timing())) == [
        "not timed yet: no timed launch has ended"]


def test_nodes_are_read_as_the_core_writes_them():
    assert _node_of("host copy\t4096\t3\t1,2\t") == RecordedNode("host copy", "", 4096, 3, (1, 2))
    assert _node_of("kernel\t0\t0\t\tvoid f<int>(a, b)").name == "void f<int>(a, b)"
