# SPDX-License-Identifier: Apache-2.0
"""Records one callable, a signature at a time: what record() and the backend share.

A signature's first calls run plainly; then it is captured, made, verified and launched. What cannot
be recorded runs plainly for ever, with its reason. Threads: any; one thread records at a time.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _compat, _native, config, errors
from ._agreement import Agreement
from ._bindings import Leaving
from ._capture import Capture, Step, capture_twice, wait_for_captures
from ._elsewhere import Elsewhere, check_all_was_found
from ._entry import Entry, RecordingReport, View
from ._given import swaps, units_apart, units_of
from ._native_capture import capture_device
from ._overlap import choose
from ._reasons import (
    ON_CPU,
    Aliased,
    Apart,
    BrokeUntold,
    BrokeWhileNoted,
    CopiedFromTheCpu,
    Empty,
    NotRecordable,
    OtherGraph,
)
from ._recorded import Recorded, random_graph
from ._saved_blocks import InBlocks, SavedBlocks, opened
from ._state import NO_STATE, State, inner_tensors, is_wrapper, standing
from ._verify import Run, Trial, Untrusted, on_stream, verify
from ._walk import Path

log = logging.getLogger("anabranch.record")

# Plain runs before a recording share the stream of captures, so callables have one at a time.
# Compiled graphs do not wait: a callable's run may wait for their backward, on autograd's thread.
_plain_steps = threading.RLock()
_WARM_UP = 1  # plain calls of a signature before it is recorded
_CAPTURES_DIFFER, _BAD_BINDING = 309, 402


class Recorder:
    """``call(leaves)`` runs the callable; ``takes_gradients`` says whether it may set ``.grad``;
    results from ``saved_from`` on are freed together, and answered in blocks where ``saved`` says
    so; leaves may be InBlocks, with which ``call`` copes. ``differences(key, keys)`` says in what a
    signature differs from others. ``look_farther(ways)`` makes the states that are found from now on
    have what these lead to."""

    def __init__(self, call: Callable[[list[Any]], Any], chosen: config.Options, name: str, *,
                 takes_gradients: bool, saved_from: int | None = None,
                 saved: SavedBlocks | None = None,
                 differences: Callable[[Any, Sequence[Any]], str] = lambda key, keys: "",
                 look_farther: Callable[[Collection[Path]], None] = lambda ways: None) -> None:
        self.name = name
        self.entries: dict[Any, Entry] = {}
        self.is_refused = False  # something was, and not for the number of signatures
        self._call = call
        self._chosen = chosen
        self._takes_gradients = takes_gradients
        self._saved_from = saved_from
        self._saved = saved
        self._differences = differences
        self._look_farther = look_farther
        self._beyond: Entry | None = None  # of all signatures that are too many
        self._alone: contextlib.AbstractContextManager[Any] = (
            _plain_steps if takes_gradients else contextlib.nullcontext())
        # Whether they are right side by side is a thing to verify.
        self._has_lanes = chosen.overlap > 1 and chosen.verify
        self._lock = threading.RLock()
        self._told: set[str] = set()
        self._retired: collections.deque[RecordingReport] = collections.deque(
            maxlen=chosen.max_recordings)

    def run(self, key: Any, leaves: list[Any], state: State, describe: Callable[[], str],
            entry: Entry | None = None) -> Any:
        """The answer of one call, by whatever way its signature has got to. ``state`` is what a
        new recording uses besides its leaves; ``entry`` that of the key, where it is known."""
        entry = entry or self.entries.get(key)
        if entry is None:
            entry = self._new_entry(key, leaves, state, describe)
        entry.report.calls += 1
        if entry.recorded is not None:
            return self._launch(key, entry, leaves, state)
        if entry.report.reason is not None:
            if self._chosen.strict and not entry.is_empty:
                raise self._strict_error(entry.report.reason)
            return self._call(leaves)
        entry.plain += 1
        if entry.plain <= _WARM_UP:
            with self._alone, self._on_capture_stream(leaves), self._compiled_for_lanes():
                answer = self._call(leaves)
            self._check_answer(entry, answer, leaves, state)
            return answer
        with self._alone, self._lock:
            if entry.recorded is None and entry.report.reason is None:
                entry.state = state
                answer = self._record(key, entry, opened(leaves))
                _give_back_memory()
                return answer
        return self.run(key, leaves, state, describe)  # another thread was first

    def _check_answer(self, entry: Entry, answer: Any, leaves: Sequence[Any], state: State) -> None:
        """Refuses what answers tensors on the CPU. Some do so out of captures alone: attention's seeds,
        which a backward then reads there."""
        flat, _ = _compat.tree_flatten(answer)
        if any(isinstance(leaf, Tensor) and not leaf.is_cuda for leaf in flat) \
                and _device_of(leaves, [place.get() for place in state.places]) is not None:
            self.is_refused = True
            self._refuse(entry, ON_CPU)

    def note_plain(self, inputs: str, reason: str) -> None:
        """Counts a call of what is never recorded, which the caller runs."""
        with self._lock:
            entry = self.entries.setdefault(reason, Entry(inputs, NO_STATE))
            entry.report.calls += 1
            entry.report.reason = reason

    def _new_entry(self, key: Any, leaves: Sequence[Any], state: State,
                   describe: Callable[[], str]) -> Entry:
        with self._lock:
            if self.is_full and key not in self.entries:
                return self._beyond or self._make_beyond(key, describe)
            entry = self.entries.setdefault(key, Entry(describe(), state))
            # The key may have told them by their ids.
            entry.constants = [leaf for leaf in leaves if not isinstance(leaf, Tensor)
                               and id(leaf) not in state.leading]
            return entry

    def _make_beyond(self, key: Any, describe: Callable[[], str]) -> Entry:
        """One for all: there may be another signature in each call."""
        entry = self._beyond = Entry(f"{describe()} and what else there is", NO_STATE)
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

    def _on_capture_stream(self, leaves: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        device = _device_of(leaves, [])
        if device is None:
            return contextlib.nullcontext()
        if swaps() % 2:
            wait_for_captures()
        return on_stream(_capture_stream(device), device)

    def _compiled_for_lanes(self) -> contextlib.AbstractContextManager[None]:
        """Around a plain call of what may be compiled in it."""
        return _compat.own_buffers() if self._has_lanes and self._takes_gradients \
            else contextlib.nullcontext()

    def _refuse(self, entry: Entry, reason: str) -> None:
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

    def _record(self, key: Any, entry: Entry, leaves: list[Any]) -> Any:
        try:
            step = self._step(entry, leaves)
        except NotRecordable as error:
            self.is_refused = True
            self._refuse(entry, str(error))
            return self._call(leaves)
        before = _compat.collectives_so_far()
        chosen = self._chosen
        leaving = Leaving(self._call, entry.state, is_first_plain=chosen.verify)
        if entry.state is not NO_STATE:
            step.call = leaving
        trial = Trial(step, entry.state) if chosen.verify else None
        plain = trial.plain() if trial else None
        agree = Agreement.since(before, torch.device("cuda", step.device))
        try:
            if trial and plain:
                agree.meet(self.name)
                trial.rewind()
                agree.make(lambda: _check_run(step, plain, leaving))
                if step.call is leaving and not leaving.slots:  # simpler answers, of most steps
                    step.call, plain.answer = self._call, plain.answer[0]
            answer, recorded = self._make_and_launch(entry, step, trial, plain, agree)
        except (NotRecordable, Untrusted, _native.NativeError) as error:
            if trial:
                trial.rewind()
            if isinstance(error, Elsewhere):
                self.entries.pop(key, None)  # there will be another one, of a state that has more
            else:
                entry.is_empty = isinstance(error, Empty)
                self.is_refused |= not entry.is_empty
                self._refuse(entry, f"{error}{_way_of_captures(entry, error)}")
            return self._answer_plainly(step, trial, plain, leaving, leaves,
                                        may_repeat=not isinstance(error, Apart))
        entry.set_recorded(recorded, step.tensors[step.arguments:step.own],
                           leaving.slots if step.call is leaving else None)
        log.info("%s: %s", self.name, entry.report)
        view = entry.view_of(entry.state)
        return view.leave(answer) if view else answer

    def _answer_plainly(self, step: Step, trial: Trial | None, plain: Run | None, leaving: Leaving,
                        leaves: list[Any], may_repeat: bool) -> Any:
        """What the plain run answered, as if there had been that one alone: to run once more would
        count twice in memory that nobody has put back. Where its history is wanted it does, unless
        nobody would take part in its collectives."""
        if trial is None or plain is None:
            return self._call(leaves)
        if (plain.has_history and may_repeat) or not leaving.is_complete:
            return self._call(leaves)
        trial.settle(plain)
        return leaving.leave(plain.answer) if step.call is leaving else plain.answer

    def _step(self, entry: Entry, leaves: list[Any]) -> Step:
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

    def _make(self, entry: Entry, step: Step) -> list[Recorded]:
        try:
            return self._make_of(entry, step)
        except Aliased:
            return self._make_of(entry, step.joined())
        except OtherGraph:
            if step.is_retried:
                raise
            # Torch gives streams out in turn: one that the call made may have been ours, or one of its own.
            return self._make(entry, dataclasses.replace(step, is_retried=True))
        except BrokeWhileNoted:
            return self._make(entry, dataclasses.replace(step, is_noted=False))
        except CopiedFromTheCpu:
            if step.is_compiled:
                raise
            return self._make(entry, dataclasses.replace(step, has_constants=True))
        except BrokeUntold as error:
            entry.why_told = str(error)
            return self._make(entry, dataclasses.replace(step, is_told=True))

    def _make_of(self, entry: Entry, step: Step) -> list[Recorded]:
        """A recording in captured order, and one with more lanes if any kernels can use them."""
        report, chosen = entry.report, self._chosen
        before = [entry.state.hyperparameters(opt) for opt in entry.state.optimizers]
        start = time.perf_counter()
        device = capture_device(step.device)
        capture = capture_twice(step, device)
        captured = time.perf_counter()
        try:
            if before != [entry.state.hyperparameters(opt) for opt in entry.state.optimizers]:
                raise NotRecordable("it changes an optimizer's numbers in Python; keep them in "
                                    "tensors (lr=torch.tensor(...)), or change them outside")
            if self._takes_gradients:  # what compiled graphs use are arguments and their constants
                self._check_all_was_found(entry, step, capture)

            def with_lanes(lanes: int) -> Recorded:
                return Recorded(step, capture, device, chosen.verify, self._saved_from, lanes,
                                chosen.ahead_bytes)

            try:
                made = [with_lanes(1)]
            except _native.NativeError as error:
                if error.code == _CAPTURES_DIFFER:
                    raise OtherGraph(str(error)) from error
                raise
            report.why_in_order = self._why_in_order(step, capture.noted is not None)
            if capture.noted is not None:
                try:
                    made.append(with_lanes(chosen.overlap))
                except _native.NativeError as error:
                    report.why_in_order = str(error)
                    log.warning("anabranch: %s keeps its captured order: %s", self.name, error)
            random = random_graph(capture.first.graph, device, step.stream)
        finally:
            capture.close()
        report.capture_seconds = captured - start
        report.make_seconds = time.perf_counter() - captured
        if made[0].counts.nodes == 0:
            raise Empty("it queues nothing on the GPU")
        for recorded in made:
            recorded.random = random
        return [made[0], *(other for other in made[1:] if other.counts.lanes > 1)]

    def _check_all_was_found(self, entry: Entry, step: Step, capture: Capture) -> None:
        """Raises Elsewhere where it was not, and will be next time."""
        try:
            check_all_was_found(step, capture, capture_device(step.device))
        except Elsewhere as error:
            ways = entry.state.ways_to(error.tensors)
            if ways is None:
                raise NotRecordable(str(error)) from error
            self._look_farther(ways)
            raise

    def _why_in_order(self, step: Step, is_known: bool) -> str:
        """Why kernels stay in captured order, unless a recording side by side is tried."""
        if not self._has_lanes:
            return ""
        if not step.is_noted:
            return "with notes of what its kernels use it breaks or is wrong"
        return "no two of its kernels may run at once" if is_known else \
            "what its kernels use could not be noted"

    def _make_and_launch(self, entry: Entry, step: Step, trial: Trial | None, plain: Any,
                         agree: Agreement) -> tuple[Any, Recorded]:
        """Once more without notes, where with them it does something else."""
        made = agree.make(lambda: self._make(entry, step))
        try:
            return self._first_launch(entry, made, step, trial, plain, agree)
        except Untrusted:
            if not step.is_noted or trial is None:
                raise
        trial.rewind()
        step = dataclasses.replace(step, is_noted=False)
        made = agree.make(lambda: self._make(entry, step))
        return self._first_launch(entry, made, step, trial, plain, agree)

    @staticmethod
    def _first_launch(entry: Entry, made: Sequence[Recorded], step: Step, trial: Trial | None,
                      plain: Any, agree: Agreement) -> tuple[Any, Recorded]:
        recorded, report = made[0], entry.report
        if trial is None:
            answer = recorded.launch_as_captured(step)
        else:
            start = time.perf_counter()
            bitwise = verify(trial, plain, recorded, agree.on)
            trial.rewind()
            if agree.on(len(made) > 1):
                recorded, report.overlap_gain, report.why_in_order = choose(
                    trial, plain, recorded, made[-1], agree.on)
            answer = trial.launch(recorded)
            report.verify_seconds = time.perf_counter() - start
            report.verified = "bitwise" if bitwise else "within bounds"
        report.counts, report.slots = recorded.counts, recorded.slot_count
        return answer, recorded

    # Launching.

    def _launch(self, key: Any, entry: Entry, leaves: list[Any], state: State) -> Any:
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
        try:
            answer = recorded.launch(given, owners, view.objects(), offsets=offsets,
                                     in_blocks=in_blocks)
        except _native.NativeError as error:
            if error.code != _BAD_BINDING:
                raise errors.from_native(error.code, str(error.message)) from None
            if isinstance(leaves, InBlocks):
                return self._launch(key, entry, opened(leaves), state)
            return self._launch_elsewhere(entry, recorded, leaves, view, given, owners)
        if saved is not None and layout is not None and not in_blocks:
            saved.watch(layout, answer)
        return view.leave(answer)

    def _launch_elsewhere(self, entry: Entry, recorded: Recorded, leaves: list[Any], view: View,
                          given: list[Tensor], owners: list[Tensor]) -> Any:
        """Arguments at addresses that the kernels do not take are copied, there and back; what
        overlaps now and did not when recorded runs plainly."""
        misaligned = recorded.misaligned(given)
        if misaligned and all(i < len(entry.arguments) for i in misaligned) \
                and not _overlap(given, set(misaligned)):
            with torch.no_grad():
                copies = {i: given[i].detach().clone() for i in misaligned}
            moved = [copies.get(i, tensor) for i, tensor in enumerate(given)]
            with contextlib.suppress(_native.NativeError):
                answer = view.leave(recorded.launch(given, owners, view.objects(), at=moved))
                for i, copy in copies.items():
                    given[i].data.copy_(copy)
                return answer
        entry.report.plain_calls += 1
        return self._call(leaves)

    @staticmethod
    def _given(entry: Entry, recorded: Recorded, leaves: Sequence[Any], view: View,
               state: State) -> list[Tensor] | None:
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


def _way_of_captures(entry: Entry, error: Exception) -> str:
    """Why it may be that it does something else there."""
    if not entry.why_told or not isinstance(error, Untrusted):
        return ""
    return (". Code outside torch asks whether it is captured and may go another way then; told that "
            f"it is not, it broke: {entry.why_told}")


def _overlap(given: Sequence[Tensor], some: Collection[int]) -> bool:
    """Whether one of some shares bytes with any other."""
    return any(len(unit.members) > 1 and any(i in some for i, _ in unit.members)
               for unit in units_of(given))


@functools.cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _give_back_memory() -> None:
    """What plain runs and captures needed and launches do not, once all that held it has gone: the
    arena of the next launch would fit into little of it."""
    if torch.cuda.is_initialized():
        _compat.clear_workspaces()
        torch.cuda.empty_cache()


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


def _check_run(step: Step, plain: Run, leaving: Leaving) -> None:
    """Results that want gradients belong to a backward; where the step ran none, somebody else
    will, and a recording could not serve it."""
    leaving.check()
    if plain.has_drawn:
        raise NotRecordable(
            "it draws random numbers on the CPU (torch's, Python's or numpy's), and launches would go on "
            "with those of its recording; draw them on the GPU, or outside, and give it them")
    if plain.has_history and not any(grad is not None for grad in plain.gradients):
        raise NotRecordable(
            "it answers tensors that require gradients and runs no backward itself; call it under "
            "torch.no_grad(), put the backward inside, or use torch.compile(backend=\"anabranch\")")
