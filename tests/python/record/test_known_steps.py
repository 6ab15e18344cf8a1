# SPDX-License-Identifier: Apache-2.0
"""When one capture of a step is enough, on the CPU: stand-ins take the place of captures. What words
of kernels are addresses is tested in src/record/cuda/one_capture_test.cpp, and on a GPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from anabranch import config
from anabranch._core.abi import CaptureCounts
from anabranch._core.library import NativeError
from anabranch._record import attempt as attempt_module
from anabranch._record.attempt import Attempt
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Alias, Constant, Fresh, Lazy, Step, StepObject, Wrapped
from anabranch._record.launch import known
from anabranch._record.launch.known import CAPTURES_DIFFER, KnownSteps
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.state import State
from anabranch._record.trial.earlier import Earlier, Order
from anabranch._record.trial.verify import Untrusted

F32 = torch.float32


def fresh(rows, allocation=0, dtype=F32):
    return Fresh(allocation, 0, (rows, 4), (4, 1), dtype)


def captured(*result, gradients=None, mutated=()):
    [_], shape = flatten([list(range(len(result)))])
    return Captured(None, None, [], result=list(result), shape=shape, gradients=gradients or {},
                    mutated=list(mutated))


def discovered(first):
    return SimpleNamespace(first=first, teach=lambda layouts: layouts.taught.append(first))


@pytest.fixture
def steps(monkeypatch):
    """Nothing is known; a capture whose answer is known is discovered as it says itself."""
    class Layouts:
        def __init__(self):
            self.taught = []

    def discover(step, capture, device, saved_from, layouts):
        assert layouts.taught
        if capture.error is not None:
            raise capture.error
        return "discovered"

    monkeypatch.setattr(known, "CaptureLayouts", Layouts)
    monkeypatch.setattr(known, "DiscoveredStep", discover)
    return KnownSteps()


def discover(steps, first, error=None):
    return steps.discover(None, SimpleNamespace(first=first, error=error), None, None)


def test_a_step_that_answers_as_a_known_one_in_another_size_is_known(steps):
    assert not steps.has_any and discover(steps, captured(fresh(8))) is None
    parts = (fresh(8), Alias(1, None), Constant(3), Lazy((fresh(8),), True, False), StepObject(2),
             Wrapped(torch.Tensor, ("a",), (fresh(8),), None, (8, 4), (4, 1)))
    steps.add(discovered(captured(*parts, gradients={0: fresh(8)}, mutated=[1])))
    assert steps.has_any
    other = [fresh(16, allocation=5), *parts[1:]]
    assert discover(steps, captured(*other, gradients={0: fresh(16)}, mutated=[1])) == "discovered"


@pytest.mark.parametrize("other", [
    captured(fresh(8)), captured(fresh(8), Constant(4)), captured(fresh(8), Constant(3.0)),
    captured(fresh(8, dtype=torch.int32), Constant(3)), captured(Alias(0, None), Constant(3)),
    captured(Fresh(0, 0, (8,), (1,), F32), Constant(3)),
    captured(fresh(8), Constant(3), mutated=[0]),
    captured(fresh(8), Constant(3), gradients={0: fresh(8)})],
    ids=["fewer", "another number", "another type", "another dtype", "an alias", "fewer dimensions",
         "one changed", "a gradient"])
def test_a_step_that_answers_something_else_is_captured_twice(steps, other):
    steps.add(discovered(captured(fresh(8), Constant(3))))
    assert discover(steps, other) is None
    steps.add(discovered(other))
    assert discover(steps, other) == "discovered"


def test_words_that_are_not_known_are_captured_twice_and_other_faults_are_told(steps):
    steps.add(discovered(captured(fresh(8))))
    assert discover(steps, captured(fresh(8)), NativeError(CAPTURES_DIFFER, "unknown")) is None
    with pytest.raises(NativeError, match="no driver"):
        discover(steps, captured(fresh(8)), NativeError(303, "no driver"))


def test_objects_of_the_users_are_not_kept_to_compare_answers_with(steps):
    steps.add(discovered(captured(Constant(torch.ones(3)))))
    assert not steps.has_any


@pytest.fixture
def tried(monkeypatch):
    """Attempts of one callable, of which something is known. ``verdicts`` of first launches: one
    that is an error is raised."""
    seen = SimpleNamespace(asked=[], verdicts=[], made=[], earlier=Earlier(), is_mapped=False,
                           names_others=False)
    seen.earlier.steps = SimpleNamespace(
        has_any=True, add=lambda found: None,
        discover=lambda *given: seen.asked.append(given) or "discovered")
    monkeypatch.setattr(attempt_module, "free_bytes", lambda device: 0)
    monkeypatch.setattr(attempt_module, "slack_bytes", lambda device: 0)
    monkeypatch.setattr(attempt_module, "may_name_others",
                        lambda step, capture, ours: seen.names_others)
    monkeypatch.setattr(attempt_module, "capture_device", lambda device: None)
    step = Step(lambda leaves: None, [], [], [], [], 0, [], 0, None)

    def make(attempt, step, meter):
        is_enough = attempt._is_enough(step)
        attempt._discovered = None
        capture = SimpleNamespace(is_mapped=seen.is_mapped)
        seen.made.append(1 if is_enough is not None and is_enough(capture) else 2)
        return ["recording"]

    def launch(attempt, made, meter):
        verdict = seen.verdicts.pop(0) if seen.verdicts else None
        if verdict is not None:
            raise verdict
        return "answer", made[0]

    monkeypatch.setattr(Attempt, "_make_of", make)
    monkeypatch.setattr(Attempt, "_first_launch", launch)

    def attempt(others=False, verify=True, **changes):
        made = Attempt("step", Specialization("()", State()), dataclasses.replace(step, **changes),
                       config.resolve({"verify": verify}), kind=CallableKind(takes_gradients=True), earlier=seen.earlier, look_farther=lambda ways: None)
        made._trial = SimpleNamespace(rewind=lambda: None, use=lambda step: None, let_go_bytes=0,
                                      own_memory=())
        made._agree = SimpleNamespace(has_others=others, make=lambda make: make(),
                                      on=lambda found: found)
        return made

    return seen, attempt


def test_a_launch_of_one_capture_that_is_wrong_is_made_again_of_two(tried):
    seen, attempt = tried
    assert attempt()._make_and_launch(None) == ("answer", "recording") and seen.made == [1]
    seen.made.clear()
    seen.verdicts.append(Untrusted("differs"))
    assert attempt()._make_and_launch(None) == ("answer", "recording") and seen.made == [1, 2]
    seen.verdicts += [Untrusted("differs"), Untrusted("differs")]
    with pytest.raises(Untrusted):
        attempt()._make_and_launch(None)


def test_where_nothing_would_find_a_fault_two_captures_are_made(tried):
    seen, attempt = tried
    for changes in ({"others": True}, {"verify": False}, {"has_constants": True},
                    {"numbers": object()}):
        attempt(**changes)._make_and_launch(None)
    seen.is_mapped = seen.names_others = True
    attempt()._make_and_launch(None)
    assert seen.made == [2] * 5 and not seen.asked


def test_of_mapped_memory_one_capture_is_enough_where_it_names_no_others(tried):
    seen, attempt = tried
    seen.is_mapped = True
    attempt()._make_and_launch(None)
    assert seen.made == [1]


class Made:
    ahead_bytes, timing = 10, None

    def __init__(self, lanes, arena_bytes, nodes=100, host_copies=0):
        self.counts = CaptureCounts(nodes=nodes, lanes=lanes, arena_bytes=arena_bytes,
                                    host_copies=host_copies)
        self.launch_bytes = self.peak_bytes = arena_bytes
        self.stretches = [None]


@pytest.mark.parametrize(("best", "arena", "nodes", "lanes"), [
    (None, 100, 100, [1, 4]), (Order(True, 100, 100), 150, 100, [4]),
    (Order(False, 100, 100), 150, 100, [1]), (Order(True, 100, 100), 150, 104, [4]),
    (Order(True, 100, 100), 150, 110, [1, 4]), (Order(True, 100, 100), 250, 100, [1, 4]),
    (Order(True, 100, 100), 199, 100, [1, 4])],
    ids=["nothing known", "side by side", "in order", "other kernels", "more kernels", "larger",
         "more than the plain step takes"])
def test_one_recording_is_made_where_the_order_of_about_its_size_is_known(
        tried, monkeypatch, best, arena, nodes, lanes):
    seen, attempt = tried
    made = []

    def record(step, found, verify, on, ahead, beside):
        made.append(on)
        return Made(on, arena, nodes)

    monkeypatch.setattr(attempt_module, "StepRecording", record)
    seen.earlier.best = best
    one = attempt(is_noted=True)
    one.allowance.plain_bytes, one._discovered = 160, "discovered"
    one._chosen = config.resolve({"max_parallel_kernels": 4, "parallel_bytes": 0})
    one.allowance.parallel_bytes = 0
    one._made_with_lanes(one._step, None, True)
    assert made[-len(lanes):] == lanes
    assert one._is_in_best == (len(lanes) == 1)
