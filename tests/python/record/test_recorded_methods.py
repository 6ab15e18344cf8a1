# SPDX-License-Identifier: Apache-2.0
"""Recorded methods, of objects and of classes: what they answer is what Python's would, and what a
recorded callable offers is there through an object too.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import weakref

import pytest
import torch
from test_walk import Launched, X, as_on_a_gpu  # noqa: F401
from torch import nn

import anabranch
from anabranch._record import recorded_callable

pytestmark = pytest.mark.oldest


OF = {"owner": torch.ones(2), "derived": torch.zeros(2)}


class Owner(nn.Module):
    """Answers the tensors that it uses."""

    key = "owner"

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    @anabranch.record
    def method(self, x, *, more=0):
        """What it does."""
        return [self.weight]

    @anabranch.record
    @staticmethod
    def static(x):
        return [OF["owner"]]

    @staticmethod
    @anabranch.record
    def static_below(x):
        return [OF["owner"]]

    @anabranch.record(max_recordings=3)
    @classmethod
    def of_class(cls, x):
        return [OF[cls.key]]

    @classmethod
    @anabranch.record
    def of_class_below(cls, x):
        return [OF[cls.key]]


class Derived(Owner):
    key = "derived"


@pytest.fixture(autouse=True)
def anew():
    for name in ("method", "static", "static_below", "of_class", "of_class_below"):
        getattr(Owner, name).reset()


def launches(call, *args):
    return [isinstance(call(*args, X), Launched) for _ in range(3)]


def test_a_method_is_precompiled_through_its_object():
    owner = Owner()
    report = owner.method.precompile(X)
    assert report.reason is None and report.calls == 2
    assert isinstance(owner.method(X), Launched) and isinstance(Owner().method(X), Launched)
    assert owner.method.reports == Owner.method.reports and len(owner.method.reports) == 1
    Owner.method.reset()
    assert owner.method.reports == [] and Owner.method.precompile(owner, X).calls == 2
    own = owner.method.with_options(max_recordings=1)
    assert own.precompile(X).calls == 2 and isinstance(own(X), Launched)
    owner.method.reset()
    assert owner.method.reports == [] and own.reports[0].calls == 3
    assert own.name == owner.method.name == "Owner.method"


def test_a_method_is_one_in_all_that_python_asks():
    owner, other = Owner(), Owner()
    method = owner.method
    assert method == owner.method and hash(method) == hash(owner.method)
    assert method not in (other.method, 3) and {method: 1}[owner.method] == 1
    assert method.__self__ is owner and method.__func__ is Owner.__dict__["method"]
    assert method.__name__ == "method" and method.__doc__ == "What it does."
    assert method.__wrapped__.__code__.co_name == "method"
    assert str(inspect.signature(method)) == "(x, *, more=0)"
    assert weakref.WeakMethod(method)() == method
    assert torch.equal(functools.partial(method, more=1)(X)[0], owner.weight)
    assert "of Owner.method" in repr(method) and "Owner()" in repr(method)

    class Borrowing:
        borrowed = method

    assert torch.equal(Borrowing().borrowed(X)[0], owner.weight)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copied_method_is_that_of_the_copied_object(copied):
    method = Owner().method
    other = copied(method)
    assert other.__func__ is method.__func__ and other.__self__ is not method.__self__
    assert type(other.__self__) is Owner and torch.equal(other(X)[0], method(X)[0])
    assert copy.copy(method) == method


@pytest.mark.parametrize("name", ["static", "static_below"])
def test_static_methods_are_recorded_either_way_around(name):
    assert launches(getattr(Owner, name)) == [False, False, True]
    for through in (Owner(), Derived, Derived()):
        assert isinstance(getattr(through, name)(X), Launched)
        assert getattr(through, name).precompile(X).reason is None
    assert len(getattr(Owner(), name).reports) == 1


@pytest.mark.parametrize("name", ["of_class", "of_class_below"])
def test_class_methods_are_recorded_either_way_around(name):
    assert launches(getattr(Owner, name)) == [False, False, True]
    assert isinstance(getattr(Owner(), name)(X), Launched)
    for through in (Derived(), Derived):
        assert getattr(through, name)(X)[0] is OF["derived"]
    assert len(getattr(Owner, name).reports) == 2
    assert Owner.of_class._chosen.max_recordings == 3


def test_a_class_method_is_precompiled_through_its_class():
    assert Owner.of_class.precompile(X).calls == 2
    assert isinstance(Owner().of_class(X), Launched)
    assert copy.deepcopy(Owner.of_class) == Owner.of_class == pickle.loads(
        pickle.dumps(Owner().of_class))


def test_what_is_recorded_of_a_static_method_can_be_called_outside_a_class():
    weight = torch.ones(2)
    made = anabranch.record(staticmethod(lambda x: [weight]))
    assert launches(made) == [False, False, True]
    assert launches(copy.copy(made)) == [False, False, True]


def test_compiled_code_that_calls_recorded_methods_has_one_graph(monkeypatch, recwarn):
    monkeypatch.undo()
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: False)

    class Adding(nn.Module):
        @anabranch.record
        def method(self, x):
            return x + 1

        @anabranch.record
        @staticmethod
        def static(x):
            return x + 2

        @anabranch.record
        @classmethod
        def of_class(cls, x):
            return x + 3

        def forward(self, x):
            return self.method(x) + self.static(x) + self.of_class(x)

    found = torch.compile(Adding(), backend="eager", fullgraph=True)(X)
    assert torch.equal(found, X * 3 + 6)
    told = [str(one.message) for one in recwarn]  # torch's own of Python 3.13.0
    assert not [one for one in told if not one.startswith("Guards may run slower")], told


# Calls


def test_any_keyword_is_the_steps():
    weight = torch.ones(2)

    def step(x, self=None, call=None, function=None, args=None, instance=None):
        return [weight, (self, call, function, args, instance)]

    made = anabranch.record(step)
    given = {"self": 1, "call": 2, "function": 3, "args": 4, "instance": 5}
    assert made(X, **given)[1] == (1, 2, 3, 4, 5)
    assert made.precompile(X, **given).calls == 2 and isinstance(made(X, **given), Launched)
    assert [report.calls for report in anabranch.explain(made, X, **given).callables[0].reports] == [
        4]


def test_precompile_answers_for_a_step_that_resets_itself():
    runs = []

    def step(x):
        runs.append(x)
        made.reset()
        return x

    made = anabranch.record(step)
    assert "reset while it ran" in made.precompile(X).reason and len(runs) == 1
    assert made.reports == []


def test_precompile_answers_where_no_call_is_counted():
    made = anabranch.record(lambda x: x, record=False)
    report = made.precompile(X)
    assert "record=False" in report.reason and report.inputs == "(float32[2])"
    assert report.calls == 1 and made.reports == []
