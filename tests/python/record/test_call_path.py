# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded step costs in Python: how many functions it goes through."""

from __future__ import annotations

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

PACKAGE = anabranch.__path__[0]
MOST_FRAMES = 4


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
    monkeypatch.setattr(recorder_module, "give_back_memory", lambda: None)

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
