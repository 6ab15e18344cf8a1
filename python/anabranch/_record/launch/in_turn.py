# SPDX-License-Identifier: Apache-2.0
"""A launch of several graphs, one after the other on one stream.

Each stretch is allocated what it is the first to name, and what no later one names is let go of
behind it, so that torch's allocator gives that memory to what follows, as in a plain run.

Threads: any, several at once. Failure: NativeError and torch.OutOfMemoryError, where nothing has
been queued. From its second stretch on a launch can only go on: there it tries once more without
the answers that are finished, see ``swapped_out``, and then raises torch's errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.library import NativeError
from anabranch._fx.extents import extent_bytes
from anabranch._record.checks import packed
from anabranch._record.launch.output_buffers import OutputBuffer, OutputBuffers
from anabranch._record.launch.stretch import Stretch, last_named, steady_addresses
from anabranch._record.launch.swapped_out import SwappedOut

BAD_BINDING = 402


class Turn(NamedTuple):
    """Of one stretch. ``begun``: bases that it is the first to name. ``passed``: those that a
    launch does not answer and no later stretch names. ``let_go``: given tensors, by their index, of
    which nobody needs anything later."""

    begun: list[int]
    passed: list[int]
    let_go: list[int]


class InTurn:
    """``layouts`` are those of all bases: of what is answered, and behind these of what one stretch
    leaves for another. ``alignments`` are those of given tensors, by their index; ``together``
    tells which of these share a unit with another. A launch takes more than addresses of the
    tensors in ``takes``. ``freed_bytes`` is the memory that goes with given tensors that are let go
    of.

    ``arena_bytes`` is the peak of what a launch allocates and does not answer, ``peak_bytes`` that
    of all it allocates, less what it has let go of by then.
    """

    def __init__(self, stretches: Sequence[Stretch], buffers: OutputBuffers,
                 layouts: Sequence[OutputBuffer], alignments: Sequence[tuple[int, int]],
                 together: Iterable[tuple[int, int, int]], takes: set[int],
                 freed_bytes: Mapping[int, int], device: int) -> None:
        self._stretches, self._layouts, self._device = stretches, layouts, device
        self._answered = buffers.bases
        self._mask = int.from_bytes(packed([alignment - 1 for _, alignment in alignments]),
                                    "little")
        self._slots = packed([index for index, _ in alignments])
        named = [stretch.bases for stretch in stretches]
        ended = last_named(named)
        # Of what is answered, what each stretch is the last to name.
        self._finished = [[base for base in some if base < self._answered] for some in ended]
        self._turns = self._plan(named, ended, together, takes)
        sizes = [extent_bytes(*layout) for layout in layouts]
        passed_on = [0] * self._answered + sizes[self._answered:]
        self.arena_bytes = self._peak(passed_on, {})
        self.peak_bytes = self._peak(sizes, freed_bytes)

    def _plan(self, named: list[set[int]], ended: list[list[int]],
              together: Iterable[tuple[int, int, int]], takes: set[int]) -> list[Turn]:
        begun = last_named(named[::-1])[::-1]
        begun[-1] += sorted(set(range(self._answered)).difference(*named))
        passed = [[base for base in some if base >= self._answered] for some in ended]
        members: dict[int, list[int]] = {}  # that lie in the unit of the first
        for first, other, _ in together:
            members.setdefault(first, []).append(other)
        let_go = last_named([{member for index, _ in stretch.alignments
                              for member in (index, *members.get(index, ()))} - takes
                             for stretch in self._stretches])
        return list(map(Turn, begun, passed, let_go))

    def _peak(self, bytes_of_bases: Sequence[int], freed_bytes: Mapping[int, int]) -> int:
        held, peaks = 0, []
        for stretch, (begun, passed, let_go) in zip(self._stretches, self._turns, strict=True):
            held += sum(bytes_of_bases[base] for base in begun)
            peaks.append(held + stretch.arena_bytes)
            held -= sum(bytes_of_bases[base] for base in passed)
            held -= sum(freed_bytes.get(index, 0) for index in let_go)
        return max(peaks)

    def launch(self, given: Any, offsets: bytes, poison: int | None, frees: list[Any] | None,
               replay: Callable[[], Any] | None) -> list[Tensor]:
        """The bases of what is answered. Arguments as of StepRecording.launch; ``replay`` is called
        right before the first graph is queued."""
        addresses = steady_addresses(given, offsets, self._slots)
        if int.from_bytes(addresses, "little") & self._mask:
            raise NativeError(BAD_BINDING, "launch: an argument lies at an address with which "
                                            "kernels were not captured")
        bases: list[Any] = [None] * len(self._layouts)
        swapped = SwappedOut()
        for number, stretch in enumerate(self._stretches):
            begun, passed, let_go = self._turns[number]
            try:
                self._queue(stretch, given, offsets, bases, begun, poison, replay)
            except torch.OutOfMemoryError:
                if number == 0:
                    raise
                swapped.take(bases[base] for some in self._finished[:number] for base in some)
                self._queue(stretch, given, offsets, bases, begun, poison, None)
            replay = None
            for base in passed:
                bases[base] = None
            if frees is not None:
                frees.clear()
                for index in let_go:
                    given[index] = None
        swapped.put_back()
        return bases[:self._answered]

    def _queue(self, stretch: Stretch, given: Sequence[Any], offsets: bytes, bases: list[Any],
               begun: Sequence[int], poison: int | None,
               replay: Callable[[], Any] | None) -> None:
        for base in begun:
            bases[base] = _compat.empty_strided_cuda(*self._layouts[base])
        fresh = [bases[base] for base in begun]
        parts = None if poison is None else stretch.poisoned(poison, fresh)
        stretch.queue(self._device, given, offsets, bases, parts, (), replay)
