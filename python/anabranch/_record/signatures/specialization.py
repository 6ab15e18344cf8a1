# SPDX-License-Identifier: Apache-2.0
"""One signature of a recorded callable: its report, its recording, and where the recording's
tensors stand in each state that the signature has been called with.

Threads: a recorder's lock around everything but launches. Failure: None where a state does not fit.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch._core.abi import CaptureCounts
from anabranch._record.capture.step import Step
from anabranch._record.draws.taken import Draw
from anabranch._record.effects.mutations import Mutation
from anabranch._record.effects.side_effects import BoundMutations, bind_mutations
from anabranch._record.launch.host_arguments import HostArguments
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import InputPlaces
from anabranch._record.memory.shortage import Shortage
from anabranch._record.numbers.step_numbers import StepNumbers
from anabranch._record.refusals import Cause, NotRecordable, Reason
from anabranch._record.report import RecordingReport
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.state.namespaces import Lookup
from anabranch._record.state.number_places import NO_NUMBERS
from anabranch._record.state.paths import Path, Place
from anabranch._record.state.state import NO_STATE, State, standing
from anabranch._record.tensors import (
    inner_places,
    inner_tensors,
    is_wrapper,
    layout_of,
    may_be_parameter,
    units_apart,
)
from anabranch._record.trial.kept_call import KeptCall
from anabranch._record.trial.trial import Foreseen
from anabranch._record.trial.verify import Untrusted
from anabranch._record.warn import times_noted


class BoundState:
    """A recording in one state: where its tensors stand there, and where its side effects go.

    Threads may look at once: each gets the tensors that it has found.
    """

    def __init__(self, state: State, places: Sequence[Place], indices: Sequence[int],
                 layouts: Sequence[Any], count: int, mutations: Sequence[Mutation] | None,
                 bound: BoundMutations | None, objects: Sequence[Place] = ()) -> None:
        self.parameters = state.parameters()  # that may get a gradient
        self.objects = objects  # that launches answer
        # The side effects of the recording, and where they go in this state.
        self.mutations, self._bound_mutations = mutations, bound
        self._lookups = [(place.holder, place.key) for place in places]
        self._indices = indices  # of what stands there among ``count`` tensors of the state
        self._layouts = layouts
        self._count = count

    def moved(self, places: Iterable[tuple[int, Place]], objects: Iterable[tuple[int, Place]],
              parameters: list[Tensor]) -> BoundState:
        """The same, with some of the tensors and objects in other places."""
        made = copy.copy(self)
        made.parameters = parameters
        made.objects = list(self.objects)
        for i, place in objects:
            made.objects[i] = place
        made._lookups = list(self._lookups)
        for i, place in places:
            made._lookups[i] = place.holder, place.key
        return made

    @property
    def lookups(self) -> Sequence[Lookup]:
        """Where tensors stand, in the order of the paths that the recording has for them."""
        return self._lookups

    def ways(self) -> Sequence[tuple[Lookup, Any]]:
        """Where objects on the way to side effects stand."""
        return self._bound_mutations.ways if self._bound_mutations else ()

    def finds_mutations(self) -> bool:
        """Whether side effects have the places that they had."""
        return self._bound_mutations is not None and self._bound_mutations.find_as_before()

    def tensors(self, state: State) -> list[Tensor] | None:
        """The tensors of the state as they are now, or None where the recording does not fit."""
        if self._bound_mutations and not self._bound_mutations.are_current():
            self._bound_mutations = bind_mutations(state, self.mutations or ())
        try:
            found = [holder[key] for holder, key in self._lookups]
        except (KeyError, IndexError, AttributeError):
            return None
        if (self.mutations and not self.finds_mutations()) \
                or list(map(_layout, found)) != self._layouts:
            return None
        # Tensors that the recording does not use are left out.
        tensors = [_NO_TENSOR] * self._count
        for i, tensor in zip(self._indices, found, strict=True):
            tensors[i] = tensor
        if any(tensors[i] is not tensor for i, tensor in zip(self._indices, found, strict=True)) \
                or len(set(map(id, found))) != len(set(self._indices)):
            return None  # one tensor stood in two places, and now two do, or the other way
        self.parameters = state.parameters()
        return tensors

    def objects_now(self) -> Sequence[Any]:
        """The objects that launches answer, as they are now."""
        return [place.get() for place in self.objects]

    def apply(self, answer: Any) -> Any:
        """Applies the side effects in what a launch has answered, and returns the step's own
        answer."""
        answer, left = answer
        if self._bound_mutations:
            self._bound_mutations.put(left)
        return answer


class Specialization:
    """What is recorded for one signature, or how far it has got."""

    def __init__(self, inputs: str, state: State, is_timed: bool = False) -> None:
        self._is_timed = is_timed  # whether launches of its recording are
        # Without what every call changes; see current_report().
        self.report = RecordingReport(inputs)
        self.refusal: Reason | None = None  # why it runs plainly; the report tells of it
        self.launches = bytearray(8)  # calls that a plan has served; it counts them itself
        self.other_calls = self.plain_calls = 0
        self.recording: StepRecording | None = None
        # Of a compiled graph, by where its inputs lie in blocks; None: they are tensors.
        self.plans: dict[InputPlaces | None, list[Any]] = {}
        self.slow_calls, self.slow_because = 0, ""  # see the report
        self.plan_misses: dict[Any, int] = {}  # of full calls, since a plan of it was of use
        self.plain = 0  # calls so far
        self.constants: list[Any] = []  # leaves that are no tensors; the key may have their ids
        self.foreseen = Foreseen()
        self.is_short_of_memory = False  # so that plain runs stay on the caller's stream
        # A call whose capture was launched, for the next one; None where calls are not kept.
        self.kept: KeptCall | None = None
        self.may_keep_call = True
        # Behind its first call, for the casts of weights that autocast keeps from then on.
        self.kept_cast: Any = None
        self.ahead: Sequence[int] = ()  # sizes of free blocks that its capture is to find
        self.shortage: Shortage | None = None  # why it is not recorded or launched now
        self.shortage_tries = 0
        self.tries_again = 0  # how often a try has found out what the next one has to know
        self.is_retired = False  # another specialization has taken its signature
        self.is_empty = False  # it queued nothing, which is no reason to raise
        self.why_told = ""  # how it breaks where the capture is hidden from code outside torch
        self.state = state  # what is recorded, and then what was seen last
        self.arguments: list[int] = []  # leaves that are tensors
        self.leaf_owners: list[int] = []  # leaves that may get a gradient
        self.lacks_gradient: list[bool] = []  # by owner, when recorded
        self.fixed: tuple[int, ...] = ()  # addresses of what cannot be re-pointed
        self.insides: list[tuple[Any, str]] = []  # whose attributes have these addresses
        self.wrappers: list[tuple[Lookup, Tensor]] = []  # where those stand
        self.object_paths: list[Path] = []  # of what the step finds, and then of what it answers
        self._bound: weakref.WeakKeyDictionary[State, BoundState] = weakref.WeakKeyDictionary()
        self.follows = NO_NUMBERS  # that may change between launches
        # What its calls take from an iterator first: they then have another signature.
        self.draw: Draw | None = None
        self.passed = 0  # how many have
        self.passes = bytearray(8)  # and how many by a plan
        self.on_host: HostArguments | None = None
        # Words of kernels that follow these, as they were captured, and which of them have been
        # others in a launch that was compared.
        self.captured_words: list[int] = []
        self.followed_values: tuple[float, ...] = ()
        self._are_proven: list[bool] = []
        self._are_all_proven = False

    def as_tried(self, state: State) -> Specialization:
        """One in the same state of knowledge, for an attempt that only compares: what that notes
        of the step is not this recording's."""
        made = Specialization(self.report.inputs, state)
        made.foreseen, made.is_short_of_memory = self.foreseen, self.is_short_of_memory
        made.why_told = self.why_told
        return made

    def drop_kept(self, may_keep_another: bool = False) -> None:
        """Calls are not kept any more, unless ``may_keep_another``."""
        self.may_keep_call &= may_keep_another
        if self.kept is not None:
            self.kept.capture.close()
            self.kept = None

    def set_words(self, values: Sequence[float], captured: Sequence[int],
                  are_proven: bool) -> None:
        """Words that follow numbers, as they were captured, and these."""
        self.followed_values = tuple(values)
        self.captured_words = list(captured)
        self._are_proven = [are_proven] * len(captured)
        self._are_all_proven = are_proven

    def may_be_launched_with(self, words: Sequence[int]) -> bool:
        """Whether each of them is as captured, or has been another one when it was compared."""
        return self._are_all_proven or all(map(operator.or_, self._are_proven,
                                               map(operator.eq, words, self.captured_words)))

    def note_proven(self, words: Sequence[int]) -> None:
        """A launch with these was what a plain run is. May be empty."""
        if words:
            self._are_proven = list(map(operator.or_, self._are_proven,
                                        map(operator.ne, words, self.captured_words)))
            self._are_all_proven = all(self._are_proven)

    def step(self, call: Callable[[list[Any]], Any], leaves: list[Any], device: int,
             stream: torch.cuda.Stream, *, numbers: StepNumbers | None, is_noted: bool,
             kind: CallableKind) -> Step:
        """What is to be captured of a call in this signature's state. Raises NotRecordable."""
        state, is_compiled = self.state, not kind.takes_gradients
        self.arguments = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        on_host = HostArguments(leaves, self.arguments, device)
        self.on_host = on_host if on_host.numbers else None
        if is_compiled and on_host.numbers:
            raise NotRecordable(f"input {self.arguments[on_host.numbers[0]]} of a compiled graph "
                                "is a tensor on the CPU", Cause.ARGUMENT_REFUSED,
                                "Move it to the GPU before the model is called.")
        for i in self.arguments:
            if leaves[i].is_cuda:
                _check_argument(i, leaves[i], device)
        if not is_compiled:
            self.leaf_owners = [i for i in self.arguments
                                if leaves[i].is_leaf and leaves[i].requires_grad]
        owners = self.owners(leaves, state.parameters())
        wrapped = state.inner_tensors()
        self.fix(wrapped)
        self.lacks_gradient = [owner.grad is None for owner in owners]
        gradients = [owner.grad for owner in owners if owner.grad is not None]
        fixed = wrapped + [inner for grad in gradients if is_wrapper(grad)
                           for inner in inner_tensors(grad)]
        given = [*_on_gpu(on_host, [leaves[i] for i in self.arguments]), *state.tensors()]
        tensors = [*given, *(grad for grad in gradients if not is_wrapper(grad))]
        objects = state.objects() if state is not NO_STATE else {}
        self.object_paths = list(objects)
        made = Step(call, leaves, self.arguments, tensors,
                    units_apart(tensors, len(self.arguments)), len(tensors) - len(given), owners,
                    device, stream, is_noted=is_noted, is_timed=self._is_timed, numbers=numbers,
                    is_compiled=is_compiled, is_backward=kind.is_backward,
                    tangents=kind.tangents,
                    optimizers=state.optimizers, fixed=fixed, objects=list(objects.values()),
                    on_cpu=standing(state.on_cpu), pinned=standing(state.pinned),
                    on_host=on_host.numbers)
        on_host.waited = made.waited  # from its captures on
        return made

    def set_recording(self, recording: StepRecording, known: Sequence[Tensor],
                      mutations: list[Mutation] | None) -> None:
        """``known`` are the tensors of the state; ``mutations`` are the side effects of launches,
        None where they answer none."""
        if self._is_timed:
            recording.time()
        state, first = self.state, len(self.arguments)
        used = {i - first for i in recording.uses if first <= i < first + len(known)}
        used |= {i for i, tensor in enumerate(known) if may_be_parameter(tensor)}
        stands = [(i, place) for i in sorted(used)
                  for place in (state.places[i], *state.more_places[i])]
        self._indices, places = [i for i, _ in stands], [place for _, place in stands]
        self._paths = [place.path for place in places]
        self._layouts = [_layout(known[i]) for i in self._indices]
        self._count, self._mutations = len(known), mutations
        self._fingerprint, self._parameter_paths = state.fingerprint, state.parameter_paths
        self._beside = [i for i, path in enumerate(self._paths) if path in state.beside]
        self._has_parameters_beside = any(path in state.beside for path in state.parameter_paths)
        self._held = state.held
        self.object_paths = [self.object_paths[i] for i in recording.objects]
        self._bound[state] = BoundState(
            state, places, self._indices, self._layouts, self._count, mutations,
            bind_mutations(state, mutations) if mutations else None,
            state.places_of(self.object_paths) or ())
        self.recording, self.plans = recording, {}

    @property
    def calls(self) -> int:
        return self.other_calls + self.planned_calls

    @property
    def uses(self) -> int:
        return self.calls + self.passed + int.from_bytes(self.passes, sys.byteorder)

    @property
    def planned_calls(self) -> int:
        """Those that a plan has served."""
        return int.from_bytes(self.launches, sys.byteorder)

    @property
    def plans_used(self) -> int:
        return self.planned_calls + int.from_bytes(self.passes, sys.byteorder)

    def places_in(self, bound: BoundState) -> list[tuple[Lookup, Path, int]]:
        """Where tensors stand, with their paths, and which of the state's tensors they are."""
        return list(zip(bound.lookups, self._paths, self._indices, strict=True))

    @property
    def mutations(self) -> Sequence[Mutation]:
        """Where launches have side effects."""
        return (self.recording is not None and self._mutations) or ()

    def bind(self, state: State) -> BoundState | None:
        """The recording in this state. None where it does not fit: other objects lead to the
        tensors, and their fingerprints differ."""
        bound = self._bound.get(state)
        if bound is None:
            bound = self._bind_anew(state)
            if bound is not None:
                self._bound[state], self.state = bound, state
        return bound

    def _bind_anew(self, state: State) -> BoundState | None:
        if not state.leads_as(self.state) and (
                self.fixed or state.fingerprint != self._fingerprint):
            return None
        state.parameters()  # those of now: what requires gradients may have changed since
        if state.parameter_paths != self._parameter_paths:
            return None
        last = self._bound.get(self.state)
        if last is not None and self._mutations is None and state.base is self.state.base:
            return self._bind_beside(last, state)
        mutations = bind_mutations(state, self._mutations) if self._mutations else None
        places, objects = state.by_path(), state.places_of(self.object_paths)
        if (self._mutations and mutations is None) or objects is None \
                or not all(path in places for path in self._paths):
            return None
        return BoundState(state, [places[path] for path in self._paths], self._indices,
                          self._layouts, self._count, self._mutations, mutations, objects)

    def _bind_beside(self, last: BoundState, state: State) -> BoundState | None:
        """The same, where only what a batch leads to stands elsewhere than last time."""
        places = [(i, state.beside.get(self._paths[i])) for i in self._beside]
        found = [(i, place) for i, place in places if place is not None]
        if len(found) != len(places):
            return None
        objects = [(i, state.entered_beside[path]) for i, path in enumerate(self.object_paths)
                   if path in state.entered_beside]
        # If an object of the base has been replaced since, the lookup shows it.
        return last.moved(found, objects, state.parameters() if self._has_parameters_beside
                          else last.parameters)

    def given(self, leaves: Sequence[Any], bound: BoundState,
              known: list[Tensor]) -> list[Tensor] | None:
        """The tensors that a launch is given; ``known`` are those of the state, and may be the
        answer. None where the recording reads gradients, and other ones are missing than when it
        was made."""
        given = [*map(leaves.__getitem__, self.arguments), *known] if self.arguments else known
        return self.with_gradients(given, self.owners(leaves, bound.parameters))

    def with_gradients(self, given: list[Tensor], owners: Sequence[Tensor]) -> list[Tensor] | None:
        """What is given, and behind it the gradients that the recording reads; None as above."""
        if self.recording is None or not self.recording.needs_gradients:
            return given
        gradients = [owner.grad for owner in owners]
        if [grad is None for grad in gradients] != self.lacks_gradient:
            return None
        return [*given, *(grad for grad in gradients
                          if grad is not None and not is_wrapper(grad))]

    def fix(self, inner: Sequence[Tensor]) -> None:
        """Notes tensors inside of wrapping ones, which may not move."""
        self.fixed = tuple([tensor.data_ptr() for tensor in inner])
        self.wrappers = [((place.holder, place.key), tensor) for place in self.state.wrapped
                         if (tensor := place.get()) is not None]
        self.insides = [part for _, tensor in self.wrappers for part in inner_places(tensor)]

    def is_fixed(self) -> bool:
        """Whether these are where they were."""
        try:
            is_same = all(holder[key] is tensor for (holder, key), tensor in self.wrappers)
        except (KeyError, IndexError, AttributeError):
            return False
        if is_same:
            return self.is_inside_fixed()
        inner = self.state.inner_tensors()
        return self.fixed == tuple([tensor.data_ptr() for tensor in inner])

    def is_inside_fixed(self) -> bool:
        """The same, where the wrapping tensors stand where they stood."""
        inner = [getattr(owner, name) for owner, name in self.insides]
        return self.fixed == tuple([tensor.data_ptr() for tensor in inner])

    def owners(self, leaves: Sequence[Any], parameters: list[Tensor]) -> list[Tensor]:
        """Tensors that may get a gradient."""
        if not self.leaf_owners:
            return parameters
        return [*(leaves[i] for i in self.leaf_owners), *parameters]

    def way_of_captures(self, error: Exception) -> str:
        """For a reason: why the captured step may differ from the plain one."""
        if not self.why_told or not isinstance(error, Untrusted):
            return ""
        return (". Code outside torch asks whether it is captured and may go another way then; "
                f"told that it is not, it broke: {self.why_told}")

    def note(self, **found: Any) -> None:
        """Sets fields of the report."""
        self.report = dataclasses.replace(self.report, **found)

    def refuse(self, why: Reason | None) -> None:
        """Lets it run plainly for that; None: no more."""
        self.refusal = why
        text, code, remedy, place = why or (None, None, "", "")
        self.note(reason=text, code=code, remedy=remedy, place=place)

    def current_report(self) -> RecordingReport:
        counts = self.recording.counts if self.recording is not None else CaptureCounts()
        times = times_noted(self.refusal) if self.refusal is not None else 0
        timing = self.recording.timing if self.recording is not None else None
        told = {name: getattr(counts, name) for name, *_ in CaptureCounts._fields_}
        told["lanes"] = max(counts.lanes, told.pop("captured_lanes"))
        return dataclasses.replace(self.report, calls=self.calls, plain_calls=self.plain_calls,
                                   slow_calls=self.slow_calls, slow_because=self.slow_because,
                                   times=times, timing=timing, **told)


_NO_TENSOR = torch.empty(0, device="cpu")


def _layout(tensor: Any) -> Any:
    return layout_of(tensor) if isinstance(tensor, Tensor) else None


def _on_gpu(on_host: HostArguments, arguments: list[Tensor]) -> list[Tensor]:
    try:
        return on_host.sent(arguments) if on_host.numbers else arguments
    except torch.OutOfMemoryError:
        raise NotRecordable("the GPU has no memory for a second copy of its arguments on the CPU",
                            Cause.OUT_OF_MEMORY, "Move them there before the call.") from None


def _check_argument(index: int, leaf: Tensor, device: int) -> None:
    if leaf.device.index != device:
        raise NotRecordable(f"argument {index} is on {leaf.device} and another on cuda:{device}",
                            Cause.ARGUMENT_REFUSED)
    if is_wrapper(leaf) or leaf.layout != torch.strided:
        raise NotRecordable(f"argument {index} is a {type(leaf).__name__} ({leaf.layout})",
                            Cause.ARGUMENT_REFUSED, "Give the plain tensors that it is made of.")
    if torch.is_grad_enabled() and leaf.grad_fn is not None:
        raise NotRecordable(f"argument {index} has a history of its own (grad_fn "
                            f"{type(leaf.grad_fn).__name__}), into which a launch cannot send "
                            "gradients", Cause.ARGUMENT_REFUSED, "Detach it.")
