# SPDX-License-Identifier: Apache-2.0
"""Floats that change between calls are followed by one recording, or recorded by themselves.

In the place of a GPU: a capture lists the floats that operators are given, on tensors that are put
back, and a launch runs the captured Python with the numbers of the capture, while its operators are
given what the formulas say. So a float that is not followed is stale, as in a graph.
"""

from __future__ import annotations

import contextlib
import math
import struct
from types import SimpleNamespace

import pytest
import torch
from stand_in_recording import StandIn
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import anabranch
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Number as Word
from anabranch._record import attempt
from anabranch._record.numbers.formulas import Formulas
from anabranch._record.numbers.noted import NumberTrace

pytestmark = pytest.mark.oldest

X = torch.linspace(-1, 1, 8)


class Floats(TorchDispatchMode):
    """Lists the floats that operators are given, or gives them others."""

    def __init__(self, others=None):
        super().__init__()
        self.seen, self._others = [], iter(others) if others is not None else None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*map(self._walk, args), **{k: self._walk(v) for k, v in (kwargs or {}).items()})

    def _walk(self, thing):
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(self._walk, thing))
        if not isinstance(thing, float):
            return thing
        self.seen.append(float.__float__(thing))
        return self.seen[-1] if self._others is None else next(self._others)


FORMS = {8: ("<Q", "<d"), 4: ("<I", "<f")}


class Followed:
    """In the place of a StepRecording."""

    size = 8  # bytes of a word
    needs_gradients, device, slot_count, has_overlaps = False, 0, 1, False
    launch_bytes = peak_bytes = 1 << 20
    answered_bytes = 0
    undefined, objects, layout, ahead_bytes, random = frozenset(), (), None, 0, None
    timing = None

    def __init__(self, stand_in, step):
        self._step = step
        self.uses = list(range(len(step.tensors)))
        self.counts = CaptureCounts(nodes=2, lanes=1, arena_bytes=100)
        self._formulas, self._floats = None, None
        if step.numbers is not None:
            first, floats = self._capture(step, False)
            step.numbers = step.numbers.apart(first)
            third, others = self._capture(step, True)
            assert len(floats) == len(others)
            self._floats = floats
            self._moved = [i for i, (a, b) in enumerate(zip(floats, others, strict=True))
                           if self._bits(a) != self._bits(b)]
            self._formulas = Formulas(first, third, [
                Word(self.size, self._bits(floats[i]), self._bits(others[i]))
                for i in self._moved])

    def _bits(self, value):
        word, number = FORMS[self.size]
        return struct.unpack(word, struct.pack(number, value))[0]

    @staticmethod
    def _capture(step, is_third):
        leaves, trace = list(step.leaves), NumberTrace()
        with unchanged(step.tensors[:step.own]), step.numbers.noted(leaves, trace, are_other=is_third), \
                Floats() as floats:
            step.call(leaves)
        return trace, floats.seen

    def exchange(self):
        return False

    def reserve(self):
        pass

    has_words = True

    def direct_or_none(self):
        return None

    def fits(self, given, places=None):
        return True

    def words(self, numbers):
        return self._formulas.words(numbers) if self._formulas is not None else []

    def launch_as_captured(self, step, poison=None):
        return self._run(step.leaves, self.words(step.numbers.now) if step.numbers else ())

    def launch(self, given, owners, objects, *, words=(), **how):
        self.counts.launched_unchanged += 1
        leaves = list(self._step.leaves)
        for place, tensor in zip(self._step.places, given, strict=False):
            leaves[place] = tensor
        return self._run(leaves, words)

    def _run(self, leaves, words):
        if self._formulas is None:
            return self._step.call(list(leaves))
        others = list(self._floats)
        for i, word in zip(self._moved, words, strict=True):
            form, number = FORMS[self.size]
            [others[i]] = struct.unpack(number, struct.pack(form, word))
        captured, leaves = self._step.numbers, list(leaves)
        with captured.noted(leaves, NumberTrace(), are_other=False), Floats(others):
            return self._step.call(leaves)


@contextlib.contextmanager
def unchanged(tensors):
    before = [tensor.detach().clone() for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    stand_in = StandIn(monkeypatch)
    monkeypatch.setattr(attempt, "capture_twice", lambda step, device, is_enough: SimpleNamespace(
        noted=None, close=lambda: None, first=SimpleNamespace(graph=None, asked_lanes=1), captures=[1, 2, 3],
        draws=None))
    monkeypatch.setattr(attempt, "StepRecording",
                        lambda step, *others: Followed(stand_in, step))
    return stand_in


def recorded(step, **options):
    return anabranch.record(step, max_parallel_kernels=1,
                            options={"follow_numbers": True, **options})


def kept(step):
    """Reports of what is recorded now."""
    return [spec.current_report() for spec in step._recorder.specializations.values()]


def follow(make, values, apply, calls_each=1):
    """Runs a recorded step and a plain one with these values; answers the recorded one."""
    mine, theirs = make(), make()
    step = recorded(mine.step)
    for value in values:
        for _ in range(calls_each):
            apply(mine, value), apply(theirs, value)
            assert_bits(step(X), theirs.step(X))
            for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
                assert_bits(a, b)
    return step


def assert_bits(a, b):
    assert torch.equal(a.detach().view(torch.int32), b.detach().view(torch.int32)), (a, b)


class Scaled:
    """Reads an attribute."""

    def __init__(self):
        self.scale, self.weight = 1.5, torch.ones(8)

    def step(self, x):
        self.weight.mul_(1 - self.scale * 0.1)
        return (x * self.weight).add(self.weight, alpha=-self.scale)

    def tensors(self):
        return [self.weight]


class Training:
    def __init__(self, optimizer=torch.optim.AdamW, **how):
        torch.manual_seed(0)
        self.model = nn.Linear(8, 4)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1, **how)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def tensors(self):
        return list(self.model.parameters())


SCHEDULE = [0.1 * 0.93 ** i for i in range(12)]


def set_scale(made, value):
    made.scale = value


def test_an_attribute_that_changes_is_followed_by_one_recording():
    step = follow(Scaled, SCHEDULE, set_scale)
    [report] = kept(step)
    assert report.reason is None, report
    assert sum(report.launched for report in step.reports) >= len(SCHEDULE) - 6, step.reports


class OfItsClass(Scaled):
    scale = 1.5

    def __init__(self):
        self.weight = torch.ones(8)


class Settings:
    scale = 1.5


class ByDottedName(Scaled):
    def step(self, x):
        self.weight.mul_(1 - Settings.scale * 0.1)
        return (x * self.weight).add(self.weight, alpha=-Settings.scale)


@pytest.mark.parametrize("kind, holder", [(OfItsClass, OfItsClass), (ByDottedName, Settings)])
def test_an_attribute_of_a_class_that_changes_is_followed(kind, holder, monkeypatch):
    monkeypatch.setattr(holder, "scale", holder.scale)
    step = follow(kind, SCHEDULE, lambda made, value: setattr(holder, "scale", value))
    [report] = kept(step)
    assert report.reason is None, report
    assert sum(report.launched for report in step.reports) >= len(SCHEDULE) - 6, step.reports


def test_a_number_that_goes_back_and_stays_is_followed_too():
    step = follow(Scaled, [0.1, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1, -0.0, 0.0, float("inf"), 0.1],
                  set_scale)
    [report] = kept(step)
    assert report.launched >= 6, report


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}], ids=["single", "foreach"])
def test_an_optimizers_rate_under_a_schedule_is_followed(how):
    def set_rate(made, value):
        made.optimizer.param_groups[0]["lr"] = value

    step = follow(lambda: Training(torch.optim.SGD, momentum=0.9, weight_decay=0.01, **how),
                  [*SCHEDULE[:1] * 2, *SCHEDULE], set_rate)
    assert [report.reason for report in kept(step)] == [None]
    assert kept(step)[0].launched >= 6, kept(step)


class Undetached(Training):
    """Clears its gradients behind itself."""

    def step(self, x):
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def test_a_step_that_answers_its_loss_undetached_is_followed():
    step = follow(lambda: Undetached(torch.optim.SGD), SCHEDULE,
                  lambda made, rate: made.optimizer.param_groups[0].update(lr=rate))
    [report] = kept(step)
    assert report.reason is None and report.launched >= len(SCHEDULE) - 6, report


def test_a_comparison_with_other_numbers_changes_nothing_of_the_recording_but_what_is_proven():
    made = Scaled()
    step = recorded(made.step)
    for made.scale in (0.1, 0.2, 0.2):
        step(X)
    [spec] = step._recorder.specializations.values()
    before = spec.object_paths, spec.arguments, spec.fixed, spec.follows, spec.report
    made.scale = 0.4
    step(X)
    assert spec.may_be_launched_with([word + 1 for word in spec.captured_words])
    assert before == (spec.object_paths, spec.arguments, spec.fixed, spec.follows, spec.report)


def test_an_argument_that_changes_is_followed():
    weight = torch.ones(8)

    def step(x, temperature):
        return (x * weight) * (1.0 / temperature)

    made = recorded(step)
    for i in range(12):
        temperature = 0.5 + i / 7
        assert torch.equal(made(X, temperature), step(X, temperature))
    [report] = kept(made)
    assert report.launched >= 6, report


@pytest.mark.parametrize("compute", [math.sqrt, lambda scale: 1.0 / int(100 * scale)],
                         ids=["a function of C", "an integer"])
def test_what_cannot_be_followed_is_recorded_by_itself_and_right(compute):
    class Other(Scaled):
        def step(self, x):
            return x * self.weight * compute(self.scale)

    step = follow(Other, [*SCHEDULE[:4], *SCHEDULE[:4] * 3], set_scale)
    reports = kept(step)
    assert len(reports) == 4 and all(report.launched for report in reports), reports


def test_a_branch_is_followed_each_way_as_often_as_it_is_taken():
    class Other(Scaled):
        def step(self, x):
            return x * self.weight * (2.0 * self.scale if self.scale > 0.05 else self.scale)

    falling = [0.1 - 0.004 * i for i in range(24)]
    step = follow(Other, falling, set_scale)
    [report] = kept(step)
    assert report.launched >= 6, report
    assert sum(report.launched for report in step.reports) >= 14, step.reports
    to_and_fro = follow(Other, [0.1, 0.01] * 20, set_scale)
    assert sum(report.launched for report in to_and_fro.reports) > 0, to_and_fro.reports


def test_a_number_that_is_used_in_a_branch_alone_is_not_stale():
    class Other(Scaled):
        def step(self, x):
            return x * self.weight if self.scale > 0.05 else x - self.weight

    follow(Other, [0.1, 0.2, 0.3, 0.4, 0.01, 0.02, 0.03, 0.5, 0.6, 0.01, 0.6, 0.01], set_scale)


@pytest.mark.parametrize("schedule", [
    lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 20),
    lambda one: torch.optim.lr_scheduler.ExponentialLR(one, 0.9),
    lambda one: torch.optim.lr_scheduler.ReduceLROnPlateau(one, patience=1)])
@pytest.mark.parametrize("is_tensor", [False, True], ids=["a float", "a tensor"])
def test_a_scheduler_that_is_stepped_inside_is_stepped_once_a_call(schedule, is_tensor):
    class Scheduled(Training):
        def __init__(self):
            super().__init__(torch.optim.SGD)
            if is_tensor:
                self.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
            self.schedule = schedule(self.optimizer)

        def step(self, x):
            loss = super().step(x)
            metric = (1.0,) if hasattr(self.schedule, "patience") else ()
            self.schedule.step(*metric)
            return loss

        def tensors(self):
            return [*super().tensors(), torch.tensor([float(self.schedule.last_epoch)]),
                    torch.tensor([float(self.optimizer.param_groups[0]["lr"])])]

    step = follow(Scheduled, range(12), lambda made, value: None)
    assert sum(report.launched for report in step.reports) == 0, step.reports


def test_a_number_that_a_step_changes_itself_changes_once_a_call():
    class Falling(Training):
        def step(self, x):
            loss = super().step(x)
            self.optimizer.param_groups[0]["lr"] *= 0.9
            return loss

    follow(lambda: Falling(torch.optim.SGD), range(12), lambda made, value: None)


def test_what_cannot_be_followed_leaves_what_is_followed():
    class Two(Scaled):
        other = 1.0

        def step(self, x):
            return super().step(x) * math.sqrt(self.other)

    def set_both(made, values):
        made.scale, made.other = values

    falling = [0.1 * 0.99 ** i for i in range(60)]
    values = [*((scale, 1.0) for scale in falling[:10]), *((scale, 2.0) for scale in falling[10:])]
    step = follow(Two, values, set_both)
    assert sum(report.launched for report in step.reports) > 45, step.reports


def test_a_hyperparameter_in_a_tuple_is_followed():
    class Momentum(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"betas": (0.9, 0.99)})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                first, second = group["betas"]
                for parameter in group["params"]:
                    parameter.mul_(first).add_(parameter.grad, alpha=1 - second)

    def set_betas(made, value):
        made.optimizer.param_groups[0]["betas"] = (value, 0.99)

    step = follow(lambda: Training(lambda parameters, lr: Momentum(parameters)),
                  [0.9, 0.9, *(0.9 - i / 50 for i in range(12))], set_betas)
    [report] = kept(step)
    assert report.launched >= 6, report


def test_a_number_of_another_type_is_another_signature():
    step = follow(Scaled, [0.1, 0.2, 0.3, 0.3, 0.4, 1, 1, 1, 2, 0.5, 0.6], set_scale)
    assert len(kept(step)) == 3  # floats, 1 and 2


def test_two_numbers_of_one_value_are_told_apart():
    class Two(Scaled):
        other = 0.0

        def __init__(self):
            super().__init__()
            self.other = 1.5

        def step(self, x):
            return x * self.scale + self.weight * self.other

    def set_both(made, value):
        made.scale, made.other = value

    pairs = [(0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.4, 0.4), (0.5, 0.25), (0.125, 0.7)]
    step = follow(Two, pairs, set_both)
    [report] = kept(step)
    assert report.launched >= 2, report


def test_a_number_that_begins_to_change_by_less_than_its_words_show_is_followed(monkeypatch):
    """A schedule's first steps may be one float after another that kernels round to the same."""
    monkeypatch.setattr(Followed, "size", 4)
    slow = [0.1 * (1 + i * 1e-12) for i in range(6)]
    step = follow(Scaled, [*slow, 0.11, 0.2, 0.3, 0.1, 0.5, 0.7], set_scale)
    [report] = kept(step)
    assert sum(report.launched for report in step.reports) >= 6, step.reports


def test_followed_numbers_can_be_switched_off():
    made = Scaled()
    step = recorded(made.step, follow_numbers=False)
    for value in SCHEDULE[:5]:
        made.scale = value
        step(X)
    assert len(kept(step)) == 5


def test_a_formula_that_is_wrong_is_found_by_the_comparison_and_not_launched(monkeypatch):
    """Whichever word is wrong for values that were not captured."""
    words = Formulas.words

    def wrong(self, values):
        found = words(self, values)
        return found if values == self.captured else [word ^ 1 << 40 for word in found]

    init = Formulas.__init__

    def begin(self, first, other, given):
        init(self, first, other, given)
        self.captured = tuple(entry.value for entry in first.entries if entry.operator is None)

    monkeypatch.setattr(Formulas, "__init__", begin)
    monkeypatch.setattr(Formulas, "words", wrong)
    step = follow(Scaled, [*SCHEDULE[:6], *SCHEDULE[:3] * 4], set_scale)
    assert all(report.inputs for report in kept(step)) and len(kept(step)) > 2
