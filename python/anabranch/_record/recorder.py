# SPDX-License-Identifier: Apache-2.0
"""Records one callable, a signature at a time: what record() and the backend share.

A signature's first calls run plainly; then it is captured, made, verified and launched. What cannot
be recorded runs plainly for ever, with its reason. Threads: any; one thread records at a time.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat, config, errors
from anabranch._core.library import NativeError
from anabranch._record.attempt import Attempt
from anabranch._record.capture.stand_ins import swaps, wait_for_captures
from anabranch._record.capture.step import Step
from anabranch._record.capture.untracked import UntrackedTensors
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import InBlocks, SavedBlocks, handed_over, opened
from anabranch._record.memory.gpu import empty_cache, free_bytes, give_back, is_plentiful
from anabranch._record.memory.shortage import OF_LAUNCH, Short, Shortage
from anabranch._record.refusals import ON_CPU, Again, Apart, Empty, NotRecordable
from anabranch._record.report import RecordingReport
from anabranch._record.specialization import BoundState, Specialization
from anabranch._record.state.paths import Path
from anabranch._record.state.state import NO_STATE, State, standing
from anabranch._record.tensors import (
    inner_tensors,
    is_wrapper,
    size_of,
    units_apart,
    units_of,
    version_of,
)
from anabranch._record.trial.trial import on_stream
from anabranch._record.trial.verify import Untrusted

log = logging.getLogger("anabranch.record")
# Plain runs before a recording share the stream of captures, so callables have one at a time.
# Compiled graphs do not wait: a callable's run may wait for their backward, on autograd's thread.
_plain_steps = threading.RLock()
_WARM_UP = 1  # plain calls of a signature before it is recorded
_BAD_BINDING = 402
_MOST_TRIES_AGAIN = 3


class Recorder:
    """``call(leaves)`` runs the callable, and ``call_last(leaves)`` does so where nobody needs the
    leaves behind it, so that it may let go of them one by one; ``takes_gradients`` says whether it
    may set ``.grad``; results from ``saved_from`` on are freed together, and answered in blocks
    where ``saved`` says so; leaves may be InBlocks, with which ``call`` copes. ``differences(key,
    keys)`` says in what a signature differs from others. ``look_farther(ways)`` makes the states
    that are found from now on have what these lead to."""

    def __init__(self, call: Callable[[list[Any]], Any], chosen: config.Options, name: str, *,
                 takes_gradients: bool, call_last: Callable[[list[Any]], Any] | None = None,
                 saved_from: int | None = None, saved: SavedBlocks | None = None,
                 differences: Callable[[Any, Sequence[Any]], str] = lambda key, keys: "",
                 look_farther: Callable[[Collection[Path]], None] = lambda ways: None) -> None:
        self.name = name
        self.entries: dict[Any, Specialization] = {}
        self.is_refused = False  # something was, and not for the number of signatures
        self._call = call
        self._call_last = call_last or call
        self._chosen = chosen
        self._takes_gradients = takes_gradients
        self._saved_from = saved_from
        self._saved = saved
        self._differences = differences
        self._look_farther = look_farther
        self._beyond: Specialization | None = None  # of all signatures that are too many
        self._alone: contextlib.AbstractContextManager[Any] = (
            _plain_steps if takes_gradients else contextlib.nullcontext())
        # Whether they are right side by side is a thing to verify.
        self._has_lanes = chosen.overlap > 1 and chosen.verify
        # As the first call begins, for good: gradients that one call leaves on a stream the next
        # one frees.
        self._has_plenty: bool | None = None
        self._lock = threading.RLock()
        self._told: set[str] = set()
        self._retired: collections.deque[RecordingReport] = collections.deque(
            maxlen=chosen.max_recordings)

    def run(self, key: Any, leaves: list[Any], state: State, describe: Callable[[], str],
            entry: Specialization | None = None) -> Any:
        """The answer of one call, by whatever way its signature has got to. ``state`` is what a
        new recording uses besides its leaves; ``entry`` that of the key, where it is known."""
        entry = entry or self.entries.get(key)
        if entry is None:
            entry = self._new_entry(key, leaves, state, describe)
        entry.report.calls += 1
        if entry.recorded is not None:
            if entry.shortage and not self._has_memory_again(entry):
                entry.report.plain_calls += 1
                return self._call_last(leaves)
            return self._launch(key, entry, leaves, state)
        if entry.report.reason is not None:
            if entry.shortage and self._has_memory_again(entry):
                entry.report.reason = None  # the next call records: it looks for everything anew
            elif self._chosen.strict and not entry.is_empty:
                raise self._strict_error(entry.report.reason)
            return self._call_last(leaves)
        entry.plain += 1
        if entry.plain <= _WARM_UP:
            return self._warm_up(entry, leaves, state)
        with self._alone, self._lock:
            if entry.recorded is None and entry.report.reason is None:
                entry.state = state
                answer = self._record(key, entry, handed_over(leaves))
                _give_back_memory()
                return answer
        return self.run(key, leaves, state, describe)  # another thread was first

    def _warm_up(self, entry: Specialization, leaves: list[Any], state: State) -> Any:
        """A plain call, in which it shows what the step writes. Compiled graphs run where their
        caller is; a callable's autograd on the stream of captures, unless memory is short: what one
        stream has cached in part another cannot use."""
        tensors = [*(leaf for leaf in opened(leaves) if isinstance(leaf, Tensor)), *state.tensors(),
                   *state.inner_tensors()] if state is not NO_STATE else []
        device = _device_of(opened(leaves), tensors)
        # Of a state that has lost some.
        tensors = [tensor for tensor in tensors if tensor is not None]
        entry.foreseen.versions = {id(tensor): version_of(tensor) for tensor in tensors}
        if self._has_plenty is None:
            self._has_plenty = device is not None and self._takes_gradients \
                and is_plentiful(device, size_of(tensors))
        entry.is_short_of_memory = device is None or not self._has_plenty
        if device is not None and swaps() % 2:
            wait_for_captures()
        with self._alone, self._compiled_for_lanes(), (
                contextlib.nullcontext() if entry.is_short_of_memory or device is None
                else _on_capture_stream(device)):
            answer = self._call_last(leaves)
        self._check_answer(entry, answer, device)
        return answer

    @staticmethod
    def _has_memory_again(entry: Specialization) -> bool:
        """Whether what was not done for want of memory may be tried again."""
        shortage = entry.shortage
        if shortage is not None and shortage.has_passed():
            entry.shortage = None
        return entry.shortage is None

    def _check_answer(self, entry: Specialization, answer: Any, device: int | None) -> None:
        """Refuses what answers tensors on the CPU. Some do so out of captures alone: attention's
        seeds, which a backward then reads there."""
        flat, _ = _compat.tree_flatten(answer)
        if device is not None \
                and any(isinstance(leaf, Tensor) and not leaf.is_cuda for leaf in flat):
            self.is_refused = True
            self._refuse(entry, ON_CPU)

    def note_plain(self, inputs: str, reason: str) -> None:
        """Counts a call of what is never recorded, which the caller runs."""
        with self._lock:
            entry = self.entries.setdefault(reason, Specialization(inputs, NO_STATE))
            entry.report.calls += 1
            entry.report.reason = reason

    def _new_entry(self, key: Any, leaves: Sequence[Any], state: State,
                   describe: Callable[[], str]) -> Specialization:
        with self._lock:
            if self.is_full and key not in self.entries:
                return self._beyond or self._make_beyond(key, describe)
            entry = self.entries.setdefault(key, Specialization(describe(), state))
            # The key may have told them by their ids.
            entry.constants = [leaf for leaf in leaves if not isinstance(leaf, Tensor)
                               and id(leaf) not in state.leading]
            return entry

    def _make_beyond(self, key: Any, describe: Callable[[], str]) -> Specialization:
        """One for all: there may be another signature in each call."""
        entry = self._beyond = Specialization(f"{describe()} and what else there is", NO_STATE)
        self._refuse(entry, f"there are {self._chosen.max_recordings} signatures already "
                            f"(max_recordings){self._differences(key, list(self.entries))}")
        return entry

    @property
    def is_full(self) -> bool:
        """Whether signatures that are not known yet run plainly."""
        return len(self.entries) >= self._chosen.max_recordings

    def rename(self, key: Any, to: Any) -> None:
        """A signature goes by another key from now on."""
        with self._lock:
            if key in self.entries and to not in self.entries:
                self.entries[to] = self.entries.pop(key)

    def left_paths(self, key: Any) -> set[Path]:
        """Where launches of a signature leave tensors."""
        entry = self.entries.get(key)
        return {(*slot.path, slot.key) for slot in entry.slots
                if not isinstance(slot.key, slice)} if entry is not None else set()

    def _retire(self, key: Any) -> None:
        """Forgets a recording, all but its report."""
        with self._lock:
            entry = self.entries.pop(key, None)
            if entry is not None:
                self._retired.append(entry.current_report())

    def reports(self) -> list[RecordingReport]:
        """Of recordings that served another state, and of those of now."""
        with self._lock:
            known = [*self.entries.values(), *([self._beyond] if self._beyond else [])]
            return [*self._retired, *(entry.current_report() for entry in known)]

    def _compiled_for_lanes(self) -> contextlib.AbstractContextManager[None]:
        """Around a plain call of what may be compiled in it."""
        return _compat.own_buffers() if self._has_lanes and self._takes_gradients \
            else contextlib.nullcontext()

    def _refuse(self, entry: Specialization, reason: str) -> None:
        entry.report.reason = reason
        entry.state = NO_STATE  # the one before may hold much memory
        if entry.is_empty:
            return
        if self._chosen.strict:
            raise self._strict_error(reason)
        if reason not in self._told:
            self._told.add(reason)
            log.warning("anabranch: %s runs unrecorded: %s [E0308]", self.name, reason)

    def _strict_error(self, reason: str) -> errors.RecordError:
        return errors.RecordError(
            308, f"record: {self.name} cannot be recorded: {reason}, and strict=True forbids to "
            "run it unrecorded.", "Without strict it runs as it is.")

    # Recording.

    def _record(self, key: Any, entry: Specialization, leaves: list[Any]) -> Any:
        try:
            step = self._step(entry, leaves)
        except NotRecordable as error:
            self.is_refused = True
            self._refuse(entry, str(error))
            return self._call_last(leaves)
        attempt = Attempt(self.name, entry, step, self._chosen,
                          takes_gradients=self._takes_gradients, has_lanes=self._has_lanes,
                          saved_from=self._saved_from, look_farther=self._look_farther)
        del step
        why: Exception | None = None
        try:
            answer, recorded = attempt.record()
        except (NotRecordable, Untrusted, NativeError) as error:
            why = _without_frames(error)
        if why is not None:
            attempt.give_back()
            self._judge(key, entry, attempt, why)
            return attempt.fall_back(self._call_last, leaves, may_repeat=not isinstance(why, Apart))
        left, known = attempt.left, attempt.state_tensors
        attempt.close()
        entry.shortage, entry.shortage_tries, entry.report.shortage = None, 0, ""
        entry.set_recorded(recorded, known, left)
        log.info("%s: %s", self.name, entry.report)
        view = entry.view_of(entry.state)
        return view.leave(answer) if view else answer

    def _judge(self, key: Any, entry: Specialization, attempt: Attempt, why: Exception) -> None:
        """What becomes of a signature that was not recorded."""
        if isinstance(why, UntrackedTensors):
            self.entries.pop(key, None)  # there will be another one, of a state that has more
            return
        if isinstance(why, Again) and entry.tries_again < _MOST_TRIES_AGAIN:
            entry.tries_again += 1
            return
        entry.is_empty = isinstance(why, Empty)
        if isinstance(why, Short):
            entry.shortage_tries += 1
            free = max(attempt.free_before, free_bytes(attempt.device))
            entry.shortage = Shortage(why, attempt.device, free, entry.shortage_tries)
            entry.report.shortage = str(entry.shortage)
        else:
            self.is_refused |= not entry.is_empty
        if self._chosen.strict and not entry.is_empty:
            attempt.rewind()
        self._refuse(entry, f"{entry.shortage or why}{_way_of_captures(entry, why)}")

    def _step(self, entry: Specialization, leaves: list[Any]) -> Step:
        """What there is to capture."""
        state = entry.state
        known = state.tensors()
        device = _device_of(leaves, known)
        if device is None:
            raise NotRecordable("it is given nothing on a GPU")
        entry.arguments = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i in entry.arguments:
            _check_argument(i, leaves[i], device)
        if self._takes_gradients:
            entry.leaf_owners = [i for i in entry.arguments
                                 if leaves[i].is_leaf and leaves[i].requires_grad]
        owners = entry.owners(leaves, state.parameters())
        wrapped = state.inner_tensors()
        entry.fix(wrapped)
        entry.lacks_gradient = [owner.grad is None for owner in owners]
        gradients = [owner.grad for owner in owners if owner.grad is not None]
        fixed = wrapped + [inner for grad in gradients if is_wrapper(grad)
                           for inner in inner_tensors(grad)]
        tensors = [*(leaves[i] for i in entry.arguments), *known,
                   *(grad for grad in gradients if not is_wrapper(grad))]
        own = len(entry.arguments) + len(known)
        units = units_apart(tensors, len(entry.arguments))
        objects = state.objects() if state is not NO_STATE else {}
        entry.object_paths = list(objects)
        return Step(self._call, leaves, entry.arguments, tensors, units, len(tensors) - own, owners,
                    device, _capture_stream(device), is_noted=self._has_lanes,
                    is_compiled=not self._takes_gradients, optimizers=state.optimizers,
                    fixed=fixed, objects=list(objects.values()), on_cpu=standing(state.on_cpu))

    # Launching.

    def _launch(self, key: Any, entry: Specialization, leaves: list[Any], state: State) -> Any:
        recorded = entry.recorded
        assert recorded is not None
        offsets: Sequence[int] = ()
        if isinstance(leaves, InBlocks):
            found = recorded.offsets(leaves.places, entry.arguments)
            if found is None:
                return self._launch(key, entry, opened(leaves), state)
            offsets = found
        view = entry.view_of(state)
        given = self._given(entry, recorded, leaves, view, state) if view else None
        if view is None or given is None:  # the state is another one: recorded anew
            self._retire(key)
            return self.run(key, leaves, state, lambda: entry.report.inputs)
        owners = entry.owners(leaves, view.parameters)
        if not recorded.fits(given):
            entry.report.plain_calls += 1
            return self._call(leaves)
        saved, layout = self._saved, recorded.layout
        in_blocks = saved is not None and layout is not None and saved.may_pass(layout)
        short: Short | None = None
        try:
            answer = recorded.launch(given, owners, view.objects(), offsets=offsets,
                                     in_blocks=in_blocks)
        except torch.OutOfMemoryError:
            short = Short(OF_LAUNCH, recorded.launch_bytes, free_bytes(recorded.device))
        except NativeError as error:
            if error.code != _BAD_BINDING:
                raise errors.from_native(error.code, str(error.message)) from None
            if isinstance(leaves, InBlocks):
                return self._launch(key, entry, opened(leaves), state)
            return self._launch_elsewhere(entry, recorded, leaves, view, given, owners)
        if short is not None:
            return self._launch_later(entry, short, recorded.device, leaves)
        if saved is not None and layout is not None and not in_blocks:
            saved.watch(layout, answer)
        return view.leave(answer)

    def _launch_later(self, entry: Specialization, short: Short, device: int,
                      leaves: list[Any]) -> Any:
        """A launch has not the memory that it wants; the plain step takes it piece by piece."""
        empty_cache()
        entry.shortage_tries += 1
        entry.shortage = Shortage(short, device, free_bytes(device), entry.shortage_tries)
        entry.report.shortage = str(entry.shortage)
        entry.report.plain_calls += 1
        if "launch" not in self._told:
            self._told.add("launch")
            log.warning("anabranch: %s runs unrecorded for now: %s [E0308]", self.name,
                        entry.shortage)
        return self._call_last(leaves)

    def _launch_elsewhere(self, entry: Specialization, recorded: StepRecording,
                          leaves: list[Any], view: BoundState, given: list[Tensor],
                          owners: list[Tensor]) -> Any:
        """Arguments at addresses that the kernels do not take are copied, there and back; what
        overlaps now and did not when recorded runs plainly."""
        misaligned = recorded.misaligned(given)
        if misaligned and all(i < len(entry.arguments) for i in misaligned) \
                and not _overlap(given, set(misaligned)):
            with torch.no_grad():
                copies = {i: given[i].detach().clone() for i in misaligned}
            moved = [copies.get(i, tensor) for i, tensor in enumerate(given)]
            with contextlib.suppress(NativeError):
                answer = view.leave(recorded.launch(given, owners, view.objects(), at=moved))
                for i, copy in copies.items():
                    given[i].data.copy_(copy)
                return answer
        entry.report.plain_calls += 1
        return self._call(leaves)

    @staticmethod
    def _given(entry: Specialization, recorded: StepRecording, leaves: Sequence[Any],
               view: BoundState, state: State) -> list[Tensor] | None:
        """The tensors a launch is given, or None where the state cannot be launched at."""
        known = view.look_up(state)
        if known is None or (entry.fixed and not entry.is_fixed()):
            return None
        given = [leaves[i] for i in entry.arguments] + known
        if recorded.needs_gradients:
            gradients = [owner.grad for owner in entry.owners(leaves, view.parameters)]
            if [grad is None for grad in gradients] != entry.lacks_gradient:
                return None
            given += [grad for grad in gradients if grad is not None and not is_wrapper(grad)]
        return given


def _way_of_captures(entry: Specialization, error: Exception) -> str:
    """Why it may be that it does something else there."""
    if not entry.why_told or not isinstance(error, Untrusted):
        return ""
    return (". Code outside torch asks whether it is captured and may go another way then; told "
            f"that it is not, it broke: {entry.why_told}")


def _overlap(given: Sequence[Tensor], some: Collection[int]) -> bool:
    """Whether one of some shares bytes with any other."""
    return any(len(unit.members) > 1 and any(i in some for i, _ in unit.members)
               for unit in units_of(given))


def _without_frames(error: Exception) -> Exception:
    """Nothing of what the frames hold in which it was raised."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__, following = None, link.__cause__ or link.__context__
        link.__cause__ = link.__context__ = None
        link = following
    return error


@contextlib.contextmanager
def _on_capture_stream(device: int) -> Iterator[None]:
    """What the caller's stream has cached is given back before, and what this one has
    afterwards."""
    give_back(device)
    with on_stream(_capture_stream(device), device):
        yield
    give_back(device)


@functools.cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _give_back_memory() -> None:
    """What plain runs and captures needed and launches do not, once all that held it has gone: the
    arena of the next launch would fit into little of it."""
    if torch.cuda.is_initialized():
        _compat.clear_workspaces()
        empty_cache()


def _device_of(leaves: Iterable[Any], state: Iterable[Any]) -> int | None:
    for leaf in (*leaves, *state):
        if isinstance(leaf, Tensor) and leaf.is_cuda:
            return leaf.device.index
    return None


def _check_argument(index: int, leaf: Tensor, device: int) -> None:
    if leaf.device.type != "cuda":
        raise NotRecordable(f"argument {index} is a tensor on the {leaf.device.type}, whose values "
                            "would be frozen; move it to the GPU first")
    if leaf.device.index != device:
        raise NotRecordable(f"argument {index} is on {leaf.device} and another on cuda:{device}")
    if is_wrapper(leaf) or leaf.layout != torch.strided:
        raise NotRecordable(f"argument {index} is a {type(leaf).__name__} ({leaf.layout})")
    if torch.is_grad_enabled() and leaf.grad_fn is not None:
        raise NotRecordable(f"argument {index} has a history of its own (grad_fn "
                            f"{type(leaf.grad_fn).__name__}), into which a launch cannot send "
                            "gradients; detach it")
