# SPDX-License-Identifier: Apache-2.0
"""What both captures of a step have in common: discovered once, recorded as often as need be. Where
all kernels are known, one capture tells it.

Threads: one at a time. Failure: NativeError, with E0309 where the captures differ in more than
addresses.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from anabranch._core.capture import (
    ANY_BYTES,
    Block,
    CaptureDevice,
    CapturedRecording,
    CapturedStep,
    CapturedStretch,
    CaptureLayouts,
)
from anabranch._record.capture.captured import Capture
from anabranch._record.capture.labels import Label
from anabranch._record.capture.step import Fresh, Step, plain_parts
from anabranch._record.launch.output_buffers import OutputBuffers
from anabranch._record.numbers.formulas import Formulas


class DiscoveredStep:
    """``first`` is the capture that recordings launch, ``buffers`` what a launch of one allocates
    for what it answers. Results from ``saved_from`` on are freed together, whoever gets them. The
    captures stay open until the last recording has been made; close() before them. Where there is
    one capture alone, ``layouts`` tell which words of its kernels are addresses."""

    def __init__(self, step: Step, capture: Capture, device: CaptureDevice,
                 saved_from: int | None = None, layouts: CaptureLayouts | None = None) -> None:
        self.first = capture.first
        self._make_buffers = functools.partial(_buffers_of, step, capture, saved_from)
        self._sizes = [block.size_bytes for block in capture.blocks[len(step.units):]]
        self.buffers = self._make_buffers(self._sizes)
        self._capture, self._device = capture, device
        self._given = len(step.units)
        self._blocks = _blocks_of(step, capture, self.buffers)
        self._layouts = layouts
        self._step = self._discover()
        # Units whose memory a launch in stretches lets go of.
        self.let_go = _let_go(step)
        self._ends = self._ends_of_stretches(step)
        self._stretches = _stretches(self._step, self._ends)
        self._formulas: Formulas | None = None

    def record(self, accept_unsure: bool, lanes: int = 1, ahead_bytes: int = 0,
               parallel_bytes: int = ANY_BYTES) -> list[CapturedRecording]:
        """One of each stretch of the step, which launches queue one after the other. ``buffers``
        are as large as these use them from then on, and have blocks for each stretch."""
        made = [CapturedRecording(stretch, accept_unsure, lanes, ahead_bytes,
                                  self._capture.is_mapped, parallel_bytes)
                for stretch in self._stretches]
        slots = [(slot.block - self._given, slot.size_bytes, turn)
                 for turn, recording in reversed([*enumerate(made)])
                 for slot in recording.slots if slot.block >= self._given]
        # What has been at its address before, where nodes do not tell whom they mean, may be larger
        # than an allocation.
        sizes = [*self._sizes]
        for allocation, size, _ in slots:
            sizes[allocation] = max(sizes[allocation], size)
        self.buffers = self._make_buffers(sizes, turns={
            allocation: turn for allocation, _, turn in slots} if len(made) > 1 else {})
        return made

    def record_exchanged(self) -> list[CapturedRecording]:
        """Of the other capture, in captured order, for launches that are compared. A word of which
        one cannot know what it is differs between the two: nothing reads it where launches of both
        give the same."""
        step = self._discover(is_exchanged=True)
        made = [CapturedRecording(stretch, True, mapped_memory=self._capture.is_mapped,
                                  few_launches=True)
                for stretch in _stretches(step, self._ends)]
        step.close()
        return made

    def labels(self, recording: CapturedRecording) -> list[Label | None]:
        """What its nodes are, where that was noted; empty where nothing was."""
        noting = self.first.noting
        return noting.labels_of(recording) if noting is not None else []

    def teach(self, layouts: CaptureLayouts) -> None:
        layouts.add(self._step)

    def formulas(self, recording: CapturedRecording) -> Formulas | None:
        """How the words of a recording of this step follow its numbers, the same for all of them;
        None where it has none. Raises Unexplained."""
        third = self._capture.third
        if self._formulas is None and third is not None:
            assert self.first.trace is not None and third.trace is not None
            self._formulas = Formulas(self.first.trace, third.trace, recording.numbers)
        return self._formulas

    def _discover(self, is_exchanged: bool = False) -> CapturedStep:
        capture, blocks, noted = self._capture, self._blocks, self._capture.noted
        one = capture.first.snapshot
        assert one is not None
        if capture.second is None:
            assert self._layouts is not None
            return CapturedStep(self._device, one, self._layouts, blocks, noted)
        two = capture.second.snapshot
        assert two is not None
        if is_exchanged:
            one, two = two, one
            blocks = [block._replace(first_address=block.second_address,
                                     second_address=block.first_address) for block in blocks]
            noted = noted and noted._replace(of_second=True)
        third = capture.third.snapshot if capture.third is not None else None
        return CapturedStep(self._device, one, two, blocks, noted,
                            (third, capture.third_addresses) if third is not None else None)

    def _ends_of_stretches(self, step: Step) -> list[int]:
        """Any step but a backward is one stretch, which has no end here."""
        ends = self._step.stretches(self.let_go) if step.is_backward else []
        return ends if len(ends) > 1 else []

    def close(self) -> None:
        self._step.close()


def _let_go(step: Step) -> list[int]:
    """A backward's launch frees what was saved for it between its stretches; parameters and
    tangents stay."""
    return [i for i, unit in enumerate(step.units) if step.is_backward
            and all(number < step.arguments and not step.tensors[number].requires_grad
                    and step.places[number] not in step.tangents for number, _ in unit.members)]


def _stretches(captured: CapturedStep,
               ends: Sequence[int]) -> Sequence[CapturedStep | CapturedStretch]:
    if not ends:
        return [captured]
    return list(itertools.starmap(captured.stretch, itertools.pairwise([0, *ends])))


def _buffers_of(step: Step, capture: Capture, saved_from: int | None, sizes: Sequence[int],
                turns: Mapping[int, int] = MappingProxyType({})) -> OutputBuffers:
    first = capture.first
    end = len(first.result) if saved_from is None else saved_from
    answered, saved = first.result[:end], first.result[end:]
    gradients: Sequence[Any] = list(first.gradients.values())
    if step.is_backward:
        answered, gradients = [], answered
    # Those inside of wrapping classes lie alone: a class may ask where in its memory each begins.
    plain = [part for part in gradients if isinstance(part, Fresh)]
    others = [*answered, *(part for part in gradients if not isinstance(part, Fresh))]
    return OutputBuffers(_fresh_in([*answered, *saved, *gradients]), sizes,
                         saved=_used_alone(saved, [*answered, *gradients]),
                         gradients=_used_alone(plain, [*others, *saved]), turns=turns)


def _used_alone(some: Sequence[Any], others: Sequence[Any]) -> set[int]:
    """The allocations of these that none of the others lies in."""
    return {part.allocation for part in _fresh_in(some)} \
        - {part.allocation for part in _fresh_in(others)}


def _blocks_of(step: Step, capture: Capture, buffers: OutputBuffers) -> list[Block]:
    """Those of the capture; what is answered is given, as the tensors of the step are, and fresh:
    each launch allocates it, so that temporaries may lie there until it is used."""
    given = len(step.units)
    return [block._replace(given=True, fresh=True) if i - given in buffers.of else block
            for i, block in enumerate(capture.blocks)]


def _fresh_in(parts: Iterable[Any]) -> list[Fresh]:
    return [part for part in plain_parts(parts)
            if isinstance(part, Fresh) and part.allocation >= 0]
