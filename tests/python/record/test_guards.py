# SPDX-License-Identifier: Apache-2.0
"""Guards on Python values that a recorded step may read: another value is another specialization.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import collections
import copy
import enum
import fractions
import functools
import logging
import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_walk import (  # noqa: F401
    Launched,
    X,
    as_on_a_gpu,
    assert_launches,
    assert_recorded_anew,
    recorded,
)
from torch import nn

from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest

SCALE = 1.0
SETTINGS = {"rate": 1.0}


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Scaled(nn.Module):
    """With guarded values of every kind: attributes, items, its class's, a configuration's."""

    power = 1

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.scale, self.mode, self.shape = 1.0, Mode.FAST, (2, 1)
        self.rates, self.table = [0.1, 0.2], {"beta": 0.5}
        self.config = Config()
        self.unused, self.function = 0, torch.relu

    def forward(self, x):
        return self.scaled(x) * SCALE

    def scaled(self, x):
        used = self.scale, self.mode, self.shape, self.rates, self.table, self.power, self.rate, \
            self.function
        return x * self.weight * len(used)

    @property
    def rate(self):
        return self.config.rate

    def never_called(self):
        return self.unused


class Config:
    def __init__(self, rate=0.1, depth=1):
        self.rate, self.steps = rate, 0
        self.inner = Config(depth=depth - 1) if depth else None


class Configured(nn.Module):
    """With guarded values in other objects."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.config, self.notes = Config(), Config()
        self.rates, self.table, self.nested = [0.1, 0.2], {"beta": 0.5}, [[1]]
        self.call = Twice()

    def forward(self, x):
        used = self.config.rate, self.config.inner.rate, self.rates, self.table, self.nested, \
            SETTINGS["rate"]
        return halved(self.call(x)) * self.weight * len(used)


def halved(x):
    return x / 2


def set_globals(settings):
    global SETTINGS
    SETTINGS = settings


def set_global(value):
    global SCALE
    SCALE = value


# What is changed, and whether a recording serves what there is then.
CHANGES = {
    "an attribute": (lambda net: setattr(net, "scale", 2.0), False),
    "a switch": (lambda net: setattr(net, "mode", Mode.EXACT), False),
    "a tuple": (lambda net: setattr(net, "shape", (1, 2)), False),
    "an item of a list": (lambda net: net.rates.__setitem__(1, 0.3), False),
    "an item of a dictionary": (lambda net: net.table.update(beta=0.6), False),
    "the length of a list": (lambda net: net.rates.append(0.3), False),
    "the length of a dictionary": (lambda net: net.table.update(gamma=0.6), False),
    "a function": (lambda net: setattr(net, "function", torch.tanh), False),
    "of its class": (lambda net: setattr(type(net), "power", type(net).power + 1), False),
    "one that hides its class's": (lambda net: setattr(net, "power", 7), False),
    "of its configuration": (lambda net: setattr(net.config, "rate", 0.2), False),
    "a global that a method reads": (lambda net: set_global(SCALE + 1), False),
    "none that is there no more": (lambda net: delattr(net, "scale"), False),
    "what no code of the step names": (lambda net: setattr(net, "unused", 1), True),
    "of the configuration, not named": (lambda net: setattr(net.config, "steps", 1), True),
    "the same number": (lambda net: setattr(net, "scale", float("1")), True),
    "a new attribute": (lambda net: setattr(net.config, "other", 5), True),
}


@pytest.mark.parametrize("where", ["closure", "argument", "object"])
@pytest.mark.parametrize("change, serves", CHANGES.values(), ids=CHANGES.keys())
def test_a_number_that_changes_in_place_is_recorded_anew_and_others_are_not(change, serves, where):
    net = Scaled()
    holder = SimpleNamespace(inner=[net])

    def step(*given):
        module = {"closure": lambda: net, "argument": lambda: given[0],
                  "object": lambda: holder.inner[0]}[where]()
        return [module.weight]

    objects = (net,) if where == "argument" else ()
    made = recorded(step, *objects)
    assert_launches(made, step, *objects)
    change(net)
    (assert_launches if serves else assert_recorded_anew)(made, step, *objects)


class Twice:
    """Something that can be called and is no module."""

    def __init__(self, times=2):
        self.times = times

    def __call__(self, x):
        return x * self.times

    def other(self, x):
        return x


TWICE = Twice()
Pair = collections.namedtuple("Pair", "a b")

# Two values of each kind that an attribute may have.
VALUES = {
    "integer and float": (1, 1.0),
    "truth and integer": (True, 1),
    "in a tuple": ((1, 2), (1, 2.0)),
    "of another precision": (np.float32(1), np.float64(1)),
    "float64": (np.float64(1), np.float64(2)),
    "float32": (np.float32(1), np.float32(2)),
    "int64": (np.int64(1), np.int64(2)),
    "bool_": (np.bool_(True), np.bool_(False)),
    "array": (np.ones(2), np.zeros(2)),
    "fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "range": (range(3), range(4)),
    "frozenset": (frozenset([1]), frozenset([2])),
    "set": ({1}, {2}),
    "slice": (slice(1), slice(2)),
    "deque": (collections.deque([1]), collections.deque([2])),
    "named tuple": (Pair(1, 2), Pair(1, 3)),
    "tuple of functions": ((torch.relu, 1), (torch.tanh, 1)),
    "memory format": (torch.channels_last, torch.contiguous_format),
    "layout": (torch.strided, torch.sparse_coo),
    "limits": (torch.finfo(torch.float16), torch.finfo(torch.float32)),
    "partial": (functools.partial(torch.add, other=1), functools.partial(torch.add, other=2)),
    "method": (TWICE.__call__, TWICE.other),
    "method of tensors": (torch.Tensor.relu, torch.Tensor.tanh),
    "class": (nn.ReLU, nn.Tanh),
    "operator": (torch.ops.aten.relu, torch.ops.aten.tanh),
    "overload": (torch.ops.aten.relu.default, torch.ops.aten.tanh.default),
    "object that is called": (Twice(2), Twice(3)),
}


@pytest.mark.parametrize("one, other", VALUES.values(), ids=VALUES.keys())
def test_another_value_of_any_kind_is_recorded_anew(one, other):
    net = Scaled()
    net.function = one
    made = recorded(lambda x: [net.weight])
    assert_launches(made, lambda x: [net.weight])
    net.function = other
    assert_recorded_anew(made, lambda x: [net.weight])
    net.function = one
    assert_launches(made, lambda x: [net.weight])


@pytest.mark.parametrize("value, fill, is_seen", [
    ({1}, lambda value: value.add(2), True),
    (collections.deque([1]), lambda value: value.append(2), True),
    (np.ones(2), lambda value: value.fill(3), True),
    ((1, {1}), lambda value: value[1].add(2), True),
    (np.ones(2), lambda value: value.fill(1), False),
    (np.ones(1 << 18), lambda value: value.fill(3), False),  # too much to look at
    (set(range(1000)), lambda value: value.add(-1), True),
], ids=["set", "deque", "array", "set in a tuple", "the same", "large array", "large set"])
def test_what_is_filled_in_place_is_seen_but_for_large_arrays(value, fill, is_seen):
    net = Scaled()
    net.function = value
    made = recorded(lambda x: [net.weight])
    assert_launches(made, lambda x: [net.weight])
    fill(value)
    (assert_recorded_anew if is_seen else assert_launches)(made, lambda x: [net.weight])
    net.function = copy.copy(value)  # with the same in it
    (assert_launches if len(value) < 1 << 18 else assert_recorded_anew)(
        made, lambda x: [net.weight])


# What takes another's place, and whether a recording serves what there is then.
REPLACED = {
    "a configuration": (lambda net: setattr(net, "config", Config(rate=0.2)), False),
    "an equal configuration": (lambda net: setattr(net, "config", Config()), True),
    "one in a configuration": (lambda net: setattr(net.config, "inner", Config(rate=0.2)), False),
    "a number in that": (lambda net: setattr(net.config.inner, "rate", 0.2), False),
    "a list": (lambda net: setattr(net, "rates", [0.1, 0.3]), False),
    "an equal list": (lambda net: setattr(net, "rates", [0.1, 0.2]), True),
    "a dictionary": (lambda net: setattr(net, "table", {"beta": 0.6}), False),
    "a list in a list": (lambda net: net.nested.__setitem__(0, [2]), False),
    "a number in that list": (lambda net: net.nested[0].__setitem__(0, 2), False),
    "a global dictionary": (lambda net: set_globals({"rate": SETTINGS["rate"] + 1}), False),
    "an item of a global dictionary":
        (lambda net: SETTINGS.update(rate=SETTINGS["rate"] + 1), False),
    "what is in an object that is called": (lambda net: setattr(net.call, "times", 3), False),
    "a configuration that no code names": (lambda net: setattr(net, "notes", Config(7)), True),
}


@pytest.mark.parametrize("change, serves", REPLACED.values(), ids=REPLACED.keys())
def test_what_takes_the_place_of_what_holds_numbers_is_looked_into(change, serves):
    net = Configured()
    holder = SimpleNamespace(net=net)
    made = recorded(lambda x: [holder.net.weight])
    assert_launches(made, lambda x: [holder.net.weight])
    change(net)
    (assert_launches if serves else assert_recorded_anew)(made, lambda x: [holder.net.weight])


def test_code_that_is_replaced_under_a_step_is_recorded_anew(monkeypatch):
    """Methods of classes, and functions of a module of Python's that they call."""
    net = Configured()
    made = recorded(lambda x: [net.weight])
    for where, name in ((Configured, "forward"), (sys.modules[__name__], "halved")):
        before = vars(where)[name]
        with monkeypatch.context() as patch:
            patch.setattr(where, name, lambda *given: given[-1])
            assert_recorded_anew(made, lambda x: [net.weight])
        assert vars(where)[name] is before
        assert_launches(made, lambda x: [net.weight])


@pytest.mark.parametrize("name", ["rate_a", "rate_b", "rate_c", "beta_0", "beta_11"])
def test_attributes_whose_names_are_texts_in_the_code(name):
    weight, config = torch.ones(2), Config()
    config.rate_a = config.rate_b = config.rate_c = config.beta_0 = config.beta_11 = 1.0

    def step(x):
        used = config.rate_a, [getattr(config, one) for one in ("rate_b", "rate_c")], \
            [getattr(config, f"beta_{i}") for i in (0, 11)]
        return [weight] if used else []

    made = recorded(step)
    assert_launches(made, step)
    setattr(config, name, 2.0)
    assert_recorded_anew(made, step)


@pytest.mark.parametrize("what", ["variable", "attribute", "item"])
def test_what_holds_numbers_may_be_replaced_beside_the_modules(what):
    weight, options = torch.ones(2), {"beta": [1.0]}
    holder = SimpleNamespace(config=Config())

    def step(x):
        return [weight] if options["beta"] and holder.config.rate else []

    made = recorded(step)
    if what == "variable":
        options = {"beta": [2.0]}
    elif what == "attribute":
        holder.config = Config(rate=0.2)
    else:
        options["beta"] = [2.0]
    assert_recorded_anew(made, step)


def test_a_container_of_numbers_that_the_step_replaces_itself_tells_nothing_apart():
    net = Configured()

    def step(x):
        net.table = {"beta": net.table["beta"] + 1}
        return [net.weight]

    made = recorded(step)
    for _ in range(3):
        assert isinstance(made(X), Launched)
    assert len(made._recorder.specializations) == 1


def test_variables_of_functions():
    weight, alpha, options = torch.ones(2), 1, {"beta": 1.0, "rates": [1, 2]}

    def inner():
        return alpha

    def step(x):
        return [weight] if inner() and SCALE and options else []

    made = recorded(step)
    alpha = 2
    assert_recorded_anew(made, step)
    alpha = 1
    assert_launches(made, step)  # as it was recorded first
    options["rates"][0] = 7
    assert_recorded_anew(made, step)
    set_global(int(SCALE) + 1)
    assert_recorded_anew(made, step)
    assert len(made._recorder.specializations) == 4


def test_functions_in_variables_are_themselves():
    weight, use, choose = torch.ones(2), torch.relu, [lambda x: x]

    def step(x):
        return [weight] if use and choose else []

    made = recorded(step)
    use = torch.tanh
    assert_recorded_anew(made, step)
    choose[0] = lambda x: x + 1
    assert_recorded_anew(made, step)


def test_of_what_is_around_a_function_only_the_function_is_looked_at():
    logger = logging.getLogger("a user's")
    weight, scale = torch.ones(2), 1.0

    def step(x):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("called")
        return [weight] if scale else []

    plain = set(State([step]).python_values().told())
    assert plain == {"scale"}
    compiled = torch.compile(step, backend="eager")
    compiled(X)
    for around in (compiled, torch.no_grad()(step), torch.no_grad()(compiled)):
        told = State([around]).python_values().told()
        assert {name.rpartition(".")[2] for name in told} == plain, told


def test_a_list_of_tensors_that_somebody_else_makes_longer():
    seen = [torch.ones(2)]

    def step(x):
        return list(seen)

    made = recorded(step)
    seen[0] = torch.zeros(2)
    assert_launches(made, step)
    seen.append(torch.zeros(2))
    assert_recorded_anew(made, step)


class Trainer:
    """Counts in its loop what its step does not read, and in its step what the loop does not."""

    def __init__(self):
        self.net, self.epoch, self.done, self.temperature = Scaled(), 0, 0, 1.0

    def step(self, x):
        self.done += 1
        return [self.net.weight] if self.temperature else []

    def fit(self):
        self.epoch += 1


def test_what_a_step_changes_itself_and_what_only_others_read_tells_nothing_apart():
    trainer = Trainer()
    made = recorded(trainer.step)
    for _ in range(5):
        trainer.fit()
        trainer.done += 1
        assert_launches(made, lambda x: [trainer.net.weight])
    assert len(made._recorder.specializations) == 1
    trainer.temperature = 0.5
    assert_recorded_anew(made, trainer.step)


def test_a_number_that_becomes_something_else_is_found_to_be():
    holder = SimpleNamespace(weight=torch.ones(2), bias=None, table=None)

    def step(x):
        return [tensor for tensor in (holder.weight, holder.bias) if tensor is not None]

    made = recorded(step)
    holder.bias = torch.zeros(2)
    assert_recorded_anew(made, step)
    holder.table = {"read": 1} if holder.table is None else None
    for _ in range(3):
        made(X)
    assert_launches(made, step)


@pytest.mark.parametrize("value", [torch.ones(3), torch.tensor(1.0), [1.0]], ids=str)
def test_a_tensor_or_a_list_in_the_place_of_a_number_is_none(value):
    """Though one that holds the number equals it."""
    holder = SimpleNamespace(weight=torch.ones(2), scale=1.0)

    def step(x):
        return [tensor for tensor in (holder.weight, holder.scale)
                if isinstance(tensor, torch.Tensor)]

    made = recorded(step)
    holder.scale = value
    assert_recorded_anew(made, step)


def test_methods_that_are_wrapped_and_inherited_are_followed():
    def twice(method):
        @functools.wraps(method)
        def run(self, x):
            return method(self, x)

        return run

    class Base(nn.Module):
        def forward(self, x):
            return self.helper(x)

        def helper(self, x):
            return self.factor

    class Net(Base):
        def __init__(self):
            super().__init__()
            self.weight, self.factor, self.count = nn.Parameter(torch.ones(2)), 1, 1

        @twice
        def forward(self, x):
            return super().forward(x) * self.count

    net = Net()
    made = recorded(lambda x: [net.weight])
    for name in ("factor", "count"):
        setattr(net, name, 2)
        assert not isinstance(made(X), Launched)
        made(X)
        assert isinstance(made(X), Launched)


def test_too_many_numbers_are_named_in_the_reason():
    net = Scaled()

    def step(x):
        return [net.weight] if net.scale else []

    made = recorded(step)
    for i in range(80):
        net.scale = i + 2
        made(X)
    beyond = made.reports[-1]
    assert "there are 64 signatures already (max_recordings)" in beyond.reason
    assert "net.scale" in beyond.reason.partition("differs from the nearest in ")[2]


def test_a_batch_s_numbers_are_those_of_the_batch():
    net = Scaled()

    def step(batch, x):
        return [batch.x, net.weight] if batch.scale else []

    def batch(scale):
        return SimpleNamespace(x=torch.ones(2), scale=scale)

    made = recorded(step, batch(1.0))
    for _ in range(3):
        assert_launches(made, step, batch(1.0))
    given = batch(1.0)
    assert_launches(made, step, given)
    given.scale = 2.0
    assert_recorded_anew(made, step, given)
    net.scale = 3.0
    assert_recorded_anew(made, step, given)


class Sampled:
    """A batch of somebody's data, with where its samples come from."""

    def __init__(self, number, scale=1.0):
        self.x, self.scale, self.options = torch.ones(2), scale, {"rate": scale}
        self.index, self.names, self.ids = number, f"sample {number}", [number, number + 1]
        self.file, self.source = pathlib.Path(f"/{number}"), SimpleNamespace(page=number)
        if number % 2:
            self.note = "odd"

    def is_odd(self):
        return self.index % 2 == 1

    def all_of_it(self):
        return list(self.__dict__.values())


class Counted(Sampled):
    def __len__(self):
        return self.index + 1

    def __float__(self):
        return float(self.source.page)


SAMPLED = ["ids"]


def test_what_no_code_of_the_step_reads_of_a_batch_may_be_something_else_each_time():
    net = Scaled()

    def step(batch, x):
        return [batch.x, net.weight] if batch.scale and batch.options else []

    made = recorded(step, Sampled(0))
    for number in range(1, 8):
        assert_launches(made, step, Sampled(number))
    assert_recorded_anew(made, step, Sampled(0, scale=2.0))
    assert len(made._recorder.specializations) == 2


@pytest.mark.parametrize("read", [
    lambda batch: batch.index, lambda batch: batch.ids, lambda batch: batch.source.page,
    lambda batch: batch.names, lambda batch: batch.is_odd(),
    lambda batch: [getattr(batch, name) for name in SAMPLED], lambda batch: vars(batch),
    lambda batch: batch.all_of_it(), lambda batch: copy.copy(batch), len, float,
], ids=["a number", "a list", "inside another", "by a text", "by a method", "by names elsewhere",
        "all", "all, by a method", "a copy", "its length", "as a number"])
def test_what_code_of_the_step_reads_of_a_batch_is_told_apart(read):
    net = Scaled()

    def step(batch, x):
        return [batch.x, net.weight] if read(batch) is not None else []

    made = recorded(step, Counted(0))
    assert_recorded_anew(made, step, Counted(1))
    assert_launches(made, step, Counted(0))


def test_a_hook_that_is_registered_later_is_recorded_with_and_one_that_has_gone_without():
    net = Scaled()

    def step(x):
        return [net.weight]

    made = recorded(step)
    handle = net.register_forward_hook(lambda *args: None)
    assert_recorded_anew(made, step)
    handle.remove()
    assert_launches(made, step)  # as it was recorded first
    assert len(made._recorder.specializations) == 2
