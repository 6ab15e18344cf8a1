# SPDX-License-Identifier: Apache-2.0
"""capture.h from Python: captured CUDA graphs, and recordings made of them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from anabranch._core.abi import (
    CaptureBlock,
    CaptureChecksum,
    CaptureCounts,
    CaptureNotes,
    CaptureNumber,
    CaptureNumbers,
    CaptureOptions,
    CaptureRange,
    CaptureSlot,
    CaptureUse,
    CaptureWork,
)
from anabranch._core.handle import Handle
from anabranch._core.library import core, last_error

# The hot path: (handle, addresses as bytes, n, c_void_p(stream)) -> 0, or a code and last_error().
# Exactly these types, none is checked.
launch_captured: Callable[..., int] = core.undeclared("captured_launch")
ANY_BYTES = 2**64 - 1  # no bound
_launch_address: int = core.address("captured_launch")


class Block(NamedTuple):
    """Memory that both captures named; see CaptureBlock in capture.h."""

    first_address: int
    second_address: int
    size_bytes: int
    given: bool
    fresh: bool = False  # given, and nothing stands in it when a launch begins


class Slot(NamedTuple):
    """A given block that the graph names, by its number, and what a launch's address must keep."""

    block: int
    size_bytes: int
    alignment: int


class Number(NamedTuple):
    """Bytes of kernels' parameters that follow numbers; see CaptureNumber in
    captured_recording.h."""

    size_bytes: int
    first: int
    other: int


class CaptureDevice(Handle):
    """A GPU by its primary context."""

    _free = "capture_device_free"

    def __init__(self, ordinal: int) -> None:
        super().__init__(core.capture_device_open(ordinal))

    @property
    def why_no_device_code(self) -> str:
        """Why addresses can only be set from the host; empty where the device sets them."""
        return core.capture_device_why_no_device_code(self.handle).decode(errors="replace")

    @property
    def why_tensor_maps_are_opaque(self) -> str:
        """Why kernels that take tensor maps by value are not recorded; empty where they are."""
        return core.capture_device_why_tensor_maps_are_opaque(self.handle).decode(errors="replace")

    def clear(self, graph: int) -> None:
        """Takes all nodes out of a graph."""
        if core.capture_clear(self.handle, graph):
            raise last_error()

    def checksums(self, ranges: Sequence[tuple[int, int]], stream: int) -> list[tuple[int, int]]:
        """Two sums, of 64 bits and without sign, of each of some memory, (address, bytes), by one
        launch on ``stream``, for which it waits. NativeError where there is no device code. Neither
        the stream nor this thread is in a capture."""
        array = _ranges(ranges)
        sums = (CaptureChecksum * len(ranges))()
        if core.capture_checksums(self.handle, array, len(ranges), stream, sums):
            raise last_error()
        return [(each.first, each.second) for each in sums]


@functools.cache
def capture_device(ordinal: int) -> CaptureDevice:
    """One for the life of the process: recordings share it."""
    return CaptureDevice(ordinal)


class CaptureMemory(Handle):
    """Fresh addresses over one page; whatever lies there must be gone before it is closed.
    ``is_kept``: allocations get memory of their own, so that the graph may be launched as it is.
    Each one's goes when torch gives it back."""

    _free = "capture_memory_free"

    def __init__(self, device: CaptureDevice, is_kept: bool = False) -> None:
        super().__init__(core.capture_memory_new(device.handle, is_kept), device)

    def begin_capture(self) -> None:
        """What is allocated from now on is of another capture."""
        core.capture_memory_begin_capture(self.handle)

    def allocate(self, size_bytes: int) -> int:
        address = core.capture_memory_allocate(self.handle, size_bytes)
        if not address:
            raise last_error()
        return address

    def take_own(self, addresses: Sequence[int]) -> None:
        """Takes memory away from these allocations of a kept one, behind all that has been
        queued."""
        core.capture_memory_take_own(
            self.handle, (c_uint64 * len(addresses))(*addresses), len(addresses))

    def give_own(self) -> None:
        """Gives memory to all from which it was taken."""
        if core.capture_memory_give_own(self.handle) != 0:
            raise last_error()

    def open(self) -> None:
        """Makes torch's allocations in a pool over anabranch_capture_allocate come from here."""
        core.capture_memory_open(self.handle)

    def shut(self) -> None:
        core.capture_memory_open(None)


class CaptureSnapshot(Handle):
    """A graph as its capture left it, with what it copies from pinned memory.

    To be made as soon as the capture has ended: that memory may be given out again. ``staying`` is
    pinned memory, (address, bytes), of which this does not hold: launches read what is there. It is
    sorted, and nothing overlaps.
    """

    _free = "capture_snapshot_free"

    def __init__(self, device: CaptureDevice, graph: int,
                 staying: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__(core.capture_snapshot_new(device.handle, graph, _ranges(staying),
                                                   len(staying)), device)

    def mentions(self, ranges: Sequence[tuple[int, int]],
                 other: CaptureSnapshot | None = None) -> Iterator[tuple[int, str]]:
        """Which of some memory, (address, bytes), it names, each with the first node that does.
        Sorted, and nothing overlaps. With ``other``, a capture of the same, only what that names at
        the same places."""
        array = _ranges(ranges)
        text = core.capture_snapshot_mentions(self.handle, array, len(ranges),
                                              None if other is None else other.handle)
        if text is None:
            raise last_error()
        for line in text.decode(errors="replace").splitlines():
            number, _, node = line.partition(" ")
            yield int(number), node


class CaptureMarks(Handle):
    """Says while a step is captured which nodes came when."""

    _free = "capture_marks_free"

    def __init__(self, device: CaptureDevice) -> None:
        super().__init__(core.capture_marks_new(device.handle), device)

    def mark(self, stream: int, allocations: int) -> int:
        """The number of the nodes that came since the mark before; ``allocations`` is how many
        blocks have been allocated since the capture began."""
        number = c_uint32()
        if core.capture_mark(self.handle, stream, allocations, ctypes.byref(number)):
            raise last_error()
        return number.value


    def has_new(self, stream: int) -> bool:
        """Whether nodes have come since the last mark."""
        return core.capture_has_new(self.handle, stream) == 1


class Work(NamedTuple):
    """A piece of captured work whose use of memory is known; see CaptureWork in capture.h."""

    mark: int  # it is the nodes that appeared between the marks mark-1 and mark
    accesses: tuple[tuple[int, bool], ...]  # (address inside the memory, whether it is written)
    has_scratch: bool  # whatever else its nodes name is scratch, dead before and after
    # Its nodes touch its accesses as far as they name them, what is allocated meanwhile, and
    # nothing else, whatever else they name.
    independent: bool = False
    in_turn: bool = False  # its nodes stay in order with those of all other works in turn


class Noted(NamedTuple):
    """What was noted during one of two captures; see CaptureNotes in capture.h."""

    marks: CaptureMarks
    of_second: bool
    blocks_before: int
    works: Sequence[Work]


class CapturedStep(Handle):
    """What two captures of a step have in common: discovered once, recorded as often as need be.

    The second graph may go then, the first one once the last recording has been made. In the place
    of a second capture ``CaptureLayouts`` will do, where they know all kernels. ``others``: a third
    capture, made with other numbers, and the address of each block there.
    """

    _free = "captured_step_free"

    def __init__(self, device: CaptureDevice, first: CaptureSnapshot,
                 second: CaptureSnapshot | CaptureLayouts,
                 blocks: Sequence[Block], noted: Noted | None = None,
                 others: tuple[CaptureSnapshot, Sequence[int]] | None = None) -> None:
        array = (CaptureBlock * len(blocks))(*[CaptureBlock(*block) for block in blocks])
        notes = None if noted is None else ctypes.byref(_notes_of(noted))
        if isinstance(second, CaptureLayouts):
            made = core.captured_step_discover_known(
                device.handle, first.handle, second.handle, array, len(blocks), notes)
        else:
            numbers = None if others is None else ctypes.byref(CaptureNumbers(
                others[0].handle, (c_uint64 * len(blocks))(*others[1])))
            made = core.captured_step_discover(device.handle, first.handle, second.handle, array,
                                               len(blocks), notes, numbers)
        super().__init__(made, device)
        self.device = device

    @property
    def unsure(self) -> int:
        """Words that differ between the captures and are no address."""
        return core.captured_step_unsure(self.handle)


    def stretches(self, let_go: Sequence[int]) -> list[int]:
        """Where each stretch of nodes ends, in which launches may be queued one after the other.
        ``let_go`` are numbers of blocks that a launch's caller frees when it may."""
        blocks = (c_uint32 * len(let_go))(*let_go)
        count = core.captured_step_stretches(self.handle, blocks, len(let_go), None)
        ends = (c_uint32 * count)()
        core.captured_step_stretches(self.handle, blocks, len(let_go), ends)
        return list(ends)

    def stretch(self, begin: int, end: int) -> CapturedStretch:
        return CapturedStretch(self, begin, end)


class CapturedStretch(Handle):
    """Nodes of a step, to be recorded as the step is. Slots of its recordings may be blocks that
    were not given: those that other stretches name as well."""

    _free = "captured_step_free"

    def __init__(self, step: CapturedStep, begin: int, end: int) -> None:
        super().__init__(core.captured_step_stretch(step.handle, begin, end), step)
        self.device = step.device


class CaptureLayouts(Handle):
    """Where the parameters of kernels hold addresses, known of steps that were captured twice."""

    _free = "capture_layouts_free"

    def __init__(self) -> None:
        super().__init__(core.capture_layouts_new())

    def add(self, step: CapturedStep) -> None:
        if core.capture_layouts_add(self.handle, step.handle):
            raise last_error()


class CapturedRecording(Handle):
    """A recording of a step that was captured twice. The first graph is there until it is made.

    With what was noted, nodes that need not wait for one another run on up to ``lanes`` lanes, and
    copies from the host's memory are up to ``ahead_bytes`` ahead of who reads what they bring.
    ``parallel_bytes`` bounds what temporaries take beside those of the captured order.
    ``mapped_memory``: launches give memory of cuMemMap, as torch's allocator has it with
    expandable_segments, and not of cuMemAlloc. ``few_launches``: it is made for some that are
    compared, and has one executable in place of three.
    """

    _free = "captured_free"
    launch_address = _launch_address  # of what launch() calls, for who calls it directly

    def __init__(self, step: CapturedStep | CapturedStretch, accept_unsure: bool = False,
                 lanes: int = 1, ahead_bytes: int = 0, mapped_memory: bool = False,
                 parallel_bytes: int = ANY_BYTES, few_launches: bool = False) -> None:
        options = CaptureOptions(accept_unsure=accept_unsure, lanes=lanes, ahead_bytes=ahead_bytes,
                                 parallel_bytes=parallel_bytes, mapped_memory=mapped_memory,
                                 few_launches=few_launches)
        super().__init__(core.captured_step_record(step.handle, ctypes.byref(options)), step.device)

    @property
    def slots(self) -> list[Slot]:
        count = core.captured_slots(self.handle, None)
        array = (CaptureSlot * count)()
        core.captured_slots(self.handle, array)
        return [Slot(slot.block, slot.size_bytes, slot.alignment) for slot in array]

    @property
    def parts(self) -> list[int]:
        """The bytes of each part of the arena."""
        count = core.captured_parts(self.handle, None)
        array = (c_uint64 * count)()
        core.captured_parts(self.handle, array)
        return list(array)

    @property
    def numbers(self) -> list[Number]:
        count = core.captured_numbers(self.handle, None)
        array = (CaptureNumber * count)()
        core.captured_numbers(self.handle, array)
        return [Number(word.size_bytes, word.first, word.other) for word in array]

    @property
    def counts(self) -> CaptureCounts:
        counts = CaptureCounts()
        core.captured_counts(self.handle, ctypes.byref(counts))
        return counts

    def launch(self, addresses: bytes, stream: int) -> None:
        """Queues one launch on ``stream``; addresses of the slots, then of the parts, and then the
        words of the numbers."""
        if launch_captured(self.handle, addresses, len(addresses) // 8, c_void_p(stream)):
            raise last_error()


def _ranges(ranges: Sequence[tuple[int, int]]) -> ctypes.Array[CaptureRange]:
    return (CaptureRange * len(ranges))(*[CaptureRange(*each) for each in ranges])


def _notes_of(noted: Noted) -> CaptureNotes:
    works = [CaptureWork(work.mark, len(work.accesses), work.has_scratch, work.independent,
                         work.in_turn) for work in noted.works]
    uses = [CaptureUse(*use) for work in noted.works for use in work.accesses]
    return CaptureNotes(noted.marks.handle, noted.of_second, noted.blocks_before,
                        (CaptureWork * len(works))(*works), len(works),
                        (CaptureUse * len(uses))(*uses), len(uses))
