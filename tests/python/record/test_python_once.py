# SPDX-License-Identifier: Apache-2.0
"""The Python of a step runs once a call, also in the calls that record it: each test counts. Answers
and all state are eager's."""

from __future__ import annotations

import array
import time

import pytest
import torch
from counted_runs import count_runs
from tape_recording import OnTape
from torch import nn

import anabranch
from anabranch._compat.cuda import Event
from anabranch._record.tensors import Unit
from anabranch._record.trial.kept_capture import joined, overlapping, peak_of, within

CALLS = 7


@pytest.fixture(autouse=True, name="runs")
def on_tape(monkeypatch):
    """How often the Python of steps has run."""
    OnTape(monkeypatch)
    return count_runs(monkeypatch)


def made(wrap, program):
    torch.manual_seed(1)
    step, *state = program()
    return wrap(step), state


def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, nn.Module):
        return [copied(one) for each in value.parameters() for one in (each, each.grad)] \
            + list(map(copied, value.buffers()))
    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set)):
        return list(map(copied, value))
    return value if value is None or isinstance(value, (int, float, str)) \
        else {name: copied(one) for name, one in vars(value).items()}


def alike(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


def compared(program, runs, args=lambda i: (torch.full((3,), float(i)),), **options):
    """How often the Python ran in each call."""
    eager, of_eager = made(lambda step: step, program)
    recorded, of_ours = made(
        lambda step: anabranch.record(step, **options), program)
    counts, answers = [], []
    for i in range(CALLS):
        begin = runs()
        expected, answer = eager(*args(i)), recorded(*args(i))
        counts.append(runs() - begin)
        assert alike(copied(expected), copied(answer)), i
        assert alike(copied(of_eager), copied(of_ours)), i
        answers.append((expected, answer))
    # What callers still have of earlier calls stays as it was.
    assert all(alike(copied(expected), copied(answer)) for expected, answer in answers)
    return counts


ONCE = [1, 1, 1, 0, 0, 0, 0]


def forward():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    return lambda x: {"loss": model(x).detach(), "x": x, "part": x[1:]}, model


def training():
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, model


def in_place():
    total, history = torch.zeros(3), nn.BatchNorm1d(3)

    def step(x):
        with torch.no_grad():
            total.add_(x)
            x.mul_(2)
            return history(total.expand(2, 3) * torch.tensor([[1.0], [2.0]])), total

    return step, total, history


class Counting:
    def __init__(self):
        self.calls, self.last, self.seen, self.names = 0, None, [], set()

    def __call__(self, x):
        self.calls += 1
        self.last = x * 2
        self.seen.append("x")
        self.names.add("x")
        return x + 1


def counting():
    step = Counting()
    return step, step


def closing():
    """An inner function has what is computed as a free variable."""
    model = nn.Linear(3, 3)

    class Answer:
        def __init__(self, hidden):
            self.hidden = hidden

    def step(x):
        made = Answer(model(x))

        def loss():
            return made.hidden.square().sum()

        loss().backward()
        grad, model.weight.grad, model.bias.grad = model.weight.grad, None, None
        return grad

    return step, model


@pytest.mark.parametrize("program", [forward, in_place, closing])
def test_python_runs_once_a_call_until_it_is_launched(program, runs):
    assert compared(program, runs) == ONCE


@pytest.mark.parametrize("program", [training, counting])
def test_python_runs_once_a_call_behind_one_that_makes_something(program, runs):
    """The state of an optimizer, the first tensor in an attribute: the calls behind it have another
    signature."""
    assert compared(program, runs) == [1, *ONCE[:-1]]


def test_what_a_step_takes_from_an_iterator_it_takes_once_in_each_call(runs):
    def drawing():
        model = nn.Linear(3, 3)
        batches = iter([torch.full((3,), float(i)) for i in range(CALLS + 1)])
        left = [lambda: next(batches).clone()]

        def step():
            return torch.tanh(model(next(batches))).detach()

        return step, model, left

    eager, (_, [left]) = made(lambda step: step, drawing)
    recorded, (_, [left_of_ours]) = made(
        lambda step: anabranch.record(step), drawing)
    for _ in range(CALLS):
        begin = runs()
        assert torch.equal(eager(), recorded()) and runs() - begin <= 1
    assert runs() == begin and torch.equal(left(), left_of_ours())


def test_what_only_the_call_that_records_takes_in_keeps_it_from_being_recorded_by_that(runs):
    hidden, x, counts = array.array("i", [0]), torch.ones(3), []

    def step(x):
        hidden[0] += 1
        if hidden[0] == 3:
            time.time()
        return x * 2

    recorded = anabranch.record(step)
    for _ in range(3):
        begin = runs()
        assert torch.equal(recorded(x), x * 2)
        counts.append(runs() - begin)
    assert counts == [1, 1, 2] and not any(report.nodes for report in recorded.reports)


class Keeping:
    """Where the tensors that it leaves are more in each call."""

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        self.seen.append(x.sum())
        return x + 1


def test_where_the_next_call_has_other_tensors_it_is_recorded_in_the_other_way(runs):
    def keeping():
        step = Keeping()
        return step, step

    counts = compared(keeping, runs)
    assert counts[:3] == [1, 1, 1] and counts[-1] == 0


@pytest.mark.parametrize("address, size, shares", [
    (0, 100, False), (0, 101, True), (100, 50, True), (149, 1, True), (150, 50, False),
    (120, 10, True), (90, 200, True), (160, 40, False), (199, 2, True), (260, 1, False)])
def test_memory_shares_bytes_with_some_of_others_or_with_none(address, size, shares):
    others = [Unit(200, 60, []), Unit(100, 50, [])]
    unit = Unit(address, size, [])
    assert overlapping([unit], others) == ([unit] if shares else [])


def test_memory_lies_within_one_of_others_or_not():
    others = [Unit(200, 60, []), Unit(100, 50, [])]
    inside = [Unit(100, 50, []), Unit(110, 5, []), Unit(259, 1, [])]
    outside = [Unit(90, 20, []), Unit(140, 20, []), Unit(170, 5, []), Unit(100, 160, []), Unit(0, 1, [])]
    assert within([*inside, *outside], others) == [True] * 3 + [False] * 5


def test_units_that_overlap_are_asked_for_as_one():
    units = [Unit(200, 60, []), Unit(100, 50, []), Unit(210, 10, []), Unit(255, 20, []), Unit(275, 5, [])]
    assert joined(units) == [(100, 150, [1]), (200, 275, [0, 2, 3]), (275, 280, [4])]


def test_what_was_allocated_at_once_is_the_most_that_lived_together():
    events = [Event(1, 10, False), Event(2, 5, False), Event(1, 10, True), Event(3, 7, False),
              Event(9, 99, True), Event(3, 7, True), Event(4, 8, False)]
    assert peak_of(events) == 15


def test_an_answer_that_is_the_next_argument_stays_right(runs):
    model = nn.Linear(3, 3)
    eager, x, y = lambda x: torch.tanh(model(x)).detach(), torch.ones(3), torch.ones(3)
    recorded = anabranch.record(eager)
    for _ in range(CALLS):
        begin = runs()
        x, y = eager(x), recorded(y)
        assert torch.equal(x, y) and runs() - begin <= 1
    assert runs() == 3


def test_arguments_that_change_places_stay_right(runs):
    a, b = torch.ones(3), torch.full((3,), 2.0)
    recorded = anabranch.record(lambda x, y: x * 2 + y)
    for _ in range(CALLS):
        assert torch.equal(recorded(a, b), a * 2 + b)
        a, b = b, a


def test_a_step_that_breaks_in_its_capture_runs_plainly_and_is_what_it_was(runs):
    def looking():
        class Looking:
            calls = 0

            def __call__(self, x):
                self.calls += 1
                return x * 2 if x.sum().item() > 3 else x - 1

        step = Looking()
        return step, step

    counts = compared(looking, runs)
    assert counts[0] == 1 and counts[-1] == 1


def test_an_error_of_the_steps_own_comes_as_in_eager(runs):
    class Failing:
        calls = 0

        def __call__(self, x):
            self.calls += 1
            if self.calls == 2:
                raise ValueError("of the step")
            return x * 2

    step, x = Failing(), torch.ones(3)
    recorded = anabranch.record(step)
    recorded(x)
    with pytest.raises(ValueError, match="of the step"):
        recorded(x)
    for _ in range(5):
        assert torch.equal(recorded(x), x * 2)
    assert step.calls == 7


def test_a_step_that_breaks_in_each_call_has_run_once_in_each(runs):
    total = torch.zeros(3)

    def step(x):
        total.add_(1)
        raise ValueError("of the step")

    recorded = anabranch.record(step)
    for i in range(1, 5):
        with pytest.raises(ValueError, match="of the step"):
            recorded(torch.ones(3))
        assert torch.equal(total, torch.full((3,), float(i)))


def test_what_no_launch_can_do_is_refused_behind_one_run(runs):
    def program():
        model = nn.Linear(3, 1)
        return model, model

    counts = compared(program, runs)
    assert counts == [1] * CALLS


def test_an_answer_keeps_its_history_in_the_call_that_is_kept(runs):
    model, x = nn.Linear(3, 1), torch.ones(3)
    recorded = anabranch.record(model)
    for _ in range(3):
        model.zero_grad()
        recorded(x).backward()
        assert torch.equal(model.weight.grad, x[None])
