# SPDX-License-Identifier: Apache-2.0
"""A step that was captured and recorded: what a launch of it takes and gives.

A launch gathers the addresses of everything the step was given, allocates what it answers and the
parts of its arena from torch's allocator, and queues one graph on the current stream. Only then are
views made of what it has allocated. A backward that would hold too much by that is launched in
stretches, graph after graph, each of which is allocated what it names first. Nothing is held
between launches. Threads: any, several at once. Failure: NativeError; a refused launch has queued
nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import ANY_BYTES, CapturedRecording
from anabranch._core.library import NativeError
from anabranch._core.timed_recording import nodes_of
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.host_draws import Draws
from anabranch._record.capture.step import (
    Alias,
    Fresh,
    Lazy,
    Step,
    StepObject,
    Wrapped,
    plain_parts,
)
from anabranch._record.checks import Direct, Kind, answers, holding, item, packed
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.gradients import Gradients
from anabranch._record.launch.in_turn import InTurn
from anabranch._record.launch.output_buffers import OutputBuffer
from anabranch._record.launch.outputs import BlockLeafBuilder, LeafBuilder, OutputBuilder
from anabranch._record.launch.rng_graph import RngGraph
from anabranch._record.launch.saved_blocks import BlockLayout, BlockPlace, InputPlaces, lie_as
from anabranch._record.launch.stretch import Stretch, passed_between, total
from anabranch._record.launch.timing import Timing, joined
from anabranch._record.memory.lasting import has_planned_copies
from anabranch._record.numbers.formulas import Unexplained
from anabranch._record.picker import picker
from anabranch._record.quick import increment_versions
from anabranch._record.refusals import Aliased, OtherGraph
from anabranch._record.tensors import units_overlap


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
        # Copies that somebody has planned stay where they are, and memory with them.
        self.ahead_bytes = ahead_bytes = \
            0 if has_planned_copies(step.lasting) else ahead_bytes
        self._device = step.device
        self.lasting = step.lasting  # memory of the host that launches copy to and from
        recordings = discovered.record(accept_unsure, lanes, ahead_bytes, parallel_bytes)
        self._buffers = discovered.buffers
        # Side by side nothing else is read than in captured order, which has been verified then.
        is_unsure = recordings[0].counts.unsure and lanes == 1
        self._other = discovered.record_exchanged() if is_unsure else None
        self._is_exchanged = False
        self._formulas = discovered.formulas(recordings[0])
        if self._formulas is not None and self._other is not None \
                and self._other[0].numbers != recordings[0].numbers:
            raise Unexplained("two captures differ in the words that follow it")
        if self._other is not None and list(map(_memory_of, self._other)) \
                != list(map(_memory_of, recordings)):
            raise OtherGraph("two captures of it differ in the memory that they name")
        # The words of the numbers that a launch had last; replaced, not changed.
        self._last_words: tuple[bytes, list[int]] = (b"", [])
        self.stretches = self._stretches_of(step, discovered, recordings)
        self._alignments = [one for stretch in self.stretches for one in stretch.alignments]
        self._check_apart()
        self.slot_count = sum(stretch.slot_count for stretch in self.stretches)
        first = discovered.first
        # Of the step's objects, those that it answers.
        self.objects = sorted({part.index for part in first.result if isinstance(part, StepObject)})
        build = LeafBuilder(self._buffers, self.objects)
        assert first.shape is not None
        self._result = OutputBuilder(first.result, first.shape, build)
        # Of what is saved in blocks, if anything is; see saved_blocks.py.
        self.layout = self._layout_in_blocks(first.result) if self._result.is_flat else None
        self._result_in_blocks = self._result if self.layout is None else OutputBuilder(
            first.result, first.shape, BlockLeafBuilder(self._buffers, self.objects))
        self._slot_offsets: dict[InputPlaces, bytes | None] = {}
        self._overlaps_outside: dict[InputPlaces, list[tuple[int, int, int]]] = {}
        self._mutated, self._pick_mutated = first.mutated, picker(first.mutated)
        # As bytes, until there are tensors without versions among them.
        self._quickly_mutated = packed(first.mutated)
        self.undefined = self._unwritten(first)
        aliases = [part.tensor for part in plain_parts((*first.result, *first.gradients.values()))
                   if isinstance(part, Alias)]
        self.needs_gradients = any(index >= step.own for index in (
            *(index for index, _ in self._alignments), *aliases))
        self.gradients = Gradients(first.gradients, self.needs_gradients, self._buffers, build)
        # Given tensors of which a launch takes more than addresses, and all that it looks at.
        self._takes = {*self._mutated, *aliases}
        self.uses = sorted(self._takes.union(
            (index for pair in self._together for index in pair[:2]),
            (index for index, _ in self._alignments)))
        freed_bytes = {step.units[unit].members[0][0]: step.units[unit].size_bytes
                       for unit in discovered.let_go}
        self._in_turn = None if len(self.stretches) == 1 else InTurn(
            self.stretches, self._buffers, self._layouts, self._alignments, self._together,
            self._takes, freed_bytes, step.device)
        # Moves torch's generator as the step does; see random_graph().
        self.random: RngGraph | None = None
        # What is drawn on the CPU and looked at before each launch; see host_draws.
        self.draws: Draws | None = None
        # That launches write and C++ has. No tensors: a later capture would think them Python's.
        self.buckets: Sequence[torch.UntypedStorage] = ()
        # How call plans launch it, where that takes nothing but addresses and words.
        self.direct: Direct | None = None
        # Which base is all that it answers, as most losses are.
        alone = self._result.alone
        is_base = alone is not None and self._buffers.view(alone)[1] is None
        self._answers_base = -1 if alone is None or not is_base else alone

    def _stretches_of(self, step: Step, discovered: DiscoveredStep,
                      recordings: Sequence[CapturedRecording]) -> list[Stretch]:
        given, answered = len(step.units), self._buffers.of
        # Behind the bases of what is answered, memory that one stretch leaves for another.
        passed, sizes = passed_between(
            recordings, lambda block: block >= given and block - given not in answered,
            self._buffers.bases)
        self._layouts = [*self._buffers.layouts,
                         *(OutputBuffer((size,), (1,), torch.uint8) for size in sizes)]
        words = len(self._formulas) if self._formulas is not None else 0
        stretches: list[Stretch] = []
        for recording in recordings:
            before = sum(len(stretch.alignments) for stretch in stretches)
            stretches.append(Stretch(recording, discovered.labels(recording), step, self._buffers,
                                     passed, words, before))
        return stretches

    def _check_apart(self) -> None:
        """Notes which given tensors overlap. Raises Aliased where their units do."""
        units = {id(unit): unit for stretch in self.stretches for unit in stretch.units}
        # Tensors that overlap, and how far.
        self._together = [(unit.members[0][0], other, offset) for unit in units.values()
                          for other, offset in unit.members[1:]]
        self.has_overlaps = bool(self._together)
        if units_overlap(list(units.values())):
            raise Aliased("it uses a tensor both as an argument and as its own")

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
            inside = {number: places.of[i] for number, i in enumerate(arguments) if i in places.of}
            self._overlaps_outside[places] = [
                pair for pair in self._together if inside.keys().isdisjoint(pair[:2])]
            is_apart = inside.keys().isdisjoint(self._takes) and all(
                lie_as(inside.get(first), inside.get(other), offset)
                for first, other, offset in self._together
                if first in inside or other in inside)
            self._slot_offsets[places] = packed(
                [inside[index].offset_bytes if index in inside else 0
                 for index, _ in self._alignments]) if is_apart else None
        return self._slot_offsets[places]

    def _unwritten(self, first: Captured) -> set[str]:
        """What is answered of memory that no kernel names."""
        named_buffers = set[int]().union(*(stretch.buffers for stretch in self.stretches))
        parts = [*((f"result {i}", part) for i, part in enumerate(first.result)),
                 *((f"gradient {i}", part) for i, part in first.gradients.items())]
        parts = [(name, part.parts[0] if isinstance(part, Lazy) else part) for name, part in parts]
        return {name for name, part in parts
                if isinstance(part, Fresh) and part.allocation >= 0
                and self._buffers.of[part.allocation] not in named_buffers}

    @property
    def counts(self) -> CaptureCounts:
        made = total([stretch.recording.counts for stretch in self.stretches])
        if self._in_turn is not None:
            made.arena_bytes = self._in_turn.arena_bytes
        return made

    def fits(self, given: Sequence[Tensor], places: InputPlaces | None = None) -> bool:
        """Whether tensors that overlapped when recorded still do, in the same way. offsets() has
        looked at those that lie in blocks, whose ``places`` they are."""
        pairs = self._together if places is None else self._overlaps_outside[places]
        return all(given[other].data_ptr() - given[first].data_ptr() == offset
                   for first, other, offset in pairs)

    def misaligned(self, given: Sequence[Tensor]) -> list[int]:
        """Given tensors whose addresses the recorded kernels may not be launched at."""
        return [index for index, alignment in self._alignments
                if given[index].data_ptr() % alignment]

    def writes(self, indices: Iterable[int]) -> bool:
        """Whether it writes one of some given tensors."""
        return not set(self._mutated).isdisjoint(indices)

    def direct_or_none(self) -> Direct | None:
        """``direct``, once it is known."""
        if self.direct is None:
            self.tell_direct()
        return self.direct

    def tell_direct(self) -> None:
        """Sets ``direct``, where launches are of that kind, and gradients are set quickly."""
        is_more = self._in_turn or self.draws or self._together or self.objects \
            or self.needs_gradients or (self.gradients.are_any and not self.gradients.are_quick)
        launch = None if is_more else self.stretches[0].launch
        if launch is None:
            self.direct = None
            return
        when = holding([answers(_compat.current_device, (), self._device, "the current device"),
                        item(*_compat.NO_PROFILE[:2], Kind.IS, _compat.NO_PROFILE[2])])
        # Plain tuples: torch 2.11's function takes no others.
        self.direct = Direct(
            when, launch, _compat.empty_strided_cuda, tuple(map(tuple, self._buffers.layouts)),
            _compat.current_stream, (self._device,),
            None if self.random is None else self.random.replay, self.finish,
            mutated=self._quickly_mutated, let_go=self.gradients.let_go_bytes,
            rows=self.gradients.rows, answer=-1 if self._has_versions_left
            else self._answers_base)

    @property
    def has_words(self) -> bool:
        """Whether launches take words that follow numbers."""
        return self._formulas is not None

    @property
    def _has_versions_left(self) -> bool:
        """Whether torch's Python increments versions."""
        return bool(self._mutated) and not self._quickly_mutated

    def finish(self, given: Sequence[Tensor], owners: Sequence[Tensor], bases: list[Tensor],
               are_counted: bool, are_set: bool, in_blocks: bool = False) -> Any:
        """The answer of a direct launch, with these bases, and what it has left to do of versions
        and gradients; ``in_blocks`` as in launch()."""
        if not are_counted or self._has_versions_left:
            self._increment_versions(given)
        fresh = self._fresh(given, owners, bases, in_blocks, are_set)
        return (self._result_in_blocks if in_blocks else self._result).build(given, fresh)

    def _fresh(self, given: Sequence[Tensor], owners: Sequence[Tensor], bases: list[Tensor],
               in_blocks: bool, are_set: bool = False) -> list[Tensor]:
        """What results are built of. Sets gradients, unless they are."""
        if in_blocks:  # of a compiled graph, which sets none
            assert self.layout is not None
            self.layout.sign(bases)
            return bases
        if not self.gradients.are_any:
            return self._buffers.tensors(bases)
        if are_set or self.gradients.set_quickly(owners, bases):
            return self._buffers.tensors(bases, has_gradients=False)
        fresh = self._buffers.tensors(bases)
        self.gradients.set(owners, given, fresh)
        return fresh

    def exchange(self) -> bool:
        """Launches what the other capture says from now on, if there are words of which one cannot
        know what they are. Called again, it launches the first one's again, forgets the other's and
        answers False."""
        if self._other is None:
            return False
        self.direct = None
        ours = [stretch.recording for stretch in self.stretches]
        for stretch, other in zip(self.stretches, self._other, strict=True):
            stretch.exchange(other)
        self._is_exchanged = not self._is_exchanged
        self._other = ours if self._is_exchanged else None
        return self._is_exchanged

    def time(self, every: int | None = None) -> None:
        """Times launches from now on, one in so many, or as many as cost next to nothing."""
        self.direct = None
        for stretch in self.stretches:
            stretch.time(every)

    def time_no_more(self) -> None:
        """What was timed is told no more."""
        for stretch in self.stretches:
            stretch.time_no_more()
        self.tell_direct()

    def described(self) -> Timing:
        """What its nodes are, with their times where launches are timed."""
        return self.timing or joined([Timing(nodes_of(stretch.recording), stretch.labels, None, 0)
                                      for stretch in self.stretches])

    @property
    def is_timed(self) -> bool:
        return self.stretches[0].timer is not None

    @property
    def timing(self) -> Timing | None:
        """None where launches are not timed."""
        timers = [stretch.timer for stretch in self.stretches]
        return joined([timer.timing() for timer in timers if timer is not None]) \
            if self.is_timed else None

    @property
    def device(self) -> int:
        return self._device

    @property
    def answered_bytes(self) -> int:
        """What a launch allocates for what it answers."""
        return self._buffers.size_bytes

    @property
    def launch_bytes(self) -> int:
        """What a launch allocates: its arena, and what it answers."""
        return int(self.counts.arena_bytes) + self.answered_bytes

    @property
    def peak_bytes(self) -> int:
        """What it holds of that at its peak; in stretches, less what it has let go of by then."""
        return self.launch_bytes if self._in_turn is None else self._in_turn.peak_bytes

    def reserve(self) -> None:
        """Allocates what a launch does, and lets go of it: torch's errors where that cannot be
        had."""
        with torch.cuda.device(self._device):
            _ = (list(itertools.starmap(_compat.empty_strided_cuda, self._layouts)),
                 max(self.stretches, key=lambda stretch: stretch.arena_bytes).allocate_parts())

    def launch(self, given: Sequence[Tensor], parameters: Sequence[Tensor],
               objects: Sequence[Any] = (), poison: int | None = None, *,
               at: Sequence[Tensor] | bytes = b"", in_blocks: bool = False,
               words: Sequence[int] = (), frees: list[Any] | None = None) -> Any:
        """One launch on the current stream of the recording's device. ``objects`` are those that it
        answers, as they are now; ``poison`` is a byte to fill fresh memory with, which the step
        must not see; ``at`` says where what is given lies: tensors in its place, of which only
        addresses are taken, or what offsets() answers; ``in_blocks``: what is saved is answered so;
        ``words`` are what words() answers. ``frees``: a list that holds what is given, too. A
        launch in stretches empties it behind the first one and takes tensors out of ``given``, so
        that they may be freed. What is drawn on the CPU is drawn first: DrawnOtherwise where the
        step would go another way by that; torch's generator is then, and where a launch fails, as
        before."""
        if _compat.current_device() == self._device and self.draws is None:
            return self._launch(given, parameters, objects, poison, at, in_blocks, words, frees)
        with torch.cuda.device(self._device), \
                self.draws.repeated() if self.draws is not None else contextlib.nullcontext():
            return self._launch(given, parameters, objects, poison, at, in_blocks, words, frees)

    def _launch(self, given: Sequence[Tensor], parameters: Sequence[Tensor],
                objects: Sequence[Any], poison: int | None, at: Sequence[Tensor] | bytes,
                in_blocks: bool, words: Sequence[int], frees: list[Any] | None) -> Any:
        offsets, at = (at, given) if isinstance(at, bytes) else (b"", at or given)
        self.gradients.let_go(parameters)
        replay = None if self.random is None else self.random.replay
        if self._in_turn is None:
            bases, stretch = self._buffers.allocate(), self.stretches[0]
            parts = None if poison is None else stretch.poisoned(poison, bases)
            try:
                stretch.queue(self._device, at, offsets, bases, parts, words, replay)
            except NativeError:  # behind the replay
                if self.random is not None:
                    self.random.take_back()
                raise
        else:
            bases = self._in_turn.launch(at, offsets, poison, frees, replay)
        fresh = self._fresh(given, parameters, bases, in_blocks)
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


def _memory_of(recording: CapturedRecording) -> tuple[list[int], list[tuple[int, int]]]:
    """What a launch gives it: parts of its arena, and the blocks of its slots, so large."""
    return list(recording.parts), [(slot.block, slot.size_bytes) for slot in recording.slots]
