# SPDX-License-Identifier: Apache-2.0
"""Values that a step reads by dotted names, of modules of Python, of classes and of functions, and
those that are attributes of tensors: another value is another signature."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest

RATE = 1.0
settings = types.ModuleType("settings")
exec("""
RATE = other = 1.0
TABLE = {"rate": 1.0}

class Config:
    rate = 1.0
    class inner:
        rate = 1.0
        table = {"rate": 1.0}

class Holder:
    def __init__(self):
        self.rate = 1.0

holder = Holder()

def scaled(x):
    return x * RATE

def doubled(x):
    return scaled(x) * 2
""", vars(settings))


class Base:
    rate = other = 1.0

    @staticmethod
    def scaled(x):
        return x * RATE


class Derived(Base):
    pass


class Function(torch.autograd.Function):
    rate = 1.0

    @staticmethod
    def forward(ctx, x):
        return x * RATE

    @staticmethod
    def backward(ctx, grad):
        return grad * Function.rate


apply = Function.apply


def scaled(x):
    return x * scaled.rate


scaled.rate = 1.0




READS = {
    "a global of a module": (lambda x: x * settings.RATE, settings, "RATE"),
    "an item of a module": (lambda x: x * settings.TABLE["rate"], settings.TABLE, "rate"),
    "a class of a module": (lambda x: x * settings.Config.rate, settings.Config, "rate"),
    "a class in a class": (lambda x: x * settings.Config.inner.rate, settings.Config.inner, "rate"),
    "an item of a class": (lambda x: x * settings.Config.inner.table["rate"],
                           settings.Config.inner.table, "rate"),
    "an object of a module": (lambda x: x * settings.holder.rate, settings.holder, "rate"),
    "a function of a module": (lambda x: settings.scaled(x), settings, "RATE"),
    "a function behind that": (lambda x: settings.doubled(x), settings, "RATE"),
    "a function that is replaced": (lambda x: settings.scaled(x), settings, "scaled"),
    "an attribute of a class": (lambda x: x * Derived.rate, Base, "rate"),
    "one that hides it": (lambda x: x * Derived.rate, Derived, "rate"),
    "an attribute of a function": (lambda x: scaled(x), scaled, "rate"),
    "a function of a class": (lambda x: Derived.scaled(x), None, "RATE"),
    "a forward of autograd": (lambda x: Function.apply(x), None, "RATE"),
    "a backward of autograd": (lambda x: Function.apply(x), Function, "rate"),
    "apply in a variable": (lambda x: apply(x), Function, "rate"),
}


@pytest.mark.parametrize("step, holder, name", READS.values(), ids=READS.keys())
def test_what_is_read_by_dotted_names_is_guarded(step, holder, name, monkeypatch):
    state = State((step,))
    before = state.guards()
    for unread in (settings, Base):
        monkeypatch.setattr(unread, "other", 2.0)
    assert state.is_current() and state.guards() == before
    if isinstance(holder, dict):
        monkeypatch.setitem(holder, name, 2.0)
    elif holder is None:
        monkeypatch.setitem(globals(), name, 2.0)
    else:
        monkeypatch.setattr(holder, name, (lambda x: x) if name == "scaled" else 2.0, raising=False)
    assert not state.is_current() or state.guards() != before
    monkeypatch.undo()
    assert State((step,)).guards() == before


def test_modules_that_are_installed_are_not_looked_into(monkeypatch):
    monkeypatch.setattr(pytest, "rate", 1.0, raising=False)
    state = State((lambda x: x * pytest.rate,))
    before = state.guards()
    monkeypatch.setattr(pytest, "rate", 2.0)
    assert state.is_current() and state.guards() == before


def test_attributes_of_tensors_are_guarded_where_code_names_them():
    model = nn.Linear(2, 2)
    model.weight.rate, model.weight.unread = 1.0, 1.0

    def step(x):
        return model(x) * model.weight.rate

    state = State((step,))
    before = state.guards()
    model.weight.unread = 2.0
    assert state.is_current() and state.guards() == before
    model.weight.rate = 2.0
    assert state.guards() != before
