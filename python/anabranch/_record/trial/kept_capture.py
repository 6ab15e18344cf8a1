# SPDX-License-Identifier: Apache-2.0
"""A capture that is the call: the step's Python runs once, over the step's own memory, and the
graph is launched as it is.

What the capture allocates is memory, and torch splits its blocks as in any graph. The graph is kept
until the next call is captured, at other addresses: both tell the recording, and this one, launched
again, what the step does. So the next call is compared without running its Python twice. Between
its launches there is memory only where somebody has a tensor.

Source: "A call may be its own capture" in docs/decisions/. Threads: one capture at a time
in a process. Failure: NotRecordable and NativeError; nothing has run on the GPU then, and what the
step's Python has done is the caller's to put back.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import CaptureDevice, CaptureMemory
from anabranch._record.capture.capture import (
    IsEnough,
    abandon,
    abandon_captures,
    alive_beside,
    capture_over_stand_ins,
    check_nothing_is_kept,
    memory_stays,
    noted_of,
    of_one,
    run_captured,
)
from anabranch._record.capture.captured import Capture, Captured
from anabranch._record.capture.compare import compare, describe, match, open_answers, trace_of
from anabranch._record.capture.stand_ins import one_at_a_time
from anabranch._record.capture.step import Alias, Constant, Step, StepObject
from anabranch._record.launch.output_buffers import part_of, view_at
from anabranch._record.memory.garbage import collect_of_late, no_collection
from anabranch._record.memory.gpu import capture_allocator, empty_cache, no_limit
from anabranch._record.memory.shortage import phase
from anabranch._record.refusals import ANOTHER_ANSWER, Again, Cause, NotRecordable
from anabranch._record.tensors import Unit, bytes_of, is_wrapper, version_of

# By the pools that lie there: it goes behind these, whoever lets go of a capture. Callers may have
# its answers for long.
_memories: list[tuple[Any, CaptureMemory]] = []


class KeptCapture:
    """One that has been launched as a call."""

    def __init__(self, step: Step, captured: Captured, memory: CaptureMemory) -> None:
        self._captured, self._memory, self._device = captured, memory, step.device
        self._units = step.units
        self._given: dict[int, Tensor] = {}  # bytes of those that it names, by number
        self._numbers = {tuple(unit.members): i for i, unit in enumerate(step.units)}
        self._arguments = step.arguments
        self._way: dict[str, Any] = {  # in which it was captured
            "ahead": step.ahead, "is_noted": step.is_noted, "has_constants": step.has_constants}
        self.trace: list[tuple[int, int]] = []  # what it has allocated, (address, bytes)
        self.peak_bytes = 0  # of that, at once
        self._has_launched: Callable[[], object] = lambda: None
        self._live: list[Tensor] = []  # the bytes of what was there when it ended
        self._idle: dict[int, int] = {}  # segments without any of that, bytes by address

    def note(self, step: Step, told: _compat.PoolHistory) -> None:
        """What it has allocated, and what it names of what it was given: nothing of the rest, such
        as gradients that it lets go of, has to be there again."""
        captured = self._captured
        self.trace = trace_of(step, captured, told)
        self.peak_bytes = peak_of(told.events_in(captured.pool_id))
        self._live = [bytes_at(address, size, step.device) for address, size, pool in told.alive
                      if pool == captured.pool_id]
        segments = told.segments.get(captured.pool_id, {})
        held = overlapping([Unit(address, size, []) for address, size in segments.items()],
                           units_at(self._live))
        self._idle = {address: segments[address]
                      for address in segments.keys() - {unit.address for unit in held}}
        assert captured.snapshot is not None
        together = joined(self._units)
        named = [i for group, _ in captured.snapshot.mentions(
            [(begin, end - begin) for begin, end, _ in together]) for i in together[group][2]]
        units = [self._units[i] for i in named]
        self._given = dict(zip(named, bytes_of(step.tensors, units), strict=True))

    def launch(self) -> None:
        """On the current stream. What was there when the capture ended stays; the rest of its
        memory is given back, once the launch has ended."""
        try:
            with phase("memory of a capture that is launched", self._device):
                self._memory.give_own()
            self._captured.graph.replay()
        finally:
            self._memory.take_own([*self._idle])

    @property
    def addresses_bytes(self) -> int:
        """What torch counts as reserved for it between launches, and has no memory."""
        return sum(self._idle.values())

    def captured_alike(self, step: Step) -> Step:
        """The step, to be captured in the same way."""
        return dataclasses.replace(step, **self._way)

    def fits(self, step: Step) -> bool:
        """Whether the step has the same tensors, and what of them lies elsewhere by now lies apart
        from all that was captured."""
        ours = [self._numbers.get(tuple(unit.members)) for unit in step.units]
        if step.arguments != self._arguments or len(ours) != len(self._units) or None in ours:
            return False
        pairs = [(self._units[number], unit) for number, unit in zip(ours, step.units, strict=True)
                 if number is not None]
        moved = [unit for mine, unit in pairs if mine.address != unit.address]
        return all(mine.size_bytes == unit.size_bytes for mine, unit in pairs) \
            and not overlapping(moved, [self._units[i] for i in self._given])

    def given_at(self, step: Step) -> list[int]:
        """Where its units lie, in the order of the step's."""
        return [self._units[self._numbers[tuple(unit.members)]].address for unit in step.units]

    def _moved(self, step: Step) -> list[tuple[Tensor, Tensor]]:
        """The bytes of what it names and lies elsewhere than it did: ours first."""
        ours = [self._given.get(self._numbers[tuple(unit.members)]) for unit in step.units]
        moved = [(mine, unit) for mine, unit in zip(ours, step.units, strict=True)
                 if mine is not None and mine.data_ptr() != unit.address]
        theirs = bytes_of(step.tensors, [unit for _, unit in moved])
        return [(mine, there) for (mine, _), there in zip(moved, theirs, strict=True)]

    @contextlib.contextmanager
    def lent(self, step: Step, has_launched: Callable[[], object]) -> Iterator[None]:
        """Around launches for the step: callers may have the call's arguments and answers still,
        which are as before afterwards, all but what the step is given of them. ``has_launched()``
        is called behind each, before what it answers has memory."""
        torch.cuda.synchronize(self._device)
        inside = within(units_at(self._live), step.units)
        memory = [*(each for each, is_inside in zip(self._live, inside, strict=True)
                    if not is_inside),
                  *(mine for mine, _ in self._moved(step))]
        with phase("copies of what a call has answered", self._device):
            before = [each.clone() for each in memory]
        self._has_launched = has_launched
        try:
            yield
        finally:
            given = bytes_of(step.tensors, overlapping(step.units, units_at(memory)))
            now = [each.clone() for each in given]
            for each, value in (*zip(memory, before, strict=True), *zip(given, now, strict=True)):
                each.copy_(value)
            torch.cuda.synchronize(self._device)

    def launch_for(self, step: Step) -> Any:
        """Does what the step does, and answers what it answers, without running its Python."""
        moved = self._moved(step)
        for mine, theirs in moved:
            mine.copy_(theirs)
        self.launch()
        self._has_launched()
        for i, grad in self._captured.gradients.items():
            step.parameters[i].grad = self._made(grad, step)
        shape = self._captured.shape
        assert shape is not None
        answer = shape.unflatten([self._made(part, step) for part in self._captured.result])
        for mine, theirs in moved:  # which may lie in what has been answered
            theirs.copy_(mine)
        return answer

    def overwritten(self, step: Step) -> set[int]:
        """The numbers of the first tensors of what the step is given, does not use and launches
        write: it lies where the call has answered."""
        unused = [unit for unit in step.units
                  if self._numbers[tuple(unit.members)] not in self._given]
        return {unit.members[0][0] for unit in overlapping(unused, units_at(self._live))}

    @property
    def sets_gradients(self) -> bool:
        return bool(self._captured.gradients)

    def _made(self, part: Any, step: Step) -> Any:
        """What it stands for; of its own memory a copy."""
        if isinstance(part, Constant):
            return part.value
        if isinstance(part, StepObject):
            return step.objects[part.index]
        if isinstance(part, Alias):
            owner = step.leaves[step.places[part.tensor]] if part.tensor < step.arguments \
                else step.tensors[part.tensor]
            if part.view is None:
                return owner
            shape, stride, offset, dtype = part.view
            return view_at(owner, offset, shape, stride, dtype)
        made = _compat.empty_strided_cuda(part.shape, part.stride, part.dtype)
        if part.allocation >= 0:
            address, size = self.trace[part.allocation]
            memory = bytes_at(address, size, self._device)
            made.copy_(part_of(memory, part.offset_bytes, part.shape, part.stride, part.dtype))
        return made

    def second(self) -> Captured:
        """As the second of two captures, which closes nothing."""
        return dataclasses.replace(self._captured)

    def close(self) -> None:
        """May be called again."""
        if self._captured.pool is None:
            return
        self._live, self._given = [], {}
        self._captured.close()
        close_outlived()


def close_outlived() -> None:
    """Gives back the memory of captures of which nobody has a tensor any more, and addresses that
    torch has given back."""
    with one_at_a_time:
        if any(not _compat.allocated_in_pools([pool]) for pool, _ in _memories):
            empty_cache()
        for pool, memory in list(_memories):
            if not _compat.reserved_in_pools([pool]):
                _memories.remove((pool, memory))
                memory.close()


def capture_call(step: Step, device: CaptureDevice,
                 repeated: Callable[[Any], Any]) -> tuple[Any, KeptCapture]:
    """Captures a call over its own memory, and launches it: its answer, and what is kept.
    ``repeated(answer)`` is what of it launches answer."""
    collect_of_late()
    close_outlived()
    with one_at_a_time, torch.cuda.device(step.device), no_collection(), no_limit(step.device):
        memory = CaptureMemory(device, is_kept=True)
        memory.begin_capture()
        captured = Captured(
            torch.cuda.CUDAGraph(keep_graph=True),
            torch.cuda.MemPool(capture_allocator().allocator()),
            [unit.address for unit in step.units], device=step.device)
        _memories.append((captured.pool_id, memory))
        try:
            with _compat.memory_history(step.device) as history:
                answer = _captured(step, captured, memory, device)
                told = history()
            kept = KeptCapture(step, captured, memory)
            kept.note(step, told)
            _describe(step, captured, kept.trace, repeated(answer))
            kept.launch()
        except BaseException:
            abandon_captures([captured])
            raise
    return answer, kept


def _captured(step: Step, captured: Captured, memory: CaptureMemory, device: CaptureDevice) -> Any:
    owners = [*(step.leaves[place] for place in step.places), *step.tensors[step.arguments:]]
    versions = list(map(version_of, owners))
    before = [parameter.grad for parameter in step.parameters]
    with memory_stays(step, owners):
        # As many blocks ahead as the next capture has, and as small as can be: these are split.
        answer = run_captured(dataclasses.replace(step, ahead=[1] * len(step.ahead)),
                              list(step.leaves), captured, memory, device, has_marks=False)
    captured.owners = {id(tensor): i for i, tensor in enumerate(owners)}
    captured.gradients = {i: parameter.grad for i, (parameter, grad) in
                          enumerate(zip(step.parameters, before, strict=True))
                          if parameter.grad is not grad and parameter.grad is not None}
    captured.mutated = [i for i, tensor in enumerate(owners) if version_of(tensor) != versions[i]]
    return answer


def _describe(step: Step, captured: Captured, trace: Sequence[tuple[int, int]],
              answer: Any) -> None:
    """What it answers, without its tensors: callers let go of them when they like."""
    captured.answer = answer
    open_answers(step, [captured])
    if any(isinstance(leaf, Tensor) and (is_wrapper(leaf) or leaf.is_conj() or leaf.is_neg())
           for leaf in (*captured.result, *captured.gradients.values())):
        raise NotRecordable("it answers tensors of a wrapping class, or lazy ones")
    blocks = match(step, [captured.given_at] * 2, [trace] * 2)
    describe(step, captured, blocks, second=True)
    captured.owners = {}


def capture_beside(step: Step, device: CaptureDevice, kept: KeptCapture,
                   is_enough: IsEnough | None = None) -> Capture:
    """The step at fresh addresses, with what has been kept as the second capture of it; without
    that where ``is_enough`` says so of the first."""
    collect_of_late()
    with one_at_a_time, torch.cuda.device(step.device), no_collection():
        with phase("the page behind captures", step.device):
            memory = CaptureMemory(device)
        made: list[Captured] = []
        second = kept.second()
        try:
            with _compat.memory_history(step.device) as history:
                capture_over_stand_ins(step, memory, device, made)
                told = history()
            if is_enough is not None and is_enough(one := of_one(step, memory, made[0], told)):
                made[0].answer, made[0].gradients = None, {}
                check_nothing_is_kept(made)
                return one
            blocks = match(step, [made[0].given_at, kept.given_at(step)],
                           [trace_of(step, made[0], told), kept.trace])
            noted = noted_of(step, made[0], blocks)
            open_answers(step, made)
            if made[0].shape != second.shape:
                raise NotRecordable(ANOTHER_ANSWER, Cause.OTHER_ANSWER)
            describe(step, made[0], blocks, second=False)
            compare(made[0], second)
            check_nothing_is_kept(made)
        except BaseException:
            abandon(memory, made)
            raise
    return Capture(memory, made[0], second, blocks, noted, alive_beside(made, told),
                   told.is_mapped, is_second_kept=True)


def check_fits(kept: KeptCapture, step: Step) -> None:
    if not kept.fits(step):
        raise Again("its tensors lie elsewhere than in the call before")


def overlapping(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    """Those that share bytes with one of others, which do not among themselves."""
    by_address = sorted(others, key=lambda unit: unit.address)
    begins = [unit.address for unit in by_address]
    ends = [unit.address + unit.size_bytes for unit in by_address]
    return [unit for unit in units
            if bisect.bisect_left(begins, unit.address + unit.size_bytes)
            > bisect.bisect_right(ends, unit.address)]


def units_at(memory: Sequence[Tensor]) -> list[Unit]:
    return [Unit(each.data_ptr(), each.numel(), []) for each in memory]


def joined(units: Sequence[Unit]) -> list[tuple[int, int, list[int]]]:
    """What overlaps, as one piece: (begin, end, numbers of units), by address. An argument that is
    also state is two units."""
    pieces: list[tuple[int, int, list[int]]] = []
    for i in sorted(range(len(units)), key=lambda i: units[i].address):
        begin, end = units[i].address, units[i].address + units[i].size_bytes
        if pieces and begin < pieces[-1][1]:
            first, last, numbers = pieces.pop()
            pieces.append((first, max(last, end), [*numbers, i]))
        else:
            pieces.append((begin, end, [i]))
    return pieces


def within(units: Sequence[Unit], others: Sequence[Unit]) -> list[bool]:
    """Of each whether one of others has all of it; of others that overlap one may be missed."""
    by_address = sorted(others, key=lambda unit: unit.address)
    begins = [unit.address for unit in by_address]
    ends = [0, *(unit.address + unit.size_bytes for unit in by_address)]
    return [unit.address + unit.size_bytes <= ends[bisect.bisect_right(begins, unit.address)]
            for unit in units]


def peak_of(events: Iterable[_compat.Event]) -> int:
    """Bytes that were allocated at once, at most."""
    sizes: dict[int, int] = {}
    now = peak = 0
    for event in events:
        now -= sizes.pop(event.address, 0)
        if not event.is_freed:
            sizes[event.address] = event.bytes
            now += event.bytes
        peak = max(peak, now)
    return peak


def bytes_at(address: int, size_bytes: int, device: int) -> Tensor:
    """Memory that somebody else owns, as a tensor of bytes."""
    on = torch.device("cuda", device)
    storage = _compat.storage_at(address, size_bytes, on)
    return torch.empty(0, dtype=torch.uint8, device=on).set_(storage, 0, (size_bytes,), (1,))
