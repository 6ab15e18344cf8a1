# SPDX-License-Identifier: Apache-2.0
"""A step that was captured and recorded: what a launch of it takes and gives.

A launch gathers the addresses of everything the step was given, allocates what it answers and the
parts of its arena from torch's allocator, and queues one graph on the current stream. Only then are
views made of what it has allocated. Nothing is held between launches. Threads: any, several at
once. Failure: NativeError; a refused launch has queued nothing.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import ANY_BYTES
from anabranch._core.library import last_error
from anabranch._core.timed_recording import nodes_of
from anabranch._record import quick
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.host_draws import Draws
from anabranch._record.capture.stand_ins import Swaps, wait_for_captures
from anabranch._record.capture.step import Alias, Fresh, Held, Lazy, Step, Wrapped, plain_parts
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.outputs import BlockLeafBuilder, LeafBuilder, OutputBuilder
from anabranch._record.launch.saved_blocks import BlockLayout, BlockPlace, InputPlaces
from anabranch._record.launch.timing import Timer, Timing
from anabranch._record.numbers.formulas import Unexplained
from anabranch._record.picker import picker
from anabranch._record.quick import addresses, increment_versions
from anabranch._record.refusals import Aliased
from anabranch._record.tensors import units_overlap, whole_bytes

_address: Callable[[Tensor], int] = Tensor.data_ptr


class StepRecording:
    """The recording of a step on one device.

    ``step`` is not kept: what a launch needs of it is where the given tensors are found, which the
    caller knows. Where the capture was noted, kernels that may run side by side have up to
    ``lanes`` lanes for it, copies from the host's memory may be ``ahead_bytes`` ahead, and
    temporaries take no more than ``parallel_bytes`` beside those of the captured order, before they
    are placed. Raises Aliased where the kernels name two units that share memory.
    """

    def __init__(self, step: Step, discovered: DiscoveredStep, accept_unsure: bool, lanes: int = 1,
                 ahead_bytes: int = 0, parallel_bytes: int = ANY_BYTES) -> None:
        self.ahead_bytes = ahead_bytes
        self._device = step.device
        self.lasting = step.lasting  # memory of the host that launches copy to and from
        self._buffers = discovered.buffers
        self._recording = discovered.record(accept_unsure, lanes, ahead_bytes,
                                            parallel_bytes)
        # Side by side nothing else is read than in captured order, which has been verified then.
        is_unsure = self._recording.counts.unsure and lanes == 1
        self._other = discovered.record_exchanged() if is_unsure else None
        self._labels = discovered.labels(self._recording)  # of its nodes, for reports of times
        self._timer: Timer | None = None
        self._formulas = discovered.formulas(self._recording)
        if self._formulas is not None and self._other is not None \
                and self._other.numbers != self._recording.numbers:
            raise Unexplained("two captures differ in the words that follow it")
        # The words of the numbers that a launch had last; replaced, not changed.
        self._last_words: tuple[bytes, list[int]] = (b"", [])
        self._alignments: list[tuple[int, int]] = []  # of given tensors
        self._together: list[tuple[int, int, int]] = []  # tensors that overlap, and how far
        named_buffers = self._name_slots(step)
        self.has_overlaps = bool(self._together)
        self._given_slots = _packed([index for index, _ in self._alignments])
        places = [self._buffers.place(buffer) for buffer in named_buffers]
        self._buffer_slots = _packed([base for base, _ in places])
        self._buffer_offsets = _packed([offset for _, offset in places])
        self.slot_count = len(self._alignments) + len(named_buffers)
        self._parts = [((size,), (1,), torch.uint8) for size in self._recording.parts]
        self._part_sizes = _packed(self._recording.parts)
        self._allocate, self._free = _compat.byte_allocator()
        self._is_called_directly = quick.calls_launches and self._recording.launch_address != 0 \
            and (not self._parts or self._allocate != 0 != self._free)
        words = len(self._formulas) if self._formulas is not None else 0
        self._pack_rest = struct.Struct(f"{len(self._parts) + words}Q").pack
        first = discovered.first
        # Of the step's objects, those that it answers.
        self.objects = sorted({part.index for part in first.result if isinstance(part, Held)})
        build = LeafBuilder(self._buffers, self.objects)
        assert first.shape is not None
        self._result = OutputBuilder(first.result, first.shape, build)
        # Of what is saved in blocks, if anything is; see saved_blocks.py.
        self.layout = self._layout_in_blocks(first.result) if self._result.is_flat else None
        self._result_in_blocks = self._result if self.layout is None else OutputBuilder(
            first.result, first.shape, BlockLeafBuilder(self._buffers, self.objects))
        self._slot_offsets: dict[InputPlaces, bytes | None] = {}
        self._whole_gradients = {i: buffer for i, grad in first.gradients.items()
                                 if (buffer := build.whole(grad)) is not None
                                 and buffer < len(self._buffers.buffers)}
        self._gradients = [(i, build.part(grad)) for i, grad in first.gradients.items()
                           if i not in self._whole_gradients]
        self._mutated, self._pick_mutated = first.mutated, picker(first.mutated)
        # As bytes, until there are tensors without versions among them.
        self._quickly_mutated = _packed(first.mutated)
        self.undefined = self._unwritten(first, named_buffers)
        aliases = [part.tensor for part in plain_parts((*first.result, *first.gradients.values()))
                   if isinstance(part, Alias)]
        self.needs_gradients = any(index >= step.own for index in (
            *(index for index, _ in self._alignments), *aliases))
        # Whose gradients a launch lets go of before it allocates others, as the step does.
        self._cleared = [] if self.needs_gradients else list(first.gradients)
        # Given tensors of which a launch takes more than addresses, and all that it names.
        self._takes = {*self._mutated, *aliases,
                       *(index for pair in self._together for index in pair[:2])}
        self.uses = sorted(self._takes.union(index for index, _ in self._alignments))
        # Moves torch's generator as the step does; see random_graph().
        self.random: torch.cuda.CUDAGraph | None = None
        # What is drawn on the CPU and looked at before each launch; see host_draws.
        self.draws: Draws | None = None

    def _name_slots(self, step: Step) -> list[int]:
        """Which given tensors the slots are, that come first, and which buffers."""
        given = len(step.units)
        named_units, named_buffers = [], []
        for slot in self._recording.slots:
            if slot.block >= given:
                named_buffers.append(self._buffers.of[slot.block - given])
                continue
            unit = step.units[slot.block]
            named_units.append(unit)
            self._alignments.append((unit.members[0][0], slot.alignment))
            self._together += [(unit.members[0][0], other, offset)
                               for other, offset in unit.members[1:]]
        if units_overlap(named_units):
            raise Aliased("it uses a tensor both as an argument and as its own")
        return named_buffers

    def _layout_in_blocks(self, results: Sequence[Any]) -> BlockLayout | None:
        places = {}
        for i, part in enumerate(results):
            if isinstance(part, (Wrapped, Lazy)):
                return None
            if isinstance(part, Fresh) and part.allocation >= 0:
                at = self._buffers.in_block(part.allocation)
                if at is not None:
                    places[i] = BlockPlace(at[0], at[1] + part.offset_bytes, part.shape,
                                           part.stride, part.dtype)
        return BlockLayout(places) if places else None

    def offsets(self, places: InputPlaces, arguments: Sequence[int]) -> bytes | None:
        """What a launch is to add to the addresses of its slots, where some of the arguments are
        blocks; None where it needs the tensors themselves. ``arguments`` are those inputs that are
        tensors."""
        if places not in self._slot_offsets:
            at = [places.of[i].offset_bytes if i in places.of else 0 for i in arguments]
            is_taken = any(i in places.of for number, i in enumerate(arguments)
                           if number in self._takes)
            self._slot_offsets[places] = None if is_taken else _packed(
                [at[index] for index, _ in self._alignments])
        return self._slot_offsets[places]

    def _unwritten(self, first: Captured, named_buffers: Sequence[int]) -> set[str]:
        """What is answered of memory that no kernel names."""
        parts = [*((f"result {i}", part) for i, part in enumerate(first.result)),
                 *((f"gradient {i}", part) for i, part in first.gradients.items())]
        parts = [(name, part.parts[0] if isinstance(part, Lazy) else part) for name, part in parts]
        return {name for name, part in parts
                if isinstance(part, Fresh) and part.allocation >= 0
                and self._buffers.of[part.allocation] not in named_buffers}

    @property
    def counts(self) -> CaptureCounts:
        return self._recording.counts

    def fits(self, given: Sequence[Tensor]) -> bool:
        """Whether tensors that overlapped when recorded still do, in the same way."""
        return all(given[other].data_ptr() - given[first].data_ptr() == offset
                   for first, other, offset in self._together)

    def misaligned(self, given: Sequence[Tensor]) -> list[int]:
        """Given tensors whose addresses the recorded kernels may not be launched at."""
        return [index for index, alignment in self._alignments
                if given[index].data_ptr() % alignment]

    def exchange(self) -> bool:
        """Launches what the other capture says from now on, if there are words of which one cannot
        know what they are. Called again, it forgets the other capture and answers False."""
        if self._other is None:
            return False
        self._recording, self._other = self._other, None
        return True

    def time(self, every: int | None = None) -> None:
        """Times launches from now on, one in so many, or as many as cost next to nothing."""
        self._timer = Timer(self._recording, self._labels, every)

    def time_no_more(self) -> None:
        """What was timed is told no more."""
        if self._timer is not None:
            self._timer.close()
            self._timer = None

    def described(self) -> Timing:
        """What its nodes are, with their times where launches are timed."""
        if self._timer is not None:
            return self._timer.timing()
        return Timing(nodes_of(self._recording), self._labels, None, 0)

    @property
    def is_timed(self) -> bool:
        return self._timer is not None

    @property
    def timing(self) -> Timing | None:
        """None where launches are not timed."""
        return self._timer.timing() if self._timer is not None else None

    @property
    def device(self) -> int:
        return self._device

    @property
    def launch_bytes(self) -> int:
        """What a launch allocates: its arena, and what it answers."""
        return self.counts.arena_bytes + self._buffers.size_bytes

    def reserve(self) -> None:
        """Allocates what a launch does, and lets go of it: torch's errors where that cannot be
        had."""
        with torch.cuda.device(self._device):
            _ = self._buffers.allocate(), self._allocate_parts()

    def launch(self, given: Sequence[Tensor], parameters: Sequence[Tensor],
               objects: Sequence[Any] = (), poison: int | None = None,
               at: Sequence[Tensor] | None = None, offsets: bytes = b"",
               in_blocks: bool = False, words: Sequence[int] = (), has_drawn: bool = False) -> Any:
        """One launch on the current stream of the recording's device. ``objects`` are those that it
        answers, as they are now; ``poison`` is a byte to fill fresh memory with, which the step
        must not see; ``at`` are tensors in the given ones' place, of which only addresses are
        taken; ``offsets`` are what offsets() answers; ``in_blocks``: what is saved is answered
        so; ``words`` are what words() answers; ``has_drawn``: what is drawn on the CPU has been.
        DrawnOtherwise where the step would go another way by that; torch's generator is then, and
        where a launch fails, as before."""
        if _compat.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self.launch(given, parameters, objects, poison, at, offsets, in_blocks,
                                   words)
        if self.draws is not None and not has_drawn:
            with self.draws.repeated():
                return self.launch(given, parameters, objects, poison, at, offsets, in_blocks,
                                   words, has_drawn=True)
        for index in self._cleared:
            parameters[index].grad = None
        fresh = self._buffers.allocate()
        parts: list[Tensor] | None = None
        if poison is not None:
            parts = self._allocate_parts()
            for tensor in (*fresh, *parts):
                whole_bytes(tensor).fill_(poison)
        self._queue(at or given, offsets, fresh, parts, words)
        if in_blocks:
            assert self.layout is not None
            self.layout.sign(fresh)
        else:
            fresh = self._buffers.tensors(fresh)
        for index, buffer in self._whole_gradients.items():
            parameters[index].grad = fresh[buffer]
        for index, build in self._gradients:
            parameters[index].grad = build(given, fresh)
        if self._mutated:
            self._increment_versions(given)
        result = self._result_in_blocks if in_blocks else self._result
        return result.build([*given, *objects] if objects else given, fresh)

    def _increment_versions(self, given: Sequence[Tensor]) -> None:
        if not self._quickly_mutated or not increment_versions(given, self._quickly_mutated):
            self._quickly_mutated = b""
            torch.autograd.graph.increment_version(self._pick_mutated(given))

    def launch_as_captured(self, step: Step, poison: int | None = None) -> Any:
        """With what the step was captured with."""
        objects = [step.objects[i] for i in self.objects]
        words = self.words(step.numbers.now) if step.numbers is not None else ()
        return self.launch(step.tensors, step.parameters, objects, poison, words=words)

    def words(self, numbers: tuple[float, ...]) -> list[int]:
        """What kernels are given where the step's numbers are these. ArithmeticError where their
        arithmetic raises."""
        if self._formulas is None:
            return []
        last, words = self._last_words
        now = struct.pack(f"{len(numbers)}d", *numbers)  # by their bits: -0.0 is not 0.0
        if last != now:
            words = self._formulas.words(numbers)
            self._last_words = now, words
        return words

    def _allocate_parts(self) -> list[Tensor]:
        return list(itertools.starmap(_compat.empty_strided_cuda, self._parts))

    def _queue(self, given: Sequence[Tensor], offsets: bytes, bases: Sequence[Tensor],
               parts: Sequence[Tensor] | None, words: Sequence[int]) -> None:
        """The launch itself. It takes the parts of its arena where there are none."""
        recording, stream = self._recording, _compat.current_stream(self._device)
        timer = self._timer
        if parts is None and timer is None and self._is_called_directly:
            code = quick.call_launch(
                recording.launch_address, recording.handle.value, stream, Swaps, given, offsets,
                self._given_slots, bases, self._buffer_offsets, self._buffer_slots,
                self._part_sizes, self._allocate, self._free, words,
                None if self.random is None else self.random.replay)
            if code == 0:
                return
            if code is not None:
                raise last_error()
        parts = self._allocate_parts() if parts is None else parts
        addresses = self._gather(given, offsets, bases, parts, words)
        if self.random is not None:
            self.random.replay()
        (recording if timer is None else timer).launch(addresses, stream)

    def _gather(self, given: Sequence[Tensor], offsets: bytes, bases: Sequence[Tensor],
                parts: Sequence[Tensor], words: Sequence[int] = ()) -> bytes:
        """One address a slot, and one a part of the arena. While another thread captures, tensors
        may have stand-ins' memory."""
        fresh = addresses(bases, self._buffer_offsets, self._buffer_slots) \
            + self._pack_rest(*map(_address, parts), *words)
        while True:
            before = Swaps.count
            at = addresses(given, offsets, self._given_slots)
            if before == Swaps.count and before % 2 == 0:
                return at + fresh
            wait_for_captures()


def _packed(numbers: Sequence[int]) -> bytes:
    """8 bytes each."""
    return struct.pack(f"{len(numbers)}Q", *numbers)
