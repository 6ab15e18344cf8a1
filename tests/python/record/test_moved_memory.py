# SPDX-License-Identifier: Apache-2.0
"""A step that gives its tensors other memory (``tensor.data = ...``) runs as it would without us,
also where a capture breaks in the middle of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from stand_in_recording import StandIn
from torch import nn

from anabranch import config, errors
from anabranch._record import attempt
from anabranch._record import recorder as recorder_module
from anabranch._record.capture.capture import memory_stays
from anabranch._record.refusals import NotRecordable
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.state.state import State
from anabranch._record.tensors import MemoryOf

pytestmark = pytest.mark.oldest

CALLS = 7


class Offloaded(nn.Module):
    """Its weight has other memory while it runs, as hooks give it that offload weights; it goes
    back to where it was, or, where not ``goes_home``, to a copy."""

    def __init__(self, goes_home):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0), requires_grad=False)
        self.goes_home, self.is_captured, self.runs = goes_home, False, 0

    def forward(self, x):
        self.runs += not self.is_captured
        home = self.weight.data
        self.weight.data = torch.full((4,), torch.nan) if self.is_captured else home.clone()
        if self.is_captured:
            raise NotRecordable("it breaks with the weights in memory that nothing fills")
        self.weight.data.add_(1)
        answer = x * self.weight
        self.weight.data = home.copy_(self.weight) if self.goes_home else self.weight.data.clone()
        return answer


@pytest.fixture
def calls(monkeypatch):
    """What each call answers and leaves, its model, and the reason that is told."""
    StandIn(monkeypatch)

    def capture(step, device, is_enough=None):
        with memory_stays(step, step.tensors):
            model.is_captured = True
            try:
                step.call(list(step.leaves))
            finally:
                model.is_captured = False

    monkeypatch.setattr(attempt, "capture_twice", capture)
    model = None

    def run(made):
        nonlocal model
        model = made
        recorder = recorder_module.Recorder(lambda leaves: made(*leaves), config.resolve(
            {"max_parallel_kernels": 1}), "step", kind=CallableKind(takes_gradients=True))
        found = []
        with pytest.warns(errors.RecordWarning):
            for i in range(CALLS):
                leaves, state = [torch.full((4,), 1.0 + i)], State((made,))
                found.append((recorder.run("key", leaves, state, lambda: "step"),
                              made.weight.detach().clone()))
        [report] = recorder.specializations.reports()
        return found, report.reason

    return run


def eager(model):
    return [(model(torch.full((4,), 1.0 + i)), model.weight.detach().clone())
            for i in range(CALLS)]


@pytest.mark.parametrize("goes_home, reason", [(False, "other memory"), (True, "it breaks with")])
def test_a_step_that_gives_its_weights_other_memory_runs_plainly_and_once_a_call(
        calls, goes_home, reason):
    model = Offloaded(goes_home)
    found, told = calls(model)
    for i, (mine, theirs) in enumerate(zip(found, eager(Offloaded(goes_home)), strict=True)):
        assert all(map(torch.equal, mine, theirs)), i
    assert reason in told and model.runs == CALLS


def test_an_argument_that_gets_other_memory_keeps_a_step_plain(monkeypatch):
    StandIn(monkeypatch)

    def step(leaves):
        leaves[0].data = leaves[0] * 2
        return leaves[0] + 1

    recorder = recorder_module.Recorder(step, config.resolve({"max_parallel_kernels": 1}), "step",
                                        kind=CallableKind(takes_gradients=True))
    x = torch.ones(3)
    with pytest.warns(errors.RecordWarning, match="other memory"):
        for i in range(1, CALLS):
            answer = recorder.run("key", [x], State(), lambda: "step")
            assert torch.equal(x, torch.full((3,), 2.0**i)) and torch.equal(answer, x + 1), i


def test_a_capture_that_ends_well_but_moves_a_tensor_is_refused_and_the_tensor_is_back():
    x = torch.ones(3)
    home = x.data_ptr()
    step = SimpleNamespace(beside=[])
    with pytest.raises(NotRecordable, match="other memory"), memory_stays(step, [x]):
        x.set_(torch.zeros(5))
    assert x.data_ptr() == home and torch.equal(x, torch.ones(3))


@pytest.mark.parametrize("change", [
    lambda x: setattr(x, "data", x * 2), lambda x: setattr(x, "data", x.data.double()),
    lambda x: x.set_(torch.zeros(2)), lambda x: x.set_(x.untyped_storage(), 1, (2,), (1,)),
    lambda x: x.resize_(1, 6)])
def test_memory_is_given_back_with_its_shape_and_type(change):
    x = torch.arange(6.0).reshape(2, 3)
    memory, home = MemoryOf([x, x, torch.eye(2).to_sparse()]), x.data_ptr()
    assert not memory.moved()
    change(x)
    [moved] = memory.moved()
    assert moved is x
    memory.give_back()
    assert not memory.moved() and x.data_ptr() == home and x.dtype == torch.float32
    assert torch.equal(x, torch.arange(6.0).reshape(2, 3))


def test_writing_a_tensor_moves_nothing():
    x = torch.zeros(4)
    memory = MemoryOf([x])
    x.add_(1).copy_(torch.ones(4))
    x.data = x.data  # the same memory
    assert not memory.moved() and torch.equal(x, torch.ones(4))


READ_OTHERWISE = {"conjugated": lambda z: z.conj(), "negated": lambda z: z.conj().imag,
                  "both": lambda z: torch._neg_view(z.conj())}


@pytest.mark.parametrize("read", READ_OTHERWISE.values(), ids=READ_OTHERWISE.keys())
def test_tensors_that_torch_reads_conjugated_or_negated_stay_where_they_are(read):
    """As the complex rotations that attention saves for its backward."""
    z = torch.randn(6, dtype=torch.complex64)
    x = read(z)
    memory = MemoryOf([x])
    assert not memory.moved()
    x.mul_(2)
    assert not memory.moved()
    x.data = read(z.clone())
    assert memory.moved() == [x]
    memory.give_back()
    assert not memory.moved() and torch.equal(x, read(z))
    x.data = z if z.dtype == x.dtype else torch.view_as_real(z)[:, 1]
    assert memory.moved() == [x]
