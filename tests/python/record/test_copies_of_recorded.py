# SPDX-License-Identifier: Apache-2.0
"""Recorded callables, and what holds them, are copied and pickled as the callables themselves
are."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import anabranch
from anabranch._record import recorded_callable
from anabranch._record.recorded_callable import RecordedCallable

pytestmark = pytest.mark.oldest


@anabranch.record(strict=True)
def decorated(x):
    return x * 2


def plain(x, by=3):
    return x * by


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.step = anabranch.record(self.run, state=[self.layer], max_recordings=5)

    def run(self, x):
        return self.layer(x)

    @anabranch.record
    def method(self, x):
        return self.layer(x) + 1


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [copy.deepcopy, pickled, saved]


@pytest.mark.parametrize("made", COPIES, ids=lambda made: made.__name__)
def test_a_model_that_holds_a_recorded_method_is_copied_with_it(made):
    model, x = Model(), torch.ones(2, 3)
    wanted = model.step(x)
    other = made(model)
    with torch.no_grad():
        other.layer.weight.zero_()
        other.layer.bias.fill_(7)
    assert other.step is not model.step and isinstance(other.step, RecordedCallable)
    assert torch.equal(other.step(x), torch.full((2, 3), 7.0))
    assert torch.equal(other.method(x), torch.full((2, 3), 8.0))
    assert torch.equal(model.step(x), wanted)
    assert other.step._made_of[1] == (other.layer,) and other.step._chosen.max_recordings == 5


@pytest.mark.parametrize("made", [copy.copy, *COPIES], ids=lambda made: made.__name__)
def test_a_recorded_function_is_copied_without_its_recordings(made):
    step = anabranch.record(plain, max_recordings=7)
    step(torch.ones(2))
    other = made(step)
    assert other is not step and other._function is plain and not other.reports
    assert other._chosen.max_recordings == 7 and other.__name__ == "plain"
    assert torch.equal(other(torch.ones(2), by=5), torch.full((2,), 5.0))


@pytest.mark.parametrize("made", COPIES, ids=lambda made: made.__name__)
def test_a_recorded_method_alone_brings_its_object(made):
    step = Model().step
    other = made(step)
    owner = other._function.__self__
    assert owner is not step._function.__self__ and owner.step is other


def test_a_decorated_function_is_pickled_by_its_name():
    assert pickled(decorated) is decorated and saved([decorated])[0] is decorated


def test_what_cannot_be_pickled_says_so_as_the_function_does():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(anabranch.record(lambda x: x))
    assert copy.deepcopy(anabranch.record(lambda x: x + 1))(1) == 2


def test_without_a_gpu_a_warning_and_every_report_say_that_nothing_is_recorded(monkeypatch):
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: False)
    first, second = anabranch.record(plain), anabranch.record(plain)
    silent = anabranch.record(plain, record=False)
    with pytest.warns(anabranch.RecordWarning) as warned:
        for step in (first, second, first, silent):
            step(torch.ones(2))
    [said] = warned
    assert said.filename == __file__
    said = str(said.message)
    assert "plain runs as it is: torch finds no GPU" in said and "anabranch.doctor" in said
    assert [report.calls for step in (first, second, silent) for report in step.reports] == [2, 1]
    assert "torch finds no GPU" in str(first.reports[0])
    assert "torch finds no GPU" in str(anabranch.explain(first, torch.ones(2)))
