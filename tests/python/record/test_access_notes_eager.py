# SPDX-License-Identifier: Apache-2.0
"""What is noted of eager code: what one microbatch of a step uses, and what the next one waits
for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from noting import Marks, at, compiled, reads, writes
from torch import nn
from torch._dynamo.utils import counters

from anabranch._record.capture.access_notes import AccessNotes
from anabranch._record.capture.labels import Labels

pytestmark = [pytest.mark.oldest, pytest.mark.own]
BATCHES = 3


def noted_calls(run, *args):
    """With what the step leaves unknown: marks behind which no work is noted."""
    marks, labels = Marks(), Labels()
    notes = AccessNotes(marks, "cpu", labels=labels)
    with notes.known_calls():
        answer = run(*args)
    known = {work.mark for work in notes.works}
    unknown = {label.operator for mark in range(marks.count + 2)
               if (label := labels.of(mark)) is not None and mark not in known}
    return notes, unknown, answer


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.second(F.gelu(self.first(x))) + x


def microbatches(model, xs, optimizer, to_none=True):
    optimizer.zero_grad(set_to_none=to_none)
    total = torch.zeros(())
    for x in xs:
        loss = F.mse_loss(model(x), x) / len(xs)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


def step_of(wrap):
    torch.manual_seed(0)
    model, xs = Two(), list(torch.randn(BATCHES, 5, 4))
    call = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    microbatches(call, xs, optimizer)
    return model, (call, xs, optimizer)


@pytest.mark.parametrize("wrap", [lambda model: model, compiled], ids=["eager", "compiled"])
def test_of_a_step_of_microbatches_all_is_noted(wrap):
    model, args = step_of(wrap)
    graphs = dict(counters["stats"])
    notes, unknown, total = noted_calls(microbatches, *args)
    # What a profiler asks for queues nothing. Kernels for the CPU are none that are noted.
    assert {name for name in unknown if not name.startswith("profiler::")} == set()
    assert counters["stats"] == graphs
    other, others = step_of(wrap)
    assert torch.equal(total, microbatches(*others))
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_gradient_is_made_by_the_first_microbatch_and_added_to_by_the_others():
    model, args = step_of(lambda model: model)
    notes, _, _ = noted_calls(microbatches, *args)
    weight = model.second.weight
    adds = [work for work in notes.works
            if writes(work) == at(weight.grad) and not work.independent]
    assert [len(reads(work)) for work in adds[-BATCHES + 1:]] == [1] * (BATCHES - 1)
    # Stolen, and neither copied nor added to zeros: the product that made it wrote it.
    [first, *rest] = [work for work in notes.works if weight.grad.data_ptr() in writes(work)]
    assert first.has_scratch and len(rest) == BATCHES - 1


def test_a_forward_reads_no_gradient_and_not_what_another_microbatch_wrote():
    model, (call, xs, optimizer) = step_of(lambda model: model)
    optimizer.zero_grad(set_to_none=False)
    kept = []  # so that no address is given out twice

    def step():
        for x in xs:
            kept.append(call(x))
            kept[-1].backward(torch.ones_like(x))

    notes, _, _ = noted_calls(step)
    gradients = at(*(parameter.grad for parameter in model.parameters()))
    of_gradients = [bool((reads(work) | writes(work)) & gradients) for work in notes.works]
    forwards = [work for work in notes.works
                if at(model.first.bias) <= reads(work) and work.has_scratch]
    assert len(forwards) == BATCHES and any(of_gradients)
    assert not any((reads(work) | writes(work)) & gradients for work in forwards)


def test_gradients_that_are_set_to_zero_are_noted():
    model, args = step_of(lambda model: model)
    notes, _, _ = noted_calls(lambda: microbatches(*args, to_none=False))
    gradients = at(*(parameter.grad for parameter in model.parameters()))
    assert writes(notes.works[0]) == gradients and notes.works[0].independent


def test_a_number_beside_a_tensor_is_no_memory():
    x = torch.ones(3)
    notes, _, y = noted_calls(lambda: (x / 8) * 2.0)
    assert [reads(work) for work in notes.works][0] == at(x)
    assert len(notes.works) == 2 and writes(notes.works[1]) == at(y)


def test_operators_of_an_autograd_function_of_the_users_are_noted():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            return gradient.mul(2)

    x = torch.ones(3, requires_grad=True)
    notes, unknown, _ = noted_calls(lambda: Double.apply(x).sum().backward())
    assert unknown == set() and len(notes.works) >= 4
