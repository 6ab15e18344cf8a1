# SPDX-License-Identifier: Apache-2.0
"""A call that a plan serves is one call of the compiled module, and does what another does."""

from __future__ import annotations

import functools
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
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch import _compat, config
from anabranch._core.capture import Block
from anabranch._core.library import NativeError
from anabranch._record import quick
from anabranch._record import recorder as recorder_module
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Fresh
from anabranch._record.checks import MISSED, call
from anabranch._record.faults import BEGUN
from anabranch._record.launch import discovered
from anabranch._record.launch import stretch as stretch_module
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import InBlocks, SavedBlocks
from anabranch._record.memory.shortage import Short, Shortage
from anabranch._record.signatures.call_plans import Call, CallPlans, _Maker
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.signature import ARGUMENTS_ALONE, signature_of
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.state import state as state_module
from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


@pytest.fixture
def told(step_of, memory, monkeypatch):
    """A recording that sets no gradients, and is launched directly."""
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    capture.first.gradients.clear()
    made = recording_of(step, capture)
    made.tell_direct()
    return made


def leaves_of(args, kwargs):
    return [ARGUMENTS_ALONE, *args]


def recorder_of_step(**options):
    return recorder_module.Recorder(lambda leaves: "plain", config.resolve(options), "step",
                                    kind=CallableKind(takes_gradients=True))


class Planned:
    """A plan for calls with x and w, of a recording in an empty state."""

    def __init__(self, recording, recorder=None, owners=(), mutations=None):
        self.recorder = recorder or recorder_of_step()
        self.spec, state = Specialization("", State()), State()
        self.spec.arguments, self.spec.recording = [1, 2], recording
        self.spec._paths, self.spec._indices = [], []
        state.parameters = lambda: list(owners)
        self.bound = BoundState(state, [], [], [], 0, mutations, None)
        args = aligned(torch.ones(COUNT)), aligned(torch.ones(COUNT))
        leaves = leaves_of(args, {})
        of_call = Call(args, {}, None, leaves, signature_of(leaves, state, None)[2], (), state,
                       state.guards())
        self.plan = _Maker(of_call, self.spec, self.bound, True).plan(functools.partial(
            self.recorder._launch_planned, (self.spec, self.bound, leaves_of)))

    def __call__(self, *args):
        BEGUN.runs += 1
        answer = call([self.plan], args, {}, None)
        BEGUN.runs -= answer is MISSED
        return answer


@needs_module
@by_its_address
def test_a_launch_by_a_plan_does_what_another_does(told, memory, monkeypatch):
    recording, planned = told.stretches[0].recording, Planned(told)
    monkeypatch.setattr(StepRecording, "launch", None)  # directly, or not at all
    for seed in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        version = w._version
        answer = planned(x, w)
        assert torch.equal(answer["y"], x * w + 1) and answer["x"] is x
        assert torch.equal(answer["rows"].flatten(), answer["y"])
        assert answer["view"].data_ptr() == w.data_ptr() and w._version == version + 1
        assert recording.launched[seed][1] == 7 and recording.called == seed + 1
    assert len(memory.taken) == 6 and sorted(memory.freed) == sorted(memory.taken)
    assert planned.spec.calls == 3


@needs_module
@by_its_address
def test_where_arguments_are_others_nothing_is_launched(told):
    planned, recording = Planned(told), told.stretches[0].recording
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    for args in ((x,), (x, None), (x, w.double()), (x, w[::2]), (x, w.view(4, 4)), (x, w, w),
                 (x, torch.nn.Parameter(w)), (x, w.clone().requires_grad_()), (x, x)):
        assert planned(*args) is MISSED
    for around in (torch.no_grad(), torch.inference_mode(), Seeing()):
        with around:
            assert planned(x, w) is MISSED
    assert recording.called == planned.spec.calls == 0
    assert torch.equal(planned(x, w)["y"], x * w + 1)


class Seeing(TorchDispatchMode):
    pass


@needs_module
@by_its_address
def test_where_a_direct_launch_cannot_be_another_is_made(told, memory, monkeypatch):
    def short(*layout):
        raise torch.OutOfMemoryError

    def stopped(*layout):
        raise KeyboardInterrupt

    recording, launches, launch = told.stretches[0].recording, [], StepRecording.launch
    monkeypatch.setattr(StepRecording, "launch", lambda *given, **how: launches.append(1) or launch(
        *given, **how))
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))

    def is_launched_otherwise(planned):
        begun, launches[:] = BEGUN.runs, []
        assert torch.equal(planned(x, w)["y"], x * w + 1) and BEGUN.runs == begun + 1
        return launches == [1]

    assert not is_launched_otherwise(Planned(told))
    direct = told.direct
    told.direct = direct._replace(allocate=short)
    assert is_launched_otherwise(Planned(told))
    told.direct = direct._replace(allocate=stopped)
    with pytest.raises(KeyboardInterrupt):
        Planned(told)(x, w)
    told.direct = direct
    planned = Planned(told)
    memory.fails_at = len(memory.taken) + 1
    assert is_launched_otherwise(planned)
    memory.fails_at = None
    with torch.autograd.profiler.profile() as profile:
        assert is_launched_otherwise(planned)
    assert any("anabranch: launch of step" in event.name for event in profile.function_events)
    assert not is_launched_otherwise(planned)
    monkeypatch.setattr(_compat, "current_device", lambda: 1)  # which the plan does not ask
    assert not is_launched_otherwise(planned) and recording.called == 5


@needs_module
@by_its_address
def test_what_is_retired_or_short_is_not_launched(told):
    planned = Planned(told)
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    planned(x, w)
    planned.spec.shortage = Shortage(Short("a launch", 1, 0), 0, 0, 1)
    assert planned(x, w) is MISSED and planned.plan.missed() == "the recording"
    planned.spec.shortage, planned.spec.is_retired = None, True
    assert planned(x, w) is MISSED
    planned.spec.is_retired, told.direct = False, None
    assert planned(x, w) is MISSED and planned.spec.calls == 1


@needs_module
@by_its_address
def test_what_takes_more_than_addresses_is_not_launched_at_once(told, monkeypatch):
    monkeypatch.setattr(stretch_module, "Timer",
                        lambda *of_what: SimpleNamespace(close=lambda: None))
    told.time()
    assert told.direct is None
    told.tell_direct()
    assert told.direct is None
    told.time_no_more()
    assert told.direct is not None
    told.draws = SimpleNamespace()
    told.tell_direct()
    assert told.direct is None


needs_setters = pytest.mark.skipif(not quick.sets_gradients, reason="torch's Python sets them")


@pytest.fixture(params=[0, 64], ids=["as large as their memory", "smaller than their memory"])
def leaves_gradients(step_of, memory, monkeypatch, request):
    """A recording, and owners of its gradients: one is y, and two others lie in a block."""
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    step, capture = step_of
    row = (COUNT,), (1,), torch.float32
    capture.first.gradients = {i: Fresh(place, 0, *row) for i, place in enumerate((0, 1, 2))}
    capture.blocks += [Block(0, 0, 4 * COUNT + request.param, False)] * 2
    monkeypatch.setattr(discovered, "CapturedRecording", SavingByItsAddress)
    made = recording_of(step, capture)
    assert len(made._buffers.layouts) == 2
    made.tell_direct()
    return made, [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(3)]


@needs_module
@needs_setters
@by_its_address
def test_gradients_are_let_go_of_and_set_at_once(leaves_gradients, monkeypatch):
    made, owners = leaves_gradients
    planned, last = Planned(made, owners=owners), [()] * 3
    monkeypatch.setattr(StepRecording, "launch", None)  # at once, or not at all
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        answer = planned(x, w)
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
    made, owners = leaves_gradients
    planned = Planned(made, owners=owners)
    launches, launch, recording = [], StepRecording.launch, made.stretches[0].recording
    monkeypatch.setattr(StepRecording, "launch", lambda *given, **how: launches.append(1) or launch(
        *given, **how))
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))

    def answered():
        return planned(x, w)

    answered()
    assert not launches
    memory.fails_at = len(memory.taken)  # memory without a tensor: what Python allocates is there
    assert torch.equal(answered()["y"], x * w + 1) and launches == [1]
    memory.fails_at = None
    assert torch.equal(owners[1].grad, x * w)
    recording.code = 402
    monkeypatch.setattr(stretch_module, "last_error", lambda: NativeError(402, "it lies badly"))
    assert answered() == "plain" and launches == [1]  # nothing lies badly
    assert all(owner.grad is None for owner in owners)


@needs_module
@needs_setters
@by_its_address
def test_an_owner_of_a_class_of_its_own_is_left_to_python(leaves_gradients):
    class Mine(torch.nn.Parameter):
        pass

    made, owners = leaves_gradients
    owners[1] = Mine(torch.zeros(COUNT))
    planned = Planned(made, owners=owners)
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        answer = planned(x, w)
        y, product, total = (owner.grad for owner in owners)
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
    made.tell_direct()
    owner = torch.nn.Parameter(torch.zeros(2, 3))
    planned = Planned(made, owners=[owner])
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        answer = planned(x, w)
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
    made.tell_direct()
    assert made.direct is None


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
    told.tell_direct()
    planned = Planned(told, mutations=[])
    monkeypatch.setattr(StepRecording, "launch", None)  # directly, or not at all
    for _ in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        assert torch.equal(planned(x, w), x * w + 1)


@needs_module
@by_its_address
def test_what_is_refused_is_launched_elsewhere_with_the_same_numbers(told, monkeypatch):
    """At an address that its kernels do not take, say."""
    moved = []
    told.random = SimpleNamespace(replay=lambda: moved.append(1), take_back=moved.pop)
    told.tell_direct()
    planned = Planned(told)
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    recording = told.stretches[0].recording
    recording.code = 402
    monkeypatch.setattr(stretch_module, "last_error", lambda: NativeError(402, "it lies badly"))
    assert planned(x, w) == "plain"  # nothing lies badly
    assert recording.called == 1 and not moved
    recording.code = 0
    planned(x, w)
    assert len(moved) == 1
    told.random, w = None, aligned(w, off=4)
    told.tell_direct()
    answer = Planned(told)(x, w)
    assert torch.equal(answer["y"], x * w + 1) and answer["view"].data_ptr() == w.data_ptr()
    assert recording.called == 4  # once directly, and once with a copy


@needs_module
@by_its_address
def test_compiled_graphs_are_launched_at_once_and_pass_blocks(saving, monkeypatch):
    pair, launches, launch = SavedBlocks(), [], StepRecording.launch
    monkeypatch.setattr(StepRecording, "launch", lambda *given, **how: launches.append(1) or launch(
        *given, **how))

    def runs(recording, arguments, **how):
        recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({}), "graph",
                                            kind=CallableKind(pair=pair, **how))
        spec = recorder._new_specialization("key", [], state_module.NO_STATE, lambda: "()")
        spec.arguments, spec.recording = arguments, recording
        spec._paths = []
        spec._bound[state_module.NO_STATE] = BoundState(State(), [], [], [], 0, None, None)
        return spec, lambda leaves: recorder.run("key", leaves, state_module.NO_STATE, lambda: "()")

    spec, forward = runs(saving[0], [0, 1], saved_from=2, may_pass_blocks=True)
    other, backward = runs(saving[1], [0, 1, 3], is_backward=True)
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
    saving[1].direct = None
    saving[1]._slot_offsets.clear()
    _, _, *saved, part = forward([x, w])
    assert torch.equal(backward(pair.of_backward([*saved, 5, part]))[0], x * w * (x + w) + 1)
    assert len(launches) == 3
    pair.backward_is_short = True
    assert forward([x, w]) == "plain"


PAIR = aligned(torch.ones(COUNT)), aligned(torch.ones(COUNT))


def call_for(state, objects=()):
    leaves = leaves_of(PAIR, {})
    return Call(PAIR, {}, None, leaves, signature_of(leaves, state, None)[2], objects,
                state, state.guards())


@needs_module
@by_its_address
def test_plans_are_made_less_and_less_often_where_they_are_of_no_use(told, monkeypatch):
    made, make = [], CallPlans._plan_of
    monkeypatch.setattr(CallPlans, "_plan_of", lambda *of_what: made.append(1) or make(*of_what))
    planned, plans = Planned(told), CallPlans()
    for _ in range(64):
        plans.add(call_for(State()), planned.spec, planned.bound, lambda *of_call: 1)
    assert len(made) == 7 and len(plans.of_args) == 1
    assert torch.is_tensor(call(plans.of_args, PAIR, {}, None)["y"]) and planned.spec.calls == 1
    plans.add(call_for(State()), planned.spec, planned.bound, lambda *of_call: 1)
    assert len(made) == 8 and len(plans.of_args) == 1


@needs_module
@by_its_address
def test_what_has_been_let_go_of_is_found_no_more(told):
    planned, plans, state, other = Planned(told), CallPlans(), State(), State()
    for one, objects in ((state, (1,)), (other, (2,))):
        plans.add(call_for(one, objects), planned.spec, planned.bound, lambda *of_call: 1)
    assert len(plans.of_args) == 2
    plans.keep([state, other])
    assert len(plans.of_args) == 2
    plans.keep([state])
    assert len(plans.of_args) == 1
    planned.spec.is_retired = True
    plans.keep([state])
    assert plans.of_args == []


@needs_module
@by_its_address
def test_a_report_says_what_made_a_call_slow(told):
    planned, plans, state = Planned(told), CallPlans(), State()
    for _ in range(2):
        plans.add(call_for(state), planned.spec, planned.bound, lambda *of_call: 1)
        assert call(plans.of_args, (PAIR[0], None), {}, None) is MISSED
    report = planned.spec.current_report()
    assert report.slow_calls == 1 and report.slow_because == "arguments[1]"
