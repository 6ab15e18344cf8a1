# SPDX-License-Identifier: Apache-2.0
"""Checksums tell any two runs apart, and copies come back as they were."""

from __future__ import annotations

import threading

import pytest
import torch
from stand_in_recording import StandIn

from anabranch._record.memory import host
from anabranch._record.memory.shortage import Short
from anabranch._record.trial import checksums as checksums_module
from anabranch._record.trial import copies as copies_module
from anabranch._record.trial import stages
from anabranch._record.trial.checksums import as_it_lies, checksums, on_device, pieces
from anabranch._record.trial.copies import Copies

pytestmark = pytest.mark.oldest

CPU = torch.device("cpu")


@pytest.fixture(params=["operators", "BLAKE2"])
def sums_of(request, monkeypatch):
    """Of several tensors; pieces are small, so that tensors have some."""
    monkeypatch.setattr(checksums_module, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(pieces, "__defaults__", (1 << 10,))
    checksums_module.forget_places()
    yield (lambda tensors: on_device(tensors, CPU)) if request.param == "operators" else checksums
    checksums_module.forget_places()


def tensors():
    torch.manual_seed(0)
    return [torch.randn(300), torch.randn(40, 30).t(), torch.randn(7, 5, 3)[:, 1],
            torch.tensor(True),
            torch.randn(0, 3), torch.randn(9, dtype=torch.cfloat).conj(), torch.randn(1001).half(),
            torch.randint(0, 9, (513,), dtype=torch.uint8)]


def test_equal_tensors_have_equal_sums_wherever_they_stand(sums_of):
    given = tensors()
    found = sums_of(given)
    assert found == sums_of([tensor.clone() for tensor in given])
    assert found == [sums_of([tensor])[0] for tensor in given]
    assert list(reversed(found)) == sums_of(list(reversed(given)))


def test_what_is_large_and_pinned_is_hashed_on_the_gpu(monkeypatch):
    sent = []

    def on_gpu(tensors, device):
        sent.extend((tensor.numel(), device.type) for tensor in tensors)
        return on_device(tensors, CPU)

    large, small, pageable = torch.ones(1 << 18), torch.ones(9), torch.zeros(1 << 18)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor is not pageable)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(checksums_module, "on_device", on_gpu)
    found = checksums([small, large, pageable])
    assert sent == [(1 << 18, "cuda")] and found[1] == on_device([large], CPU)[0]
    assert [found[0], found[2]] == checksums([small, pageable])


def test_each_changed_byte_changes_the_sum(sums_of):
    whole = torch.randint(0, 256, (2500,), dtype=torch.uint8)
    [before] = sums_of([whole])
    for i in (0, 1, 7, 8, 1023, 1024, 2047, 2048, 2499):
        for bit in (1, 128):
            other = whole.clone()
            other[i] ^= bit
            [found] = sums_of([other])
            assert found[0] != before[0] and found[1] != before[1], i


def test_what_changes_places_or_signs_changes_the_sum(sums_of):
    whole = torch.randn(700, dtype=torch.float64)  # of several pieces
    sums = set(sums_of([whole]))
    swapped, moved, turned = whole.clone(), whole.roll(128), whole.clone()
    swapped[[3, 131]] = whole[[131, 3]]  # the same place in two pieces
    turned[5], turned[77] = -whole[5], -whole[77]
    for other in (swapped, moved, turned, whole[:699], torch.cat((whole, torch.zeros(1)))):
        assert sums.isdisjoint(sums_of([other]))
        sums.update(sums_of([other]))


def test_pieces_are_the_bytes_in_the_order_in_which_they_lie():
    for tensor in [*tensors(), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]:
        lies = as_it_lies(tensor)
        wanted = lies.contiguous().resolve_conj().reshape(-1).view(torch.uint8)
        for most in (16, 100 * 1024):
            found = list(pieces(tensor, most))
            assert all(piece.numel() <= most for piece in found)
            assert torch.equal(torch.cat([wanted[:0], *found]), wanted)


def test_a_tensor_that_fills_its_memory_is_hashed_as_it_lies_there():
    """Whatever the order of its dimensions: no copy of it is made."""
    filling = [torch.randn(40, 30).t(), torch.randn(2, 3, 4, 5).permute(2, 0, 3, 1),
               torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    for tensor in filling:
        lies = as_it_lies(tensor)
        assert lies.is_contiguous() and lies.data_ptr() == tensor.data_ptr()
        assert [piece.data_ptr() for piece in pieces(tensor)] == [tensor.data_ptr()]
    for tensor in (torch.randn(7, 5, 3)[:, 1], torch.randn(3, 1).expand(3, 4),
                   torch.randn(4, 4, dtype=torch.cfloat).mH):
        assert [piece.data_ptr() for piece in pieces(tensor)] != [tensor.data_ptr()]


@pytest.mark.parametrize("granted", [0, 1 << 30], ids=["host", "GPU"])
def test_copies_come_back_and_are_compared_piece_by_piece(monkeypatch, granted):
    StandIn(monkeypatch)
    given = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (10_000, 0, 1, 4096, 63)]
    given.append(torch.randint(0, 256, (4097,), dtype=torch.uint8)[1:])  # no word begins there
    wanted = [tensor.clone() for tensor in given]
    copies = Copies(given, granted)
    assert copies.where == ("GPU" if granted else "host")
    for tensor in given:
        tensor.zero_()
    found = [torch.empty(0, dtype=torch.uint8)] * len(given)
    for i, now, then in copies.pieces(dict(enumerate(given))):
        assert not now.any() and now.numel() == then.numel()
        found[i] = torch.cat((found[i], then))
    assert all(map(torch.equal, found, wanted))
    copies.put_back(given)
    assert all(map(torch.equal, given, wanted))


def test_small_tensors_go_many_at_a_time(monkeypatch):
    """To the host and back: a copy costs the CPU as much as that of megabytes."""
    StandIn(monkeypatch)  # stages of 4 KiB
    sent, fetched = [], []
    for name, calls in (("send", sent), ("fetch", fetched)):
        original = getattr(stages.Stages, name)
        monkeypatch.setattr(stages.Stages, name, lambda self, *of_what, original=original,
                            calls=calls: calls.append(1) or original(self, *of_what))
    given = [torch.full((9,), i, dtype=torch.uint8) for i in range(250)]  # 64 bytes each
    given.insert(100, torch.randint(0, 9, (10_000,), dtype=torch.uint8))
    wanted = [tensor.clone() for tensor in given]
    copies = Copies(given, 0)
    assert len(fetched) <= 8  # three of which are the large one's
    for tensor in given:
        tensor.zero_()
    copies.put_back(given, but=[100])
    assert len(sent) <= 5 and not given[100].any()
    copies.put_back(given)
    assert all(map(torch.equal, given, wanted))


@pytest.mark.parametrize("threads", [0, 1, 100])
def test_copies_come_back_however_few_threads_the_system_starts(monkeypatch, threads):
    StandIn(monkeypatch)
    start, started = threading.Thread.start, []

    def start_some(thread):
        if len(started) >= threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(4))
    given = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (300_000, 5)]
    wanted = [tensor.clone() for tensor in given]
    copies = Copies(given, 0)
    for tensor in given:
        tensor.zero_()
    copies.put_back(given)
    copies.close()
    assert all(map(torch.equal, given, wanted))


def test_copies_that_the_host_has_no_room_for_are_refused_with_both_numbers(monkeypatch):
    StandIn(monkeypatch)
    monkeypatch.setattr(copies_module, "host_free_bytes", lambda: 1000)
    with pytest.raises(Short, match="wanted 2048 bytes of the host's memory, of which 1000 bytes"):
        Copies([torch.zeros(2048, dtype=torch.uint8)], 0)


def test_copies_beyond_a_limit_of_the_process_are_refused(monkeypatch):
    """As `ulimit -v` sets it: the system has the memory, and the process does not get it."""
    StandIn(monkeypatch)

    def limited(size_bytes):
        raise OSError(12, "Cannot allocate memory")

    given = [torch.zeros(20_000, dtype=torch.uint8)]
    monkeypatch.setattr(copies_module, "fresh_bytes", limited)
    with pytest.raises(Short, match="host's memory"):
        Copies(given, 0)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_fresh_bytes_are_as_many_as_asked_for_and_hold_what_is_moved_there(size):
    given = torch.randint(0, 256, (size,), dtype=torch.uint8)
    kept = host.fresh_bytes(size)
    assert kept.numel() == size and not kept.any()
    host.move_bytes(kept, given)
    assert torch.equal(kept, given)


def test_the_hosts_free_memory_is_what_the_system_says():
    assert 0 < host.host_free_bytes() < 1 << 50
