# SPDX-License-Identifier: Apache-2.0
"""Recordings that run on the CPU: they are given addresses, as the GPU's are, and compute
y = x * w + 1 there by way of their arena."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import pytest
import torch

from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Block, Slot
from anabranch._record import quick
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Alias, Constant, Fresh, Step
from anabranch._record.launch import discovered
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.in_turn import BAD_BINDING
from anabranch._record.launch.recording import StepRecording
from anabranch._record.tensors import units_of

COUNT = 16
ALIGNMENT = 64


def floats(address):
    return (ctypes.c_float * COUNT).from_address(address)


class OnTheCpu:
    """In the place of CapturedRecording."""

    counts, launch_address = CaptureCounts(nodes=2), 0
    slots = [Slot(0, 4 * COUNT, 4), Slot(1, 4 * COUNT, ALIGNMENT), Slot(2, 4 * COUNT, 512)]
    parts = [4 * COUNT, 512]

    def __init__(self, *_, **__):
        self.launched = []

    def launch(self, addresses, stream):
        x, w, y, scratch, other = addresses = struct.unpack("5Q", addresses)
        ctypes.memset(other, 0, 512)
        for i in range(COUNT):
            floats(scratch)[i] = floats(x)[i] * floats(w)[i]
        for i in range(COUNT):
            floats(y)[i] = floats(scratch)[i] + 1
        self.launched.append((addresses, stream))


class ByteAllocator:
    """In the place of torch's two functions for memory without a tensor."""

    def __init__(self):
        self.taken, self.freed, self.fails_at = {}, [], None
        integer, word = ctypes.c_int32, ctypes.c_void_p
        self._functions = (
            ctypes.CFUNCTYPE(integer, ctypes.c_uint64, ctypes.POINTER(word))(self._take),
            ctypes.CFUNCTYPE(integer, word)(self._free))

    def addresses(self):
        return tuple([ctypes.cast(one, ctypes.c_void_p).value for one in self._functions])

    def _take(self, size, address):
        if len(self.taken) == self.fails_at:
            return 1
        block = ctypes.create_string_buffer(size)
        address[0] = ctypes.addressof(block)
        self.taken[address[0]] = block
        return 0

    def _free(self, address):
        self.freed.append(address)
        return 0


class CalledByItsAddress(OnTheCpu):
    """The same, whose launch is a function of C."""

    def __init__(self, *_, **__):
        super().__init__()
        self.handle, self.code = ctypes.c_void_p(3), 0
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
                                          ctypes.c_uint32, ctypes.c_void_p)(self._called)
        self.launch_address = ctypes.cast(self._function, ctypes.c_void_p).value
        self.called = 0

    def _called(self, handle, addresses, count, stream):
        assert handle == 3
        self.called += 1
        told = ctypes.string_at(addresses, 8 * count)
        is_misaligned = struct.unpack_from("2Q", told)[1] % self.slots[1].alignment != 0
        code = BAD_BINDING if is_misaligned else self.code
        if code == 0:
            self.launch(told, stream)
        return code


def aligned(values, off=0):
    block = torch.empty(4 * COUNT + 2 * ALIGNMENT, dtype=torch.uint8)
    begin = -block.data_ptr() % ALIGNMENT + off
    made = block[begin:begin + 4 * COUNT].view(torch.float32)
    return made.copy_(values)


def recording_of(step, capture, saved_from=None):
    return StepRecording(step, DiscoveredStep(step, capture, None, saved_from), True)


@pytest.fixture(name="step_of", params=[OnTheCpu, CalledByItsAddress])
def given_step(monkeypatch, request):
    """The step and what its captures found."""
    monkeypatch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
    memory = ByteAllocator() if request.param is CalledByItsAddress else None
    monkeypatch.setattr(_compat, "byte_allocator",
                        lambda: memory.addresses() if memory else (0, 0))
    monkeypatch.setattr(_compat, "current_device", lambda: 0)
    monkeypatch.setattr(_compat, "current_stream", lambda device: 7)
    monkeypatch.setattr(discovered, "CapturedStep", lambda *_: SimpleNamespace())
    monkeypatch.setattr(discovered, "CapturedRecording", request.param)
    x, w = aligned(torch.ones(COUNT)), aligned(torch.ones(COUNT))
    step = Step(lambda leaves: None, [x], [0], [x, w], units_of([x, w]), 0, [w], 0, None)
    if step.units[0].members[0][0] == 1:  # units come by address: the first shall be x
        step.units.reverse()
    rows, whole = (4, COUNT // 4), ((COUNT,), (1,), 0, torch.float32)
    result = {"y": 0, "x": 1, "rows": 2, "view": 3, "number": 4, "empty": 5}
    [flat], shape = flatten([result])
    assert flat == list(range(6))
    parts = [Fresh(0, 0, (COUNT,), (1,), torch.float32), Alias(0, None),
             Fresh(0, 0, rows, (rows[1], 1), torch.float32), Alias(1, whole), Constant(5),
             Fresh(-1, 0, (0, 3), (3, 1), torch.int64)]
    captured = Captured(None, None, [], object(), None, parts, shape,
                        gradients={0: Fresh(0, 0, (COUNT,), (1,), torch.float32)}, mutated=[1])
    blocks = [Block(0, 0, 4 * COUNT, True)] * 2 + [Block(0, 0, 4 * COUNT, False)]
    capture = SimpleNamespace(first=captured, second=captured, blocks=blocks,
                              noted=None, is_mapped=False, third=None)
    return step, capture


@pytest.fixture(name="recorded")
def recording_of_step(step_of):
    return recording_of(*step_of)


class Saving(OnTheCpu):
    """Answers y and saves x * w and x + w, the second of which lies behind the first in a block."""

    slots = [*OnTheCpu.slots, Slot(3, 4 * COUNT, 512), Slot(4, 4 * COUNT, 512)]

    def launch(self, addresses, stream):
        x, w, y, product, total, scratch, other = struct.unpack("7Q", addresses)
        super().launch(struct.pack("5Q", x, w, y, scratch, other), stream)
        for i in range(COUNT):
            floats(product)[i] = floats(x)[i] * floats(w)[i]
            floats(total)[i] = floats(x)[i] + floats(w)[i]


class SavingByItsAddress(CalledByItsAddress, Saving):
    pass


@pytest.fixture(name="saving")
def saving_pair(step_of, monkeypatch):
    """A forward's recording, and a backward's that multiplies two of its three inputs and adds
    1."""
    of_backward = discovered.CapturedRecording
    monkeypatch.setattr(discovered, "CapturedRecording",
                        Saving if of_backward is OnTheCpu else SavingByItsAddress)
    step, capture = step_of
    row = ((COUNT,), (1,), torch.float32)
    capture.first.result = [Fresh(0, 0, *row), Alias(0, None), Fresh(1, 0, *row), Fresh(2, 0, *row),
                            Fresh(2, 8, (2, 2), (1, 2), torch.float32)]
    [_], capture.first.shape = flatten([list(range(5))])
    capture.first.gradients, capture.first.mutated = {}, []
    capture.blocks += [Block(0, 0, 4 * COUNT, False)] * 2
    forward = recording_of(step, capture, saved_from=2)
    monkeypatch.setattr(discovered, "CapturedRecording", of_backward)
    capture.blocks = capture.blocks[:3]
    capture.first.result = [Fresh(0, 0, *row)]
    [_], capture.first.shape = flatten([[0]])
    return forward, recording_of(step, capture), (step, capture)


@pytest.fixture(name="memory")
def byte_memory():
    return ByteAllocator()


by_its_address = pytest.mark.parametrize("step_of", [CalledByItsAddress], indirect=True)
needs_module = pytest.mark.skipif(not quick.is_compiled, reason="what is compiled calls addresses")
