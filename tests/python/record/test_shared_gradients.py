# SPDX-License-Identifier: Apache-2.0
"""Small gradients of a launch lie in blocks, and are tensors as those are that lie alone. The
recording runs on the CPU: it is given addresses, and writes x * (1 + i) to result i."""

from __future__ import annotations

import ctypes
import io
import struct
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from anabranch import _compat, config
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Block, Slot
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Fresh, Step, Wrapped
from anabranch._record.launch import discovered, output_buffers
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.output_buffers import OutputBuffers
from anabranch._record.launch.recording import StepRecording
from anabranch._record.recorder import Recorder
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.state import NO_STATE
from anabranch._record.tensors import units_of, whole_bytes

pytestmark = pytest.mark.oldest
ROW = ((4, 8), (8, 1), torch.float32)
BYTES = 4 * 8 * 4
KIB = 1 << 10


class OnTheCpu:
    """In the place of CapturedRecording: one slot for x, and one an allocation."""

    counts, launch_address = CaptureCounts(nodes=2), 0
    parts = ()

    def __init__(self, step, *_, **__):
        self.slots = [Slot(i, block.size_bytes, 4) for i, block in enumerate(step.blocks)]

    def launch(self, addresses, stream):
        x, *results = struct.unpack(f"{len(self.slots)}Q", addresses)
        for i, (result, slot) in enumerate(zip(results, self.slots[1:], strict=True)):
            for at in range(slot.size_bytes // 4):
                floats = ctypes.c_float * 1
                floats.from_address(result + 4 * at)[0] = floats.from_address(x)[0] * (1 + i)


@pytest.fixture
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
    monkeypatch.setattr(_compat, "byte_allocator", lambda: (0, 0))
    monkeypatch.setattr(_compat, "current_device", lambda: 0)
    monkeypatch.setattr(_compat, "current_stream", lambda device: 0)
    monkeypatch.setattr(discovered, "CapturedStep", lambda device, one, two, blocks, *_:
                        SimpleNamespace(blocks=blocks, stretches=lambda let_go: [1]))
    monkeypatch.setattr(discovered, "CapturedRecording", OnTheCpu)


def recording_of(results, gradients, owners, *, saved_from=None, is_backward=False,
                 sizes=None):
    """Of a step that answers a list of these and leaves these gradients, by owner."""
    x = torch.ones(1)
    parts = [*results, *gradients.values()]
    count = 1 + max(part.allocation for part in parts if isinstance(part, Fresh))
    sizes = sizes or [BYTES] * count
    _, shape = flatten([list(range(len(results)))])
    captured = Captured(None, None, [], object(), None, list(results), shape, gradients=gradients,
                        mutated=[])
    capture = SimpleNamespace(
        first=captured, second=captured, noted=None, is_mapped=False, third=None,
        blocks=[Block(0, 0, 4, True), *(Block(0, 0, size, False) for size in sizes)])
    step = Step(lambda leaves: None, [x], [0], [x], units_of([x]), 0, owners, 0, None,
                is_backward=is_backward)
    return StepRecording(step, DiscoveredStep(step, capture, None, saved_from), True)


def parameters(count):
    return [nn.Parameter(torch.zeros(4, 8)) for _ in range(count)]


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.mark.usefixtures("on_the_cpu")
def test_small_gradients_of_a_step_share_a_block_and_look_as_if_they_did_not():
    owners = parameters(3)
    recorded = recording_of([Fresh(3, 0, *ROW)], {i: Fresh(i, 0, *ROW) for i in range(3)}, owners)
    assert recorded.layout is None and recorded.launch_bytes == BYTES + 3 * 512
    for seed in (2.0, 3.0):
        [answer] = recorded.launch([torch.tensor([seed])], owners, poison=0xFF)
        assert torch.equal(answer, torch.full((4, 8), 4 * seed))
        gradients = [owner.grad for owner in owners]
        assert len(set(map(storage, gradients))) == 1 and storage(answer) != storage(gradients[0])
        for i, gradient in enumerate(gradients):
            assert torch.equal(gradient, torch.full((4, 8), (1 + i) * seed))
            assert type(gradient) is torch.Tensor and gradient.is_contiguous()
            assert gradient.stride() == (8, 1) and gradient.dtype is torch.float32
            assert not gradient._is_view() and gradient._base is None and gradient.is_leaf
            assert gradient.data_ptr() % 4 == 0 and not gradient.requires_grad


@pytest.mark.usefixtures("on_the_cpu")
def test_what_is_written_to_one_gradient_is_seen_in_no_other():
    owners = parameters(3)
    recorded = recording_of([], {i: Fresh(i, 0, *ROW) for i in range(3)}, owners)
    recorded.launch([torch.ones(1)], owners)
    before = [owner.grad._version for owner in owners]
    owners[1].grad.zero_()
    assert [owner.grad._version for owner in owners] == [before[0], before[1] + 1, before[2]]
    assert owners[0].grad.sum() == 32 and owners[2].grad.sum() == 96
    torch.optim.SGD(owners, lr=1.0).step()
    assert [owner[0, 0].item() for owner in owners] == [-1, 0, -3]


@pytest.mark.usefixtures("on_the_cpu")
def test_a_block_is_free_when_the_last_gradient_in_it_is():
    owners = parameters(2)
    recorded = recording_of([], {i: Fresh(i, 0, *ROW) for i in range(2)}, owners)
    recorded.launch([torch.ones(1)], owners)
    kept = owners[1].grad.clone()
    _, uses = _compat.use_counts(owners[1].grad)
    owners[0].grad = None
    assert _compat.use_counts(owners[1].grad)[1] == uses - 1 and torch.equal(owners[1].grad, kept)
    _, alone = _compat.use_counts(kept)
    assert uses - 1 == alone  # nothing else of the launch holds it


@pytest.mark.usefixtures("on_the_cpu")
def test_a_gradient_is_written_to_a_file_with_its_block_unless_it_is_cloned():
    owners = parameters(2)
    recorded = recording_of([], {i: Fresh(i, 0, *ROW) for i in range(2)}, owners)
    recorded.launch([torch.ones(1)], owners)
    for gradient, size in ((owners[1].grad, 2 * 512), (owners[1].grad.clone(), BYTES)):
        file = io.BytesIO()
        torch.save(gradient, file)
        file.seek(0)
        read = torch.load(file)
        assert torch.equal(read, gradient) and read.untyped_storage().nbytes() == size


@pytest.mark.usefixtures("on_the_cpu")
def test_a_gradient_that_is_answered_as_well_lies_alone():
    """Whoever keeps the answer would keep the block."""
    owners = parameters(3)
    recorded = recording_of([Fresh(1, 0, *ROW)], {i: Fresh(i, 0, *ROW) for i in range(3)}, owners)
    [answer] = recorded.launch([torch.ones(1)], owners)
    assert answer is owners[1].grad and answer.untyped_storage().nbytes() == BYTES
    assert storage(owners[0].grad) == storage(owners[2].grad) != storage(answer)


@pytest.mark.usefixtures("on_the_cpu")
def test_what_is_inside_a_gradient_of_a_wrapping_class_lies_alone():
    """This one raises where its tensors do not begin at the same place of their memory."""
    owners = [nn.Parameter(TwoTensor(torch.zeros(4, 8), torch.zeros(4, 8))), *parameters(2)]
    context = owners[0].__tensor_flatten__()[1]
    wrapped = Wrapped(TwoTensor, ("a", "b"), (Fresh(0, 0, *ROW), Fresh(1, 0, *ROW)), context,
                      *ROW[:2])
    recorded = recording_of([], {0: wrapped, 1: Fresh(2, 0, *ROW), 2: Fresh(3, 0, *ROW)}, owners)
    recorded.launch([torch.ones(1)], owners)
    gradient, *others = [owner.grad for owner in owners]
    assert type(gradient) is TwoTensor
    assert torch.equal(gradient.a, torch.ones(4, 8)) and torch.equal(gradient.b, 2 * gradient.a)
    places = list(map(storage, (gradient.a, gradient.b, *others)))
    assert len(set(places)) == 3 and places[2] == places[3]


@pytest.mark.usefixtures("on_the_cpu")
def test_what_a_backward_graph_answers_shares_blocks_and_is_taken_over_as_it_is():
    """By autograd, which makes a result that nobody else holds a parameter's gradient."""
    owners = parameters(3)
    recorded = recording_of([Fresh(i, 0, *ROW) for i in range(3)], {}, [], is_backward=True)
    assert recorded.layout is None
    answered = []

    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            return given[0].sum()

        @staticmethod
        def backward(ctx, gradient):
            results = recorded.launch([torch.ones(1)], [])
            answered[:] = [result.data_ptr() for result in results]
            return tuple(results)

    for times in (1, 2):  # the second time they are added to
        Graph.apply(*owners).backward()
        assert [owner.grad.mean().item() for owner in owners] == [times, 2 * times, 3 * times]
        if times == 1:
            assert [owner.grad.data_ptr() for owner in owners] == answered
            assert len({storage(owner.grad) for owner in owners}) == 1


@pytest.mark.usefixtures("on_the_cpu")
def test_results_of_a_graph_that_is_no_backward_lie_alone():
    recorded = recording_of([Fresh(i, 0, *ROW) for i in range(3)], {}, [])
    results = recorded.launch([torch.ones(1)], [])
    assert len(set(map(storage, results))) == 3


@pytest.mark.usefixtures("on_the_cpu")
def test_saved_results_are_passed_in_blocks_in_which_no_gradient_lies():
    owners = parameters(2)
    recorded = recording_of([Fresh(i, 0, *ROW) for i in range(3)],
                            {i: Fresh(3 + i, 0, *ROW) for i in range(2)}, owners, saved_from=1)
    assert set(recorded.layout.places) == {1, 2}
    _, *saved = recorded.launch([torch.ones(1)], owners)
    assert len(set(map(storage, saved))) == 1
    assert storage(saved[0]) != storage(owners[0].grad) == storage(owners[1].grad)


def layout_of(sizes, dtypes=None):
    answers = [Fresh(i, 0, (size // 4,), (1,), (dtypes or {}).get(i, torch.float32))
               for i, size in enumerate(sizes)]
    return OutputBuffers(answers, sizes, gradients=range(len(sizes)))


def test_blocks_are_of_one_type_and_bounded_and_large_gradients_lie_alone():
    large = output_buffers._SMALL_GRADIENT_BYTES
    many = layout_of([large] * 25 + [large + 512])
    assert many.alone == 1 and many.bases == 1 + 3
    assert [bytes_of(base) for base in many._bases[1:]] == [10 << 20, 10 << 20, 5 << 20]
    assert many.size_bytes == 26 * large + 512
    mixed = layout_of([KIB] * 4, {1: torch.int32, 3: torch.int32})
    assert mixed.alone == 0 and mixed.bases == 2
    assert {mixed.place(mixed.of[i])[0] for i in (0, 2)} != {mixed.place(mixed.of[i])[0]
                                                             for i in (1, 3)}


def test_blocks_of_little_that_is_saved_are_small():
    """A sixteenth of all that is saved, so that a backward frees it nearly as it goes."""
    mib, sizes = 1 << 20, [1 << 19] * 48
    for more, block in (([], 1.5 * mib), ([40 * mib], 4 * mib), ([400 * mib], 10 * mib)):
        of_all = [*sizes, *more]
        made = OutputBuffers([Fresh(i, 0, (size // 4,), (1,), torch.float32)
                              for i, size in enumerate(of_all)], of_all, saved=range(len(of_all)))
        assert bytes_of(made._bases[made.alone]) == block


def bytes_of(base):
    return base.shape[0] * base.dtype.itemsize


def test_a_gradient_that_is_the_only_small_one_of_its_type_lies_alone():
    lone = layout_of([KIB, KIB, KIB, 2 << 20], {1: torch.int32})
    assert lone.alone == 2 and {lone.of[1], lone.of[3]} == {0, 1}
    assert lone.size_bytes == 3 * KIB + (2 << 20)


def test_the_whole_of_a_block_is_poisoned_once(monkeypatch):
    monkeypatch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
    monkeypatch.setattr(_compat, "byte_allocator", lambda: (0, 0))
    buffers = layout_of([KIB] * 3)
    [block] = bases = buffers.allocate()
    whole_bytes(block).fill_(0xFF)
    assert all(torch.all(tensor.view(torch.uint8) == 0xFF) for tensor in buffers.tensors(bases))


def test_a_recorder_of_a_backward_graph_says_that_its_results_are_gradients(monkeypatch):
    """And that of a callable or another graph does not."""
    seen = []
    monkeypatch.setattr(Specialization, "step",
                        lambda self, *_, **how: seen.append(how["kind"].is_backward))
    monkeypatch.setattr("anabranch._record.recorder.device_of", lambda *_: 0)
    monkeypatch.setattr("anabranch._record.recorder.capture_stream", lambda device: None)
    for is_backward in (True, False):
        made = Recorder(lambda leaves: None, config.resolve({}), "graph",
                        kind=CallableKind(is_backward=is_backward))
        made._step(Specialization("()", NO_STATE), [])
    assert seen == [True, False]
