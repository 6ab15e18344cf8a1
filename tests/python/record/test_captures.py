# SPDX-License-Identifier: Apache-2.0
"""What a capture has in the place of what a step is given, and what a trial looks up and puts
back."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from stand_in_recording import stand_in_memory
from torch.testing._internal.two_tensor import TwoTensor

from anabranch._record import refusals
from anabranch._record.capture import capture
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.stand_ins import StandIns
from anabranch._record.capture.step import Step
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state import state as state_module
from anabranch._record.state.state import State
from anabranch._record.tensors import inner_places, inner_tensors, layout_of, units_of
from anabranch._record.trial import trial as trial_module

ALIGNMENT = 64


class Memory:
    """In the place of a capture's."""

    def __init__(self):
        self.blocks = []

    def allocate(self, size_bytes):
        block = torch.zeros(size_bytes + ALIGNMENT, dtype=torch.uint8)
        self.blocks.append(block[-block.data_ptr() % ALIGNMENT:])
        return self.blocks[-1].data_ptr()


def test_a_tensor_that_is_given_twice_is_one_object_in_a_capture_too():
    """Compiled code guards on that, and would be compiled anew in the capture."""
    x, y = torch.ones(4), torch.nn.Parameter(torch.ones(2))
    given = [x, y, x, y, x[:]]
    step = Step(lambda leaves: None, ["shape", *given], [1, 2, 3, 4, 5], given, units_of(given),
                0, [], 0, None)
    [_, a, b, again, other, view], tables = capture.leaves_of(
        step, StandIns(given, step.units, Memory()))
    assert a is again and b is other and view is not a and not tables
    assert type(b) is torch.nn.Parameter and a.data_ptr() == view.data_ptr() != x.data_ptr()


def test_stand_ins_have_the_layout_of_the_given_and_memory_of_the_capture():
    base = torch.arange(24.0)
    given = [base[4:20].view(4, 4).T, base[8:10].view(torch.int32), torch.ones(3)]
    memory = Memory()
    blocks = memory.blocks
    stand_ins = StandIns(given, units_of(given), memory)
    for tensor, stand_in in zip(given, stand_ins.tensors, strict=True):
        assert (stand_in.shape, stand_in.stride(), stand_in.dtype) == \
            (tensor.shape, tensor.stride(), tensor.dtype)
        assert stand_in.data_ptr() % ALIGNMENT == tensor.data_ptr() % ALIGNMENT
        assert any(0 <= stand_in.data_ptr() - block.data_ptr() < len(block) for block in blocks)
    first, inside, _ = stand_ins.tensors
    assert inside.data_ptr() - first.data_ptr() == 16 and len(blocks) == 2
    inside.fill_(0x3F800000)  # the bits of 1.0
    assert first.T.flatten().tolist() == [0.0] * 4 + [1.0] * 2 + [0.0] * 10


def test_stand_ins_are_read_conjugated_or_negated_as_the_given_are():
    z = torch.randn(3, dtype=torch.complex64)
    given, memory = [z.conj(), z.clone().conj().imag, z.clone()], Memory()
    stand_ins = StandIns(given, units_of(given), memory)
    for tensor, stand_in in zip(given, stand_ins.tensors, strict=True):
        assert layout_of(stand_in) == layout_of(tensor)
    conjugated, negated, plain = stand_ins.tensors
    plain.fill_(1 + 2j)
    assert plain.resolve_conj().tolist() == [1 + 2j] * 3
    conjugated.fill_(1 + 2j)
    assert conjugated.conj().tolist() == [1 - 2j] * 3 and not conjugated.conj().is_conj()
    negated.fill_(3)
    assert torch._neg_view(negated).tolist() == [-3] * 3
    originals = [torch.zeros(3, dtype=torch.complex64).conj()]
    with stand_ins.in_place_of(originals, 0):
        assert originals[0].data_ptr() == conjugated.data_ptr() and originals[0].is_conj()


def test_a_closed_capture_has_no_pool_whoever_holds_it():
    """The frames of what failed may; a pool that outlives its memory frees others' addresses."""
    class Pool:
        id = (0, 1)

    captured = Captured(SimpleNamespace(reset=lambda: None), Pool(), [])
    gone = weakref.ref(captured.pool)
    assert captured.pool_id == (0, 1)
    captured.close()
    assert gone() is None


def test_what_a_broken_capture_holds_of_its_pool_is_let_go_when_it_is_closed(monkeypatch):
    """torch's graph does so for one that has ended alone."""
    class Pool:
        id, holders = (0, 1), 2

        def use_count(self):
            return self.holders

    pool, released = Pool(), []

    def release(device, pool_id):
        pool.holders -= 1
        released.append((device, pool_id))

    monkeypatch.setattr(torch._C, "_cuda_releasePool", release)
    Captured(SimpleNamespace(reset=lambda: None), pool, [], device=3).close()
    assert released == [(3, (0, 1))] and pool.holders == 1


def test_a_capture_that_an_old_history_breaks_says_what_to_do():
    error = RuntimeError("CUDA error: operation would make the legacy stream depend on a capturing "
                         "blocking stream\nmore of it")
    assert refusals.reason_of(error).remedy.startswith("Detach what outside holds")
    why = refusals.reason_of(ValueError("else"))
    assert (why.text, why.code) == ("ValueError while it was captured: else", 317)


def test_a_refused_step_finds_the_state_on_the_cpu_as_it_was(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    generator, table, read = torch.Generator().manual_seed(3), torch.zeros(2), torch.ones(2)

    def step():
        parameter.grad = torch.rand(3, generator=generator)
        optimizer.step()
        table[0] += read[0]

    step()
    state = State([step])
    drawn = generator.get_state()
    stand_in_memory(monkeypatch)
    trial = trial_module.Trial(Step(step, [], [], [], [], 0, [parameter], 0, None), state,
                               trial_module.Foreseen())
    step()
    trial.rewind()
    assert optimizer.state[parameter]["step"] == 1 and table[0] == 1
    assert torch.equal(generator.get_state(), drawn)
    assert any(place.get() is read for place in state.on_cpu) and read._version == 0


def test_pinned_memory_that_the_step_writes_is_put_back_and_compared(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(None))
    pinned = torch.ones(2)
    step = Step(lambda leaves: None, [], [], [], [], 0, [], 0, None, fixed=[pinned])
    stand_in_memory(monkeypatch)
    trial = trial_module.Trial(step, State(), trial_module.Foreseen())
    runs, values = [], []
    for _ in range(2):
        pinned.add_(len(runs) + 1)
        runs.append(trial._after(None, []))
        values.append(trial.values(runs[-1], {"given memory 0"}))
        apart = values[0].distances(runs[-1], values[0].names)
        trial.rewind()
        assert torch.equal(pinned, torch.ones(2))
    assert len(waits) == 5  # before each look at it
    assert trial.differing(*runs) == {"given memory 0"}
    assert apart == {"given memory 0": (pytest.approx(2**0.5), False)}


def test_an_optimizers_pinned_state_is_put_back_before_any_call_has_shown_that_it_is_written(
        monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(state_module, "is_pinned", lambda tensor: tensor.dim() > 0)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])

    def step():
        parameter.grad = torch.ones(3)
        optimizer.step()

    step()
    state = State([step])
    moments = [optimizer.state[parameter][name] for name in ("exp_avg", "exp_avg_sq")]
    pinned = [place.get() for place in state.pinned]
    assert {id(one) for one in moments} <= {id(one) for one in pinned}
    assert [one.dim() for one in state.counters] == [0]
    before = [one.clone() for one in moments]
    stand_in_memory(monkeypatch)
    trial = trial_module.Trial(
        Step(step, [], [], [], [], 0, [parameter], 0, None, optimizers=[optimizer], pinned=pinned),
        state, trial_module.Foreseen())
    step()
    assert not torch.equal(moments[0], before[0])
    trial.rewind()
    assert all(map(torch.equal, moments, before)) and optimizer.state[parameter]["step"] == 1


def test_the_insides_of_a_wrapper_are_looked_up_and_a_wrapper_in_its_place_too():
    a, b = torch.ones(2), torch.zeros(2)
    holder = {"w": TwoTensor(a, b)}
    state = State([lambda: holder])
    assert len(state.wrapped) == 1
    spec = Specialization("", state)
    spec.fix(state.inner_tensors())
    assert spec.fixed == (a.data_ptr(), b.data_ptr()) and spec.is_fixed()
    inner = holder["w"]
    holder["w"] = TwoTensor(a, b)
    assert spec.is_fixed()
    holder["w"] = TwoTensor(a, b.clone())
    assert not spec.is_fixed()
    holder["w"] = inner
    inner.b = b.clone()
    assert not spec.is_fixed()
    del holder["w"]
    assert not spec.is_fixed()


class Meshed(TwoTensor):
    """Names something that is no tensor among its parts, as DTensor does its mesh."""

    mesh = object()

    def __tensor_flatten__(self):
        names, context = super().__tensor_flatten__()
        return [*names, "mesh"], context


def test_a_wrapper_may_have_parts_that_are_no_tensors():
    inside = Meshed(torch.ones(2), torch.zeros(2))
    outside = TwoTensor(inside, Meshed(torch.ones(2), torch.ones(2)))
    places = inner_places(outside)
    assert [name for _, name in places] == ["a", "b", "a", "b"]
    assert all(getattr(owner, name) is inner for (owner, name), inner in
               zip(places, inner_tensors(outside), strict=True))
