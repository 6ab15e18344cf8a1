# SPDX-License-Identifier: Apache-2.0
"""Copies on streams of their own, on a GPU that runs its streams in any order that waits allow."""

import gc
import re
import weakref
from pathlib import Path

import pytest
import torch
from stand_in_gpu import Event, Gpu, Raw

from anabranch._offload import copies, host_memory
from anabranch._record.memory import lasting
from anabranch._record.refusals import Cause
from anabranch.errors import RecordWarning

pytestmark = pytest.mark.oldest
HOST = torch.device("cpu")
SIZE = 96
NUMBERS = torch.arange(24, dtype=torch.float32)


class StandInLanes(copies.Lanes):
    """Lanes of a stand-in GPU."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.out, self.into = (gpu.side(gpu.main, name, 0) for name in ("out", "in"))
        self._begun, self._captured = {}, {}
        self.is_in_capture = False

    def current(self):
        return self.gpu.ambient()

    def is_captured(self):
        return self.is_in_capture

    def mark(self, stream):
        event = Event()
        stream.record_event(event)
        event.query = lambda: event.mark.is_reached
        return event

    def copy(self, stream, to, source):
        target, origin = Raw(to), Raw(source)
        stream.queue.append(lambda: target.tensor().copy_(origin.tensor()))

    def empty(self, size, stride, dtype):
        return self.gpu.empty(size, stride, dtype)


@pytest.fixture
def lanes(monkeypatch):
    made = StandInLanes(Gpu())
    monkeypatch.setattr(copies, "_lanes", {HOST: made})
    monkeypatch.setattr(copies, "is_apart", lambda host, device: True)
    return made


def there_and_back(lanes, host, is_late=False):
    """As a forward and a backward do; other work takes all memory that is given back. ``is_late``:
    the copy out is under way when the forward ends."""
    gpu, ops = lanes.gpu, copies.OPERATORS
    value = gpu.put(NUMBERS)
    ops.copy_out(host, value, 0, [1])
    gpu.read(value)
    (ops.still_copied if is_late else ops.copied_out)(host, value, 0)
    del value
    gpu.spoil(SIZE)
    if is_late:
        ops.let_go(host, 0)
        gpu.spoil(SIZE)
    back = ops.copy_in(host, 0, [4, 6], [6, 1], torch.float32, HOST)
    gpu.spoil(SIZE)
    ops.copied_in(back)
    found = gpu.read(back)
    del back
    gpu.spoil(SIZE)
    gpu.run()
    return found[0]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_tensor_comes_back_as_it_went_whatever_streams_do(lanes, seed, is_late):
    lanes.gpu.random.seed(seed)
    host = torch.full((SIZE,), 0x5A, dtype=torch.uint8)
    assert torch.equal(there_and_back(lanes, host, is_late), NUMBERS.view(4, 6))
    assert lanes._begun == {}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("left_out", ["wait", "mark"])
def test_without_either_wait_some_order_is_wrong(lanes, monkeypatch, left_out, is_late):
    """So the test above would see it."""
    if left_out == "wait":
        monkeypatch.setattr(lanes, "wait",
                            lambda written, instead=None: lanes._begun.pop(written))
    else:
        kept = lanes.mark
        monkeypatch.setattr(lanes, "mark", lambda stream: Event() if stream is lanes.gpu.main
                            else kept(stream))
    are_right = []
    for seed in range(40):
        lanes.gpu.random.seed(seed)
        host = torch.full((SIZE,), 0x5A, dtype=torch.uint8)
        are_right.append(torch.equal(there_and_back(lanes, host, is_late), NUMBERS.view(4, 6)))
    assert not all(are_right)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_block_that_serves_again_is_written_when_it_has_been_read(lanes, is_told):
    """The next call is on a stream that nothing orders behind the first one."""
    gpu, ops, are_right = lanes.gpu, copies.OPERATORS, []
    for seed in range(40):
        gpu.random.seed(seed)
        host = torch.zeros(SIZE, dtype=torch.uint8)
        value = gpu.put(NUMBERS)
        ops.copy_out(host, value, 0, [1])
        ops.copied_out(host, value, 0)
        back = ops.copy_in(host, 0, [24], [1], torch.float32, HOST)
        ops.copied_in(back)
        found = gpu.read(back)
        gpu.enter(gpu.side(gpu.main, "other", 0))
        other = gpu.put(-NUMBERS)
        if is_told:
            lanes.begin_call()
        ops.copy_out(host, other, 0, [1])
        ops.copied_out(host, other, 0)
        gpu.enter(gpu.main)
        gpu.run()
        are_right.append(torch.equal(found[0], NUMBERS))
    assert all(are_right) == is_told


def test_what_a_broken_call_was_copying_is_held_until_it_is_copied(lanes):
    value = lanes.gpu.put(NUMBERS)
    host = torch.zeros(SIZE, dtype=torch.uint8)
    copies.OPERATORS.copy_out(host, value, 0, [1])
    watched = weakref.ref(value)
    del value  # the call raises here
    lanes.begin_call()
    gc.collect()
    assert watched() is not None or lanes._begun
    lanes.gpu.run()
    lanes.begin_call()
    assert lanes._begun == {} and torch.equal(host.view(torch.float32), NUMBERS)


def test_a_capture_that_broke_is_not_waited_for(lanes):
    host = torch.zeros(SIZE, dtype=torch.uint8)
    lanes.is_in_capture = True
    copies.OPERATORS.copy_out(host, lanes.gpu.put(NUMBERS), 0, [1])
    lanes.is_in_capture = False
    assert torch.equal(there_and_back(lanes, host), NUMBERS.view(4, 6))
    assert lanes._captured == {}


def test_a_tensor_that_lies_otherwise_than_it_was_traced_is_moved_as_it_was_traced():
    host = torch.zeros(SIZE, dtype=torch.uint8)
    value = NUMBERS.view(2, 3, 4).permute(0, 2, 1)  # (2, 4, 3), and nothing is contiguous
    copies.OPERATORS.copy_out(host, value, 0, [12, 3, 1])
    back = copies.OPERATORS.copy_in(host, 0, [2, 4, 3], [12, 3, 1], torch.float32, HOST)
    assert torch.equal(back, value) and back.is_contiguous()


def raising(words):
    def raises(*args, **kwargs):
        raise RuntimeError(words)
    return raises


class Device:
    """Stands for a GPU where none is asked for anything."""

    type = "cuda"


@pytest.fixture
def blocks(monkeypatch):
    """Which blocks are asked for, by device; those of the GPU are the host's here."""
    asked = []
    monkeypatch.setattr(host_memory, "_bytes", lambda size, device: asked.append(device)
                        or torch.zeros(size, dtype=torch.uint8))
    return asked


def test_without_pinned_memory_tensors_stay_on_the_gpu_and_it_is_told(blocks, monkeypatch):
    monkeypatch.setattr(host_memory, "pinned", raising("CUDA error: out of memory"))
    device = Device()
    with pytest.warns(match="no 64 bytes of pinned memory are to be had.*out of memory") as told:
        host_memory.take(device, 64, is_allowed=False)
    assert blocks == [device] and f"[E{Cause.NOT_OFFLOADED:04d}]" in str(told[0].message)


def test_without_room_on_the_gpu_either_they_are_in_pageable_memory(monkeypatch):
    monkeypatch.setattr(host_memory, "pinned", raising("out of memory"))
    given = []

    def give(size, device):
        given.append(device)
        if device != HOST:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.zeros(size, dtype=torch.uint8)

    monkeypatch.setattr(host_memory, "_bytes", give)
    assert host_memory.take(Device(), 64, is_allowed=True).numel() == 64
    assert given[-1] == HOST


def test_where_hooks_see_what_is_saved_it_stays_on_the_gpu(blocks):
    device = Device()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), \
            pytest.warns(match="hooks on saved tensors"):
        host_memory.take(device, 64, is_allowed=False)
    assert blocks == [device]


def test_both_captures_of_a_step_get_the_same_blocks(monkeypatch):
    monkeypatch.setattr(lasting, "pinned_bytes", lambda size: torch.zeros(size, dtype=torch.uint8))
    blocks = lasting.PinnedBlocks()
    captures = []
    for _ in range(2):
        first, second = blocks.take(64), blocks.take(64)
        again = [first.data_ptr(), second.data_ptr()]
        del first
        again.append(blocks.take(64).data_ptr())
        captures.append(again)
        del second
    assert captures[0] == captures[1] and len(set(captures[0])) == 2


def test_the_page_shows_what_is_told_of_hooks(blocks):
    page = (Path(__file__).parents[3] / "docs/errors.md").read_text()
    section = re.search(r"^## E0339 .*?(?=^## )", page, re.MULTILINE | re.DOTALL)[0]
    text, code = (re.search(rf"^```{language}\n(.*?)\n```", section, re.MULTILINE | re.DOTALL)[1]
                  for language in ("text", "python"))
    inside = {"__name__": "torch.compiled", "take": host_memory.take, "device": Device()}
    model = eval("lambda x: take(device, 64, False)", inside)  # as code of torch's
    with pytest.warns(RecordWarning) as told:
        exec(compile(code, "/home/you/train.py", "exec"),
             {"__name__": "train", "torch": torch, "model": model, "x": torch.ones(1)})
    assert str(told[0].message) == text
