# SPDX-License-Identifier: Apache-2.0
"""What is taken for right where runs of a step are not alike bit for bit."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import numpy
import pytest
import torch

from anabranch._record.refusals import NotRecordable
from anabranch._record.trial.trial import generators_of_the_cpu
from anabranch._record.trial.values import Distance
from anabranch._record.trial.verify import Untrusted, verify

pytestmark = pytest.mark.oldest
ROUNDING = 2.0**-20  # of values here


@pytest.mark.parametrize("draw", [
    lambda: torch.rand(()), lambda: torch.randperm(4), lambda: random.random(),
    lambda: random.shuffle([1, 2]), lambda: numpy.random.rand(),
    lambda: numpy.random.shuffle([1, 2]),
], ids=["rand", "randperm", "random", "shuffle", "numpy", "numpy shuffle"])
def test_draws_on_the_cpu_are_seen(draw):
    before = generators_of_the_cpu()
    assert generators_of_the_cpu() == before
    draw()
    assert generators_of_the_cpu() != before


def test_draws_that_leave_the_generators_as_they_were_are_none():
    """As torch's checkpoints do."""
    before = generators_of_the_cpu()
    with torch.random.fork_rng(devices=[]):
        torch.rand(2)
    assert generators_of_the_cpu() == before


class Recorded:
    """A recording whose launches answer these, one after the other; the last one for ever."""

    def __init__(self, *values, others=()):
        self.values = list(values)
        self.others = list(others)  # of the other capture
        self.undefined = set()

    def exchange(self):
        if not self.others:
            return False
        self.values, self.others = self.others, []
        return True


class Trial:
    """Of a step with one result, whose plain runs give these values in turn."""

    def __init__(self, *plain):
        self.plains = itertools.chain(plain, itertools.repeat(plain[-1]))
        self.is_rewound, self.launches = True, 0

    def plain(self):
        return self._run(next(self.plains))

    def launched(self, recorded):
        self.launches += 1
        values = recorded.values
        return self._run(values.pop(0) if len(values) > 1 else values[0])

    def _run(self, value):
        assert self.is_rewound
        self.is_rewound = False
        self.last = SimpleNamespace(value=value, let_go=lambda: None)
        return self.last

    def rewind(self):
        self.is_rewound = True

    @staticmethod
    def differing(a, b):
        return set() if a.value == b.value else {"result 0"}

    @staticmethod
    def values(run, names):
        def distances(other, names):
            apart = abs(run.value - other.value)
            return {name: Distance(apart, apart <= ROUNDING) for name in names if apart != 0}

        return SimpleNamespace(distances=distances, names=frozenset(names))


def verdict_of(plain, recorded, ordered=None, agree=bool, seen=None):
    trial = Trial(*plain)
    first = trial.plain()
    trial.rewind()
    verdict = verify(trial, first, recorded, agree, ordered, seen)
    assert not trial.is_rewound and verdict.standing is trial.last
    return verdict, trial


def judge(plain, recorded, ordered=None, agree=bool, seen=None):
    return verdict_of(plain, recorded, ordered, agree, seen)[0].is_bitwise


def test_what_is_the_same_is_right():
    assert judge([1.0], Recorded(1.0))
    with pytest.raises(Untrusted, match="result 0 by 0.5 or more, launches in captured order by 0"):
        judge([1.0], Recorded(1.5))


def test_what_differs_as_launches_do_is_within_bounds():
    assert judge([1.0], Recorded(1.25, 1.5, 1.25)) is False
    with pytest.raises(Untrusted):
        judge([1.0], Recorded(9.0, 9.25, 9.0))


def test_what_hardly_ever_varies_is_launched_some_times_more():
    """By how much shows in the seventh one alone, or what in the seventh plain run."""
    near = 1.25 + ROUNDING / 64
    assert judge([1.0], Recorded(1.25, *[near] * 5, 1.0)) is False
    assert judge([1.0] * 6 + [1.25], Recorded(1.25, near)) is False
    with pytest.raises(Untrusted, match="differs from 12 plain runs"):
        judge([1.0], Recorded(1.25, near))


def test_rounding_is_within_bounds_where_launches_differ_at_all():
    """By however little: the sum that another order rounds may be larger than theirs."""
    hardly = (1.0, 1.0 + ROUNDING / 64)
    assert judge([1.0], Recorded(1.0 + ROUNDING), ordered=Recorded(*hardly)) is False
    with pytest.raises(Untrusted):
        judge([1.0], Recorded(1.0 + ROUNDING), ordered=Recorded(1.0))
    with pytest.raises(Untrusted):
        judge([1.0], Recorded(1.0 + 2 * ROUNDING), ordered=Recorded(*hardly))


def test_what_differs_by_rounding_may_hardly_ever_vary():
    """In the first launch it did, and in the tenth plain run."""
    near = 1.0 + ROUNDING / 2
    assert judge([1.0] * 9 + [near], Recorded(near, *[1.0] * 9)) is False
    with pytest.raises(Untrusted, match="differs from 4 plain runs"):
        judge([1.0] * 9 + [1.0 + 2 * ROUNDING], Recorded(1.0 + 2 * ROUNDING))


def test_a_nan_that_no_plain_run_has_is_never_within_bounds():
    """One launch has it and the next one not, so that they are infinitely far from one another."""
    with pytest.raises(Untrusted, match="result 0 by inf or more"):
        judge([1.0], Recorded(float("inf"), 1.0))


def test_a_plain_run_that_was_the_odd_one_is_told_by_others():
    """By atomics that hardly ever add in another order."""
    assert judge([1.25, 1.0], Recorded(1.0)) is False
    assert judge([1.25, 1.5, 1.0], Recorded(1.0)) is False


def test_a_number_that_python_counts_up_is_no_reason_to_trust():
    with pytest.raises(Untrusted, match="differs from 4 plain runs"):
        judge([1.0, 2.0, 3.0, 4.0], Recorded(1.5))
    with pytest.raises(Untrusted, match="differs from 12 plain runs"):  # the last digit of it
        judge([1.0], Recorded(1.0 + ROUNDING))


def test_launches_side_by_side_that_differ_are_a_race_and_no_bound():
    for values in ((1.25, 1.0), (1.25, 1.5, 1.0)):
        with pytest.raises(Untrusted):
            judge([1.0], Recorded(*values), ordered=Recorded(1.0))
    # Those in captured order differ as well.
    assert judge([1.0], Recorded(1.25), ordered=Recorded(1.0, 1.125)) is False
    assert judge([1.0, 1.0], Recorded(1.25), ordered=Recorded(1.0, 1.25)) is False


def test_kernels_side_by_side_are_held_to_what_captured_order_gives_now_and_then():
    """Of hundreds of tensors some hardly ever vary, and one may have done so here."""
    rarely = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.125, 1.0)
    assert judge([1.0], Recorded(1.25), ordered=Recorded(*rarely)) is False
    assert judge([1.0], Recorded(1.125), ordered=Recorded(*rarely)) is False
    with pytest.raises(Untrusted, match="by 2 or more, launches in captured order by 0.125"):
        judge([1.0], Recorded(3.125), ordered=Recorded(*rarely))


def test_what_captured_order_was_seen_to_give_is_a_bound_for_side_by_side():
    """Without a further run, where that is enough."""
    seen = verdict_of([1.0], Recorded(1.25, 1.5, 1.25))[0].seen
    assert seen.spread == {"result 0": 0.25}
    verdict, trial = verdict_of([1.0], Recorded(2.0), Recorded(1.25, 1.5), seen=seen)
    assert not verdict.is_bitwise and trial.launches == 1
    verdict, trial = verdict_of([1.0], Recorded(9.0), Recorded(1.25, 9.5), seen=seen)
    assert not verdict.is_bitwise and trial.launches == 3
    with pytest.raises(Untrusted):
        judge([1.0], Recorded(9.0), Recorded(1.25, 1.5), seen=seen)
    with pytest.raises(Untrusted):
        judge([1.0], Recorded(float("nan")), Recorded(1.25, 1.5), seen=seen)


class TwoTensors(Trial):
    """Each run gives two results."""

    @staticmethod
    def differing(a, b):
        return {f"result {i}" for i in range(2) if a.value[i] != b.value[i]}

    def values(self, run, names):
        def distances(other, wanted):
            self.looked.append(sorted(wanted))
            both = {f"result {i}": abs(run.value[i] - other.value[i]) for i in range(2)}
            return {name: Distance(both[name]) for name in wanted if both[name]}

        return SimpleNamespace(distances=distances, names=frozenset(names))


def test_a_tensor_that_is_within_bounds_is_not_looked_at_again():
    trial = TwoTensors((1.0, 1.0))
    trial.looked = []
    first = trial.plain()
    trial.rewind()
    launches = Recorded((1.25, 1.25), (1.5, 1.25), (1.25, 1.25), (1.25, 1.5))
    assert not verify(trial, first, launches, bool).is_bitwise
    assert trial.looked == [["result 0", "result 1"]] * 2 + [["result 1"]] * 4


def test_the_other_capture_is_asked_of_as_well():
    recorded = Recorded(1.0, others=[1.0])
    assert judge([1.0], recorded) and not recorded.others
    with pytest.raises(Untrusted):
        judge([1.0], Recorded(1.0, others=[1.5]))


def test_all_processes_run_again_if_one_has_to():
    asked = []

    def another_has_found_it(found):
        asked.append(found)
        return len(asked) == 2  # of what differs; the first question is whether a launch failed

    assert judge([1.0], Recorded(1.0), agree=another_has_found_it) is False
    assert asked == [False] * 6


def test_a_process_in_which_a_launch_fails_tells_the_others_and_they_do_not_go_on():
    asked = []

    def launch(recorded):
        raise MemoryError

    def agree(found):
        asked.append(found)
        return found

    trial = Trial(1.0)
    trial.launched = launch
    with pytest.raises(MemoryError):
        verify(trial, trial.plain(), Recorded(1.0), agree)
    assert asked == [True]
    trial = Trial(1.0)
    first = trial.plain()
    trial.rewind()
    with pytest.raises(NotRecordable, match="another process"):
        verify(trial, first, Recorded(1.0), lambda found: True)
