# SPDX-License-Identifier: Apache-2.0
"""What is noted of the steps of torch's own optimizers."""

from __future__ import annotations

import pytest
import torch
from noting import Marks, at, notes_of, writes
from torch._dynamo.utils import counters
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from anabranch._notes import Notes

pytestmark = pytest.mark.own


def step_of(make, parameters=None):
    parameters = parameters or [torch.nn.Parameter(torch.ones(3, i)) for i in (2, 4)]
    optimizer = make(parameters)

    def step():
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter) * 2
        optimizer.step()

    step()
    return parameters, optimizer, step


def noted_calls(step, optimizer):
    notes = Notes(Marks(), "cpu")
    with notes.known_calls([optimizer]):
        step()
    return notes


@pytest.mark.oldest
@pytest.mark.parametrize(("make", "goes_over_lists"), [
    (lambda p: torch.optim.AdamW(p, fused=True), True),
    (lambda p: torch.optim.Adam(p, foreach=True), True),
    (lambda p: torch.optim.SGD(p, fused=True, lr=0.1, momentum=0.9), True),
    (lambda p: torch.optim.SGD(p, foreach=False, lr=0.1, momentum=0.9), False),
], ids=["fused AdamW", "foreach Adam", "fused SGD", "SGD"])
def test_an_optimizers_step_is_noted_and_the_eager_work_around_it_is_not(make, goes_over_lists):
    parameters, optimizer, step = step_of(make)
    notes = noted_calls(step, optimizer)
    assert notes.works and any(work.independent for work in notes.works) == goes_over_lists
    assert not any(work.has_scratch for work in notes.works)
    states = [state["momentum_buffer" if "momentum_buffer" in state else "exp_avg"]
              for state in optimizer.state.values()]
    assert at(*parameters, *states) <= set().union(*map(writes, notes.works))
    count = len(notes.works)
    step()  # behind it
    assert len(notes.works) == count


class Own(torch.optim.SGD):
    """A user's: what it does inside is not known."""


@pytest.mark.oldest
def test_an_optimizer_of_which_something_is_compiled_or_not_known_runs_as_it_would():
    _, optimizer, step = step_of(lambda p: Own(p, lr=0.1))
    assert noted_calls(step, optimizer).works == []
    _, optimizer, step = step_of(lambda p: torch.optim.Adagrad(p, foreach=True))
    assert noted_calls(step, optimizer).works
    called = []

    def count(graph, inputs):
        return lambda *args: (called.append(1), graph(*args))[1]

    optimizer.step = torch.compile(optimizer.step, backend=count)
    step()
    before, traced = len(called), dict(counters["frames"])
    assert before and noted_calls(step, optimizer).works == []
    assert len(called) > before and counters["frames"] == traced


@pytest.mark.oldest
def test_a_step_that_raises_leaves_no_mode_and_no_patch():
    _, optimizer, step = step_of(lambda p: torch.optim.Adam(p, foreach=True))
    before = CachingAutotuner.run
    optimizer.param_groups[0]["lr"] = "much"
    notes = Notes(Marks(), "cpu")
    with pytest.raises((TypeError, RuntimeError)):
        with notes.known_calls([optimizer]):
            step()
    assert notes.has_raised and CachingAutotuner.run is before
    count = len(notes.works)
    torch.ones(2, 2).mm(torch.ones(2, 2))
    assert len(notes.works) == count


@pytest.mark.oldest
@pytest.mark.parametrize(("run", "independent"), [
    (lambda x: torch._foreach_mul([x, x[:1]], 2), True),
    (lambda x: x.mul(2), False),
    (lambda x: x.mm(x), False),
])
def test_only_what_goes_over_lists_is_independent_of_its_other_parts(run, independent):
    notes, _ = notes_of(run, torch.ones(2, 2))
    assert [work.independent for work in notes.works] == [independent]
