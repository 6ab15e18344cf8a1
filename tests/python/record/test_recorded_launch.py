# SPDX-License-Identifier: Apache-2.0
"""What a launch does in Python, over a recording that runs on the CPU: it is given addresses, as
the GPU's is, and computes y = x * w + 1 there by way of its arena."""

from __future__ import annotations

import dataclasses
import struct
import threading
from types import SimpleNamespace

import pytest
import torch
from launched_on_cpu import (  # noqa: F401
    COUNT,
    OnTheCpu,
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
from anabranch._core.capture import Block, Slot
from anabranch._core.library import NativeError
from anabranch._core.timed_recording import RecordedNode
from anabranch._record import attempt as attempt_module
from anabranch._record import recorder as recorder_module
from anabranch._record import refusals
from anabranch._record.capture import compare
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.stand_ins import StandIns, one_at_a_time, wait_for_captures
from anabranch._record.capture.step import Alias, Constant, Fresh, Lazy, StepObject
from anabranch._record.launch import recording as recording_module
from anabranch._record.launch import stretch as stretch_module
from anabranch._record.launch import timing
from anabranch._record.launch.saved_blocks import InBlocks, InputPlaces, opened
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.state import state as state_module
from anabranch._record.state.state import State
from anabranch._record.trial.earlier import Earlier


def test_a_launch_answers_fresh_tensors_views_and_what_it_was_given(recorded):
    for seed in range(3):
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        version = w._version
        answer = recorded.launch([x, w], [w], poison=0xFF)
        assert torch.equal(answer["y"], x * w + 1) and answer["x"] is x
        assert torch.equal(answer["rows"].flatten(), answer["y"])
        assert answer["rows"].untyped_storage().data_ptr() == w.grad.untyped_storage().data_ptr()
        assert answer["view"].data_ptr() == w.data_ptr() and answer["number"] == 5
        assert answer["empty"].shape == (0, 3) and w._version == version + 1
        addresses, stream = recorded.stretches[0].recording.launched[seed]
        assert stream == 7 and len(set(addresses)) == 5
    assert recorded.slot_count == 3 and recorded.uses == [0, 1]


@pytest.mark.parametrize("bytes_named", [4 * COUNT, 16 * COUNT])
def test_what_is_answered_takes_as_much_as_its_nodes_may_mean(step_of, monkeypatch, bytes_named):
    """And no more, whatever has been at its address before."""
    monkeypatch.setattr(OnTheCpu, "slots", [*OnTheCpu.slots[:2], Slot(2, bytes_named, 512)])
    step, capture = step_of
    assert recording_of(step, capture).launch_bytes == bytes_named
    answer = recording_of(step, capture).launch([step.tensors[0], step.tensors[1]],
                                                [step.tensors[1]])
    assert answer["y"].untyped_storage().nbytes() == bytes_named


def test_a_launch_that_is_timed_goes_another_way_and_answers_the_same(recorded, monkeypatch):
    twins = []

    class Twin(OnTheCpu):
        is_over = True

        def __init__(self, of, addresses):
            super().__init__()
            twins.append(self)

        def times(self):
            return [(0, 5), (5, 9)]

        def plain_times(self):
            return 0, 0

        def close(self):
            pass

    nodes = [RecordedNode("kernel", "mul", 0, 0, ()), RecordedNode("kernel", "add", 0, 0, (0,))]
    monkeypatch.setattr(timing, "TimedRecording", Twin)
    for module in (timing, recording_module):
        monkeypatch.setattr(module, "nodes_of", lambda recording: nodes)
    assert recorded.timing is None and recorded.described().nodes == nodes
    for is_timed in (False, True, False):
        if is_timed:
            recorded.time(every=1)
        x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
        assert torch.equal(recorded.launch([x, w], [w])["y"], x * w + 1)
        if is_timed:
            assert recorded.is_timed and recorded.timing.sample.step_ns == 9
            recorded.time_no_more()
    assert len(recorded.stretches[0].recording.launched) == 2 and len(twins[0].launched) == 1
    assert recorded.timing is None and not recorded.is_timed


def test_a_launch_answers_objects_like_those_it_captured_and_those_that_there_are(step_of):
    step, capture = step_of
    made = SimpleNamespace(y=0, config=1, rows=[2, 3])
    [flat], shape = flatten([{"made": made, "held": 4}])
    assert flat == list(range(5))
    y, rows = (Fresh(0, 0, *layout, torch.float32)
               for layout in (((COUNT,), (1,)), ((4, 4), (4, 1))))
    capture.first.result = [y, StepObject(3), rows, Constant("text"), StepObject(8)]
    capture.first.shape = shape
    recorded = recording_of(step, capture)
    assert recorded.objects == [3, 8]
    answers = []
    for seed in range(3):
        x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
        config, model = object(), object()
        answers.append(answer := recorded.launch([x, w], [w], [config, model]))
        assert type(answer["made"]) is SimpleNamespace and answer["held"] is model
        assert torch.equal(answer["made"].y, x * w + 1) and answer["made"].config is config
        assert torch.equal(answer["made"].rows[0].flatten(), answer["made"].y)
        assert answer["made"].rows[1] == "text"
    assert len({id(answer["made"]) for answer in answers}) == 3


def test_a_launch_answers_views_that_torch_reads_conjugated_or_negated(step_of):
    step, capture = step_of
    pairs = ((COUNT // 2,), (1,), torch.complex64)
    capture.first.result = [Lazy((Fresh(0, 0, *pairs),), True, False),
                            Lazy((Alias(0, (*pairs[:2], 0, pairs[2])),), True, False),
                            Lazy((Fresh(0, 4, (COUNT // 2,), (2,), torch.float32),), False, True)]
    [_], capture.first.shape = flatten([[0, 1, 2]])
    recorded = recording_of(step, capture)
    x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
    made, given, imaginary = recorded.launch([x, w], [w])
    y = torch.view_as_complex((x * w + 1).view(-1, 2))
    assert made.is_conj() and torch.equal(made, y.conj())
    assert given.data_ptr() == x.data_ptr()
    assert torch.equal(given, torch.view_as_complex(x.view(-1, 2)).conj())
    assert imaginary.is_neg() and torch.equal(imaginary, y.conj().imag)
    assert 0 in recorded._takes


def test_views_that_torch_reads_conjugated_or_negated_are_known_for_what_they_are(monkeypatch):
    """Whatever id the tensor has that is made to find out: one of the step's had it before."""
    class OfOneTensor(dict):
        def __contains__(self, number):
            return number != id(view)

        __missing__ = lambda self, number: 1  # noqa: E731

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    z = torch.zeros(4, dtype=torch.complex64)
    unit = SimpleNamespace(size_bytes=32, members=[(0, 0)])
    describer = compare._Describer(SimpleNamespace(units=[unit], object_numbers={}),
                                   [Block(z.data_ptr(), 0, 32, True)], OfOneTensor(), second=False)
    view = z.conj()
    assert describer.describe(view) == Lazy((Alias(0, ((4,), (1,), 0, torch.complex64)),), True, False)
    view = z.conj().imag
    assert describer.describe(view) == Lazy((Alias(0, ((4,), (2,), 4, torch.float32)),), False, True)


def test_what_a_launch_saves_is_answered_in_the_block_that_it_lies_in(saving):
    forward, _, _ = saving
    for _ in range(2):
        x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
        y, same, product, total, part = forward.launch([x, w], [])
        assert same is x and torch.equal(y, x * w + 1)
        assert torch.equal(product, x * w) and torch.equal(total, x + w)
        assert torch.equal(part, total[2:6].view(2, 2).T)
        answer = forward.launch([x, w], [], in_blocks=True)
        assert torch.equal(answer[0], y) and answer[1] is x
        assert answer[2] is answer[3] is answer[4] and answer[2].numel() == 2 * 512 // 4
        assert forward.layout.has_signed(answer[2]) and not forward.layout.has_signed(y)
        places = InputPlaces(forward.layout, {2: 0, 3: 1, 4: 2})
        inputs = opened(InBlocks(answer[2:], places))
        assert all(map(torch.equal, inputs, (product, total, part)))


def test_a_launch_is_given_blocks_where_it_takes_nothing_but_addresses(saving):
    forward, backward, (step, capture) = saving
    x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
    *_, product, total, _ = forward.launch([x, w], [], in_blocks=True)
    places = InputPlaces(forward.layout, {2: 0, 3: 2, 4: 3})
    offsets = backward.offsets(places, [0, 2])  # the second input is a number
    assert offsets == struct.pack("2Q", 0, 512) and backward.offsets(places, [0, 2]) is offsets
    [answer] = backward.launch([product, total], [], at=offsets)
    assert torch.equal(answer, x * w * (x + w) + 1)
    capture.first.mutated = [1]
    assert recording_of(step, capture).offsets(places, [0, 2]) is None
    capture.first.mutated = []
    capture.first.result.append(Alias(0, None))
    [_], capture.first.shape = flatten([[0, 1]])
    assert recording_of(step, capture).offsets(places, [0, 2]) is None


def test_tensors_that_overlap_in_a_block_as_they_did_are_launched_there(saving):
    forward, _, (step, capture) = saving
    overlapping = dataclasses.replace(step.units[1], members=[(1, 0), (2, 8)])
    backward = recording_of(dataclasses.replace(step, units=[step.units[0], overlapping]), capture)
    x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
    *_, product, total, part = given = forward.launch([x, w], [], in_blocks=True)[2:]
    places = InputPlaces(forward.layout, {2: 0, 3: 1, 4: 2})
    offsets = backward.offsets(places, [0, 1, 2])
    assert offsets == struct.pack("2Q", 0, 512) and backward.fits(given, places)
    [answer] = backward.launch([product, total, part], [], at=offsets)
    assert torch.equal(answer, x * w * (x + w) + 1)

    def places_with(part):
        made = InputPlaces(forward.layout, {2: 0, 3: 1, 4: 2})
        made.of = {i: place for i, place in {**made.of, 2: part}.items() if place is not None}
        return made

    for elsewhere in (places.of[2]._replace(base=7), places.of[2]._replace(offset_bytes=0), None):
        assert backward.offsets(places_with(elsewhere), [0, 1, 2]) is None
    outside = InputPlaces(forward.layout, {2: 0, 3: 1, 4: 2})
    outside.of = {0: places.of[0]}
    assert backward.offsets(outside, [0, 1, 2]) is not None
    assert not backward.fits([product, total, total], outside)
    assert backward.fits([product, total, total[2:]], outside)


def test_a_call_that_is_given_blocks_opens_them_where_it_cannot_be_launched_at_them(saving):
    forward, backward, _ = saving
    x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT))
    *_, product, total, part = forward.launch([x, w], [], in_blocks=True)
    leaves = InBlocks([product, total, 5, part], InputPlaces(forward.layout, {2: 0, 3: 1, 4: 3}))
    recorder = recorder_module.Recorder(lambda leaves: opened(leaves), config.resolve({}), "step",
                                        kind=CallableKind())
    spec = recorder._new_specialization("key", leaves, state_module.NO_STATE, lambda: "()")
    spec.arguments, spec.recording = [0, 1, 3], backward
    spec._bound[state_module.NO_STATE] = BoundState(State(), [], [], [], 0, None, None)
    wanted = x * w * (x + w) + 1
    assert torch.equal(recorder._launch("key", spec, leaves, state_module.NO_STATE)[0], wanted)
    backward._takes = {0}
    backward._slot_offsets.clear()
    assert torch.equal(recorder._launch("key", spec, leaves, state_module.NO_STATE)[0], wanted)
    assert len(backward.stretches[0].recording.launched) == 2
    spec.recording = None
    spec.refuse(refusals.Cause.WAITS_FOR_GPU.because("refused"))
    plain = recorder.run("key", leaves, state_module.NO_STATE, lambda: "()")
    assert torch.equal(plain[0], x * w) and torch.equal(plain[1], x + w) and plain[2] == 5


def test_a_graph_that_names_memory_twice_is_told_from_one_that_names_it_once(step_of):
    step, capture = step_of
    for size, is_named_twice in ((0, False), (4, True)):
        shared = dataclasses.replace(step.units[1], address=step.units[0].address + 64 - size)
        aliased = dataclasses.replace(step, units=[step.units[0], shared])
        if is_named_twice:
            with pytest.raises(refusals.Aliased):
                recording_of(aliased, capture)
        else:
            recording_of(aliased, capture)
    assert len(step.joined().units) == 2  # which do not overlap


def test_an_argument_that_lies_badly_is_copied_there_and_back_and_answered_itself(recorded):
    spec, view = Specialization("", State()), BoundState(State(), [], [], [], 0, None, None)
    spec.arguments, spec.recording = [0, 1], recorded
    recorder = recorder_module.Recorder(lambda leaves: "plain",
                                        config.resolve({"max_recordings": 1}), "step",
                                        kind=CallableKind())
    x, w = aligned(torch.randn(COUNT)), aligned(torch.randn(COUNT), off=4)
    view.parameters = [w]
    assert recorded.misaligned([x, w]) == [1]
    answer = recorder._launches.launch_elsewhere(spec, [x, w], view, [x, w])
    assert torch.equal(answer["y"], x * w + 1) and answer["view"].data_ptr() == w.data_ptr()
    assert recorded.stretches[0].recording.launched[0][0][1] != w.data_ptr()
    assert recorder._launches.launch_elsewhere(spec, [w, w], view, [w, w]) == "plain"
    assert spec.plain_calls == 1
    recorded.random = SimpleNamespace()  # whose numbers others draw for such an address
    assert recorder._launches.launch_elsewhere(spec, [x, w], view, [x, w]) == "plain"


@pytest.fixture
def called(step_of, memory, monkeypatch):
    """A recording whose launches have their arena of ``memory``."""
    monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    return recording_of(*step_of)


@needs_module
@by_its_address
def test_a_launch_that_is_called_by_its_address_fails_as_another_does(called, memory):
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    recording = called.stretches[0].recording
    called.launch([x, w], [w])
    assert recording.called == len(recording.launched) == 1
    recording.code = 402
    with pytest.raises(NativeError):
        called.launch([x, w], [w])
    assert recording.called == 2 and len(recording.launched) == 1
    recording.code = 0
    with pytest.raises(TypeError):  # of what has no address, which nothing is called with
        called.launch([x, None], [w])
    assert recording.called == 2
    assert len(memory.taken) == 6 and sorted(memory.freed) == sorted(memory.taken)


def refused(addresses, stream):
    raise NativeError(402, "refused")


@pytest.mark.parametrize("is_short", [False, True])
def test_the_generator_moves_in_launches_and_not_in_what_is_refused(
        step_of, memory, is_short, monkeypatch):
    if is_short:  # of torch's two functions for memory without a tensor, and of tensors
        memory.fails_at = 1
        monkeypatch.setattr(_compat, "byte_allocator", memory.addresses)
    recorded, moved = recording_of(*step_of), []
    launched = recorded.stretches[0].recording.launched
    recorded.random = SimpleNamespace(replay=lambda: moved.append(len(launched)),
                                      take_back=moved.pop)
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    recorded.launch([x, w], [w])
    assert moved == [0] and len(launched) == 1
    monkeypatch.setattr(recorded.stretches[0].recording, "launch", refused)
    with pytest.raises(NativeError):  # an address that does not suit, say: it is launched elsewhere
        recorded.launch([x, w], [w])
    assert moved == [0]

    def short():
        raise torch.OutOfMemoryError

    if is_short:
        monkeypatch.setattr(recorded.stretches[0], "allocate_parts", short)
        with pytest.raises(torch.OutOfMemoryError):
            recorded.launch([x, w], [w])
        assert moved == [0] and len(launched) == 1


@needs_module
@by_its_address
@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_part_of_the_arena_that_cannot_be_had_at_once_is_asked_of_torch(
        called, memory, fails_at, monkeypatch):
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    memory.fails_at = fails_at
    assert torch.equal(called.launch([x, w], [w])["y"], x * w + 1)
    recording = called.stretches[0].recording
    assert recording.called == 0 and len(recording.launched) == 1
    assert memory.freed == list(memory.taken) and len(memory.taken) == fails_at

    def short():
        raise torch.OutOfMemoryError

    monkeypatch.setattr(called.stretches[0], "allocate_parts", short)
    with pytest.raises(torch.OutOfMemoryError):
        called.launch([x, w], [w])
    assert len(called.stretches[0].recording.launched) == 1


def test_addresses_are_read_again_when_a_capture_had_stand_ins_in_their_place(
        recorded, monkeypatch):
    x, w = (aligned(torch.randn(COUNT)) for _ in range(2))
    held, swapped = threading.Event(), threading.Event()
    real, stand_in = w.data, aligned(torch.zeros(COUNT))

    def capture():
        with one_at_a_time, StandIns.in_place_of(
                SimpleNamespace(tensors=[stand_in]), [w], 0):
            swapped.set()
            held.wait(60)

    thread = threading.Thread(target=capture)
    thread.start()
    assert swapped.wait(60) and w.data_ptr() == stand_in.data_ptr()
    wait = wait_for_captures
    monkeypatch.setattr(stretch_module, "wait_for_captures", lambda: (held.set(), wait()))
    answer = recorded.launch([x, w], [w])
    thread.join()
    assert w.data_ptr() == real.data_ptr()
    assert torch.equal(answer["y"], x * w + 1)
    assert recorded.stretches[0].recording.launched[0][0][1] == real.data_ptr()


def test_a_plain_run_may_wait_for_a_graph_that_another_thread_runs_for_it(monkeypatch):
    """A step's backward runs on a thread of autograd, with graphs that are recorded on their
    own."""
    monkeypatch.setattr(recorder_module, "_WARM_UP", 10)
    chosen = config.resolve({"max_recordings": 8})
    graph = recorder_module.Recorder(lambda leaves: leaves[0] + 1, chosen, "graph",
                                     kind=CallableKind())

    def backward(leaves):
        found = []
        thread = threading.Thread(daemon=True, target=lambda: found.append(
            graph.run("key", leaves, State(), lambda: "()")))
        thread.start()
        thread.join(60)
        return found

    step = recorder_module.Recorder(backward, chosen, "step", kind=CallableKind(takes_gradients=True))
    assert step.run("key", [1], State(), lambda: "()") == [2]


def test_lanes_are_granted_slack_and_each_that_is_asked_for_as_much(monkeypatch, step_of):
    """Of what is free beside the plain step half at most; and no slack once a launch has run out
    of memory by it."""
    monkeypatch.setattr(attempt_module, "slack_bytes", lambda device: 100)

    def room(plain=0, ordered=0, free=10_000, lanes=1, parallel_bytes=None, has_slack=True):
        monkeypatch.setattr(attempt_module, "free_bytes", lambda device: free)
        earlier = Earlier()
        earlier.has_slack = has_slack
        attempt = attempt_module.Attempt(
            "step", Specialization("()", State()), step_of[0],
            config.resolve({"parallel_bytes": parallel_bytes}), kind=CallableKind(takes_gradients=True), earlier=earlier, look_farther=lambda ways: None)
        attempt.allowance.plain_bytes, attempt.allowance.asked_lanes = plain, lanes
        return attempt.allowance.room(SimpleNamespace(launch_bytes=ordered))

    assert room() == (100, 0, False)
    assert room(plain=70, ordered=30) == (140, 40, False)
    assert room(plain=30, ordered=70) == (60, -40, False)
    assert room(plain=30, ordered=70, lanes=3) == (300, 300, True)
    assert room(free=160, plain=50) == (50 + 55, 50, False)
    assert room(free=40, plain=50) == (50, 50, False)
    assert room(parallel_bytes=7, lanes=3) == (7, 7, True)
    assert room(parallel_bytes=700, free=0) == (700, 700, False)
    assert room(parallel_bytes=700, has_slack=False) == room(has_slack=False) == (0, 0, False)


def test_a_backward_grants_no_lanes_the_memory_that_its_plain_calls_free(monkeypatch, step_of):
    """A launch holds all that was saved to its end, and the trial's plain run does as well."""
    monkeypatch.setattr(attempt_module, "free_bytes", lambda device: 0)
    monkeypatch.setattr(attempt_module, "slack_bytes", lambda device: 0)
    saved, weight = torch.zeros(100), torch.zeros(10, requires_grad=True)
    step = dataclasses.replace(step_of[0], tensors=[saved, weight], places=[0, 1])

    def spare(frees_inputs):
        attempt = attempt_module.Attempt(
            "step", Specialization("()", State()), step, config.resolve({"parallel_bytes": 5}),
            kind=CallableKind(is_backward=frees_inputs),
            earlier=Earlier(), look_farther=lambda ways: None)
        attempt.allowance.let_go_bytes = 20
        return attempt.allowance.room(SimpleNamespace(launch_bytes=30)).size_bytes

    assert spare(False) == -30 + 20 + 5
    assert spare(True) == -30 + 20 + 5 - 400
