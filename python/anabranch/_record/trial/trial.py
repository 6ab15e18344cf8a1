# SPDX-License-Identifier: Apache-2.0
"""A step as it is before a call, to run it again from there, plainly and launched, and to compare
the runs.

Next to no memory is taken beside the step's own. Of what the step is given only that is copied
which it writes (``copies``); what runs leave and answer is compared by checksums (``checksums``),
and by value only where these differ. What is taken to be only read is hashed before and after the
plain run: if it was written after all, the call has run plainly, and the next trial copies it.
Gradients of the call before that nobody else has are let go of, as the step itself lets go of them.

Threads: one at a time. Failure: Short where there is no memory for copies, with the state as it
was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import random
import sys
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Step
from anabranch._record.launch.recording import StepRecording
from anabranch._record.memory.garbage import collect_of_late
from anabranch._record.memory.gpu import free_bytes, give_back
from anabranch._record.memory.shortage import OF_LAUNCH, Short, phase
from anabranch._record.state.state import State
from anabranch._record.tensors import (
    bytes_of,
    inner_tensors,
    size_of,
    units_of,
    version_of,
    whole_bytes,
)
from anabranch._record.trial.checksums import checksums, forget_places
from anabranch._record.trial.copies import Copies, grantable_bytes
from anabranch._record.trial.histories import Histories, detached, is_behind_backward
from anabranch._record.trial.kept_capture import KeptCapture
from anabranch._record.trial.old_gradients import OldGradients
from anabranch._record.trial.run import Moment, Run
from anabranch._record.trial.values import Values, form_of

_POISON = 0xFF
_SMALL_BYTES = 1 << 20  # of what is copied whether it is written or not


@dataclasses.dataclass
class Foreseen:
    """What is known of a signature's runs before a trial; what a trial finds out is for the next
    one."""

    versions: dict[int, int] = dataclasses.field(default_factory=dict)  # by id, before a plain call
    written: set[int] = dataclasses.field(default_factory=set)  # numbers of memory, beside that
    needs_gradients: bool = False  # those that it finds

    def is_newer(self, tensor: Tensor) -> bool:
        """Whether an earlier call is known to have written it. What has no known version, an
        argument of one call alone, is hashed."""
        return self.versions.get(id(tensor), version_of(tensor)) != version_of(tensor)


@dataclasses.dataclass
class _Given:
    """Memory that a step is given; ``number`` is that of its first tensor, those of the step
    first."""

    number: int
    memory: Tensor  # its bytes
    kind: torch.dtype  # of that tensor
    members: list[Tensor] = dataclasses.field(default_factory=list)
    is_saved: bool = False
    may_count: bool = True  # the step by it; not a large tensor of floats

    @property
    def name(self) -> str:
        return f"given memory {self.number}"


def _given_memory(step: Step, state: State, without: Collection[int],
                  of_optimizers: Collection[int]) -> list[_Given]:
    found = []
    written = {id(tensor): tensor for tensor in
               (*state.written, *(one for one in step.pinned if id(one) in of_optimizers))}
    fixed = [*step.fixed, *written.values()]
    for tensors, units, base in ((step.tensors, step.units, 0),
                                 (fixed, units_of(fixed), len(step.tensors))):
        kept = [unit for unit in units if base or unit.members[0][0] not in without]
        for unit, memory in zip(kept, bytes_of(tensors, kept), strict=True):
            members = [tensors[i] for i, _ in unit.members]
            may_count = memory.numel() <= _SMALL_BYTES \
                or not all(tensor.dtype.is_floating_point for tensor in members)
            found.append(_Given(base + unit.members[0][0], memory, members[0].dtype, members,
                                may_count=may_count))
    return found


def _of_optimizers(step: Step) -> set[int]:
    """The ids of all that optimizers write, where they may: fused ones count no versions."""
    if not torch.is_grad_enabled():
        return set()
    found = [tensor for one in step.optimizers for group in one.param_groups
             for tensor in group["params"]]
    found += [value for one in step.optimizers for values in one.state.values()
              if isinstance(values, dict) for value in values.values() if isinstance(value, Tensor)]
    return {id(inner) for tensor in found for inner in inner_tensors(tensor)}


class Trial:
    """``state`` says what the step has on the CPU, pinned or not; plain runs are on the stream of
    its captures, or where ``on_callers_stream`` on that of the caller. Where memory ``is_plenty``,
    copies are made on the GPU, and what is cached stays there. ``kept``: a capture that is launched
    in the place of plain runs."""

    def __init__(self, step: Step, state: State, foreseen: Foreseen,
                 on_callers_stream: bool = False, is_plenty: bool = False,
                 kept: KeptCapture | None = None) -> None:
        self._step, self._state, self._foreseen = step, state, foreseen
        self._on_callers_stream, self._is_plenty = on_callers_stream, is_plenty
        self._kept = kept
        self._histories = Histories()  # of what a run is given
        given = sum(unit.size_bytes for unit in step.units)
        granted = free_bytes(step.device) // 4 if is_plenty \
            else grantable_bytes(step.device, size_of(step.tensors))
        may_let_go = given > granted and not foreseen.needs_gradients
        self._old = OldGradients(step if may_let_go else None)
        of_optimizers = _of_optimizers(step)
        self._given = _given_memory(step, state, self._old.numbers, of_optimizers)
        is_little = size_of([one.memory for one in self._given]) <= granted
        for one in self._given:
            one.is_saved = is_little or one.memory.numel() <= _SMALL_BYTES \
                or one.number in foreseen.written \
                or any(id(tensor) in of_optimizers or foreseen.is_newer(tensor)
                       for tensor in one.members)
            one.members = []
        _wait_for_copies(self._memory)
        self._copies = Copies(self._saved, granted)
        self._compared: weakref.WeakSet[Values] = weakref.WeakSet()
        read = [one for one in self._given if not one.is_saved]
        self._read_sums = dict(zip([one.number for one in read],
                                   checksums([one.memory for one in read]), strict=True))
        self._before = self._moment()
        self._old.let_go()
        for i in self._old.owners:
            self._before.gradients[i] = None

    @property
    def _memory(self) -> list[Tensor]:
        return [one.memory for one in self._given]

    @property
    def _saved(self) -> list[Tensor]:
        return [one.memory for one in self._given if one.is_saved]

    @property
    def own_memory(self) -> Sequence[Tensor]:
        """Of the GPU, in which it and its values() keep copies. No step can use it, but kernels
        that made these have left its addresses where kernels of a capture may have words that
        nothing sets."""
        return [memory for copies in (self._copies, *(values.copies for values in self._compared))
                for memory in copies.device_memory]

    @property
    def is_whole(self) -> bool:
        """Whether there is a copy of all that the step is given."""
        return all(one.is_saved for one in self._given) and not self._old.numbers

    @property
    def copied_bytes(self) -> int:
        return self._copies.size_bytes

    @property
    def copied_to(self) -> str:
        """"GPU" or "host"."""
        return self._copies.where

    @property
    def has_let_gradients_go(self) -> bool:
        return bool(self._old.owners)

    @property
    def let_go_bytes(self) -> int:
        """Of the gradients that the plain run has let go of."""
        return size_of([self._step.tensors[number] for number in self._old.numbers])

    def use(self, step: Step) -> None:
        """The same step, captured in another way."""
        self._step = step

    def _moment(self) -> Moment:
        return moment_of(self._step, self._state)

    def plain(self) -> Run:
        """Runs the step as it is."""
        return self.look(*self.run())

    def run(self) -> tuple[Any, str]:
        """The step's own answer, or what a launch of the kept capture has made, and whose generator
        on the CPU it has moved: "torch", "other" or none. Errors are the step's."""
        before = generators_of_the_cpu()
        self._histories = Histories(self._step.tensors)
        with self._stream():
            answer = self._step.call(list(self._step.leaves)) if self._kept is None \
                else self._launch_kept(self._kept)
        of_torch, *others = generators_of_the_cpu()
        drawn = "other" if others != list(before[1:]) else "torch" * (of_torch != before[0])
        return answer, drawn

    def _launch_kept(self, kept: KeptCapture) -> Any:
        """What of the step's lies in the answers of the call before is as it would be behind a
        plain run: the launch has written these anew."""
        answer = kept.launch_for(self._step)
        overwritten = kept.overwritten(self._step)
        saved = [one for one in self._given if one.is_saved]
        self._copies.put_some_back({i: one.memory for i, one in enumerate(saved)
                                    if one.number in overwritten})
        return answer

    def look(self, answer: Any, drawn: str = "") -> Run:
        """What a plain run has left. Its results have no history afterwards, as a recording's have
        none: what they belonged to would live on into the capture."""
        self._take_back_gradients()
        [flat], shape = flatten([answer], self._step.object_numbers)
        with_history = list(filter(self._histories.is_new, flat))
        has_history, is_missed = bool(with_history), any(map(self._may_be_missed, with_history))
        if has_history:
            flat = list(map(detached, flat))
            answer = shape.unflatten(flat)
        with_history.clear()
        self._histories.clear()
        return self._after(answer, flat, has_history, is_missed, drawn)

    def _may_be_missed(self, answer: Tensor) -> bool:
        """Whether a backward may follow outside of the step, through the history of an answer."""
        is_behind = is_behind_backward(answer)
        return not (self._new_gradients() if is_behind is None else is_behind)

    def _new_gradients(self) -> dict[int, Tensor]:
        """By parameter, those that a run has set."""
        stand_ins = self._old.stand_ins()
        return {i: parameter.grad for i, (parameter, before) in
                enumerate(zip(self._step.parameters, self._before.gradients, strict=True))
                if parameter.grad is not None and parameter.grad is not before
                and id(parameter.grad) not in stand_ins}

    def _take_back_gradients(self) -> None:
        """Those that are still there behind the run: it has not let go of them."""
        for i, number, total in self._old.take_back():
            grad = self._before.gradients[i] = self._step.tensors[number]
            self._given.append(_Given(number, whole_bytes(grad), grad.dtype))
            self._read_sums[number] = total

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        if self._on_callers_stream:
            yield
            return
        self._give_back()
        with on_stream(self._step.stream, self._step.device):
            yield

    def reserve(self, recorded: StepRecording, is_alone: bool = False) -> None:
        """Short where there is not the memory for a launch. ``is_alone``: what others have left
        cached is given back before."""
        if is_alone:
            give_back(self._step.device)
        self._give_back()
        free = free_bytes(self._step.device)
        try:
            recorded.reserve()
        except torch.OutOfMemoryError as error:
            raise Short(OF_LAUNCH, recorded.launch_bytes, free) from error

    def _give_back(self) -> None:
        """What garbage of late holds, too: that of a try waits."""
        if not self._is_plenty:
            collect_of_late()
            give_back(self._step.device)

    def launched(self, recorded: StepRecording) -> Run:
        """Launches it, into memory filled with 0xFF."""
        answer = self.launch(recorded, _POISON)
        [flat], _ = flatten([answer], self._step.object_numbers)
        return self._after(answer, flat)

    def launch(self, recorded: StepRecording, poison: int | None = None) -> Any:
        with phase(OF_LAUNCH, self._step.device):
            return recorded.launch_as_captured(self._step, poison)

    def _after(self, answer: Any, flat: list[Any], has_history: bool = False,
               is_missed: bool = False, drawn: str = "") -> Run:
        after = self._moment()
        _wait_for_copies(self._memory)
        tensors = {f"result {i}": leaf for i, leaf in enumerate(flat) if isinstance(leaf, Tensor)}
        tensors |= {f"gradient {i}": grad for i, grad in self._new_gradients().items()}
        tensors = {name if len(inner) == 1 else f"{name}, part {part}": one
                   for name, tensor in tensors.items()
                   for inner in [inner_tensors(tensor)] for part, one in enumerate(inner)}
        tensors |= {one.name: one.memory for one in self._given}
        with phase("checksums", self._step.device):
            sums = dict(zip(tensors, checksums(list(tensors.values())), strict=True))
        return Run(answer, after, tensors,
                   {name: (form_of(one), sums[name]) for name, one in tensors.items()},
                   has_history, is_missed, drawn,
                   bool(self._before.memory.moved()))

    def written_unforeseen(self, run: Run) -> set[int]:
        """What the plain run has written although it was taken to be only read; nobody has a copy
        of it, so that the step cannot be run from there again. The next trial knows."""
        found = {one.number for one in self._given if one.number in self._read_sums
                 and run.sums[one.name][1] != self._read_sums[one.number]}
        self._foreseen.written |= found
        self._foreseen.needs_gradients |= any(
            self._step.own <= number < len(self._step.tensors) for number in found)
        return found

    def rewind_python(self) -> None:
        """Back to before the call, all but the GPU's memory: what a capture can see. Gradients that
        were let go have stand-ins without memory."""
        self._put(self._before)
        self._old.stand_in()

    def rewind(self, is_whole: bool = True) -> None:
        """Back to before the call. Of gradients that were let go what was in them is lost; no run
        that this is for reads it. Unless ``is_whole``, large tensors of floats stay as they are
        where it takes long to put them back: what a step may count by is put back."""
        _wait_for_copies(self._memory)
        saved = [one for one in self._given if one.is_saved]
        self._copies.put_back([one.memory for one in saved], () if is_whole else [
            i for i, one in enumerate(saved) if not one.may_count])
        self.rewind_python()

    def give_up(self) -> None:
        """Back to before the call, for a plain one that Python may look into: gradients have
        memory."""
        self.rewind()
        self._old.fill()

    def settle(self, run: Run) -> None:
        """To where a run has ended whose memory is still there."""
        assert run.after is not None
        self._put(run.after)

    def close(self) -> None:
        """Lets go of all that was copied. May be called again."""
        self._copies.close()
        self._given = []
        forget_places()

    def _put(self, moment: Moment) -> None:
        put_back(self._step, moment)

    def differing(self, a: Run, b: Run) -> set[str]:
        """The names of what is not the same bit for bit."""
        return {name for name in {**a.sums, **b.sums} if a.sums.get(name) != b.sums.get(name)}

    def values(self, run: Run, names: Collection[str]) -> Values:
        """Those of some of what a run has left, to be compared with another run's."""
        with phase("copies of what differs between runs", self._step.device):
            made = Values(run, sorted(names), self._kind_of, self._step.device)
        self._compared.add(made)
        return made

    def _kind_of(self, name: str, tensor: Tensor) -> torch.dtype:
        kind = next((one.kind for one in self._given if one.name == name), tensor.dtype)
        return kind if tensor.numel() % kind.itemsize == 0 or kind == tensor.dtype else tensor.dtype


def moment_of(step: Step, state: State) -> Moment:
    """Of now."""
    return Moment(
        [parameter.grad for parameter in step.parameters],
        (torch.cuda.get_rng_state(step.device), torch.get_rng_state()),
        [(one, one.get_state()) for one in state.generators],
        step.memory(),
        [(tensor, version_of(tensor), tensor.detach().clone()) for tensor in state.on_host()])


def put_back(step: Step, moment: Moment) -> None:
    for parameter, grad in zip(step.parameters, moment.gradients, strict=True):
        parameter.grad = grad
    torch.cuda.set_rng_state(moment.random[0], step.device)
    torch.set_rng_state(moment.random[1])
    for generator, drawn in moment.generators:
        generator.set_state(drawn)
    moment.memory.give_back()
    for tensor, version, value in moment.on_host:
        if version_of(tensor) != version:
            tensor.detach().copy_(value)


def generators_of_the_cpu() -> tuple[Any, ...]:
    """The states of torch's, of Python's and of numpy's, to be compared."""
    numpy = sys.modules.get("numpy")
    return (bytes(torch.get_rng_state().tolist()), random.getstate(),
            pickle.dumps(numpy.random.get_state(legacy=False)) if numpy else None)


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream, device: int) -> Iterator[None]:
    """Work inside runs on ``stream``, behind what the current stream has and before what it gets.

    Plain runs take the stream of the captures: gradient accumulators remember the stream they were
    made on, and one that was made elsewhere would break the capture.
    """
    current = torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def _wait_for_copies(memory: Sequence[Tensor]) -> None:
    """The GPU may still write what of it is the host's, or read it."""
    if not all(tensor.is_cuda for tensor in memory):
        torch.cuda.synchronize()
