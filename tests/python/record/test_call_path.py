# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded step costs in Python: how many functions it goes through."""

from __future__ import annotations

import operator
import sys

import pytest
import torch
from launched_on_cpu import (  # noqa: F401
    COUNT,
    CalledByItsAddress,
    aligned,
    given_step,
    recording_of,
)
from torch import Tensor, nn

import anabranch
from anabranch._record import quick, recorded_callable
from anabranch._record import recorder as recorder_module
from anabranch._record.capture.pytree import flatten
from anabranch._record.state.namespaces import Variables
from anabranch._record.state.watch_list import WatchList

PACKAGE = anabranch.__path__[0]
MOST_FRAMES = 24


@pytest.fixture
def training(monkeypatch, step_of):
    """A recorded training step over a module and an optimizer of its closure, and the module. Its
    launches run on the CPU."""
    captured_step, capture = step_of
    capture.first.result = capture.first.result[:1]
    [_], capture.first.shape = flatten([0])
    made = recording_of(captured_step, capture)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(recorder_module, "device_of", lambda leaves, tensors: None)
    monkeypatch.setattr(recorder_module, "_give_back_memory", lambda: None)

    def record(recorder, key, spec, leaves):
        spec.arguments = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        spec.set_recording(made, spec.state.tensors(), None)
        return recorder._call(leaves)

    monkeypatch.setattr(recorder_module.Recorder, "_record", record)
    net = nn.Linear(4, 4, bias=False)
    net.weight = nn.Parameter(aligned(torch.ones(COUNT)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        return x * net.weight + 1

    return anabranch.record(step), net


def functions_called(call):
    """Of this package, in order."""
    called = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.skipif(not quick.is_compiled, reason="in Python there are more")
@pytest.mark.parametrize("step_of", [CalledByItsAddress], indirect=True)
def test_a_launched_call_goes_through_few_functions(training):
    step, net = training
    x = aligned(torch.ones(COUNT))
    for i in range(100):
        net.weight.grad = None
        answer = step(x)
        assert torch.equal(answer, x * net.weight + 1), i
    assert step.reports[0].calls == 100
    net.weight.grad = None
    called = functions_called(lambda: step(x))
    assert len(called) <= MOST_FRAMES, "\n".join(called)


def test_a_launched_call_sees_at_once_what_has_changed(training):
    """Whatever it is, the call goes the full way, and the next one is quick again."""
    step, net = training
    x = aligned(torch.ones(COUNT))

    def is_quick():
        net.weight.grad = None
        return not any(name.endswith(":_call_fully") for name in functions_called(lambda: step(x)))

    for _ in range(3):
        step(x)
    assert is_quick() and is_quick()
    net.eval()
    assert not is_quick()  # a signature of its own, which has not been recorded yet
    net.train()
    assert not is_quick() and is_quick()
    net.weight.data = aligned(torch.full((COUNT,), 3.0))  # an address is an argument
    assert is_quick() and torch.equal(step(x), x * 3 + 1)
    net.weight = nn.Parameter(aligned(torch.ones(COUNT)))  # which the optimizer does not have
    assert not is_quick()


def test_a_dictionary_is_compared_as_a_whole_until_it_has_changed():
    first, other = torch.ones(1), torch.zeros(1)
    holder = {"a": first, "b": other, "count": 0}
    looked_at = WatchList([((holder, "b"), other)], movable=[(holder, "a")])
    found = looked_at.look()
    assert found == [first] and looked_at.look() is found
    for count in range(1, 4):  # which is not watched
        holder["count"] = count
        assert looked_at.look()[0] is first
    found = looked_at.look()
    holder["count"] = 5
    assert looked_at.look() is found  # it is looked up by its key by now
    holder["a"] = other
    assert looked_at.look()[0] is other
    holder["b"] = first
    assert looked_at.look() is None
    holder["b"] = other
    assert looked_at.look()[0] is other
    del holder["a"]
    assert looked_at.look() is None


def test_one_dictionary_that_changes_is_no_reason_to_look_into_another():
    some = [{"a": torch.ones(1)} for _ in range(3)]
    looked_at = WatchList(movable=[(one, "a") for one in some])
    assert looked_at.look() == [one["a"] for one in some]
    for i in (1, 0, 1):
        some[i]["a"] = torch.full((1,), float(i))
        found = looked_at.look()
        assert all(map(operator.is_, found, [one["a"] for one in some]))
        assert looked_at.look() is found
    some[2]["b"] = some[2].pop("a")
    assert looked_at.look() is None


def test_things_in_items_and_in_variables_are_found_as_one_list_until_one_is_another():
    first, other, holder = torch.ones(1), torch.ones(1), {"a": torch.zeros(1)}
    variable, fixed = first, object()

    def step():
        return variable, fixed

    def forget():
        nonlocal variable
        del variable

    variables = Variables(step)
    looked_at = WatchList([((variables, "fixed"), fixed)], movable=[(variables, "variable"),
                                                                    (holder, "a")])
    found = looked_at.look()
    assert found[0] is first and found[1] is holder["a"] and looked_at.look() is found
    variable = other
    moved = looked_at.look()
    assert moved[0] is other and moved[1] is holder["a"] and looked_at.look() is moved
    holder["a"] = first
    assert [id(thing) for thing in looked_at.look()] == [id(other), id(first)]
    before, fixed = fixed, object()
    assert looked_at.look() is None
    fixed = before
    assert looked_at.look() is not None
    forget()
    assert looked_at.look() is None
