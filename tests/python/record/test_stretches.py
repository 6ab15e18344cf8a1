# SPDX-License-Identifier: Apache-2.0
"""A backward that is launched in stretches, over two recordings that run on the CPU: the first
computes t = a * b and the gradient 2 * t, and the second the gradient t + c."""

from __future__ import annotations

import ctypes
import struct
import weakref
from types import SimpleNamespace

import numpy
import pytest
import torch
from functorch.compile import make_boxed_compiler
from torch._dynamo.backends.common import aot_autograd

from anabranch import _compat, config
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Block, Slot
from anabranch._core.library import NativeError
from anabranch._core.timed_recording import RecordedNode
from anabranch._record import launches
from anabranch._record import recorder as recorder_module
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Alias, Fresh, Step
from anabranch._record.launch import discovered, output_buffers, timing
from anabranch._record.launch import recording as recording_module
from anabranch._record.launch import swapped_out as swapped_out_module
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.output_buffers import OutputBuffers
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import BlockLayout, BlockPlace, InBlocks, InputPlaces
from anabranch._record.launch.stretch import passed_between
from anabranch._record.launch.timing import Sample, Timing, joined
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import BoundState
from anabranch._record.state import state as state_module
from anabranch._record.state.state import State
from anabranch._record.tensors import Unit

pytestmark = pytest.mark.oldest

COUNT = 16
BYTES = 4 * COUNT
A, B, C, T, FIRST, SECOND = range(6)  # blocks
ALIGNMENT = 4


def floats(address):
    return (ctypes.c_float * COUNT).from_address(address)


class Stretched:
    """In the place of CapturedStep: 5 nodes, the first 2 in a stretch."""

    def __init__(self, *_):
        self.let_go = None

    def stretches(self, let_go):
        self.let_go = let_go
        return [2, 5]

    def stretch(self, begin, end):
        return begin, end

    def close(self):
        pass


class OnTheCpu:
    """In the place of CapturedRecording, of one of the two."""

    launch_address = 0
    look = staticmethod(lambda: None)  # called by each launch
    arenas = 1, 0  # of each stretch, in tensors

    def __init__(self, stretch, *_):
        self.is_first = stretch == (0, 2)
        named = (A, B, T, FIRST) if self.is_first else (C, T, SECOND)
        self.parts = [BYTES] * self.arenas[not self.is_first]
        self.slots = [Slot(block, BYTES, ALIGNMENT) for block in named]
        self.counts = CaptureCounts(nodes=2 if self.is_first else 3, lanes=1 + self.is_first,
                                    launched_from_host=7, held_device_bytes=100)
        self.launched = 0

    def launch(self, addresses, stream):
        at = [floats(address) for address in struct.unpack(f"{len(addresses) // 8}Q", addresses)]
        for i in range(COUNT):
            if self.is_first:
                at[4][i] = at[0][i] * at[1][i]  # in its arena
                at[2][i], at[3][i] = at[4][i], 2 * at[4][i]
            else:
                at[2][i] = at[0][i] + at[1][i]  # c and t
        self.launched += 1
        OnTheCpu.look()


@pytest.fixture
def step(monkeypatch):
    monkeypatch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
    monkeypatch.setattr(_compat, "byte_allocator", lambda: (0, 0))
    monkeypatch.setattr(_compat, "current_device", lambda: 0)
    monkeypatch.setattr(_compat, "current_stream", lambda device: 7)
    monkeypatch.setattr(discovered, "CapturedStep", Stretched)
    monkeypatch.setattr(discovered, "CapturedRecording", OnTheCpu)
    monkeypatch.setattr(swapped_out_module, "empty_cache", lambda: None)
    monkeypatch.setattr(OnTheCpu, "look", staticmethod(lambda: None))
    monkeypatch.setattr(output_buffers, "_SMALL_GRADIENT_BYTES", 0)
    given = saved()
    units = [Unit(tensor.data_ptr(), BYTES, [(i, 0)]) for i, tensor in enumerate(given)]
    return Step(lambda leaves: None, given, [0, 1, 2], given, units, 0, [], 0, None,
                is_compiled=True, is_backward=True)


def saved(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(COUNT, generator=generator) for _ in range(3)]


def recorded_of(step, *more):
    parts = [*(Fresh(i, 0, (COUNT,), (1,), torch.float32) for i in (1, 2)), *more]
    _, shape = flatten([list(range(len(parts)))])
    captured = Captured(None, None, [], object(), None, parts, shape, gradients={}, mutated=[])
    blocks = [Block(0, 0, BYTES, True)] * 3 + [Block(0, 0, BYTES, False)] * 3
    capture = SimpleNamespace(first=captured, second=captured, blocks=blocks,
                              noted=None, is_mapped=False, third=None)
    found = DiscoveredStep(step, capture, None)
    return StepRecording(step, found, True), found


@pytest.fixture
def recorded(step):
    return recorded_of(step)[0]


def expected(given):
    a, b, c = given
    return [2 * a * b, a * b + c]


def agree(answer, wanted):
    return len(answer) == len(wanted) and all(map(torch.equal, answer, wanted))


def test_a_launch_in_stretches_answers_what_the_step_does(recorded):
    for seed in range(3):
        given = saved(seed)
        wanted = expected(given)
        answer = recorded.launch(given, [], poison=0xFF if seed == 1 else None)
        assert agree(answer, wanted) and all(one is not None for one in given)
    assert [stretch.recording.launched for stretch in recorded.stretches] == [3, 3]


def test_small_gradients_share_blocks_with_others_of_their_stretch(step, monkeypatch):
    monkeypatch.setattr(output_buffers, "_SMALL_GRADIENT_BYTES", 1 << 20)
    row = (COUNT,), (1,), torch.float32
    same = [Fresh(i, 0, *row) for i in range(4)]
    of_turns = OutputBuffers(same, [BYTES] * 4, gradients=range(4), turns={2: 1, 3: 1})
    assert [of_turns.place(i)[0] for i in range(4)] == [0, 0, 1, 1]
    assert OutputBuffers(same, [BYTES] * 4, gradients=range(4)).bases == 1
    given = saved()
    first, second = recorded_of(step)[0].launch(given, [])
    assert agree([first, second], expected(given))
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_what_no_later_stretch_reads_is_freed_between_two(recorded, monkeypatch):
    leaves = saved(1)
    wanted, references = expected(leaves), [weakref.ref(leaf) for leaf in leaves]
    alive = []
    monkeypatch.setattr(OnTheCpu, "look", staticmethod(
        lambda: alive.append([reference() is not None for reference in references])))
    given = list(leaves)
    assert agree(recorded.launch(given, [], frees=leaves), wanted)
    assert alive == [[True, True, True], [False, False, True]]
    assert leaves == [] and given == [None, None, None]


def test_views_of_what_no_later_stretch_reads_are_let_go_as_well(step, monkeypatch):
    memory = numpy.empty(COUNT, numpy.float32)
    reference, alive = weakref.ref(memory), []
    given = saved(1)
    given[0] = torch.from_numpy(memory).copy_(given[0])
    given.append(given[0][:4])
    wanted = expected(given[:3])
    units = [Unit(tensor.data_ptr(), BYTES, [(i, 0)]) for i, tensor in enumerate(given[:3])]
    units[0].members.append((3, 0))
    recorded, _ = recorded_of(Step(lambda leaves: None, [], [0, 1, 2, 3], given, units, 0, [], 0, None,
                                   is_compiled=True, is_backward=True))
    leaves = list(given)
    monkeypatch.setattr(OnTheCpu, "look", staticmethod(lambda: alive.append(reference() is not None)))
    del memory
    assert agree(recorded.launch(given, [], frees=leaves), wanted)
    assert alive == [True, False] and given == [None] * 4


def test_what_somebody_else_holds_stays_as_it_is(recorded):
    """As where a graph is retained, or a saved tensor is the user's."""
    held = saved(2)
    before = [tensor.clone() for tensor in held]
    for _ in range(2):
        assert agree(recorded.launch(list(held), [], frees=list(held)), expected(before))
        assert agree(held, before)


def test_what_is_answered_as_it_was_given_is_kept_to_the_end(step):
    recorded, _ = recorded_of(step, Alias(0, None))
    leaves = saved(3)
    a, wanted = leaves[0], expected(leaves)
    first, second, same = recorded.launch(list(leaves), [], frees=leaves)
    assert agree([first, second], wanted) and same is a


def test_memory_that_one_stretch_leaves_for_another_is_the_arenas(recorded, step):
    counts = recorded.counts
    assert counts.arena_bytes == 2 * BYTES and recorded.launch_bytes == 4 * BYTES
    assert (counts.nodes, counts.lanes, counts.held_device_bytes) == (5, 2, 200)
    assert counts.launched_from_host == 7  # a launch counts once
    assert recorded.slot_count == 7


def test_a_launch_holds_at_its_peak_what_it_has_not_let_go_of(step, monkeypatch):
    """Of t, two gradients and an arena: those of its first stretch, or of both less a and b."""
    assert recorded_of(step)[0].peak_bytes == 3 * BYTES
    monkeypatch.setattr(OnTheCpu, "arenas", (1, 4))
    recorded = recorded_of(step)[0]
    assert recorded.peak_bytes == (2 + 1 - 2 + 4) * BYTES
    assert recorded.counts.arena_bytes == (1 + 4) * BYTES
    step.tensors[0].requires_grad_()  # a parameter stays
    assert recorded_of(step)[0].peak_bytes == (2 + 1 - 1 + 4) * BYTES


def test_small_memory_that_the_same_stretches_pass_on_shares_an_allocation():
    def naming(*blocks):
        return SimpleNamespace(slots=[Slot(block, sizes[block], ALIGNMENT) for block in blocks])

    sizes = {0: BYTES, 1: BYTES, 2: BYTES, 3: output_buffers._BLOCK_BYTES, 4: BYTES, 5: BYTES}
    recordings = [naming(0, 1, 2, 3), naming(1, 4, 5), naming(2, 3, 4, 5)]
    places, found = passed_between(recordings, lambda block: block > 0, 7)
    assert places == {1: (7, 0), 2: (8, 0), 3: (9, 0), 4: (10, 0), 5: (10, 512)}
    assert found == [BYTES, BYTES, output_buffers._BLOCK_BYTES, 512 + BYTES]


def test_parameters_and_tangents_are_no_reason_to_cut(step):
    _, found = recorded_of(step)
    assert found._step.let_go == [0, 1, 2]
    step.tensors[1].requires_grad_()
    _, found = recorded_of(step)
    assert found._step.let_go == [0, 2]
    step.tangents = [2]
    _, found = recorded_of(step)
    assert found._step.let_go == [0]
    step.is_backward = False
    assert len(DiscoveredStep(step, found._capture, None)._stretches) == 1


def test_another_capture_is_exchanged_for_all_stretches(step, monkeypatch):
    made = []

    class Unsure(OnTheCpu):
        def __init__(self, stretch, *more, **named):
            super().__init__(stretch, *more)
            self.counts.unsure, self.numbers = int(self.is_first), []
            made.append(self)

    monkeypatch.setattr(discovered, "CapturedRecording", Unsure)
    recorded, _ = recorded_of(step)
    assert agree(recorded.launch(saved(3), []), expected(saved(3)))
    assert recorded.exchange()
    assert agree(recorded.launch(saved(4), []), expected(saved(4)))
    assert [one.launched for one in made] == [1, 1, 1, 1]
    assert not recorded.exchange()
    assert agree(recorded.launch(saved(5), []), expected(saved(5)))
    assert [one.launched for one in made] == [2, 2, 1, 1]  # the first ones again
    assert not recorded.exchange()


def test_tensors_in_blocks_are_found_by_every_stretch(recorded):
    block = torch.empty(2 * COUNT)
    a, b, c = saved(4)
    block[:COUNT], block[COUNT:] = a, c
    row = (COUNT,), (1,), torch.float32
    layout = BlockLayout({0: BlockPlace(0, 0, *row), 1: BlockPlace(0, BYTES, *row)})
    offsets = recorded.offsets(InputPlaces(layout, {0: 0, 1: 2}), [0, 1, 2])
    answer = recorded.launch([block, b, block], [], at=offsets, frees=[])
    assert agree(answer, expected([a, b, c]))


def test_blocks_are_freed_between_two_stretches_where_a_launch_takes_the_tensors_in_them(
        recorded, monkeypatch):
    memory = [numpy.empty(size, numpy.float32) for size in (2 * COUNT, COUNT)]
    references, alive = list(map(weakref.ref, memory)), []
    first, second = map(torch.from_numpy, memory)  # which hold it until they are freed
    del memory
    first[:COUNT], first[COUNT:], second[:] = given = saved(4)
    row = (COUNT,), (1,), torch.float32
    layout = BlockLayout({0: BlockPlace(0, 0, *row), 1: BlockPlace(0, BYTES, *row),
                          2: BlockPlace(1, 0, *row)})
    leaves = InBlocks([first, first, second], InputPlaces(layout, {0: 0, 1: 1, 2: 2}))
    monkeypatch.setattr(OnTheCpu, "look", staticmethod(
        lambda: alive.append([reference() is not None for reference in references])))
    monkeypatch.setattr(recorded, "offsets", lambda places, arguments: None)
    run = recorder_of(recorded, leaves)
    del first, second
    assert agree(run(), expected(given))
    assert alive == [[True, True], [False, True]] and leaves == []


def test_an_address_that_a_later_stretch_cannot_take_is_refused_before_the_first(
        step, recorded, monkeypatch):
    given = saved()
    given[2] = torch.empty(BYTES + 1, dtype=torch.uint8)[1:].view(torch.uint8)
    assert given[2].data_ptr() % ALIGNMENT
    leaves = list(given)
    with pytest.raises(NativeError) as raised:
        recorded.launch(given, [], frees=leaves)
    assert raised.value.code == 402 and recorded.misaligned(given) == [2]
    assert recorded.stretches[0].recording.launched == 0 and len(leaves) == 3


def lying_badly(tensor):
    """Itself, at an address with which no kernel was captured."""
    memory = numpy.empty(BYTES + 1, numpy.uint8)
    found = torch.from_numpy(memory[1:].view(numpy.float32)).copy_(tensor)
    assert found.data_ptr() % ALIGNMENT
    return found


def test_what_lies_badly_is_copied_and_all_is_freed_between_two_stretches(recorded, monkeypatch):
    leaves = saved(1)
    wanted = expected(leaves)
    leaves[2] = lying_badly(leaves[2])
    references, alive = [weakref.ref(leaf) for leaf in leaves], []
    monkeypatch.setattr(OnTheCpu, "look", staticmethod(
        lambda: alive.append([reference() is not None for reference in references])))
    assert agree(recorder_of(recorded, leaves)(), wanted)
    assert alive == [[True, True, True], [False, False, False]] and leaves == []


def test_a_backward_that_would_write_what_lies_badly_is_a_plain_call(recorded, monkeypatch):
    """Its first stretch may have written by the time that the second is refused."""
    leaves = saved(1)
    leaves[2] = lying_badly(leaves[2])
    monkeypatch.setattr(recorded, "_mutated", [2])
    assert recorder_of(recorded, leaves)() == "plain" and len(leaves) == 3
    assert recorded.stretches[0].recording.launched == 0


@pytest.mark.usefixtures("_plain")
def test_a_launch_elsewhere_without_memory_is_a_plain_call(recorded, monkeypatch):
    leaves = saved(1)
    leaves[2] = lying_badly(leaves[2])
    Short(monkeypatch, 1)
    assert recorder_of(recorded, leaves)() == "plain" and len(leaves) == 3


class Short:
    """In the place of empty_strided_cuda: some of its calls find no memory."""

    def __init__(self, monkeypatch, *fail):
        self.fail, self.calls = fail, 0
        monkeypatch.setattr(_compat, "empty_strided_cuda", self)

    def __call__(self, *layout):
        self.calls += 1
        if self.calls in self.fail:
            raise torch.OutOfMemoryError
        return _compat.empty_strided_cpu(*layout)


def recorder_of(recorded, leaves):
    """Whose plain calls answer "plain"."""
    recorder = recorder_module.Recorder(lambda leaves: "plain", config.resolve({}), "step",
                                        kind=CallableKind(is_backward=True))
    spec = recorder._new_specialization("key", leaves, state_module.NO_STATE, lambda: "()")
    spec.arguments, spec.recording = [0, 1, 2], recorded
    spec._bound[state_module.NO_STATE] = BoundState(State(), [], [], [], 0, None, None)
    return lambda: recorder.run("key", leaves, state_module.NO_STATE, lambda: "()")


@pytest.fixture
def _plain(monkeypatch):
    monkeypatch.setattr(launches, "free_bytes", lambda device: 0)
    monkeypatch.setattr(launches, "empty_cache", lambda: None)


# A launch allocates t and the first gradient, its arena, and then the second gradient.
def test_a_later_stretch_without_memory_has_that_of_gradients_that_are_finished(
        recorded, monkeypatch):
    leaves = saved(5)
    wanted = expected(leaves)
    sizes = []
    Short(monkeypatch, 4)
    monkeypatch.setattr(swapped_out_module, "empty_cache", lambda: sizes.extend(
        tensor.untyped_storage().nbytes() for tensor in finished))
    finished = []
    take = swapped_out_module.SwappedOut.take
    monkeypatch.setattr(swapped_out_module.SwappedOut, "take", lambda self, tensors: take(
        self, finished.extend(tensors) or finished))
    assert agree(recorder_of(recorded, leaves)(), wanted)
    assert len(finished) == 1 and sizes == [0] and leaves == []


@pytest.mark.usefixtures("_plain")
def test_a_first_stretch_without_memory_is_a_plain_call(recorded, monkeypatch):
    for call in (1, 2, 3):
        Short(monkeypatch, call)
        leaves = saved(5)
        assert recorder_of(recorded, leaves)() == "plain" and len(leaves) == 3
    assert recorded.stretches[0].recording.launched == 0


def test_where_finished_gradients_give_not_enough_either_the_error_is_torchs(
        recorded, monkeypatch):
    Short(monkeypatch, 4, 5)
    with pytest.raises(torch.OutOfMemoryError):
        recorder_of(recorded, saved(5))()


def test_nodes_of_stretches_are_told_as_those_of_one_graph(recorded, monkeypatch):
    node = RecordedNode("kernel", "mul", 0, 0, ())
    monkeypatch.setattr(recording_module, "nodes_of",
                        lambda recording: [node, node._replace(after=(0,))])
    assert [told.after for told in recorded.described().nodes] == [(), (0,), (), (2,)]
    assert recorded.timing is None and not recorded.is_timed


def test_times_of_stretches_are_those_of_one_launch():
    node = RecordedNode("kernel", "mul", 0, 0, ())
    samples = [Sample(3, 10.0, 8.0, 30.0, [10.0], [(0, 10)]),
               Sample(2, 20.0, 0, 9.0, [20.0], [(0, 20)])]
    both = joined([Timing([node], [], sample, 64) for sample in samples])
    assert both.sample == Sample(2, 30.0, 0, 10.0, [10.0, 20.0], [(0, 10), (10, 30)])
    unread = joined([Timing([node], [], samples[0], 64), Timing([node], [], None, 64, "busy")])
    assert unread.sample is None and unread.why_not == "busy"


def test_every_stretch_of_a_launch_is_timed(recorded, monkeypatch):
    class Twin:
        is_over = True

        def __init__(self, of, addresses):
            self.launch = of.launch

        def times(self):
            return [(0, 4)]

        def plain_times(self):
            return 3, 0

        def close(self):
            pass

    monkeypatch.setattr(timing, "TimedRecording", Twin)
    monkeypatch.setattr(timing, "nodes_of", lambda recording: [])
    recorded.time(every=1)
    given = saved(6)
    assert agree(recorded.launch(given, []), expected(given))
    assert recorded.is_timed and recorded.timing.sample.step_ns == 8
    recorded.time_no_more()
    assert not recorded.is_timed


@pytest.mark.parametrize("retain_graph", [False, True])
def test_nobody_else_holds_what_a_backward_is_given_unless_its_graph_is_retained(retain_graph):
    """What an emptied list of inputs frees: the rest is torch's."""
    uses = []

    def compiled(gm, example):
        def call(inputs):
            answer = gm(*inputs)
            storages = [one.untyped_storage() for one in inputs if not one.requires_grad]
            inputs.clear()
            uses.append([torch._C._storage_Use_Count(one._cdata) for one in storages])
            return answer

        call._boxed_call = True
        return call

    backend = aot_autograd(fw_compiler=make_boxed_compiler(lambda gm, example: gm.forward),
                           bw_compiler=compiled)
    w = torch.randn(4, 4, requires_grad=True)

    @torch.compile(backend=backend)
    def step(x):
        return (x @ w).sin().exp().sum()

    with torch._functorch.config.patch(donated_buffer=False):
        loss = step(torch.randn(4, 4))
        loss.backward(retain_graph=retain_graph)
    of_saved = uses[0][:-1]  # the gradient of the loss is the engine's
    assert len(of_saved) >= 2 and (max(of_saved) > 1) == retain_graph
