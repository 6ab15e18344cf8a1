# SPDX-License-Identifier: Apache-2.0
"""A capture that has been made, and both captures of a step. close() frees what they hold."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from anabranch import _compat
from anabranch._core.capture import (
    Block,
    CaptureDevice,
    CapturedRecording,
    CaptureMarks,
    CaptureMemory,
    CaptureSnapshot,
    Noted,
)
from anabranch._core.library import NativeError
from anabranch._core.timed_recording import marks_of
from anabranch._record.capture.access_notes import AccessNotes
from anabranch._record.capture.eager_lines import EagerLines
from anabranch._record.capture.host_constants import HostConstants
from anabranch._record.capture.host_draws import Draws, HostDraws
from anabranch._record.capture.host_tables import HostTables
from anabranch._record.capture.labels import Label, Labels
from anabranch._record.capture.pytree import Shape
from anabranch._record.capture.step import Step
from anabranch._record.numbers.noted import NumberTrace


class Noting:
    """Notes of one capture, with marks on its nodes and the time told by torch's allocator; without
    marks, which cost the most, where there is no device: nobody asks for these notes. With them,
    and with ``has_eager_lines``, lines of eager code are labels too."""

    def __init__(self, device: CaptureDevice | None, ordinal: int,
                 has_eager_lines: bool = False) -> None:
        self.marks = CaptureMarks(device) if device is not None else None
        self.labels = Labels() if device is not None else None
        self._eager = EagerLines(self._has_new, self._mark, self.labels) \
            if self.labels is not None and has_eager_lines else None
        self.notes = AccessNotes(self._mark, labels=self.labels, eager=self._eager)
        self._ordinal = ordinal
        self._begin = _compat.allocations_so_far(ordinal)
        self._end = self._begin
        self._count = 0
        self._is_whole = True

    @contextlib.contextmanager
    def around(self, step: Step) -> Iterator[None]:
        with self.notes.noted() if step.is_compiled else self.notes.known_calls(), \
                self._eager.traced() if self._eager is not None else contextlib.nullcontext():
            yield

    def _has_new(self) -> bool:
        return self.marks is not None and torch.cuda.is_current_stream_capturing() \
            and self.marks.has_new(_compat.current_stream(self._ordinal))

    def _mark(self) -> int:
        if self.marks is not None:
            try:
                now = _compat.allocations_so_far(self._ordinal) - self._begin
                self.marks.mark(_compat.current_stream(self._ordinal), now)
            except NativeError:  # during a capture that the step's user makes
                self._is_whole = False
        self._count += 1
        return self._count - 1

    def labels_of(self, recording: CapturedRecording) -> list[Label | None]:
        """By node of a recording that was made of this capture."""
        if self.marks is None or self.labels is None:
            return []
        return [self.labels.of(mark) for mark in marks_of(recording, self.marks)]

    def end(self) -> None:
        self._end = _compat.allocations_so_far(self._ordinal)

    def noted(self, before: int, allocations: int) -> Noted | None:
        """None where other threads have allocated too, so that the time cannot be told."""
        if self.marks is None or not self._is_whole or self._end - self._begin != allocations:
            return None
        return Noted(self.marks, False, before, self.notes.works)


@dataclasses.dataclass
class Captured:
    """One capture. ``graph`` and ``pool`` keep its memory until close(); the rest is plain data."""

    graph: torch.cuda.CUDAGraph
    pool: torch.cuda.MemPool | None
    given_at: list[int]
    snapshot: CaptureSnapshot | None = None
    answer: Any = None
    result: list[Any] = dataclasses.field(default_factory=list)  # the leaves of the answer
    shape: Shape | None = None  # and how they lie in it
    owners: dict[int, int] = dataclasses.field(default_factory=dict)  # of the tensors, by their ids
    gradients: dict[int, Any] = dataclasses.field(default_factory=dict)  # by parameter
    mutated: list[int] = dataclasses.field(default_factory=list)  # of the tensors
    asked_lanes: int = 1  # by name: streams and overlap; 1 where none are
    noting: Noting | None = None
    trace: NumberTrace | None = None  # of what is computed from the step's numbers
    constants: HostConstants | None = None
    tables: HostTables | None = None  # arguments on the CPU
    draws: HostDraws | None = None  # random numbers on the CPU
    device: int | None = None  # whose memory is in the pool

    @property
    def pool_id(self) -> Any:
        """As torch takes it: of a type of its own since 2.15."""
        assert self.pool is not None
        return self.pool.id

    def close(self) -> None:
        """Lets go of the pool, whoever holds the capture: the frames of an error may, and addresses
        that torch still counted would be given out again."""
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None
        self.graph.reset()
        if self.pool is not None and self.device is not None:
            _compat.release_pool(self.device, self.pool)
        self.pool = None


@dataclasses.dataclass
class Capture:
    """Both captures and what they name; close() frees all but the graphs' nodes. ``second`` is None
    where a known structure tells what it would. ``alive`` is what was allocated beside them,
    (address, bytes). ``third`` is one with other numbers, where the blocks are at
    ``third_addresses``."""

    memory: CaptureMemory
    first: Captured
    second: Captured | None
    blocks: list[Block]  # the units that were given, then what was allocated, in order of time
    noted: Noted | None  # during the first
    alive: list[tuple[int, int]]
    is_mapped: bool  # launches will be given mapped memory
    third: Captured | None = None
    third_addresses: Sequence[int] = ()
    draws: Draws | None = None  # random numbers on the CPU, if any
    is_second_kept: bool = False  # somebody else's, who closes it

    @property
    def captures(self) -> list[Captured]:
        return [each for each in (self.first, self.second, self.third) if each is not None]

    def close(self) -> None:
        for captured in self.captures:
            if captured is not self.second or not self.is_second_kept:
                captured.close()
        if self.noted is not None:
            self.noted.marks.close()
        del self.first, self.second, self.third
        self.memory.close()
