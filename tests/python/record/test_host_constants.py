# SPDX-License-Identifier: Apache-2.0
"""What a step makes on the CPU and copies to the GPU while it is captured: through pinned memory,
where each call brings the same, and not at all otherwise. The device without memory stands for the
GPU."""

from __future__ import annotations

import threading

import numpy
import pytest
import torch

from anabranch._record.capture import host_constants
from anabranch._record.capture.host_constants import HostConstants
from anabranch._record.refusals import NotRecordable

pytestmark = pytest.mark.oldest

GPU = "meta"
PINNED_BYTES = 4096


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(host_constants, "_GPU", GPU)
    # Of the CPU's tensors that a test makes, which is asked only where there is a real one.
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)


class Constants:
    def __init__(self, *guarded):
        self.bytes = torch.zeros(PINNED_BYTES, dtype=torch.uint8)
        self.constants = HostConstants(self.bytes, guarded)

    def copied(self, step):
        """What of it has come there, as numbers, one list a copy."""
        sizes = []
        take = self.constants._pinned
        self.constants._pinned = \
            lambda size: sizes.append((self.constants._used, size)) or take(size)
        with self.constants.captured():
            self.answer = step()
        return [self.bytes[begin:begin + size] for begin, size in sizes]


def floats(pieces):
    return [piece.view(torch.float32).tolist() for piece in pieces]


@pytest.mark.parametrize("make", [
    lambda: torch.tensor([1.0, 2.0], device=GPU),
    lambda: torch.tensor((1, 2), dtype=torch.float32, device=GPU),
    lambda: torch.tensor(data=[1.0, 2.0], device=torch.device(GPU)),
    lambda: torch.as_tensor([1.0, 2.0], device=GPU),
    lambda: torch.as_tensor((1, 2), torch.float32, GPU),
    lambda: torch.zeros(3, device=GPU).new_tensor([1, 2]),
    lambda: torch.tensor([1.0, 2.0]).to(GPU),
    lambda: torch.tensor([1, 2]).to(GPU, torch.float32),
    lambda: torch.arange(1.0, 3.0).to(GPU),
    lambda: (torch.ones(2) * torch.tensor([1.0, 2.0])).to(GPU),
    lambda: torch.tensor([[1.0, 9.0], [2.0, 9.0]]).T[0].to(GPU),
    lambda: torch.zeros(2, device=GPU).copy_(torch.tensor([1.0, 2.0])),
    lambda: torch.zeros(4, 2, device=GPU).copy_(torch.tensor([1, 2])),
    lambda: written().to(GPU),
], ids=range(14))
def test_numbers_of_pythons_come_through_pinned_memory(make):
    made = Constants()
    assert floats(made.copied(make)) == [[1.0, 2.0]]
    assert made.answer.device.type == GPU and made.answer.dtype == torch.float32


def written():
    """By Python's numbers, one by one."""
    made = torch.empty(2)
    for i in range(2):
        made[i] = i + 1.0
    return made


def test_one_number_and_gradients_that_are_wanted():
    made = Constants()
    assert floats(made.copied(lambda: torch.tensor(3.0, device=GPU, requires_grad=True))) == [[3.0]]
    assert made.answer.shape == () and made.answer.requires_grad and made.answer.is_leaf


def test_each_copy_has_bytes_of_its_own():
    made = Constants()
    pieces = made.copied(lambda: [torch.tensor([float(i)], device=GPU) for i in range(5)])
    assert floats(pieces) == [[float(i)] for i in range(5)]
    begins = [piece.data_ptr() for piece in pieces]
    assert all(b - a >= 256 for a, b in zip(begins, begins[1:], strict=False))


def test_the_order_of_memory_is_kept():
    made = Constants()
    made.copied(lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last).to(GPU))
    assert made.answer.is_contiguous(memory_format=torch.channels_last)


def test_indices_on_the_cpu_come_as_well():
    rows = torch.zeros(4, 2, device=GPU)

    def step():
        picked = rows[torch.tensor([2, 0])]
        rows[torch.tensor([True, False, False, True])] = torch.ones(2, device=GPU)
        return picked

    made = Constants()
    picked, masked = made.copied(step)
    assert picked.view(torch.int64).tolist() == [2, 0] and made.answer.shape == (2, 2)
    assert masked.view(torch.int64).tolist() == [0, 3]


@pytest.mark.parametrize("value", [lambda: torch.tensor(7.0), lambda: torch.full((), 7.0)])
def test_a_number_that_is_put_at_indices_comes_as_well(value):
    """Of one of Python's torch makes such a tensor where the memory is a GPU's."""
    rows = torch.zeros(4, device=GPU)
    index, number = Constants().copied(lambda: rows.index_put_((torch.tensor([2]),), value()))
    assert index.view(torch.int64).tolist() == [2] and floats([number]) == [[7.0]]


def test_lists_of_indices_come_as_well():
    rows = torch.zeros(4, 6, device=GPU)

    def step():
        picked = rows[:, [0, 5]]
        rows[[True, False, False, True]] = torch.ones(6, device=GPU)
        return picked[[1, 1, 2]]

    made = Constants()
    pieces = [piece.view(torch.int64).tolist() for piece in made.copied(step)]
    assert pieces == [[0, 5], [0, 3], [1, 1, 2]] and made.answer.shape == (3, 2)


def test_a_tensor_at_whose_changes_signatures_look_may_be_copied():
    table = torch.tensor([4.0, 5.0])
    assert floats(Constants(table).copied(lambda: table.to(GPU))) == [[4.0, 5.0]]
    assert floats(Constants(table).copied(lambda: table[1:].to(GPU))) == [[5.0]]


OUTSIDE, ARRAY = torch.ones(2), numpy.ones(2, numpy.float32)


def overwritten():
    made = torch.zeros(2)
    made.copy_(OUTSIDE)
    return made


@pytest.mark.parametrize("make", [
    lambda: OUTSIDE.to(GPU),
    lambda: (OUTSIDE + 1).to(GPU),
    lambda: torch.zeros(2, device=GPU).copy_(OUTSIDE),
    lambda: torch.rand(2).to(GPU),
    lambda: torch.zeros(2).uniform_().to(GPU),
    lambda: torch.randperm(2).to(GPU),
    lambda: torch.from_numpy(ARRAY).to(GPU),
    lambda: torch.tensor(ARRAY).to(GPU),
    lambda: torch.tensor([ARRAY[0], ARRAY[1]]).to(GPU),
    lambda: overwritten().to(GPU),
    lambda: torch.add(OUTSIDE, 1, out=torch.zeros(2)).to(GPU),
    lambda: torch.zeros(4, device=GPU)[OUTSIDE.long()],
], ids=range(12))
def test_what_may_be_something_else_in_another_call_is_refused(make):
    with pytest.raises(NotRecordable, match="not known that each call brings the same"):
        Constants().copied(make)


def test_tensors_without_memory_of_their_own_pass():
    def step():
        sparse = torch.eye(3).to_sparse()
        empty = torch.empty(0).sum()
        return (sparse.to_dense() + empty).to(GPU)

    with pytest.raises(NotRecordable, match="not known"):  # nobody knows what was in it
        Constants().copied(step)
    assert Constants().copied(lambda: torch.eye(3).to_sparse().sum()) == []


def test_more_than_the_room_takes_is_refused():
    with pytest.raises(NotRecordable, match="copies more than 4096 bytes"):
        Constants().copied(lambda: torch.zeros(2000).to(GPU))


def test_what_torch_makes_tensors_with_is_itself_afterwards_and_for_other_threads():
    names = [(torch, "tensor"), (torch, "as_tensor"), (torch.Tensor, "new_tensor"),
             (torch.Tensor, "__getitem__"), (torch.Tensor, "__setitem__")]
    before, found = [getattr(*name) for name in names], []

    def step():
        thread = threading.Thread(target=lambda: found.append(torch.tensor([1.0, 2.0])))
        thread.start()
        thread.join()
        return torch.tensor([1.0])

    made = Constants()
    assert made.copied(step) == []
    assert found[0].tolist() == [1.0, 2.0] and made.answer.tolist() == [1.0]
    with pytest.raises(ValueError, match="of the step's"), made.constants.captured():
        raise ValueError("of the step's")
    assert [getattr(*name) for name in names] == before
    assert "new_tensor" not in vars(torch.Tensor)
