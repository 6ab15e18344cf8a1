# SPDX-License-Identifier: Apache-2.0
"""Which of two recordings of a step is kept, and what its captures tell of memory used again."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import ANY_BYTES, Block
from anabranch._core.library import NativeError
from anabranch._record.capture import captured
from anabranch._record.capture.captured import Noting
from anabranch._record.capture.compare import match_allocations
from anabranch._record.memory.shortage import Short
from anabranch._record.refusals import NotRecordable
from anabranch._record.report import RecordingReport
from anabranch._record.trial import overlap
from anabranch._record.trial.earlier import Earlier
from anabranch._record.trial.overlap import Room
from anabranch._record.trial.verify import Trusted, Untrusted

pytestmark = pytest.mark.oldest


class Clock:
    """Goes on by what launches take. An event of it."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = Clock.now

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1000


class Trial:
    """Launches take what recordings say; `now` is how often the state has changed, and `floats`
    how often large tensors of floats in it have."""

    copied_to, copied_bytes = "host", 1000

    def __init__(self):
        self.now = self.floats = 1  # a run stands
        self.launches = self.rewound = 0

    def rewind(self, is_whole=True):
        self.now = 0
        if is_whole:
            self.floats = 0
            self.rewound += 1

    def reserve(self, recorded, is_alone=False):
        if self.is_full:
            raise Short("a launch", 100, 50)

    def launch(self, recorded):
        assert self.now == 0, "what it counts is not what the step has met"
        assert self.floats <= 2 * overlap._LEAST_SAMPLES  # beside the one that has been compared
        self.now += 1
        self.floats += 1
        self.launches += 1
        Clock.now += recorded.seconds(self.launches) if callable(recorded.seconds) \
            else recorded.seconds
        return f"answer {self.launches}"


def recording(seconds, arena_bytes=1000, ahead_bytes=0, host_copies=0, nodes=5):
    return SimpleNamespace(
        seconds=seconds, ahead_bytes=ahead_bytes, peak_bytes=arena_bytes, stretches=[None],
        counts=CaptureCounts(nodes=nodes, arena_bytes=arena_bytes, host_copies=host_copies))


@pytest.fixture
def choose(monkeypatch):
    monkeypatch.setattr(overlap.torch.cuda, "Event", Clock)
    monkeypatch.setattr(overlap.time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(overlap._compat, "keep_gpu_busy", lambda cycles: None)

    def choose(ordered, overlapped, *, agree=lambda found: found, wrong=None, spare=0, copied=1000,
               earlier=None, is_asked=False, **how):
        """``is_full``: there is no memory for more."""
        def verify(trial, plain, recorded, agree, in_order, seen):
            assert trial.now == trial.floats == 0
            assert recorded is overlapped and in_order is ordered and seen is verdict.seen
            trial.now = trial.floats = 1
            choose.verified = True
            if wrong is not None:
                raise wrong
            return SimpleNamespace(standing=standing)

        choose.verified = False
        monkeypatch.setattr(overlap, "verify", verify)
        trial = choose.trial = Trial()
        trial.copied_bytes = copied
        trial.is_full = how.get("is_full", False)
        standing = SimpleNamespace(answer="standing", let_go=lambda: None)
        verdict = Trusted(False, standing, object())
        recorded, gain, why, answer = overlap.choose_overlap(
            trial, None, verdict, ordered, overlapped, agree, Room(spare, spare, is_asked),
            earlier or Earlier())
        assert trial.now == trial.floats == 1  # of the run that has answered
        assert answer == (f"answer {trial.launches}" if trial.launches else "standing")
        return recorded, gain, why

    return choose


def test_the_faster_recording_is_kept_and_its_gain_told(choose):
    ordered = recording(1e-3)
    for seconds, is_kept in ((0.5e-3, True), (0.9e-3, True), (0.99e-3, False), (2e-3, False)):
        overlapped = recording(seconds)
        kept, gain, why = choose(ordered, overlapped)
        assert kept is (overlapped if is_kept else ordered) and not why
        assert gain == pytest.approx(1e-3 / seconds)


def test_lanes_that_are_asked_for_by_name_are_kept_unless_they_are_slower(choose):
    ordered, much = recording(1e-3), 9 << 30
    for seconds, is_kept in ((0.5e-3, True), (1.01e-3, True), (1.04e-3, False)):
        kept, gain, why = choose(ordered, recording(seconds), is_asked=True)
        assert (kept is not ordered) == is_kept and not why
        assert gain == pytest.approx(1e-3 / seconds)
    kept, gain, why = choose(ordered, recording(2e-3), is_asked=True, copied=much)
    assert kept is not ordered and (gain, why) == (0, "")  # verified, and not timed
    assert choose.verified and not choose.trial.launches


def test_where_a_launch_side_by_side_finds_no_memory_the_captured_order_stays(choose):
    ordered = recording(1e-3)
    kept, gain, why = choose(ordered, recording(0.5e-3, 1100), spare=100, is_full=True)
    assert (kept, gain, why) == (ordered, 0, overlap.NO_MEMORY) and not choose.verified
    kept, gain, _ = choose(ordered, recording(0.5e-3), is_full=True)  # it takes no more
    assert kept is not ordered and gain == pytest.approx(2)


def test_of_recordings_of_about_a_size_one_is_timed(choose):
    earlier = Earlier()
    choose(recording(1e-3), recording(0.5e-3), earlier=earlier)
    assert choose.trial.launches > 2
    ordered, overlapped = recording(1e-3, 1900), recording(2e-3, 1900)
    kept, gain, why = choose(ordered, overlapped, earlier=earlier)
    assert kept is overlapped and not gain and not why
    assert choose.verified and not choose.trial.launches
    told = iter([False, True])  # all have timed one, and another process's was not faster
    kept, gain, why = choose(ordered, overlapped, earlier=earlier, agree=lambda found: next(told))
    assert (kept, why) == (ordered, overlap.NOT_FASTER) and not choose.verified
    for other in (recording(1e-3, 2100), recording(1e-3, nodes=6)):  # of another size, other work
        kept, gain, _ = choose(other, recording(2e-3, 2100), spare=1100, earlier=earlier)
        assert kept is other and gain == pytest.approx(0.5)
    assert earlier.is_faster(recording(0, 2200).counts) is False  # as the nearest
    assert earlier.is_faster(recording(0, 1100).counts) is True


def test_more_memory_than_the_plain_step_takes_is_not_taken_unless_it_is_granted(choose):
    ordered = recording(1e-3, 10_000)
    for grown, is_kept in ((0, True), (100, True), (101, False)):
        kept, gain, why = choose(ordered, recording(0.5e-3, 10_000 + grown), spare=100)
        assert ((kept is not ordered), bool(gain), not why) == (is_kept, is_kept, is_kept)
    assert why.startswith("side by side they would take 101 bytes more than in captured order, and "
                          "may take 100 ")
    assert choose(ordered, recording(0.5e-3, 10_001), spare=-5)[0] is ordered


def to_fit(spare, taken, stretches=1, slack=0):
    """What a recording was made with last, and what it takes, of those that were made with each
    bound: ``taken`` in all, and how many lanes."""
    asked = []

    def make(bound):
        asked.append(bound)
        arena_bytes, lanes = taken(bound)
        made = recording(1e-3, 1000 + arena_bytes)
        made.counts.lanes = lanes
        return made

    ordered = recording(1e-3)
    ordered.stretches *= stretches
    made = overlap.make_to_fit(ordered, Room(spare + slack, spare), make)
    return asked, made.peak_bytes - 1000


def test_kernels_keep_closer_to_their_order_where_memory_is_short():
    assert to_fit(500, lambda bound: (500, 4)) == ([ANY_BYTES], 500)  # it fits without a bound
    assert to_fit(500, lambda bound: (min(bound, 800), 4)) == ([ANY_BYTES, 500], 500)
    # Placed, temporaries may take more than they were bound to.
    assert to_fit(500, lambda bound: (min(bound, 800) + 10, 4)) == ([ANY_BYTES, 500, 250], 260)


def test_slack_is_for_all_at_once_and_lets_nothing_run_ahead_that_takes_more():
    """Otherwise each step of much memory would take all of it, whatever it gains."""
    assert to_fit(0, lambda bound: (800, 4), slack=800) == ([ANY_BYTES], 800)
    assert to_fit(50, lambda bound: (min(bound, 801), 4), slack=750) == ([ANY_BYTES, 50], 50)
    assert to_fit(0, lambda bound: (min(bound, 801), 4), slack=800) == ([ANY_BYTES], 801)


def test_where_no_bound_helps_the_recording_that_needs_too_much_is_told_of():
    assert to_fit(0, lambda bound: (800, 4)) == ([ANY_BYTES], 800)
    assert to_fit(500, lambda bound: (800, 4 if bound == ANY_BYTES else 1)) == \
        ([ANY_BYTES, 500], 800)


def test_stretches_without_memory_to_spare_keep_to_that_of_their_order():
    much = 5 << 20
    assert to_fit(-9, lambda bound: (4 << 20, 4), stretches=2) == ([ANY_BYTES], 4 << 20)
    assert to_fit(-9, lambda bound: (min(bound, much), 4), stretches=2) == ([ANY_BYTES, 0], 0)
    assert to_fit(-9, lambda bound: (much, 4), stretches=1) == ([ANY_BYTES], much)


def test_a_state_that_takes_long_to_put_back_is_not_put_back_for_a_choice(choose):
    kept, gain, why = choose(recording(1e-3), recording(0.5e-3), copied=9 << 30)
    assert gain == 0 and "puts 9663676416 bytes back" in why
    kept, gain, why = choose(recording(1e-3, host_copies=2), recording(0.5e-3, host_copies=2),
                             copied=9 << 30)
    assert gain == pytest.approx(2) and not why  # copies beside kernels may be worth it


def test_memory_for_copies_that_are_ahead_is_given(choose):
    ahead, spare = 512 << 20, 256 << 20
    for grown, copies, is_kept in ((ahead + spare, 1, True), (ahead + spare + 1, 1, False),
                                   (ahead + spare, 0, False), (spare, 0, True)):
        overlapped = recording(0.5e-3, 1000 + grown, ahead, copies)
        ordered = recording(1e-3, 1000, ahead, copies)
        assert choose(ordered, overlapped, spare=spare)[0] is (overlapped if is_kept else ordered)


def test_a_recording_that_answers_something_else_is_not_kept(choose, caplog):
    ordered = recording(1e-3)
    kept, gain, why = choose(ordered, recording(0.5e-3), wrong=Untrusted("it differs in result 0"))
    assert kept is ordered and gain == 0 and why == "it differs in result 0"
    assert "captured order: it differs in result 0" in caplog.text


def test_all_processes_keep_the_same(choose):
    ordered = recording(1e-3)
    kept, *_ = choose(ordered, recording(0.5e-3), agree=lambda found: True)
    assert kept is ordered


def test_samples_are_taken_until_all_say_the_same(choose):
    for seconds in (1e-3, 0.5e-3):
        choose(recording(1e-3), recording(seconds))
        assert choose.trial.launches == 2 * overlap._LEAST_SAMPLES + 1  # which has answered
    kept, *_ = choose(recording(1e-3), recording(lambda i: 2e-3 if i == 2 else 0.5e-3))
    assert choose.trial.launches == 2 * overlap._SAMPLES + 1 and kept.seconds != 1e-3
    assert choose.trial.rewound == 4  # for those who verify, behind three samples and six, the answer


def test_long_steps_are_sampled_less(choose):
    choose(recording(5.0), recording(5.0))
    assert choose.trial.launches == 2 + 1


@pytest.fixture
def noting(monkeypatch):
    """Of a capture during which torch's allocator counts `blocks`, and marks fail that are in
    `refused`."""
    state = SimpleNamespace(blocks=10, marked=[], refused=set())

    def mark(stream, allocations):
        if len(state.marked) in state.refused:
            raise NativeError(308, "record: another graph")
        state.marked.append((stream, allocations))

    monkeypatch.setattr(captured, "CaptureMarks", lambda device: SimpleNamespace(mark=mark))
    monkeypatch.setattr(_compat, "allocations_so_far", lambda device: state.blocks)
    monkeypatch.setattr(_compat, "current_stream", lambda device: 7)
    state.made = Noting("device", 0)
    return state


def test_marks_are_told_how_much_has_been_allocated_since_the_capture_began(noting):
    assert noting.made.notes._mark() == 0
    noting.blocks += 3
    assert noting.made.notes._mark() == 1
    noting.made.end()
    assert noting.marked == [(7, 0), (7, 3)]
    noted = noting.made.noted(before=2, allocations=3)
    assert noted.blocks_before == 2 and not noted.of_second and noted.works == []


def test_a_capture_whose_notes_nobody_asks_for_has_no_marks(noting):
    made = Noting(None, 0)
    assert [made.notes._mark() for _ in range(2)] == [0, 1]
    made.end()
    assert noting.marked == [] and made.noted(before=0, allocations=0) is None


def test_notes_are_dropped_where_another_thread_has_allocated_too(noting):
    noting.blocks += 3
    noting.made.end()
    assert noting.made.noted(before=2, allocations=2) is None


def test_notes_are_dropped_where_a_mark_has_failed_and_the_step_goes_on(noting):
    noting.refused.add(1)
    assert [noting.made.notes._mark() for _ in range(3)] == [0, 1, 2]
    noting.made.end()
    assert noting.made.noted(before=0, allocations=0) is None


def match(first, second, ahead=()):
    """Of two captures that allocate these (address, size)."""
    made = [SimpleNamespace(pool_id=(0, i), given_at=[at])
            for i, at in enumerate((1, 2))]
    history = _compat.PoolHistory(
        [_compat.Event(*each, is_freed) for each in (*first, *second)
         for is_freed in (False, True)], {(0, 0): {100: 200}, (0, 1): {500: 50, 550: 150}}, [], False)
    step = SimpleNamespace(units=[SimpleNamespace(size_bytes=8)], ahead=ahead)
    return match_allocations(step, made, history)


def test_each_allocation_is_a_block_of_its_own_size():
    blocks = match([(100, 16), (200, 8), (100, 32)], [(500, 16), (600, 8), (500, 32)])
    assert blocks == [Block(1, 2, 8, True), Block(100, 500, 16, False), Block(200, 600, 8, False),
                      Block(100, 500, 32, False)]


def test_what_is_allocated_ahead_of_the_step_has_no_size():
    blocks = match([(100, 64), (200, 64), (100, 16)], [(500, 64), (600, 64), (500, 16)],
                   ahead=(64, 64))
    assert [block.size_bytes for block in blocks] == [8, 1, 1, 16]


def test_captures_may_use_memory_again_in_different_ways():
    blocks = match([(100, 16), (200, 8), (100, 16)], [(500, 16), (600, 8), (532, 16)])
    assert blocks[1:] == [Block(100, 500, 16, False), Block(200, 600, 8, False),
                          Block(100, 532, 16, False)]


def test_captures_that_allocate_other_sizes_are_refused():
    with pytest.raises(NotRecordable, match="allocation 0 has 16 bytes in one capture and 8"):
        match([(100, 16)], [(500, 8)])


def test_a_report_says_how_much_faster_side_by_side_is_or_why_not():
    report = RecordingReport("(int64[4])", nodes=3)
    assert "lanes" not in str(report) and "order" not in str(report)  # it was not asked for
    ordered = dataclasses.replace(report, why_in_order="no two of its kernels may run at once")
    assert "in captured order: no two of its kernels may run at once" in str(ordered)
    beside = dataclasses.replace(report, parallel_gain=1.25, lanes=2, known=3)
    assert "on 2 lanes, 3 nodes known; side by side 1.25 times as fast\n" in str(beside)
    more = str(dataclasses.replace(beside, parallel_bytes=4096))
    assert "1.25 times as fast, in 4096 bytes more than the plain step takes\n" in more
    asked = str(dataclasses.replace(beside, parallel_gain=0.0, asked_lanes=3))
    assert "on 2 lanes, 3 nodes known; as is asked for by name\n" in asked
    own = str(dataclasses.replace(ordered, lanes=2))
    assert "in captured order, on 2 lanes of its own streams: no two of its kernels" in own
