# SPDX-License-Identifier: Apache-2.0
"""What is noted of the steps of torch's own optimizers."""

from __future__ import annotations

import pytest
import torch
from noting import Marks, at, notes_of, reads, writes
from torch._dynamo.utils import counters
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from anabranch import _compat
from anabranch._record.capture import access_notes
from anabranch._record.capture.access_notes import AccessNotes

pytestmark = pytest.mark.own
CHECK = next(name for name in ("_accelerator_graph_capture_health_check",
                               "_cuda_graph_capture_health_check")
             if hasattr(torch.optim.Optimizer, name))


def step_of(make, parameters=None):
    parameters = parameters or [torch.nn.Parameter(torch.ones(3, i)) for i in (2, 4)]
    optimizer = make(parameters)

    def step():
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter) * 2
        optimizer.step()

    step()
    return parameters, optimizer, step


def noted_calls(step):
    notes = AccessNotes(Marks(), "cpu")
    with notes.known_calls():
        step()
    return notes


@pytest.mark.oldest
@pytest.mark.parametrize(("make", "goes_over_lists"), [
    (lambda p: torch.optim.AdamW(p, fused=True), True),
    (lambda p: torch.optim.Adam(p, foreach=True), True),
    (lambda p: torch.optim.SGD(p, fused=True, lr=0.1, momentum=0.9), True),
    (lambda p: torch.optim.SGD(p, foreach=False, lr=0.1, momentum=0.9), False),
], ids=["fused AdamW", "foreach Adam", "fused SGD", "SGD"])
def test_an_optimizers_step_is_noted_operator_by_operator(make, goes_over_lists):
    parameters, optimizer, step = step_of(make)
    notes = noted_calls(step)
    assert notes.works and any(work.independent for work in notes.works) == goes_over_lists
    assert not any(work.has_scratch for work in notes.works)
    states = [state["momentum_buffer" if "momentum_buffer" in state else "exp_avg"]
              for state in optimizer.state.values()]
    assert at(*parameters, *states) <= set().union(*map(writes, notes.works))
    count = len(notes.works)
    step()  # behind it
    assert len(notes.works) == count


@pytest.mark.oldest
def test_a_compiled_optimizer_runs_what_was_compiled_of_it():
    _, optimizer, step = step_of(lambda p: torch.optim.Adagrad(p, foreach=True))
    called = []

    def count(graph, inputs):
        return lambda *args: (called.append(1), graph(*args))[1]

    optimizer.step = torch.compile(optimizer.step, backend=count)
    step()
    before, traced = len(called), dict(counters["frames"])
    noted_calls(step)
    assert 0 < before < len(called) and counters["frames"] == traced


@pytest.mark.oldest
def test_a_step_that_raises_leaves_no_mode_and_no_patch():
    _, optimizer, step = step_of(lambda p: torch.optim.Adam(p, foreach=True))
    before = CachingAutotuner.run
    optimizer.param_groups[0]["lr"] = "much"
    notes = AccessNotes(Marks(), "cpu")
    with pytest.raises((TypeError, RuntimeError)), notes.known_calls():
        step()
    assert CachingAutotuner.run is before and not _compat.dispatch_modes()
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


@pytest.fixture
def small_launches(monkeypatch):
    """Of two blocks of four elements."""
    monkeypatch.setattr(access_notes, "_BLOCK_ELEMENTS", 4)
    monkeypatch.setattr(access_notes, "_LAUNCH_BLOCKS", 2)


def all_of(work):
    return reads(work) | writes(work)


@pytest.mark.oldest
@pytest.mark.usefixtures("small_launches")
@pytest.mark.parametrize("make", [
    lambda p: torch.optim.AdamW(p, fused=True),
    lambda p: torch.optim.AdamW(p, fused=True, amsgrad=True),
    lambda p: torch.optim.SGD(p, fused=True, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adagrad(p, fused=True),
    lambda p: torch.optim.SGD(p, foreach=True, lr=0.1, momentum=0.9),
    lambda p: torch.optim.NAdam(p, foreach=True),
], ids=["fused AdamW", "amsgrad", "fused SGD", "fused Adagrad", "foreach SGD", "foreach NAdam"])
def test_parts_of_a_list_that_one_launch_takes_are_noted_each_by_itself(make):
    shapes = [(3,), (5,), (2, 2), (4,), (1,), (40,)]
    parameters = [torch.nn.Parameter(torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape))
                  for shape in shapes]
    others = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
    _, optimizer, step = step_of(make, parameters)
    notes = noted_calls(step)
    launches = [[0], [1], [2, 3], [4], [5]]  # one block; two; one and one; one, and ten behind it
    updates = [work for work in notes.works if at(*parameters) & writes(work)]
    assert [{i for i, p in enumerate(parameters) if at(p) & all_of(work)}
            for work in updates[-5:]] == list(map(set, launches))
    assert all(work.independent for work in updates)
    _, _, plain = step_of(make, others)
    plain()
    for parameter, other in zip(parameters, others, strict=True):
        assert torch.equal(parameter, other)


@pytest.mark.oldest
@pytest.mark.usefixtures("small_launches")
def test_an_operator_over_lists_answers_the_results_of_all_parts():
    tensors = [torch.arange(float(n)) for n in (3, 5, 0, 4, 4, 1)]
    notes, roots = notes_of(torch._foreach_sqrt, tensors)
    assert len(notes.works) == 4 and len(roots) == len(tensors)
    for tensor, root in zip(tensors, roots, strict=True):
        assert torch.equal(tensor.sqrt(), root)
    scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    _, scaled = notes_of(torch._foreach_mul, tensors, scales)
    for tensor, scale, found in zip(tensors, scales, scaled, strict=True):
        assert torch.equal(tensor * scale, found)
    _, norms = notes_of(torch._foreach_norm, [t for t in tensors if len(t)])
    assert [norm.item() for norm in norms] == [t.norm().item() for t in tensors if len(t)]


@pytest.mark.oldest
@pytest.mark.usefixtures("small_launches")
@pytest.mark.parametrize("run", [
    lambda x: torch._foreach_add_([x, x.double()], 1),
    lambda x: torch._foreach_add_([x, x.t()], 1),
    lambda x: torch._foreach_div_([x, x.clone()], [x[0, 0].clone(), x[0, 1].clone()]),
    lambda x: torch._foreach_add_([x.int(), x.int()], 1),
], ids=["types", "strides", "shapes", "integers"])
def test_lists_whose_tensors_may_go_different_ways_stay_whole(run):
    x = torch.ones(4, 4)
    notes, _ = notes_of(run, x)
    assert [work.independent for work in notes.works if writes(work)].count(True) == 1


class OfOurs(torch.optim.AdamW):
    pass


@pytest.mark.oldest
@pytest.mark.parametrize(("make", "is_captured"), [
    (lambda p: torch.optim.AdamW(p, fused=True), True),
    (lambda p: torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:]}], fused=True), True),
    (lambda p: torch.optim.AdamW(p), False),
    (lambda p: torch.optim.AdamW([{"params": p[:1], "fused": True}, {"params": p[1:]}]), False),
    (lambda p: torch.optim.AdamW(p, foreach=True), False),
    (lambda p: OfOurs(p, fused=True), False)],
    ids=["fused", "fused groups", "plain", "one group fused", "foreach", "a class of the user's"])
def test_steps_of_fused_optimizers_are_captured_though_they_were_not_made_for_it(
        monkeypatch, make, is_captured):
    """Torch refuses by a check that its steps begin with."""
    def refuse(optimizer):
        raise RuntimeError("param_groups' capturable is False")

    _, optimizer, step = step_of(make)
    before = dict(vars(optimizer))
    monkeypatch.setattr(torch.optim.Optimizer, CHECK, refuse)
    with _compat.captures_of_fused_steps([optimizer]), pytest.raises(RuntimeError):
        step()  # its parameters are on the CPU, and so are its counts
    on_gpu = [p for group in optimizer.param_groups for p in group["params"]]
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(
        lambda tensor: any(tensor is p for p in on_gpu)))
    with _compat.captures_of_fused_steps([optimizer]):
        if is_captured:
            step()
        else:
            with pytest.raises(RuntimeError, match="capturable"):
                step()
    assert vars(optimizer).keys() == before.keys()
    with pytest.raises(RuntimeError, match="capturable"):
        step()
