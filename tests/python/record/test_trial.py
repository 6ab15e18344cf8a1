# SPDX-License-Identifier: Apache-2.0
"""A step is run again from where it was, with next to nothing held beside it."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from stand_in_recording import StandIn

from anabranch._record.capture.step import Step
from anabranch._record.memory import gpu
from anabranch._record.refusals import NotRecordable
from anabranch._record.state.state import State
from anabranch._record.tensors import units_apart
from anabranch._record.trial import copies, stages, values
from anabranch._record.trial import trial as trial_module
from anabranch._record.trial.trial import Foreseen, Trial

pytestmark = pytest.mark.oldest


@pytest.fixture
def trial_of(monkeypatch):
    StandIn(monkeypatch)

    def make(call, leaves, foreseen=None):
        parameters = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = [leaf.grad for leaf in parameters if leaf.grad is not None]
        tensors = [*leaves, *gradients]
        count = len(gradients)
        del gradients
        step = Step(call, leaves, list(range(len(leaves))), tensors,
                    units_apart(tensors, len(leaves)), count, parameters, 0, None)
        return Trial(step, State(), foreseen or Foreseen(), on_callers_stream=True), step

    return make


def parameter(gradient=None):
    made = torch.nn.Parameter(torch.ones(100))
    made.grad = gradient
    return made


@pytest.mark.parametrize(("reserved", "free", "used", "granted"), [
    (1, 79, 5, 80 / 32),  # most of the GPU is free
    (1, 45, 8, 1 / 32),  # not six times what the step uses
    (64, 15, 5, 1),
    (79, 1, 5, 1 / 4),
])
def test_copies_take_little_of_a_gpu_unless_most_of_it_is_free(
        monkeypatch, reserved, free, used, granted):
    gib = 1 << 30
    for module in (copies, gpu):
        monkeypatch.setattr(module, "free_bytes", lambda device: free * gib)
    monkeypatch.setattr(gpu._compat, "memory_fraction", lambda device: 1.0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * gib)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * gib, 80 * gib))
    assert copies.grantable_bytes(0, used * gib) == granted * gib


def test_what_is_only_read_is_not_copied(trial_of):
    w, x = torch.ones(100), torch.ones(100)
    versions = {id(w): w._version, id(x): x._version}
    w.add_(1)
    trial, step = trial_of(lambda leaves: leaves[0].mul_(leaves[1]).sum(), [w, x],
                           Foreseen(versions))
    assert trial.copied_bytes == 448  # w alone, 400 bytes in multiples of 64
    run = trial.plain()
    assert not trial.written_unforeseen(run)
    x.add_(1)
    assert trial.written_unforeseen(trial._after(None, [])) == {1}
    trial.rewind()
    assert torch.equal(w, torch.full((100,), 2.0))


def test_what_a_step_may_count_by_is_put_back_even_where_its_large_floats_are_not(
        trial_of, monkeypatch):
    """Not a large tensor's values, which no index is, but for one that is also seen as integers."""
    monkeypatch.setattr(trial_module, "_SMALL_BYTES", 1 << 20)
    large, small, position = torch.ones(1 << 19), torch.ones(9), torch.zeros(1 << 19).long()
    both = torch.ones(1 << 19)
    given = [large, small, position, both, both.view(torch.int32)]
    before = [one.clone() for one in given]

    def step(leaves):
        for leaf in leaves[:4]:
            leaf.add_(1)
        return leaves[0].sum()

    trial, _ = trial_of(step, given, Foreseen({id(one): one._version - 1 for one in given}))
    trial.plain()
    trial.rewind(is_whole=False)
    assert [torch.equal(*pair) for pair in zip(given, before)] == [False, True, True, True, True]
    trial.rewind()
    assert all(map(torch.equal, given, before))


def test_what_garbage_of_late_holds_is_free_before_a_launch(trial_of):
    """Python looks for none by itself meanwhile: it would look through the whole process."""
    trial, _ = trial_of(lambda leaves: None, [torch.ones(3)])

    class Ring:
        def __init__(self):
            self.next, self.tensor = self, torch.ones(3)

    gc.collect()
    gc.disable()
    try:
        gone = weakref.ref(Ring())
        assert gone() is not None
        trial.reserve(SimpleNamespace(reserve=lambda: None))
        assert gone() is None
    finally:
        gc.enable()


def test_gradients_that_a_step_clears_are_not_held_while_it_runs(trial_of):
    w = parameter(torch.full((100,), 3.0))
    old = weakref.ref(w.grad)
    seen = []

    def step(leaves):
        w.grad = None
        seen.append(old() is None)
        w.grad = torch.full((100,), 4.0)
        return w.detach().sum()

    trial, stepped = trial_of(step, [w])
    run = trial.plain()
    assert seen == [True] and trial.has_let_gradients_go and trial.let_go_bytes == 400
    assert "gradient 0" in run.sums and torch.equal(w.grad, torch.full((100,), 4.0))
    trial.rewind()
    assert w.grad.shape == (100,) and w.grad is stepped.tensors[1]  # where nothing is
    trial.settle(run)
    assert torch.equal(w.grad, torch.full((100,), 4.0))
    trial.give_up()
    assert torch.equal(w.grad, torch.zeros(100))


def test_gradients_that_a_step_leaves_alone_are_there_afterwards_and_those_it_adds_to_are_seen(
        trial_of):
    w, v = parameter(torch.full((100,), 3.0)), parameter(torch.full((100,), 5.0))
    old = w.grad, id(v.grad)
    del old
    trial, step = trial_of(lambda leaves: w.detach().sum(), [w, v])
    run = trial.plain()
    assert not trial.has_let_gradients_go and not trial.written_unforeseen(run)
    trial.rewind()
    assert not trial.differing(run, trial.plain())  # a run more, of a step whose runs may differ
    trial.rewind()
    assert torch.equal(w.grad, torch.full((100,), 3.0))
    assert torch.equal(v.grad, torch.full((100,), 5.0))

    foreseen = Foreseen()
    trial, step = trial_of(lambda leaves: w.grad.add_(1).sum(), [w, v], foreseen)
    assert trial.written_unforeseen(trial.plain()) and foreseen.needs_gradients
    trial, step = trial_of(lambda leaves: w.grad.add_(1).sum(), [w, v], foreseen)
    assert not trial.written_unforeseen(trial.plain())
    trial.rewind()
    assert torch.equal(w.grad, torch.full((100,), 4.0))  # of the first of both runs


def test_a_gradient_that_somebody_else_has_is_held(trial_of):
    w = parameter(torch.full((100,), 3.0))
    mine = w.grad

    def step(leaves):
        w.grad = None
        return w.detach().sum()

    trial, _ = trial_of(step, [w])
    assert not trial.has_let_gradients_go
    trial.plain()
    trial.rewind()
    assert w.grad is mine and torch.equal(mine, torch.full((100,), 3.0))


def test_memory_of_all_that_is_small_is_copied_on_the_gpu(monkeypatch, trial_of):
    for module in (trial_module, values):
        monkeypatch.setattr(module, "grantable_bytes", lambda *asked: 1 << 20)
    w = parameter(torch.ones(100))
    trial, _ = trial_of(lambda leaves: w.detach().sum(), [w])
    assert trial.copied_to == "GPU" and trial.copied_bytes == 896
    assert not trial.has_let_gradients_go


def test_memory_of_values_that_are_compared_is_no_tensor_of_the_steps(monkeypatch, trial_of):
    for module in (trial_module, values):
        monkeypatch.setattr(module, "grantable_bytes", lambda device, used_bytes: 1 << 20)
    trial, _ = trial_of(lambda leaves: None, [torch.ones(100)])
    assert [one.numel() for one in trial.own_memory] == [trial.copied_bytes]
    kept = trial.values(trial._after(None, []), {"given memory 0"})
    assert [one.numel() for one in trial.own_memory] == [trial.copied_bytes, 448]
    assert trial.own_memory[1] is kept.copies.device_memory[0]
    del kept
    assert len(trial.own_memory) == 1


def test_distances_are_those_of_the_values_and_zeros_of_other_signs_are_not_the_same(trial_of):
    x, whole = torch.tensor([0.0, 3.0, 4.0]), torch.tensor([1, 2, 3])
    trial, _ = trial_of(lambda leaves: None, [x, whole])

    def run(change):
        change()
        return trial._after(None, [])

    names = {"given memory 0", "given memory 1"}
    values = trial.values(run(lambda: None), names)
    found = values.distances(run(lambda: (x.mul_(2), whole.add_(1))), names)
    assert found == {"given memory 0": (pytest.approx(5.0), False), "given memory 1": (3.0, False)}
    assert values.distances(run(lambda: None), ["given memory 1"]) == {"given memory 1": (3.0, False)}
    assert values.distances(run(lambda: (x.copy_(torch.tensor([-0.0, 3.0, 4.0])), whole.sub_(1))),
                            names)["given memory 0"] > (0.0, False)
    found = values.distances(run(lambda: x.copy_(torch.tensor([float("nan"), 3.0, 4.0]))), names)
    assert found == {"given memory 0": (float("inf"), False)}


def test_distances_are_those_of_all_pieces_of_the_hosts_copies(monkeypatch, trial_of):
    """Of which several are on their way at once."""
    for module in (copies, stages):
        monkeypatch.setattr(module, "STAGE_BYTES", 64)
    x, y, z = torch.arange(999.0), torch.arange(50), torch.arange(1000.0)
    trial, _ = trial_of(lambda leaves: None, [x, y, z])
    names = {f"given memory {i}" for i in range(3)}
    values = trial.values(trial._after(None, []), names)
    assert values.copies.where == "host"
    x[500].add_(3), x[998].add_(4), y[49].add_(1), z[999].sub_(2)
    assert values.distances(trial._after(None, []), names) == {
        "given memory 0": (5.0, False), "given memory 1": (1.0, False),
        "given memory 2": (2.0, False)}
    assert values.distances(trial._after(None, []), ["given memory 2"]) == {
        "given memory 2": (2.0, False)}


def test_pinned_buffers_grow_with_what_goes_through_them_to_128_mib_together():
    mib = 1 << 20
    assert [stages.stage_bytes_for(size * mib) // mib for size in (0, 300, 640, 10_000)] \
        == [4, 4, 8, 16]
    for size, buffers in ((1, 2), (9, 6), (300, 16), (640, 16), (10_000, 8)):
        made = stages.Stages(size * mib, stages.stage_bytes_for(size * mib))
        assert len(made._free) == buffers and 0 <= made.ahead <= buffers - 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_an_element_that_is_rounded_another_way_is_told_from_one_that_is_wrong(trial_of, dtype):
    x = torch.tensor([1.0, 3e-6, 0.0], dtype=dtype)
    trial, _ = trial_of(lambda leaves: None, [x])
    values = trial.values(trial._after(None, []), {"given memory 0"})
    eps = torch.finfo(dtype).eps
    for factors, is_rounding in (([1 + eps, 1, 1], True), ([1, 1 + eps, 1], True),
                                 ([1 + 2 * eps, 1 + eps, 1], True), ([1 + eps, 1 + 8 * eps, 1], False)):
        before = x.clone()
        x.mul_(torch.tensor(factors, dtype=dtype))
        found = values.distances(trial._after(None, []), ["given memory 0"])
        assert found["given memory 0"].is_rounding is is_rounding
        x.copy_(before)


def loss_of(leaves):
    w, x = leaves
    return (torch.sin(w) * x).sum() / x.sum()


def backward(leaves):
    loss = loss_of(leaves)
    loss.backward()
    return loss


def backward_and_another_loss(leaves):
    backward(leaves)
    return loss_of(leaves)


def zeroed(leaves):
    leaves[0].grad.zero_()
    return loss_of(leaves)


def whole_step(leaves):
    """Leaves no gradients."""
    loss = backward(leaves)
    with torch.no_grad():
        leaves[0].sub_(leaves[0].grad)
    leaves[0].grad = None
    return loss


def backward_without_saved_tensors(leaves):
    total = leaves[0].sum()
    total.backward()
    return total


def backward_and_a_metric(leaves):
    prediction = torch.sin(leaves[0])
    (prediction * leaves[1]).sum().backward()
    return prediction.square().mean()


@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("step", [backward, whole_step, backward_and_a_metric])
def test_answers_have_no_history_where_the_backward_has_run(trial_of, step, has_gradients):
    """Whether gradients are set, added to, or cleared again."""
    gradient = torch.ones(100) if has_gradients else None
    trial, made = trial_of(step, [parameter(gradient), torch.ones(100)])
    run = trial.plain()
    assert run.has_history and not run.answer.requires_grad
    run.check(made)


def test_a_graph_that_saves_nothing_is_behind_the_backward_that_has_set_gradients(trial_of):
    trial, made = trial_of(backward_without_saved_tensors, [parameter()])
    trial.plain().check(made)


@pytest.mark.parametrize("step, has_gradients", [
    (loss_of, False), (loss_of, True), (zeroed, True),
    (backward_and_another_loss, False), (backward_and_another_loss, True),
])
def test_a_loss_whose_backward_may_follow_outside_is_refused(trial_of, step, has_gradients):
    gradient = torch.ones(100) if has_gradients else None
    trial, made = trial_of(step, [parameter(gradient), torch.ones(100)])
    with pytest.raises(NotRecordable, match="runs no backward through them"):
        trial.plain().check(made)
