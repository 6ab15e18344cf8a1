# SPDX-License-Identifier: Apache-2.0
"""A call that is like the last one is one call of the compiled module, and does what another does."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from launched_on_cpu import (  # noqa: F401
    COUNT,
    SavingByItsAddress,
    aligned,
    by_its_address,
    byte_memory,
    given_step,
    needs_module,
    recording_of,
    recording_of_step,
    saving_pair,
)

from anabranch import _compat, config
from anabranch._core.capture import Block
from anabranch._core.library import NativeError
from anabranch._record import quick
from anabranch._record import recorder as recorder_module
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Fresh
from anabranch._record.faults import BEGUN
from anabranch._record.launch import discovered
from anabranch._record.launch import stretch as stretch_module
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import InBlocks, SavedBlocks
from anabranch._record.memory.shortage import Short, Shortage
from anabranch._record.signatures.ready_calls import ReadyCall
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.state import state as state_module
from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


@pytest.fixture
def told(step_of, memory, monkeypatch):
    """A recording that sets no gradients, of which quick.launch_if() has been told."""
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    capture.first.gradients.clear()
    made = recording_of(step, capture)
    made.tell_launch()
    return made


ASKED = (len,), (("ab",),), (2,)


@needs_module
@by_its_address
def test_a_launch_at_once_does_what_another_does(told, memory):
    recording = told.stretches[0].recording
    for seed in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        version = w._version
        answer = told.answer_of([x, w], [], *quick.launch_if(*ASKED, told.launch_of, [x, w], []))
        assert torch.equal(answer["y"], x * w + 1) and answer["x"] is x
        assert torch.equal(answer["rows"].flatten(), answer["y"])
        assert answer["view"].data_ptr() == w.data_ptr() and w._version == version + 1
        assert recording.launched[seed][1] == 7 and recording.called == seed + 1
    assert len(memory.taken) == 6 and sorted(memory.freed) == sorted(memory.taken)


@needs_module
@by_its_address
def test_where_anything_is_not_as_it_was_nothing_is_launched_at_once(told, memory, monkeypatch):
    def short(*layout):
        raise torch.OutOfMemoryError

    def stopped():
        raise KeyboardInterrupt

    recording, launch_of = told.stretches[0].recording, told.launch_of
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    version = w._version
    assert quick.launch_if(*ASKED[:2], (3,), launch_of, [x, w], []) is None
    assert quick.launch_if(*ASKED, launch_of._replace(allocate=short), [x, w], []) is None
    assert quick.launch_if(*ASKED, launch_of, [x, None], []) is None
    assert quick.launch_if(*ASKED, launch_of._replace(call=()), [x, w], []) is None
    with monkeypatch.context() as patch:
        patch.setattr(stretch_module.Swaps, "count", 1)
        assert quick.launch_if(*ASKED, launch_of, [x, w], []) is None
    memory.fails_at = len(memory.taken) + 1
    assert quick.launch_if(*ASKED, launch_of, [x, w], []) is None
    memory.fails_at = None
    with pytest.raises(KeyboardInterrupt):
        quick.launch_if((stopped,), ((),), (None,), launch_of, [x, w], [])
    assert recording.called == 0
    recording.code = 402
    assert quick.launch_if(*ASKED, launch_of, [x, w], []) == 402
    assert recording.called == 1 and not recording.launched and w._version == version
    assert sorted(memory.freed) == sorted(memory.taken)


@needs_module
@by_its_address
def test_what_takes_more_than_addresses_is_not_launched_at_once(told, monkeypatch):
    monkeypatch.setattr(stretch_module, "Timer",
                        lambda *of_what: SimpleNamespace(close=lambda: None))
    told.time()
    assert told.launch_of is None
    told.tell_launch()
    assert told.launch_of is None
    told.time_no_more()
    assert told.launch_of is not None
    told.draws = SimpleNamespace()
    told.tell_launch()
    assert told.launch_of is None


needs_setters = pytest.mark.skipif(not quick.sets_gradients, reason="torch's Python sets them")


@pytest.fixture(params=[0, 64], ids=["as large as their memory", "smaller than their memory"])
def leaves_gradients(step_of, memory, monkeypatch, request):
    """A recorder with a call that is ready, and its step's recording. w owns a gradient that is y,
    and two others lie in a block."""
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    row = (COUNT,), (1,), torch.float32
    capture.first.gradients = {i: Fresh(place, 0, *row) for i, place in enumerate((0, 1, 2))}
    capture.blocks += [Block(0, 0, 4 * COUNT + request.param, False)] * 2
    monkeypatch.setattr(discovered, "CapturedRecording", SavingByItsAddress)
    made = recording_of(step, capture)
    assert len(made._buffers.layouts) == 2
    made.tell_launch()
    recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({}), "step",
                                        takes_gradients=True)
    spec, state = Specialization("", State()), State()
    spec.arguments, spec.recording = [1, 2], made
    bound = BoundState(state, [], [], [], 0, None, None)
    bound.parameters = [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(3)]
    return recorder, ReadyCall(spec, state, bound, state.guards()), made


@needs_module
@needs_setters
@by_its_address
def test_gradients_are_let_go_of_and_set_at_once(leaves_gradients, monkeypatch):
    recorder, ready, _ = leaves_gradients
    owners, last = ready.bound.parameters, [()] * 3
    monkeypatch.setattr(StepRecording, "launch", None)  # at once, or not at all
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        answer = recorder.launch_ready([ready], [None, x, w])
        assert all(gone() is None for gone in last if gone)
        y, product, total = (owner.grad for owner in owners)
        assert y is answer["y"] and torch.equal(y, x * w + 1)
        assert torch.equal(product, x * w) and torch.equal(total, x + w)
        assert product.untyped_storage().data_ptr() == total.untyped_storage().data_ptr()
        last = [weakref.ref(one) for one in (y, product, total)]
        del answer, y, product, total


@needs_module
@needs_setters
@by_its_address
def test_where_old_gradients_are_gone_the_launch_is_made_all_the_same(leaves_gradients, memory,
                                                                      monkeypatch):
    recorder, ready, made = leaves_gradients
    launches, launch, recording = [], StepRecording.launch, made.stretches[0].recording
    monkeypatch.setattr(StepRecording, "launch", lambda *given, **how: launches.append(1) or launch(
        *given, **how))
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))

    def answered():
        return recorder.launch_ready([ready], [None, x, w])

    answered()
    assert not launches
    memory.fails_at = len(memory.taken)  # memory without a tensor: what Python allocates is there
    assert torch.equal(answered()["y"], x * w + 1) and launches == [1]
    memory.fails_at = None
    assert torch.equal(ready.bound.parameters[1].grad, x * w)
    recording.code = 402
    monkeypatch.setattr(stretch_module, "last_error", lambda: NativeError(402, "it lies badly"))
    assert answered() == "plain" and launches == [1]  # nothing lies badly
    assert all(owner.grad is None for owner in ready.bound.parameters)


@needs_module
@needs_setters
@by_its_address
def test_an_owner_of_a_class_of_its_own_is_left_to_python(leaves_gradients):
    class Mine(torch.nn.Parameter):
        pass

    recorder, ready, _ = leaves_gradients
    ready.bound.parameters[1] = Mine(torch.zeros(COUNT))
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        answer = recorder.launch_ready([ready], [None, x, w])
        y, product, total = (owner.grad for owner in ready.bound.parameters)
        assert y is answer["y"] and torch.equal(y, x * w + 1)
        assert torch.equal(product, x * w) and torch.equal(total, x + w)


@needs_module
@needs_setters
@by_its_address
def test_a_gradient_that_is_a_part_of_an_answer_is_set_at_once(step_of, memory, monkeypatch):
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    capture.first.gradients = {0: Fresh(0, 8, (2, 3), (1, 4), torch.float32)}
    made = recording_of(step, capture)
    made.tell_launch()
    owner = torch.nn.Parameter(torch.zeros(2, 3))
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        launched = quick.launch_if(*ASKED, made.launch_of, [x, w], [owner])
        answer = made.answer_of([x, w], [owner], *launched)
        expected = (x * w + 1).as_strided((2, 3), (1, 4), 2)
        assert torch.equal(owner.grad, expected) and owner.grad.stride() == (1, 4)
        assert owner.grad.data_ptr() == answer["y"].data_ptr() + 8


@needs_module
@by_its_address
def test_gradients_that_python_has_to_set_are_not_set_at_once(step_of, memory, monkeypatch):
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    capture.first.gradients = {0: Fresh(0, 0, (COUNT,), (1,), torch.int32)}  # the bytes of y
    made = recording_of(step, capture)
    made.tell_launch()
    assert made.launch_of is None


@needs_module
@by_its_address
def test_a_call_like_the_one_before_is_launched_at_once(told, monkeypatch):
    recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({}), "step",
                                        takes_gradients=True)
    spec, state = Specialization("", State()), State()
    spec.arguments, spec.recording = [1, 2], told
    ready = ReadyCall(spec, state, BoundState(state, [], [], [], 0, None, None), state.guards())
    launches, launch = [], StepRecording.launch
    monkeypatch.setattr(StepRecording, "launch", lambda *given, **how: launches.append(1) or launch(
        *given, **how))
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))

    def assert_right(*, at_once):
        begun, launches[:] = BEGUN.runs, []
        answer = recorder.launch_ready([ready], [None, x, w])
        assert torch.equal(answer["y"], x * w + 1) and len(launches) == (0 if at_once else 1)
        assert BEGUN.runs == begun + 1

    assert_right(at_once=True)
    with torch.autograd.profiler.profile() as profile:
        assert_right(at_once=False)
    assert any("anabranch: launch of step" in event.name for event in profile.function_events)
    assert_right(at_once=True)
    spec.shortage = Shortage(Short("a launch", 1, 0), 0, 0, 1)
    assert recorder.launch_ready([ready], [None, x, w]) is recorder_module.MISSED
    spec.shortage, spec.is_retired = None, True
    assert recorder.launch_ready([ready], [None, x, w]) is recorder_module.MISSED
    assert spec.calls == 3


@needs_module
@by_its_address
def test_what_was_recorded_without_verification_answers_the_steps_own_at_once(step_of, memory,
                                                                              monkeypatch):
    """Its launches answer side effects as well, also where there are none."""
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    capture.first.gradients.clear()
    capture.first.result[1:] = []
    [_], capture.first.shape = flatten([(0, [])])
    told = recording_of(step, capture)
    told.tell_launch()
    recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({"verify": False}),
                                        "step", takes_gradients=True)
    spec, state = Specialization("", State()), State()
    spec.arguments, spec.recording = [1, 2], told
    ready = ReadyCall(spec, state, BoundState(state, [], [], [], 0, [], None), state.guards())
    monkeypatch.setattr(StepRecording, "launch", None)  # at once, or not at all
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        assert torch.equal(recorder.launch_ready([ready], [None, x, w]), x * w + 1)


@needs_module
@by_its_address
def test_what_is_refused_at_once_is_launched_elsewhere_with_the_same_numbers(told, monkeypatch):
    """At an address that its kernels do not take, say."""
    recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({}), "step",
                                        takes_gradients=True)
    spec, state, moved = Specialization("", State()), State(), []
    spec.arguments, spec.recording = [1, 2], told
    told.random = SimpleNamespace(replay=lambda: moved.append(1), take_back=moved.pop)
    ready = ReadyCall(spec, state, BoundState(state, [], [], [], 0, None, None), state.guards())
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    recording = told.stretches[0].recording
    recording.code = 402
    monkeypatch.setattr(stretch_module, "last_error", lambda: NativeError(402, "it lies badly"))
    monkeypatch.setattr(ReadyCall, "tensors", None)  # nothing is asked again
    assert recorder.launch_ready([ready], [None, x, w]) == "plain"  # nothing lies badly
    assert recording.called == 1 and not moved
    recording.code = 0
    recorder.launch_ready([ready], [None, x, w])
    assert len(moved) == 1
    told.random, w = None, aligned(w, off=4)
    answer = recorder.launch_ready([ready], [None, x, w])
    assert torch.equal(answer["y"], x * w + 1) and answer["view"].data_ptr() == w.data_ptr()
    assert recording.called == 4  # once at once, and once with a copy


@needs_module
@by_its_address
def test_compiled_graphs_are_launched_at_once_and_pass_blocks(saving, monkeypatch):
    pair, launches, launch = SavedBlocks(), [], StepRecording.launch
    monkeypatch.setattr(StepRecording, "launch", lambda *given, **how: launches.append(1) or launch(
        *given, **how))

    def runs(recording, arguments, **how):
        recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({}), "graph",
                                            takes_gradients=False, pair=pair, **how)
        spec = recorder._new_specialization("key", [], state_module.NO_STATE, lambda: "()")
        spec.arguments, spec.recording = arguments, recording
        spec._bound[state_module.NO_STATE] = BoundState(State(), [], [], [], 0, None, None)
        return spec, lambda leaves: recorder.run("key", leaves, state_module.NO_STATE, lambda: "()")

    spec, forward = runs(saving[0], [0, 1], saved_from=2, may_pass_blocks=True)
    other, backward = runs(saving[1], [0, 1, 3], frees_inputs=True)
    for i in range(5):
        x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
        y, same, *saved, part = forward([x, w])
        assert torch.equal(y, x * w + 1) and same is x
        leaves = pair.of_backward([*saved, 5, part])
        assert isinstance(leaves, InBlocks) == (i > 0)
        assert torch.equal(backward(leaves)[0], x * w * (x + w) + 1)
        assert len(launches) == 2
    assert spec.calls == other.calls == 5
    saving[1]._takes = {0}  # more than its address
    saving[1].tell_launch()
    saving[1]._slot_offsets.clear()
    _, _, *saved, part = forward([x, w])
    assert torch.equal(backward(pair.of_backward([*saved, 5, part]))[0], x * w * (x + w) + 1)
    assert len(launches) == 3
    pair.backward_is_short = True
    assert forward([x, w]) == "plain"
