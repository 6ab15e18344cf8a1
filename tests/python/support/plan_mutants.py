# SPDX-License-Identifier: Apache-2.0
"""Plan files with one wait taken out or led elsewhere; what they leave unordered, by brute force;
and what a run of them gives when a step is slow.

Nothing is shared with the checker: files are read by the schema in src/plan/plan.fbs, every pair of
steps is looked at byte by byte, and runs take place here.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct
import zlib
from collections.abc import Iterator, Sequence

from anabranch._core.program import KIND_RECORD_EVENT, KIND_SYNCHRONIZE, KIND_WAIT_EVENT

_HEADER_BYTES = 32
_NOT_IN_ARENA = 2**64 - 1
_BUFFERS, _STEPS, _ORDER, _WAITS = 2, 3, 4, 5  # fields of the file's root
_RECORD, _WAIT, _SYNCHRONIZE = (KIND_RECORD_EVENT, KIND_WAIT_EVENT,
                                KIND_SYNCHRONIZE)


class _Table:
    """A table of a FlatBuffer, or a vector of such."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def _find(self, field: int) -> int:
        start = self.at - struct.unpack_from("<i", self.data, self.at)[0]
        place = 4 + 2 * field
        if place >= struct.unpack_from("<H", self.data, start)[0]:
            return 0
        offset = struct.unpack_from("<H", self.data, start + place)[0]
        return self.at + offset if offset else 0

    def number(self, field: int, kind: str, default: int = 0) -> int:
        at = self._find(field)
        return struct.unpack_from("<" + kind, self.data, at)[0] if at else default

    def vector(self, field: int) -> tuple[int, int]:
        """Where the first item is, and how many."""
        at = self._find(field)
        if not at:
            return 0, 0
        at += struct.unpack_from("<I", self.data, at)[0]
        return at + 4, struct.unpack_from("<I", self.data, at)[0]

    def tables(self, field: int) -> list[_Table]:
        start, count = self.vector(field)
        places = [start + 4 * i for i in range(count)]
        return [_Table(self.data, at + struct.unpack_from("<I", self.data, at)[0])
                for at in places]

    def structs(self, field: int, layout: str) -> list[tuple[int, ...]]:
        start, count = self.vector(field)
        size = struct.calcsize(layout)
        return list(struct.iter_unpack(layout, self.data[start:start + size * count]))


@dataclasses.dataclass(frozen=True)
class Access:
    reads: bool
    writes: bool
    buffer: int
    ranges: tuple[tuple[int, int], ...]  # of addresses
    mask: int  # a bit for each


@dataclasses.dataclass(frozen=True)
class Step:
    kind: int
    stream: int
    event: int
    accesses: tuple[Access, ...]


class PlanFile:
    def __init__(self, data: bytes) -> None:
        self._data = data
        payload = data[_HEADER_BYTES:]
        self._root = _Table(payload, struct.unpack_from("<I", payload)[0])
        self.tenants: dict[int, tuple[int, int]] = {}  # of the arena: addresses
        addresses = self._addresses()
        self.steps = [self._step(table, addresses) for table in self._root.tables(_STEPS)]
        self.order = [number for number, in self._root.structs(_ORDER, "<I")]
        self.waits = self._root.structs(_WAITS, "<II")

    def _addresses(self) -> list[tuple[int, int]]:
        """Begin and end of each buffer: the arena first, the others behind it."""
        buffers = [(b.number(2, "Q"), b.number(4, "Q", _NOT_IN_ARENA))
                   for b in self._root.tables(_BUFFERS)]
        free = max((size + offset for size, offset in buffers if offset != _NOT_IN_ARENA),
                   default=0)
        self._arena_bytes = free
        found = []
        for number, (size, offset) in enumerate(buffers):
            if offset != _NOT_IN_ARENA:
                self.tenants[number] = (offset, offset + size)
                found.append(self.tenants[number])
            else:
                found.append((free, free + size))
                free += size
        self._memory_bytes = free
        return found

    def _step(self, table: _Table, addresses: list[tuple[int, int]]) -> Step:
        accesses = []
        for access in table.tables(4):
            mode, buffer = access.number(0, "B"), access.number(1, "I")
            ranges = tuple(_ranges(access, addresses[buffer][0]))
            mask = sum(((1 << end - begin) - 1) << begin for begin, end in ranges)
            accesses.append(Access(bool(mode & 1), bool(mode & 2), buffer, ranges, mask))
        return Step(table.number(0, "B"), table.number(1, "I"), table.number(5, "I"),
                    tuple(accesses))

    def with_waits(self, waits: Sequence[tuple[int, ...]]) -> bytes:
        """A file of as many waits or fewer."""
        start, count = self._root.vector(_WAITS)
        assert len(waits) <= count
        payload = bytearray(self._data[_HEADER_BYTES:])
        struct.pack_into("<I", payload, start - 4, len(waits))
        for i, wait in enumerate(waits):
            struct.pack_into("<II", payload, start + 8 * i, *wait)
        return self._data[:24] + struct.pack("<Q", _checksum(payload)) + payload

    def lost(self, waits: Sequence[tuple[int, ...]]) -> set[tuple[int, int]]:
        """Pairs whose order nothing keeps any more."""
        before = self._closure(waits)
        return {(a, b) for a, b in self._demands() if not before[b] >> a & 1}

    def _closure(self, waits: Sequence[tuple[int, ...]]) -> list[int]:
        makers: dict[int, list[int]] = {}
        for step, on in waits:
            makers.setdefault(step, []).append(on)
        before = [0] * len(self.steps)
        last: dict[int, int] = {}
        for step in self.order:
            stream = self.steps[step].stream
            for maker in [*makers.get(step, ()), *([last[stream]] if stream in last else [])]:
                before[step] |= before[maker] | 1 << maker
            last[stream] = step
        return before

    def _demands(self) -> Iterator[tuple[int, int]]:
        """Conflicts in program order, tenants in the order of their lives, and what syncs order."""
        for a, b in itertools.combinations(range(len(self.steps)), 2):
            if any(one.mask & other.mask and (one.writes or other.writes)
                   and one.buffer == other.buffer
                   for one in self.steps[a].accesses for other in self.steps[b].accesses):
                yield a, b
        yield from self._demands_of_tenants()
        records: dict[int, int] = {}
        for i, step in enumerate(self.steps):
            if step.kind == _WAIT and step.event in records:
                yield records[step.event], i
            elif step.kind == _RECORD:
                records[step.event] = i
            elif step.kind == _SYNCHRONIZE:
                yield from ((i, later) for later in range(i + 1, len(self.steps)))

    def _demands_of_tenants(self) -> Iterator[tuple[int, int]]:
        users: dict[int, list[int]] = {}
        for step in self.order:
            for buffer in {access.buffer for access in self.steps[step].accesses}:
                users.setdefault(buffer, []).append(step)
        place = {step: i for i, step in enumerate(self.order)}
        lives = sorted((place[users[buffer][0]], buffer) for buffer in self.tenants
                       if buffer in users)
        for (_, one), (_, other) in itertools.combinations(lives, 2):
            (begin, end), (start, stop) = self.tenants[one], self.tenants[other]
            if begin < stop and start < end:
                yield from itertools.product(users[one], users[other])

    def run(self, waits: Sequence[tuple[int, ...]], slow: int | None, seed: int) -> list[int]:
        """What each step read, and what memory holds at the end, as numbers. Each lane goes on as
        soon as it may; steps take times drawn from the seed, and one of them takes very long."""
        memory = bytearray(self._memory_bytes)
        read = [0] * len(self.steps)
        for step in self._by_end(waits, slow, seed):
            seen = b"".join(bytes(memory[begin:end]) for access in self.steps[step].accesses
                            if access.reads for begin, end in access.ranges)
            read[step] = zlib.crc32(seen, step)
            for number, access in enumerate(self.steps[step].accesses):
                for begin, end in access.ranges if access.writes else ():
                    made = struct.pack("<II", read[step], step * 64 + number + 1)  # never zeros
                    memory[begin:end] = (made * (end - begin))[:end - begin]
        return [*read, zlib.crc32(memory[self._arena_bytes:])]

    def _by_end(self, waits: Sequence[tuple[int, ...]], slow: int | None, seed: int) -> list[int]:
        """Steps as they end: work takes effect then."""
        draw = random.Random(seed)
        makers: dict[int, list[int]] = {}
        for step, on in waits:
            makers.setdefault(step, []).append(on)
        ends: dict[int, float] = {}
        free: dict[int, float] = {}
        for step in self.order:
            stream = self.steps[step].stream
            start = max([free.get(stream, 0.0), *(ends[on] for on in makers.get(step, ()))])
            ends[step] = free[stream] = start + (1e6 if step == slow else 1 + draw.random())
        return sorted(ends, key=ends.__getitem__)


def _ranges(access: _Table, base: int) -> Iterator[tuple[int, int]]:
    """Addresses of a strided view, neighbours as one."""
    offset, item = access.number(2, "Q"), access.number(3, "Q")
    dims = access.structs(4, "<Qq")
    starts = sorted(base + offset + sum(i * stride for i, (_, stride) in
                                        zip(place, dims, strict=True))
                    for place in itertools.product(*(range(size) for size, _ in dims)))
    begin = end = None
    for start in starts:
        if end is None or start > end:
            if begin is not None:
                yield begin, end
            begin = start
        end = max(end or 0, start + item)
    if begin is not None:
        yield begin, end


def _checksum(payload: bytes) -> int:
    total = 0xCBF29CE484222325
    for byte in payload:
        total = (total ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return total
