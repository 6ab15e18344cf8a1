# SPDX-License-Identifier: Apache-2.0
"""What a step is made of may be put there anew between two calls, as a whole: code and defaults of
functions, what partials call, attributes of objects as a dictionary, bases of classes, and one
tensor where two stood. No launch misses that, and what comes back is launched again."""

from __future__ import annotations

import functools
import gc
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from tape_recording import OnTape
from torch import nn

import anabranch

X = torch.full((2, 3), 2.0)


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    return OnTape(monkeypatch)


def scaled(x, by=2.0, *, plus=1.0, more=(1.0, 2.0)):
    return x * by + plus + more[1]


class Inner:
    def __init__(self, offset=1.0):
        self.offset = offset


class Thing:
    factor = 3.0

    def __init__(self):
        self.scale, self.inner = 2.0, Inner()

    @property
    def offset(self):
        return self.scale * 1.5 + self.inner.offset

    @staticmethod
    def doubled(x):
        return x * 2.0

    def times(self, x):
        return self.doubled(x) * self.factor + self.offset


class Layer(nn.Module):
    def forward(self, x):
        return self.answered(x) * 2.0

    def answered(self, x):
        return x + 1.0


class Heir(Thing):
    pass


class Descriptor:
    def __init__(self):
        self.by = 3.0

    def __get__(self, thing, owner=None):
        return thing.scale * self.by


class Tripled:
    tripled = 1.0


class Described(Tripled):
    tripled, weights, inner_of_all = Descriptor(), [1.0, 2.0], Inner()

    def __init__(self):
        self.scale = 2.0

    def times(self, x):
        return x * self.tripled + self.weights[0] + self.inner_of_all.offset * 0.5


def hook(module, args, out):
    return out * 2.0


def hooked():
    layer = Layer()
    layer.register_forward_hook(hook)
    return layer


def with_defaults():
    def step(x, by=2.0, *, plus=1.0, some=(1.0,)):
        return x * by + plus + some[0]

    return step


def with_lists():
    helper = types.FunctionType(scaled.__code__, scaled.__globals__, "helper", (2.0,))
    helper.__kwdefaults__ = {"plus": 1.0, "more": [1.0, 2.0]}
    return helper, lambda x: helper(x)


def put(*places):
    """Sets attributes, and answers how to take that back."""
    before = [(thing, name, getattr(thing, name)) for thing, name, _ in places]
    for thing, name, value in places:
        setattr(thing, name, value)
    return lambda: [setattr(*one) for one in before]


def hide(thing, name, value):
    setattr(thing, name, value)
    return lambda: delattr(thing, name)


def hide_again(kind, name):
    """What a class hides is seen."""
    before = vars(kind)[name]
    delattr(kind, name)
    return lambda: setattr(kind, name, before)


def put_item(holder, key, value):
    before, holder[key] = holder[key], value
    return lambda: holder.__setitem__(key, before)


def put_state(partial, *state):
    before = partial.__reduce__()[2]
    partial.__setstate__((*state, vars(partial) or None))
    return lambda: partial.__setstate__(before)


def other_code(function):
    code = function.__code__
    return put((function, "__code__", code.replace(co_consts=tuple(
        one * 1.5 if type(one) is float else one for one in code.co_consts))))


def of_thing(change, kind=Thing):
    thing = kind()
    return lambda x: thing.times(x), lambda: change(thing)


def of_weak(change):
    thing = Thing()
    weak = weakref.ref(thing)
    return lambda x: x * weak().scale, lambda: change(thing)


def of_method(change):
    thing = Thing()
    return lambda x, times=thing.times: thing.times(x), lambda: change(thing)


def of_partial(*state):
    partial = functools.partial(scaled, by=3.0)
    return partial, lambda: put_state(partial, *state)


def of_step(change):
    step = with_defaults()
    return step, lambda: change(step)


def of_list(change):
    helper, step = with_lists()
    return step, lambda: change(helper.__kwdefaults__)


def of_decorated(change):
    step = torch.no_grad()(lambda x: x * 2.0)
    cell = next(cell for name, cell in zip(step.__code__.co_freevars, step.__closure__)
                if name == "func")
    return step, lambda: change(cell)


def of_layer(change, make=Layer):
    layer = make()
    return layer, lambda: change(layer)


CHANGES = {
    "code of a step": lambda: of_step(lambda step: put(
        (step, "__code__", (lambda x, by=2.0, *, plus=1.0, some=(1.0,): x - plus).__code__))),
    "a default": lambda: of_step(lambda step: put((step, "__defaults__", (5.0,)))),
    "a default for keywords": lambda: of_step(lambda step: put_item(
        step.__kwdefaults__, "plus", 5.0)),
    "an item of a tuple among these": lambda: of_step(lambda step: put_item(
        step.__kwdefaults__, "some", (5.0,))),
    "all defaults for keywords": lambda: of_step(lambda step: put(
        (step, "__kwdefaults__", {"plus": 5.0, "some": (1.0,)}))),
    "a helper's default": lambda: (lambda x: scaled(x), lambda: put(
        (scaled, "__defaults__", (5.0,)))),
    "a helper's default for keywords": lambda: (lambda x: scaled(x), lambda: put_item(
        scaled.__kwdefaults__, "plus", 5.0)),
    "a helper's code": lambda: (lambda x: scaled(x), lambda: put(
        (scaled, "__code__", (lambda x, by=2.0, *, plus=1.0, more=(): x).__code__))),
    "an item of a list among defaults": lambda: of_list(lambda there: put_item(
        there["more"], 1, 5.0)),
    "another list among defaults": lambda: of_list(lambda there: put_item(
        there, "more", [1.0, 5.0])),
    "a property's code": lambda: of_thing(lambda thing: other_code(Thing.offset.fget)),
    "a static method's code": lambda: of_thing(lambda thing: other_code(Thing.doubled)),
    "a method's code": lambda: of_layer(lambda layer: other_code(Layer.answered)),
    "a hook's code": lambda: of_layer(lambda layer: other_code(hook), hooked),
    "what a partial calls": lambda: of_partial(lambda x, by: x - by, (), {"by": 3.0}),
    "a partial's keywords": lambda: of_partial(scaled, (), {"by": 5.0}),
    "an object's attributes": lambda: of_thing(lambda thing: put(
        (thing, "__dict__", {**vars(thing), "scale": 5.0}))),
    "an inner object's attributes": lambda: of_thing(lambda thing: put(
        (thing.inner, "__dict__", {"offset": 5.0}))),
    "an object's attribute by another name": lambda: of_thing(lambda thing: put(
        (thing, "__dict__", {**vars(thing), "factor": 5.0}))),
    "an attribute that hides a method": lambda: of_thing(lambda thing: hide(
        thing, "times", lambda x: x * 5.0)),
    "one that hides a class's": lambda: of_thing(lambda thing: hide(thing, "factor", 5.0)),
    "one that hides what a method calls": lambda: of_thing(lambda thing: hide(
        thing, "doubled", lambda x: x * 5.0)),
    "a module's own forward": lambda: of_layer(lambda layer: hide(
        layer[0], "forward", lambda x: x * 5.0), lambda: nn.Sequential(nn.Tanh())),
    "a function behind torch's decorator": lambda: of_decorated(lambda cell: put(
        (cell, "cell_contents", lambda x: x * 5.0))),
    "what is behind a weak reference": lambda: of_weak(lambda thing: put((thing, "scale", 5.0))),
    "its attributes": lambda: of_weak(lambda thing: put(
        (thing, "__dict__", {**vars(thing), "scale": 5.0}))),
    "an object's class": lambda: of_thing(lambda thing: put(
        (thing, "__class__", type("Other", (Thing,), {"factor": 5.0})))),
    "a method's object's class": lambda: of_method(lambda thing: put(
        (thing, "__class__", type("Other", (Thing,), {"times": lambda self, x: x * 5.0})))),
    "a descriptor": lambda: of_thing(lambda thing: hide_again(Described, "tripled"), Described),
    "what a descriptor holds": lambda: of_thing(lambda thing: put(
        (vars(Described)["tripled"], "by", 5.0)), Described),
    "an item of a class's list": lambda: of_thing(lambda thing: put_item(
        Described.weights, 0, 5.0), Described),
    "an attribute of a class's object": lambda: of_thing(lambda thing: put(
        (Described.inner_of_all, "offset", 5.0)), Described),
    "another object of a class": lambda: of_thing(lambda thing: put(
        (Described, "inner_of_all", Inner(5.0))), Described),
    "bases of a class": lambda: of_thing(lambda thing: put(
        (Heir, "__bases__", (type("Other", (Thing,), {"factor": 5.0}),))), Heir),
    "bases of a module's class": lambda: of_layer(lambda layer: put(
        (Layer, "__bases__", (type("Other", (nn.Module,), {
            "__call__": lambda self, x: self.forward(x) * 5.0}),)))),
}


ELSEWHERE = ["a descriptor"]  # when it comes back


def launches(step, tape, *args):
    before = tape.launches
    step(*args)
    return tape.launches - before


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_put_there_anew_is_not_missed(name, tape):
    function, change = CHANGES[name]()
    step = anabranch.record(function)
    assert [launches(step, tape, X) for _ in range(5)][-1] == 1
    was = function(X)
    for _ in range(2):
        undo = change()
        assert not torch.equal(function(X), was)
        for _ in range(4):
            assert torch.equal(step(X), function(X))
        undo()
        assert torch.equal(step(X), was)
        assert launches(step, tape, X) == 1 or name in ELSEWHERE


def frozen(*shape):
    return nn.Parameter(torch.ones(shape), requires_grad=False)


def test_what_a_method_reads_that_is_put_there_anew_is_guarded(tape, monkeypatch):
    thing = Thing()
    thing.other = 2.0
    step = anabranch.record(lambda x: thing.times(x))
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1
    monkeypatch.setattr(Thing, "times", lambda self, x: x * self.other)
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1 and torch.equal(step(X), X * 2)
    thing.other = 5.0
    assert torch.equal(step(X), X * 5)


def test_a_number_behind_a_weak_reference_that_changes_often_is_as_in_eager(tape):
    thing = Thing()
    weak = weakref.ref(thing)
    step = anabranch.record(lambda x: x * weak().scale)
    for i in range(12):
        thing.scale = 2.0 + i // 2
        assert torch.equal(step(X), X * thing.scale)
    assert all(report.code is None for report in step.reports)


def test_what_is_behind_a_weak_reference_is_let_go(tape):
    things = [Thing()]
    weak = weakref.ref(things[0])
    step = anabranch.record(lambda x: x * weak().scale if weak() is not None else x * 7)
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1
    things.clear()
    gc.collect()
    assert weak() is None and torch.equal(step(X), X * 7)


@pytest.mark.parametrize("name", ["mean", "F", "nn", "campaign", "Inner"])
@pytest.mark.parametrize("of_class", [False, True], ids=["object", "class"])
def test_what_code_names_for_something_else_is_no_guard(name, of_class, tape):
    """Names of variables, and of what is called: a number would not be."""
    thing, layer = Thing(), Layer()
    for holder in (thing, layer):
        setattr(holder, name, 1.0)

    def step(x):
        return F.relu(thing.times(layer(x))).mean() + isinstance(thing, nn.Module) + bool(Inner)

    step = anabranch.record(step)
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1
    for holder in (thing, layer):
        holder = type(holder) if of_class else holder
        for value in (2.0, "text", None):
            setattr(holder, name, value)
            assert launches(step, tape, X) == 1
        delattr(holder, name)
        assert launches(step, tape, X) == 1 and len(step.reports) == 1


def test_a_number_that_is_called_and_fails_is_a_guard(tape):
    thing = Inner()
    thing.mean = 1.0

    def step(x):
        try:
            return thing.mean(x)
        except TypeError:
            return x * 2

    step = anabranch.record(step)
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1
    thing.mean = lambda x: x * 7
    assert torch.equal(step(X), X * 7)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = frozen(3, 3)
        self.register_parameter("bias", None)

    def forward(self, x):
        y = F.linear(x, self.weight, self.bias)
        return y * 2 if "mask" in self._buffers else y


@pytest.mark.parametrize("change", [
    lambda layer: setattr(layer, "bias", frozen(3)),
    lambda layer: layer._parameters.update(bias=torch.ones(3)),
    lambda layer: setattr(layer, "_parameters", {**layer._parameters, "bias": torch.ones(3)}),
    lambda layer: layer.register_buffer("mask", None)],
    ids=["parameter", "tensor", "all anew", "name"])
def test_what_a_module_lacked_is_not_missed(change, tape):
    layer = Linear()
    step = anabranch.record(lambda x: layer(x))
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1
    was = layer(X)
    change(layer)
    assert torch.equal(step(X), layer(X)) and not torch.equal(layer(X), was)


def test_what_a_module_has_no_more_is_missed_as_in_eager(tape):
    layer = Linear()
    step = anabranch.record(lambda x: layer(x))
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1
    del layer._parameters["bias"]
    with pytest.raises(AttributeError, match="bias"):
        step(X)
    layer.register_parameter("bias", None)
    assert torch.equal(step(X), layer(X)) and launches(step, tape, X) == 1


def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, model, optimizer


def both(times, tape):
    """An eager and a recorded copy, called so often."""
    eager, recorded = trained(), trained()
    eager_and_recorded = eager, (anabranch.record(recorded[0]), *recorded[1:])
    called(eager_and_recorded, times)
    assert tape.launches
    return eager_and_recorded


def called(sides, times=4):
    for _ in range(times):
        for step, *_ in sides:
            step(X)
        for one, other in zip(*(model.parameters() for _, model, _ in sides), strict=True):
            assert torch.equal(one, other)


def like(tensor, dtype=None):
    return nn.Parameter(tensor.detach().clone().to(dtype))


@pytest.mark.parametrize("make", [
    like, lambda tensor: nn.Parameter(tensor.detach().t().clone().t()),
    lambda tensor: like(tensor, torch.float64)], ids=["alike", "other strides", "of doubles"])
def test_another_tensor_under_an_optimizer_and_the_same_again_are_not_missed(make, tape):
    sides = both(5, tape)
    for _ in range(2):
        for number in (0, 2):
            undo = [put_item(optimizer.param_groups[0]["params"], number,
                             make(optimizer.param_groups[0]["params"][number]))
                    for _, _, optimizer in sides]
            called(sides)
            for one in undo:
                one()
            called(sides)


def test_one_tensor_in_two_places_and_two_are_told_apart(tape):
    sides = both(5, tape)
    before = [model[2].weight for _, model, _ in sides]
    for _ in range(2):
        for _, model, _ in sides:
            model[2].weight = model[0].weight
        called(sides)
        for (_, model, _), weight in zip(sides, before, strict=True):
            model[2].weight = weight
        called(sides)


def test_a_group_without_parameters_raises_what_it_raises_in_eager(tape):
    sides = both(5, tape)
    groups = [optimizer.param_groups[0] for _, _, optimizer in sides]
    params = [group.pop("params") for group in groups]
    for step, *_ in sides:
        with pytest.raises(KeyError, match="params"):
            step(X)
    for group, some in zip(groups, params, strict=True):
        group["params"] = some
    called(sides)
    assert launches(sides[1][0], tape, X) == 1
