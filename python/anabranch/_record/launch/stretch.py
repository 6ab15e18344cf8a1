# SPDX-License-Identifier: Apache-2.0
"""One graph of a recording, and the addresses that a launch gives it.

Most steps are one stretch. A backward is cut into several where its launch would take more memory
than a plain run: what a forward has saved is freed between them, and gradients are allocated then.

Threads: any, several at once. Failure: NativeError, torch's errors; nothing has been queued then.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import CapturedRecording
from anabranch._core.library import last_error
from anabranch._record import quick
from anabranch._record.capture.labels import Label
from anabranch._record.capture.stand_ins import Swaps, wait_for_captures
from anabranch._record.capture.step import Step
from anabranch._record.checks import packed
from anabranch._record.launch.output_buffers import OutputBuffers, in_blocks
from anabranch._record.launch.timing import Timer
from anabranch._record.quick import addresses
from anabranch._record.tensors import Unit, whole_bytes

_address: Callable[[Tensor], int] = Tensor.data_ptr


class Stretch:
    """``passed`` says where memory is that one stretch leaves for another, by its block: in which
    base, behind those of ``buffers``, and at which byte. ``words`` is how many words a launch
    gives, ``first_slot`` how many of the stretches before it name given tensors."""

    def __init__(self, recording: CapturedRecording, labels: Sequence[Label | None], step: Step,
                 buffers: OutputBuffers, passed: Mapping[int, tuple[int, int]], words: int,
                 first_slot: int) -> None:
        self.recording, self.labels = recording, labels
        self.timer: Timer | None = None
        self.units: list[Unit] = []  # of given tensors
        self.alignments: list[tuple[int, int]] = []  # of these
        self.buffers: set[int] = set()  # that it names
        places = self._name_slots(step, buffers, passed)
        self.slot_count = len(self.alignments) + len(places)
        self.bases = {base for base, _ in places}
        self._slots = slice(8 * first_slot, 8 * (first_slot + len(self.alignments)))
        self._given_slots = packed([index for index, _ in self.alignments])
        self._base_slots = packed([base for base, _ in places])
        self._base_offsets = packed([offset for _, offset in places])
        self._parts = [((size,), (1,), torch.uint8) for size in recording.parts]
        self._part_sizes = packed(recording.parts)
        self.arena_bytes = sum(recording.parts)
        self._allocate, self._free = _compat.byte_allocator()
        self._is_called_directly = quick.tells_addresses and recording.launch_address != 0 \
            and (not self._parts or self._allocate != 0 != self._free)
        self._launch: Any = None  # by the address of its function, made when it is wanted
        self._pack_rest = struct.Struct(f"{len(self._parts) + words}Q").pack

    def _name_slots(self, step: Step, buffers: OutputBuffers,
                    passed: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
        """Where the slots behind those of given tensors are: in which base, and at which byte."""
        given, places = len(step.units), []
        for slot in self.recording.slots:
            if slot.block < given:
                unit = step.units[slot.block]
                self.units.append(unit)
                self.alignments.append((unit.members[0][0], slot.alignment))
            elif slot.block in passed:
                places.append(passed[slot.block])
            else:
                buffer = buffers.of[slot.block - given]
                self.buffers.add(buffer)
                places.append(buffers.place(buffer))
        return places

    def allocate_parts(self) -> list[Tensor]:
        return list(itertools.starmap(_compat.empty_strided_cuda, self._parts))

    def poisoned(self, poison: int, fresh: Sequence[Tensor]) -> list[Tensor]:
        """The parts of its arena, filled with this byte as what is fresh is."""
        parts = self.allocate_parts()
        for tensor in (*fresh, *parts):
            whole_bytes(tensor).fill_(poison)
        return parts

    def queue(self, device: int, given: Sequence[Any], offsets: bytes, bases: Sequence[Any],
              parts: Sequence[Tensor] | None, words: Sequence[int],
              before: Callable[[], Any] | None = None) -> None:
        """The launch itself, on the current stream. It takes the parts of its arena where there are
        none; ``before`` is called when all that can be refused beforehand has been."""
        recording, stream = self.recording, _compat.current_stream(device)
        timer, offsets = self.timer, offsets[self._slots]
        if parts is None and (launch := self.launch) is not None:
            code = launch.queue(given, offsets, bases, words, before, stream)
            if code == 0:
                return
            if code is not None:
                raise last_error()
        parts = self.allocate_parts() if parts is None else parts
        gathered = self._gather(given, offsets, bases, parts, words)
        if before is not None:
            before()
        (recording if timer is None else timer).launch(gathered, stream)

    @property
    def launch(self) -> Any:
        """A quick.module.Launch; None where launches are timed, or not called by their address."""
        if not self._is_called_directly or self.timer is not None:
            return None
        if self._launch is None:
            recording = self.recording
            self._launch = quick.module.Launch(
                recording.launch_address, recording.handle.value or 0, Swaps,
                (self._given_slots, self._base_slots, self._base_offsets),
                (self._part_sizes, self._allocate, self._free))
        return self._launch

    def exchange(self, recording: CapturedRecording) -> None:
        """From now on it is this graph, which names the same memory."""
        self.recording, self._launch = recording, None

    def _gather(self, given: Sequence[Any], offsets: bytes, bases: Sequence[Any],
                parts: Sequence[Tensor], words: Sequence[int] = ()) -> bytes:
        """One address a slot, and one a part of the arena."""
        fresh = addresses(bases, self._base_offsets, self._base_slots) \
            + self._pack_rest(*map(_address, parts), *words)
        return steady_addresses(given, offsets, self._given_slots) + fresh

    def time(self, every: int | None) -> None:
        self.timer = Timer(self.recording, self.labels, every)

    def time_no_more(self) -> None:
        if self.timer is not None:
            self.timer.close()
            self.timer = None


def passed_between(recordings: Sequence[CapturedRecording], is_passed: Callable[[int], bool],
                   first_base: int) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """Where blocks are that one stretch leaves for another, and the bytes of these bases. Small
    ones that the same stretches are the first and the last to name share a base: to allocate one
    costs a launch some microseconds."""
    turns: dict[int, tuple[int, int]] = {}  # the first and the last to name a block
    size_of: dict[int, int] = {}
    for turn, recording in enumerate(recordings):
        for slot in recording.slots:
            if is_passed(slot.block):
                turns[slot.block] = turns.get(slot.block, (turn, turn))[0], turn
                size_of[slot.block] = max(size_of.get(slot.block, 0), slot.size_bytes)
    alike: dict[tuple[int, int], list[int]] = {}
    for block, named in turns.items():
        alike.setdefault(named, []).append(block)
    places: dict[int, tuple[int, int]] = {}
    ends: dict[int, int] = {}  # of the bases
    for blocks in alike.values():
        first = first_base + len(ends)
        for block, (base, at) in zip(blocks, in_blocks(size_of[block] for block in blocks),
                                     strict=True):
            places[block] = first + base, at
            ends[first + base] = at + size_of[block]
    return places, list(ends.values())


def last_named(named: Sequence[Collection[int]]) -> list[list[int]]:
    """Of the numbers that each names, those that none behind it names."""
    found: list[list[int]] = []
    later: set[int] = set()
    for some in reversed(named):
        found.insert(0, sorted(set(some) - later))
        later.update(some)
    return found


def steady_addresses(given: Sequence[Any], offsets: bytes, slots: bytes) -> bytes:
    """Of tensors that are given. While another thread captures, they may have stand-ins'
    memory."""
    while True:
        before = Swaps.count
        at = addresses(given, offsets, slots)
        if before == Swaps.count and before % 2 == 0:
            return at
        wait_for_captures()


# One stretch has it at a time.
_LARGEST = ("lanes", "captured_lanes", "arena_bytes", "arena_lower_bound_bytes")
_LAUNCHED = ("launched_unchanged", "launched_from_host", "launched_from_device")


def total(counts: Sequence[CaptureCounts]) -> CaptureCounts:
    """Of a recording in these stretches. A launch counts as its first one does."""
    if len(counts) == 1:
        return counts[0]
    made = CaptureCounts()
    for name, *_ in CaptureCounts._fields_:
        of_each = [getattr(one, name) for one in counts]
        setattr(made, name, of_each[0] if name in _LAUNCHED
                else max(of_each) if name in _LARGEST else sum(of_each))
    return made
