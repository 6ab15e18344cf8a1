# SPDX-License-Identifier: Apache-2.0
"""What torch's allocator gives out one behind the other at one address of a capture is of one
size."""

from __future__ import annotations

import contextlib
import random

import pytest

from anabranch import _compat
from anabranch._compat import Event
from anabranch._record.capture.preallocate import noted_sizes, sizes_in_use

pytestmark = pytest.mark.oldest

MIB = 1 << 20
# torch's blocks for what is up to 1 MiB, which are kept apart, and for what is between that and 10.
SMALL, LARGE = 2 * MIB, 20 * MIB


class Pool:
    """torch's allocator in a pool that is not split, as far as sizes go: the smallest free block
    that is large enough, else a new one."""

    def __init__(self, ahead=()):
        self.free, self.made, self.tenants = [], 0, {}
        for number in [self.allocate(size) for size in ahead]:
            self.release(number)
        self.tenants.clear()

    def allocate(self, size):
        large_enough = [block for block in self.free
                        if block[0] >= size and (block[0] == SMALL) == (size <= MIB)]
        if large_enough:
            block = min(large_enough)
            self.free.remove(block)
        else:
            self.made += 1
            exact = -(-size // (2 * MIB)) * 2 * MIB
            block = (SMALL if size <= MIB else LARGE if size < 10 * MIB else exact, self.made)
        self.tenants.setdefault(block, []).append(size)
        return block

    def release(self, block):
        self.free.append(block)


def events_of(seed, steps=400):
    """Of a run that allocates and frees at random, at addresses that are used again."""
    generator = random.Random(seed)
    alive, free, events, last = [], [], [], 0
    for _ in range(steps):
        if alive and generator.random() < 0.45:
            address, size = alive.pop(generator.randrange(len(alive)))
            free.append(address)
            events.append(Event(address, size, True))
        else:
            last += 1
            address = free.pop() if free else last
            size = generator.choice([300, MIB, 3 * MIB, 9 * MIB, 10 * MIB, 12 * MIB, 41 * MIB,
                                     90 * MIB])
            alive.append((address, size))
            events.append(Event(address, size, False))
    return events


def tenants_of(events, ahead):
    """By block of a capture that allocates alike."""
    pool, at = Pool(ahead), {}
    for event in events:
        if event.is_freed:
            pool.release(at.pop(event.address))
        else:
            at[event.address] = pool.allocate(event.bytes)
    return pool.tenants.values()


def apart(tenants):
    """How many bytes the largest at an address has more than the smallest, beyond what torch tells
    apart."""
    return [max(sizes) - min(sizes) for sizes in tenants
            if max(sizes) > 10 * MIB and max(sizes) - min(sizes) >= 2 * MIB]


@pytest.mark.parametrize("seed", range(20))
def test_all_that_is_at_one_address_is_of_one_size(seed):
    events = events_of(seed)
    assert apart(tenants_of(events, [])), "torch's own choice would do as well"
    assert not apart(tenants_of(events, sizes_in_use(events)))


def test_there_are_two_more_of_a_size_than_are_in_use_at_once():
    a, b, c = 41 * MIB, 16 * MIB + 5, 3 * MIB
    events = [Event(1, a, False), Event(1, a, True), Event(2, a, False), Event(3, b, False),
              Event(4, b, False),
              Event(5, c, False), Event(6, 100, False), Event(99, a, True)]
    assert sizes_in_use(events) == [*[10 * MIB] * 3, *[18 * MIB] * 4, *[42 * MIB] * 3]


@pytest.mark.parametrize("begins", [True, False])
def test_a_run_goes_on_where_its_history_cannot_be_told(monkeypatch, begins):
    def lost():
        raise RuntimeError("the recorded memory history is too short; raise its max_entries")

    def memory_history(device):
        if not begins:
            raise KeyError("segments")
        return contextlib.nullcontext(lost)

    monkeypatch.setattr(_compat, "memory_history", memory_history)
    with noted_sizes(0) as sizes:
        assert sizes() == []


def test_errors_of_the_run_are_its_own(monkeypatch):
    monkeypatch.setattr(_compat, "memory_history", lambda device: contextlib.nullcontext())
    with pytest.raises(ZeroDivisionError), noted_sizes(0):
        raise ZeroDivisionError
