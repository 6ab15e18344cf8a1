# SPDX-License-Identifier: Apache-2.0
"""Records one callable, a signature at a time: what record() and the backend share.

A signature's first calls run plainly; then it is captured, made, verified and launched. What cannot
be recorded runs plainly for ever, with its reason. Threads: any; one thread records at a time.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

from torch import Tensor

from anabranch import _compat, config
from anabranch._core.library import NativeError
from anabranch._record.attempt import Attempt
from anabranch._record.capture.stand_ins import Swaps, wait_for_captures
from anabranch._record.capture.step import Step
from anabranch._record.capture.untracked import UntrackedTensors
from anabranch._record.checks import MISSED
from anabranch._record.faults import BEGUN, behind_answer
from anabranch._record.graph_plans import GraphPlans
from anabranch._record.kept_calls import KeptCalls
from anabranch._record.launch.in_turn import BAD_BINDING
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.saved_blocks import (
    InBlocks,
    handed_over,
    opened,
)
from anabranch._record.launches import Launches, applied
from anabranch._record.memory.gpu import free_bytes, give_back_memory, is_plentiful, other_allocator
from anabranch._record.memory.shortage import Short, Shortage
from anabranch._record.numbers.formulas import OtherWay, Unexplained
from anabranch._record.numbers.step_numbers import StepNumbers
from anabranch._record.observe.observing import (
    UNOBSERVED,
    is_observed,
)
from anabranch._record.refusals import (
    ON_CPU,
    Again,
    Apart,
    Cause,
    Empty,
    NotRecordable,
    Reason,
    reason_for,
    reason_of_fault,
    strict_error,
    without_frames,
)
from anabranch._record.signatures.call_plans import Call, CallPlans
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.following import Following
from anabranch._record.signatures.signature import ChangingValues
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.signatures.specializations import Differences, Specializations
from anabranch._record.state.number_places import NO_NUMBERS
from anabranch._record.state.paths import Path
from anabranch._record.state.state import NO_STATE, State
from anabranch._record.tensors import device_of, size_of, version_of
from anabranch._record.trial.earlier import Earlier
from anabranch._record.trial.kept_call import KeptCall
from anabranch._record.trial.plain_steps import PLAIN_STEPS, capture_stream, on_capture_stream
from anabranch._record.trial.verify import Untrusted
from anabranch._record.warn import placed, tell

log = logging.getLogger("anabranch.record")
_WARM_UP = 1  # plain calls of a signature before it is recorded
_MOST_TRIES_AGAIN = 3
_LeavesOf = Callable[[Any, Any], list[Any]]  # of a call's args and kwargs

class Recorder:
    """The specializations of one callable.

    A call's arguments come flattened, as *leaves*: a list of the tensors and plain values in them.

    Args:
        call: ``call(leaves)`` runs the callable. The leaves may be InBlocks.
        call_last: the same, where the leaves are not needed afterwards, so that it may free them
            one by one.
        kind: what the callable is.
        differences: ``differences(key, keys)`` names in what a signature differs from the nearest
            of others.
        following: which numbers recordings follow; None: none.
        look_farther: called with paths that walks for a state follow from now on.
    """

    def __init__(self, call: Callable[[list[Any]], Any], chosen: config.Options, name: str,
                 kind: CallableKind, *, call_last: Callable[[list[Any]], Any] | None = None,
                 following: Following | None = None,
                 differences: Differences = lambda key, keys: [],
                 look_farther: Callable[[Collection[Path]], None] = lambda ways: None) -> None:
        self.name = name
        self.specializations = Specializations(chosen.max_recordings, chosen.max_recording_bytes,
                                               differences, chosen.timing)
        self.is_refused = False  # a recording was, and not because there are too many signatures
        self._call, self._call_last = call, call_last or call
        self._chosen, self._kind = chosen, kind
        self._following, self._look_farther = following, look_farther
        self._changing = ChangingValues()
        self._earlier = Earlier()
        self._alone: contextlib.AbstractContextManager[Any] = (
            PLAIN_STEPS if kind.takes_gradients else contextlib.nullcontext())
        # Decided once, when the first call begins: calls must stay on one stream, since gradients
        # that one call allocates are freed by the next.
        self._has_plenty: bool | None = None
        self._lock = self.specializations.lock
        self._kept_calls = KeptCalls(name, chosen, kind)
        self._graph_plans = GraphPlans(kind)
        self._launches = Launches(name, call, self._call_last, kind, self.tell)

    def run(self, key: Any, leaves: list[Any], state: State, describe: Callable[[], str],
            spec: Specialization | None = None) -> Any:
        """The answer of one call: plain, recorded or launched, as far as its signature has got.
        ``state`` is what a new recording uses besides its leaves. ``spec`` is the specialization of
        the key, if the caller has it."""
        answer = self._run(key, leaves, state, describe, spec)
        if self._kind.pair is not None and self._kind.is_backward:
            last = self.specializations.get(key)
            self._kind.pair.backward_is_short = last is not None and last.shortage is not None
        return answer

    def _run(self, key: Any, leaves: list[Any], state: State, describe: Callable[[], str],
             spec: Specialization | None) -> Any:
        spec = spec or self.specializations.get(key)
        if (spec is None or spec.recording is None) and self._kind.takes_gradients \
                and PLAIN_STEPS.is_trying_here():
            return self._call_last(leaves)  # it becomes part of another callable's recording
        if spec is None:
            spec = self._new_specialization(key, leaves, state, describe)
        if spec.plans:
            answer = self._graph_plans.call(spec, leaves)
            if answer is not MISSED:
                return answer
        spec.other_calls += 1
        if spec.recording is not None:
            if spec.shortage and spec.report.parallel_bytes:
                # What is recorded from now on takes no more than the plain step.
                self._earlier.has_slack = False
                self.specializations.retire(key)
                return self.run(key, leaves, state, describe)
            if self._is_short(spec):
                return self._launches.run_plainly(spec, leaves)
            return self._launch(key, spec, leaves, state)
        if spec.refusal is not None:
            if spec.shortage and self._has_memory_again(spec):
                spec.refuse(None)  # the next call records: it looks for everything anew
            else:
                self._check_is_allowed(spec)
            return self._call_last(leaves)
        spec.plain += 1
        if spec.plain <= _WARM_UP:
            return self._warm_up(spec, leaves, state)
        with self._alone, self._lock:
            if spec.recording is None and spec.refusal is None:
                spec.state = state
                answer = self._record(key, spec, handed_over(leaves))
                with self._behind_answer(spec):
                    give_back_memory()
                return answer
        return self.run(key, leaves, state, describe)  # another thread was first

    def _warm_up(self, spec: Specialization, leaves: list[Any], state: State) -> Any:
        """A plain call, which shows what the step writes. Compiled graphs run on the caller's
        stream. Callables that set gradients run on the stream of captures, unless memory is short:
        a block that one stream has cached is of no use to another."""
        tensors = [*(leaf for leaf in opened(leaves) if isinstance(leaf, Tensor)), *state.tensors(),
                   *state.inner_tensors()] if state is not NO_STATE else []
        device = device_of(opened(leaves), tensors)
        if device is not None and (other := other_allocator()):
            self.is_refused = True
            self._refuse(spec, Cause.OTHER_ALLOCATOR.because(
                f"torch's memory comes from another allocator ({other}), whose captures it cannot "
                "give addresses of their own"))
            return self._call_last(leaves)
        # Some of the state may be gone.
        tensors = [tensor for tensor in tensors if tensor is not None]
        spec.foreseen.versions = {id(tensor): version_of(tensor) for tensor in tensors}
        if self._has_plenty is None:
            self._has_plenty = device is not None and self._kind.takes_gradients \
                and is_plentiful(device, size_of(tensors))
        spec.is_short_of_memory = device is None or not self._has_plenty
        if device is not None and Swaps.count % 2:
            wait_for_captures()
        with self._alone, self._compiled_for_lanes(), (
                contextlib.nullcontext() if spec.is_short_of_memory or device is None
                else on_capture_stream(device)), \
                self._kept_calls.around_first(device) as sizes:
            answer = self._call_last(leaves)
            spec.ahead = sizes()
        with self._behind_answer(spec):
            spec.kept_cast = _compat.kept_cast() if self._kind.takes_gradients else None
            self._kept_calls.check_first(spec)
            self._check_answer(spec, answer, device)
            if self._kind.takes_gradients and not is_observed():
                spec.plain -= 1  # the next call warms up
                self.tell(f"{self.name} runs unrecorded", Cause.RECORDING_FAULT.because(
                    UNOBSERVED, "It is recorded when that has ended."), key=UNOBSERVED)
        return answer

    def _is_short(self, spec: Specialization) -> bool:
        """Whether a call is to be plain for want of memory: its own, or its backward's."""
        if spec.shortage and not self._has_memory_again(spec):
            return True
        pair = self._kind.pair
        return pair is not None and not self._kind.is_backward and pair.backward_is_short

    @staticmethod
    def _has_memory_again(spec: Specialization) -> bool:
        """Whether something that failed for lack of memory may be tried again."""
        if spec.shortage is not None and spec.shortage.has_passed():
            spec.shortage = None
        return spec.shortage is None

    def _check_answer(self, spec: Specialization, answer: Any, device: int | None) -> None:
        """Refuses a step that answers tensors on the CPU. Some steps do so only when they are not
        captured: attention's seeds, which a backward then reads there."""
        flat, _ = _compat.tree_flatten(answer)
        if device is not None \
                and any(isinstance(leaf, Tensor) and not leaf.is_cuda for leaf in flat):
            self.is_refused = True
            self._refuse(spec, Cause.ANSWER_ON_CPU.because(ON_CPU))

    def break_off(self, error: Exception) -> None:
        """Behind a mistake of ours: lets go of all recordings, and says so. RecordError under
        strict."""
        why = placed(reason_of_fault(error))
        self.is_refused = True
        self.specializations.retire_all()
        self.note_plain("any arguments", why)
        self._check_is_allowed(self.specializations.plain[why])
        self.tell(f"{self.name} runs unrecorded", why)

    def _behind_answer(self, spec: Specialization) -> contextlib.AbstractContextManager[None]:
        def refuse(error: Exception) -> None:
            self.is_refused, spec.recording = True, None
            self._refuse(spec, reason_of_fault(error))  # which forgets what it has been bound to

        return behind_answer(refuse)

    def note_plain(self, inputs: str, why: Reason) -> bool:
        """Counts a call that is never recorded; the caller runs it. Whether it is the first one for
        this reason."""
        with self._lock:
            plain = self.specializations.plain
            is_first = why not in plain
            if is_first:
                plain[why] = Specialization(inputs, NO_STATE)
                plain[why].refuse(why)
            plain[why].other_calls += 1
            return is_first

    def _new_specialization(self, key: Any, leaves: Sequence[Any], state: State,
                            describe: Callable[[], str]) -> Specialization:
        known = self.specializations
        with self._lock:
            if key in known:
                return known[key]
            spec, differs = known.admit(key, describe, state)
            if spec is known.beyond:
                if spec.refusal is None:
                    how = f"; this one differs from the nearest in {', '.join(differs)}"
                    self._refuse(spec, Cause.TOO_MANY_SIGNATURES.because(
                        f"there are {len(known)} signatures already (max_recordings)"
                        f"{how if differs else ''}"))
                return spec
            if told := self._changing.note(differs):
                told = self._following.with_why_not(told) if self._following else told
                self.tell(self.name, told, key=(self.name, *differs))
            # The key may hold ids of these, so they are kept alive.
            spec.constants = [leaf for leaf in leaves if not isinstance(leaf, Tensor)
                              and id(leaf) not in state.leading]
            return spec

    def follow(self, key: Any, state: State) -> bool:
        """Whether numbers are followed from now on that tell this signature from a known one.
        No recording that there is has noted what is computed from them, so all are dropped."""
        if self._following is None:
            return False
        with self._lock:
            known = list(self.specializations)
            if key in known or not (self._following.lists.begin(key, known)
                                    or self._following.begin(key, known, state)):
                return False
            self.specializations.retire_all()
            return True

    def _compiled_for_lanes(self) -> contextlib.AbstractContextManager[None]:
        """Around a plain call in which torch may compile something."""
        return _compat.own_buffers() if self._chosen.may_have_lanes and self._kind.takes_gradients \
            else contextlib.nullcontext()

    def _refuse(self, spec: Specialization, why: Reason) -> None:
        why = placed(why)
        spec.refuse(why)
        spec.state = NO_STATE  # the one before may hold much memory
        self._check_is_allowed(spec)
        if not spec.is_empty:
            self.tell(f"{self.name} runs unrecorded", why)

    def tell(self, head: str, why: Reason, key: Hashable = None) -> None:
        tell(head, why, is_allowed=why.code in self._chosen.allow, key=key)

    def _check_is_allowed(self, spec: Specialization) -> None:
        if (why := spec.refusal) is not None and self._forbids(spec, why):
            raise strict_error(f"record: {self.name} cannot be recorded", why, "it runs as it is")

    def _forbids(self, spec: Specialization, why: Reason) -> bool:
        return self._chosen.strict and not spec.is_empty and why.code not in self._chosen.allow

    # Recording.

    def _record(self, key: Any, spec: Specialization, leaves: list[Any]) -> Any:
        try:
            step = self._step(spec, leaves)
            if self._kept_calls.may_keep(spec, step):
                kept = self._kept_calls.run(spec, step)
                if kept is not None:
                    return self._answer_kept(spec, *kept)
                step = self._step(spec, leaves)  # nothing has run
            attempt = self._attempt(spec, step)
        except Unexplained as error:
            self._follow_no_more(spec, error)
            return self._call_last(leaves)
        except Exception as error:  # nothing has run yet
            self.is_refused = True
            self._refuse(spec, error.reason if isinstance(error, NotRecordable)
                         else reason_of_fault(error))
            return self._call_last(leaves)
        numbers = step.numbers
        del step
        made = _made_by(attempt)
        if isinstance(made, Exception):
            with self._behind_answer(spec):
                attempt.give_back()
                self._judge(key, spec, attempt, made)
            return attempt.fall_back(self._call_as_first(spec, attempt), leaves,
                                     may_repeat=not isinstance(made, Apart))
        answer, recording = made
        with self._behind_answer(spec):
            self._keep(key, spec, attempt, recording, numbers)
            attempt.leave_rest()
            return applied(spec.bind(spec.state), answer)
        return attempt.leave(answer)

    def _call_as_first(self, spec: Specialization, attempt: Attempt) -> Callable[[list[Any]], Any]:
        """Behind a try with a kept call there will be another one, whose captures must find no
        gradient accumulators of other streams."""
        if not attempt.has_kept or spec.is_short_of_memory:
            return self._call_last

        def call(leaves: list[Any]) -> Any:
            with on_capture_stream(attempt.device):
                return self._call_last(leaves)

        return call

    def _answer_kept(self, spec: Specialization, answer: Any, kept: KeptCall) -> Any:
        """Of a call whose capture was launched."""
        with self._behind_answer(spec):
            if (why := self._kept_calls.keep(spec, kept)) is not None:
                self.is_refused = True
                self._refuse(spec, why)
        return answer

    def _keep(self, key: Any, spec: Specialization, attempt: Attempt, recording: StepRecording,
              numbers: StepNumbers | None) -> None:
        """What an attempt has made, for later calls."""
        mutations, known = attempt.mutations, attempt.state_tensors
        attempt.close()
        spec.drop_kept()
        spec.shortage, spec.shortage_tries = None, 0
        spec.note(shortage="")
        spec.set_recording(recording, known, mutations)
        self._earlier.has_any = True
        if spec.on_host is not None and not self._chosen.verify:
            spec.on_host.trust()
        if numbers is not None:
            spec.set_words(numbers.now, recording.words(numbers.now),
                           are_proven=not self._chosen.verify)
            spec.note_proven(attempt.proven_words(recording))
            assert self._following is not None
            self._following.trust(spec.follows)
        self.specializations.retire_beyond_bytes(key)
        log.info("%s: %s", self.name, spec.current_report())

    def _attempt(self, spec: Specialization, step: Step,
                 recorded: StepRecording | None = None) -> Attempt:
        return Attempt(self.name, spec, step, self._chosen, self._kind, recorded=recorded,
                       earlier=self._earlier, look_farther=self._look_farther)

    def _prove(self, spec: Specialization, leaves: list[Any], state: State) -> Any:
        """A call with words of kernels, or arguments on the CPU, that have not been compared yet:
        compares a launch with a plain run. Runs plainly where there are no such words for the
        numbers of now."""
        with self._alone, self._lock:
            words: Sequence[int] | None = () if spec.follows is NO_NUMBERS else None
            if self._following is not None and words is None:
                with contextlib.suppress(OtherWay):  # a number that has changed just now
                    words = self._following.words(spec, leaves, state)
            if spec.is_retired or spec.recording is None or words is None:
                return self._launches.run_plainly(spec, leaves)
            tried = spec.as_tried(state)  # of which the attempt may note what it finds
            try:
                attempt = self._attempt(tried, self._step(tried, leaves), spec.recording)
            except NotRecordable as error:
                self._distrust(spec, error)
                return self._call_last(leaves)
            made = _made_by(attempt)
            if isinstance(made, Exception):
                attempt.give_back()
                spec.plain_calls += 1
                if not isinstance(made, (Short, Apart, Again)):
                    self._distrust(spec, made)
                return attempt.fall_back(self._call_last, leaves, not isinstance(made, Apart))
            attempt.close()
            spec.note_proven(words)
            if spec.on_host is not None:
                spec.on_host.note_compared([leaves[i] for i in spec.arguments])
            return applied(spec.bind(state), made[0])

    def _judge(self, key: Any, spec: Specialization, attempt: Attempt, why: Exception) -> None:
        """Decides what happens to a signature that was not recorded."""
        if self._kept_calls.judge(spec, why):
            return
        if isinstance(why, UntrackedTensors):
            # The next call makes another one, with a state that has these tensors, too.
            self.specializations.pop(key, None)
            return
        if isinstance(why, Again) and spec.tries_again < _MOST_TRIES_AGAIN:
            spec.tries_again += 1
            return
        spec.is_empty = isinstance(why, Empty)
        if isinstance(why, Short):
            spec.shortage_tries += 1
            free = max(attempt.free_before, free_bytes(attempt.device))
            spec.shortage = Shortage(why, attempt.device, free, spec.shortage_tries)
            spec.note(shortage=str(spec.shortage))
        else:
            self.is_refused |= not spec.is_empty
        if (attempt.follows or self._has_lists(spec)) and not isinstance(why, (Short, Apart)):
            self._follow_no_more(spec, why)
            return
        text = f"{spec.shortage or reason_for(why)}{spec.way_of_captures(why)}"
        found = reason_for(why)._replace(text=text)
        if self._forbids(spec, found):
            attempt.rewind()
        self._refuse(spec, found)

    def _distrust(self, spec: Specialization, why: Exception) -> None:
        """A launch with other numbers, or other bytes on the CPU, is not what a plain run is."""
        if spec.follows is not NO_NUMBERS or self._has_lists(spec):
            self._follow_no_more(spec, why)
            return
        spec.recording, spec.is_retired = None, True
        self._refuse(spec, Cause.READS_CPU_ARGUMENT.because(
            f"with another tensor on the CPU a launch differs: {reason_for(why)}"))

    def _follow_no_more(self, spec: Specialization, why: Exception) -> None:
        """Each value of what this recording was to follow is recorded by itself."""
        assert self._following is not None
        if spec.follows is NO_NUMBERS:
            self._following.refuse_lists(reason_for(why))
        else:
            self._following.refuse(spec.follows, reason_for(why))
        self.specializations.retire_all()
        log.info("%s%s", self.name, self._following.why_not)

    def _has_lists(self, spec: Specialization) -> bool:
        return spec.on_host is not None and self._following is not None \
            and self._following.lists.has_any

    def _step(self, spec: Specialization, leaves: list[Any]) -> Step:
        """What is to be captured."""
        state, numbers = spec.state, None
        device = device_of(leaves, state.tensors())
        if device is None:
            raise NotRecordable("it is given nothing on a GPU", Cause.NOTHING_ON_GPU)
        if self._following is not None and state.followed:
            spec.follows = self._following.places_in(leaves, state)
            numbers = self._following.of_step(leaves, state, spec.follows)
        step = spec.step(self._call, leaves, device, capture_stream(device), numbers=numbers,
                         is_noted=self._chosen.may_have_lanes, kind=self._kind)
        if spec.kept_cast is not None and spec.kept_cast is _compat.kept_cast() and (
                step.optimizers or any(map(spec.foreseen.is_newer, step.parameters))):
            raise NotRecordable(
                "autocast is on around it, and keeps casts of weights that it changes",
                Cause.HIDDEN_INPUT, "Turn autocast on inside of the step, or say "
                "cache_enabled=False.")
        return step

    # Launching.

    def plan(self, plans: CallPlans, found: Call, key: Any,
             leaves_of: _LeavesOf) -> None:
        """Leaves a plan for calls like the one that has just been launched; ``leaves_of(args,
        kwargs)`` answers the leaves of such a call."""
        spec = self.specializations.get(key)
        if spec is not None and spec.recording is not None and not spec.shortage:
            bound = spec.bind(found.state)
            if bound is not None:
                plans.add(found, spec, bound, functools.partial(
                    self._launch_planned, (spec, bound, leaves_of)))

    @_compat.untraced
    def _launch_planned(self, plan: tuple[Specialization, BoundState, _LeavesOf], code: int,
                        args: Any, kwargs: Any, given: list[Tensor], owners: list[Tensor],
                        words: Sequence[int]) -> Any:
        """A launch that a plan leaves to Python, whose checks have held: it takes more than
        addresses, or has been refused with this code."""
        spec, bound, leaves_of = plan
        recording = spec.recording
        if recording is None:
            return MISSED
        if code and recording.random is not None:
            recording.random.take_back()
        leaves = leaves_of(args, kwargs)
        all_given = spec.with_gradients(given, owners)
        if all_given is None or (spec.on_host is not None and not spec.on_host.are_as_compared(
                [leaves[i] for i in spec.arguments])):
            return MISSED
        BEGUN.runs -= 1  # which the call has counted for a direct launch
        launch = self._launches.launch_elsewhere if code == BAD_BINDING else self._launches.launch
        return launch(spec, leaves, bound, all_given, words, owners)

    def _words(self, spec: Specialization, leaves: Sequence[Any],
               state: State) -> Sequence[int] | None:
        """What kernels are given for the numbers of now; None where the recording may not be
        launched with that, or not yet. Raises OtherWay."""
        if spec.on_host is not None and not spec.on_host.are_as_compared(
                [leaves[i] for i in spec.arguments]):
            return None
        if spec.follows is NO_NUMBERS:
            return ()
        assert self._following is not None
        words = self._following.words(spec, leaves, state)
        return words if words is not None and spec.may_be_launched_with(words) else None

    def _launch(self, key: Any, spec: Specialization, leaves: list[Any], state: State) -> Any:
        """Launches the recording, or records anew where it does not fit the state."""
        bound = spec.bind(state)
        known = bound.tensors(state) if bound else None
        is_fixed = not spec.fixed or spec.is_fixed()
        given = spec.given(leaves, bound, known) if bound and known is not None and is_fixed \
            else None
        if bound is None or given is None:
            self.specializations.retire(key)
            return self.run(key, leaves, state, lambda: spec.report.inputs)
        try:
            words = self._words(spec, leaves, state)
        except OtherWay as error:
            return self._go_another_way(key, spec, leaves, state, error)
        if words is None:
            return self._prove(spec, leaves, state)
        places = leaves.places if isinstance(leaves, InBlocks) else None
        answer = self._launches.launch(spec, leaves, bound, given, words)
        if state is NO_STATE:
            with self._behind_answer(spec):
                self._graph_plans.plan(spec, places)
        return answer

    def _go_another_way(self, key: Any, spec: Specialization, leaves: list[Any], state: State,
                        why: OtherWay) -> Any:
        """Records anew what goes another way with the numbers of now. Where that has happened too
        often, they tell signatures apart again."""
        assert self._following is not None
        with self._lock:
            if not self._following.go_another_way(spec, why):
                self._follow_no_more(spec, Unexplained("the step goes another way again and again"))
                return self._call_last(leaves)
            self.specializations.retire(key)
        return self.run(key, leaves, state, lambda: spec.report.inputs)


def _made_by(attempt: Attempt) -> tuple[Any, StepRecording] | Exception:
    """The answer and the recording, or why there is none."""
    try:
        return attempt.record()
    except (NotRecordable, Untrusted, NativeError) as error:
        return without_frames(error)
