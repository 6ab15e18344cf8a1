# SPDX-License-Identifier: Apache-2.0
"""One try to record a signature of a callable, from the plain run to a launch that is trusted.

The order keeps memory down. First, copies are made of what the step writes. Then the step runs
plainly, and checksums of its results and state are made. Then it is captured, which runs nothing on
the GPU: if a capture fails, the plain run's results still stand. Only then the GPU's memory is put
back, and the recording is launched and compared. Where a call was kept, a launch of that stands for
the plain run, and comes behind the captures: these may find tensors of which nobody has a copy.

Threads: one at a time, under the recorder's lock. Failure: NotRecordable, Untrusted or NativeError;
fall_back() then ends the call as if it had been a plain one. Errors of the step itself pass through
to its caller.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NoReturn

import torch

from anabranch import _compat, config
from anabranch._core.capture import ANY_BYTES, capture_device
from anabranch._core.library import NativeError
from anabranch._record.capture.capture import capture_twice, close_abandoned
from anabranch._record.capture.captured import Capture
from anabranch._record.capture.preallocate import noted_sizes
from anabranch._record.capture.step import Step
from anabranch._record.capture.untracked import (
    UntrackedTensors,
    check_all_tracked,
    may_name_others,
)
from anabranch._record.effects.side_effects import SideEffects
from anabranch._record.effects.stepped_by_hand import SteppedByHand
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.known import CAPTURES_DIFFER
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.rng_graph import make_rng_graph
from anabranch._record.memory.garbage import no_collection
from anabranch._record.memory.gpu import (
    Meter,
    Peaks,
    empty_cache,
    free_bytes,
    give_back,
    is_plentiful,
    no_limit,
    slack_bytes,
    taken,
)
from anabranch._record.memory.shortage import OF_LAUNCH, is_out_of_memory, phase, short_of
from anabranch._record.observe.observing import check_draws, check_inputs, collection_read_at
from anabranch._record.reducers import untimed
from anabranch._record.refusals import (
    Again,
    BrokeUntold,
    Cause,
    Empty,
    NotRecordable,
    OtherGraph,
    reason_for,
)
from anabranch._record.rendezvous import Rendezvous
from anabranch._record.report import Laps, RecordingCost
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.paths import Path
from anabranch._record.state.state import NO_STATE
from anabranch._record.tensors import size_of
from anabranch._record.trial.earlier import Earlier, Order
from anabranch._record.trial.kept_capture import capture_beside, check_fits
from anabranch._record.trial.other_numbers import prove_numbers
from anabranch._record.trial.overlap import (
    NOT_FASTER,
    Allowance,
    bytes_ahead,
    choose_overlap,
    make_to_fit,
)
from anabranch._record.trial.retries import captured_differently, faults_told
from anabranch._record.trial.run import Run, check_run
from anabranch._record.trial.trial import Trial
from anabranch._record.trial.verify import Untrusted, verify

log = logging.getLogger("anabranch.record")


class Attempt:
    """``name`` is the callable's; ``kind`` and ``look_farther`` as in Recorder. ``recorded``: a
    recording that there is already, which is compared with the step once more.

    The first recording of a callable takes next to nothing beside the step. Later ones, of which
    there may be many, take what they can use of a GPU that has plenty."""

    def __init__(self, name: str, spec: Specialization, step: Step, chosen: config.Options,
                 kind: CallableKind, *, earlier: Earlier, recorded: StepRecording | None = None,
                 look_farther: Callable[[Collection[Path]], None]) -> None:
        self._name, self._spec, self._step, self._chosen = name, spec, step, chosen
        self._kind, self._look_farther = kind, look_farther
        self._recorded, self._earlier = recorded, earlier
        self._kept = spec.kept if recorded is None else None  # whose launches are its plain runs
        self._discovered: DiscoveredStep | None = None  # of one capture, where that is enough
        self._needs_two = False  # captures, whatever is known
        self._is_in_best = False  # order of earlier ones, so that one recording is made
        self._is_plenty = earlier.has_any and is_plentiful(step.device, size_of(step.tensors))
        self._laps = Laps()
        self._call = step.call
        self._stepped = SteppedByHand(step.optimizers, step.objects)
        self._effects = SideEffects(
            self._call, spec.state, is_first_plain=chosen.verify, read_at=collection_read_at,
            are_left_out=Cause.PYTHON_CHANGES in chosen.allow, check=self._stepped.check)
        if spec.state is not NO_STATE:
            step.call = self._effects
        self._distributed = _compat.distributed_models(spec.state.modules)
        self._exchanges = _compat.exchanges(self._distributed)
        self._buckets: list[torch.UntypedStorage] = []  # of their reducers
        self._trial: Trial | None = None
        self._plain: Run | None = None  # until its memory is put back
        self._agree = Rendezvous(torch.device("cuda", step.device), [])
        self._groups: dict[Any, int] = {}  # how many collectives each has had
        self._is_rewound = False
        self._answered: tuple[Any, ...] = ()  # the answer of a run that served as the call
        # A recording, and what its kernels were given when it was compared with other numbers.
        self._proven: tuple[StepRecording | None, Sequence[int]] = (None, [])
        self.device = step.device
        self.free_before = free_bytes(step.device)
        held = [] if not kind.is_backward else [
            tensor for tensor in step.tensors[:step.arguments] if not tensor.requires_grad]
        self.allowance = Allowance(
            chosen.parallel_bytes, slack_bytes(step.device) if chosen.may_have_lanes else 0,
            self.free_before, size_of(held), earlier)

    @property
    def mutations(self) -> Any:
        """Where launches have side effects."""
        return self._effects.mutations if self._step.call is self._effects else None

    @property
    def has_kept(self) -> bool:
        """Whether launches of a call that was kept stand for plain runs."""
        return self._kept is not None

    @property
    def follows(self) -> bool:
        """Whether numbers are to change between launches."""
        return self._step.numbers is not None

    def proven_words(self, recording: StepRecording) -> Sequence[int]:
        """Words of its kernels with which a launch of it was compared, besides those captured."""
        of, words = self._proven
        return words if of is recording else ()

    @property
    def state_tensors(self) -> Sequence[torch.Tensor]:
        return self._step.tensors[self._step.arguments:self._step.own]

    def record(self) -> tuple[Any, StepRecording]:
        """The call's answer, as the step's callable gives it (with its side effects, if any), and
        the recording to be launched from now on."""
        self._groups = _compat.collectives_so_far()
        meter = Meter(self._step.device)
        try:
            # All objects of the process would be looked through several times, for what a try makes
            # by the thousand: 0.3 s each time. What it has made is (see Trial).
            with no_collection(), self._as_kept(meter):
                if self._chosen.verify:
                    self._begin_trial(meter)
                if self._trial is not None and self._kept is None:
                    self._run_plainly(meter, self._trial)
                with faults_told(self._step.device):
                    return self._make_and_launch(meter)
        finally:
            meter.close()
            with contextlib.suppress(Exception):  # a report, and no more
                self._note_memory(meter)

    @contextlib.contextmanager
    def _as_kept(self, meter: Meter) -> Iterator[None]:
        """The call before, where that was kept: launches of it stand for plain runs."""
        if self._kept is None:
            yield
            return
        with faults_told(self._step.device):
            check_fits(self._kept.capture, self._step)
            self._step = self._kept.capture.captured_alike(self._step)
            self._effects.adopt(self._kept.mutations)
            if not self._kept.mutations:
                self._step.call = self._call
        with self._kept.capture.lent(self._step, lambda: meter.note("a launch of the call before")):
            yield

    def _note(self, meter: Meter, phase: str) -> Peaks:
        """A kept call has memory while it is launched alone."""
        return meter.note(phase, self._kept.capture.addresses_bytes if self._kept else 0)

    def _note_memory(self, meter: Meter) -> None:
        trial = self._trial
        self._spec.note(recording=RecordingCost(
            meter.highest.reserved, meter.phase, self.allowance.plain_bytes,
            trial.copied_bytes if trial else 0, trial.copied_to if trial else ""),
            phase_seconds=self._laps.seconds)

    # The plain run.

    def _begin_trial(self, meter: Meter) -> None:
        """Makes what can put the state back."""
        step = self._step
        try:
            with faults_told(step.device), phase("copies of what the step writes", step.device):
                self._trial = Trial(step, self._spec.state, self._spec.foreseen,
                                    self._spec.is_short_of_memory, self._is_plenty,
                                    self._kept.capture if self._kept is not None else None)
        except NotRecordable as error:
            self._run_unrecorded(error)
        assert self._trial
        if self._kept is not None and not self._trial.is_whole:
            raise Again("there is no copy of all that it is given")
        self._note(meter, "copies of what the step writes")
        self._laps.end("copies")
        if self._kept is not None:
            self.allowance.plain_bytes = self._kept.capture.peak_bytes

    def _run_plainly(self, meter: Meter, trial: Trial) -> None:
        """Runs the step, and finds out which other processes take part in it."""
        step = self._step
        _compat.clear_workspaces()
        before = taken(step.device)
        short = None
        try:
            with noted_sizes(step.device) as sizes:
                answer, drawn = trial.run()
                step.ahead = sizes() if self._kept is None else step.ahead
        except Exception as error:
            # After a collective it cannot be run again: other processes would not take part.
            if not is_out_of_memory(error) or _compat.collectives_so_far() != self._groups:
                raise
            short = short_of("the plain run", error, step.device)
        if short is not None:
            raise short
        taken_bytes = self._note(meter, "the plain run").allocated - before.allocated
        if self._kept is None:
            self.allowance.plain_bytes = taken_bytes
        self._laps.end("plain run")
        try:
            with faults_told(step.device):
                self._plain = trial.look(answer, drawn)
                self.allowance.let_go_bytes = trial.let_go_bytes
                if self._kept is not None:  # it is none of Python's answers
                    self._plain.has_history = True
        except NotRecordable as error:
            self._answered = (self.leave(answer),)
            self._meet()
            self._agree.refuse(error)
        with faults_told(step.device):
            self._check_plainly()

    def _run_unrecorded(self, why: NotRecordable) -> NoReturn:
        """Runs the call all the same, and tells the other processes."""
        self._answered = (self._call(list(self._step.leaves)),)
        self._meet()
        self._agree.refuse(why)
        raise why

    def _meet(self) -> None:
        self._agree = Rendezvous.since(self._groups, torch.device("cuda", self._step.device))
        self._agree.meet(self._name)

    def _check_plainly(self) -> None:
        """Raises, in all processes of the step, where one of them has nothing that can be
        recorded."""
        trial, plain = self._trial, self._plain
        assert trial and plain
        self._meet()
        agree = self._agree
        trial.rewind_python()
        agree.make(lambda: check_run(plain, self._effects, self._step))
        agree.make(self._check_arguments)
        if self._kept is None:
            agree.make(self._check_taken)
        self._laps.end("checksums")
        # Most steps have no side effects; their answers then stay as they are.
        if self._step.call is self._effects and not self._effects.mutations:
            self._step.call, plain.answer = self._call, plain.answer[0]
        if agree.on(bool(trial.written_unforeseen(plain))):
            raise Again("it writes memory that it was not known to write")

    def _check_arguments(self) -> None:
        """A process with other bytes than the rest would compare, and they would not."""
        if self._agree.has_others and self._step.on_host:
            raise NotRecordable("it is given tensors on the CPU, and other processes have "
                                "collectives with it", Cause.ARGUMENT_REFUSED)

    def _check_taken(self) -> None:
        """Of the first run of the step's Python in this call."""
        if self._kind.takes_gradients:
            check_draws()
            if Cause.HIDDEN_INPUT not in self._chosen.allow:
                check_inputs()

    # The recording.

    def _make_and_launch(self, meter: Meter) -> tuple[Any, StepRecording]:
        """Makes a recording and launches it. Where it differs from the plain run, or a launch is
        refused, it is made once more in a simpler way."""
        made = self._agree.make(lambda: self._make(self._step, meter))
        if self._trial is not None and self._kept is not None:
            self._run_plainly(meter, self._trial)
        if self._trial is None:
            with phase(OF_LAUNCH, self._step.device):
                answer = made[0].launch_as_captured(self._step)
            self._note_size(made[0])
            return answer, made[0]
        try:
            return self._first_launch(made, meter)
        except (Untrusted, NativeError) as error:
            is_of_one_process = isinstance(error, NativeError) and self._agree.has_others
            if self._recorded is not None or self._kept is not None or is_of_one_process:
                raise  # others would not try again
            if self._is_of_one and isinstance(error, Untrusted):
                self._needs_two = True
            else:
                self._step = captured_differently(self._step, error, set())
        made.clear()
        self._trial.rewind()
        self._trial.use(self._step)
        return self._first_launch(self._agree.make(lambda: self._make(self._step, meter)), meter)

    def _make(self, step: Step, meter: Meter) -> list[StepRecording]:
        """Recordings of ``step``. Where it breaks, it is captured differently, see ``retries``."""
        if self._recorded is not None:
            return [self._recorded]
        if self._kept is not None:
            return self._make_of(step, meter)
        tried: set[type[Exception]] = set()
        while True:
            try:
                return self._make_of(step, meter)
            except NotRecordable as error:
                if isinstance(error, Again) and self._agree.has_others:
                    raise NotRecordable(error.reason) from error  # others would not try again
                step = captured_differently(step, error, tried)
                if isinstance(error, BrokeUntold):
                    self._spec.why_told = str(error)

    def _make_of(self, step: Step, meter: Meter) -> list[StepRecording]:
        """A recording in captured order, and one with more lanes if any kernels can use them.
        Captures own no memory, so they are left out of the peak, and no limit applies to them."""
        device = capture_device(step.device)
        if not self._is_plenty:
            give_back(step.device)
        with no_limit(step.device), untimed(self._distributed, self._exchanges):
            try:
                self._discovered, self._is_in_best = None, False
                self._effects.begin_captures()
                try:
                    capture = capture_twice(step, device, self._is_enough(step)) \
                        if self._kept is None else \
                        capture_beside(step, device, self._kept.capture, self._is_enough(step))
                finally:
                    self._effects.end_captures()
                self._spec.note(captures=len(capture.captures))
                self._laps.end("captures")
                try:
                    self._stepped.check()
                    if self._kept is not None:
                        self._check_taken()
                    # Compiled graphs use nothing but their arguments and constants. One capture
                    # names no memory but the step's and what two named before.
                    if self._kind.takes_gradients and not self._is_of_one:
                        self._check_all_was_found(step, capture)
                    with phase("an executable", step.device):
                        made = self._made_of(step, capture)
                finally:
                    capture.close()
                    self._laps.end("captures given back")
            finally:
                meter.skip()
        if made[0].counts.nodes == 0:
            raise Empty("it queues nothing on the GPU")
        return [made[0], *(other for other in made[1:] if other.counts.lanes > 1)]

    def _made_of(self, step: Step, capture: Capture) -> list[StepRecording]:
        device = capture_device(step.device)
        try:
            discovered = self._discovered or DiscoveredStep(step, capture, device,
                                                            self._kind.saved_from)
            self._laps.end("discovery")
            self.allowance.asked_lanes = capture.first.asked_lanes
            self._spec.note(asked_lanes=capture.first.asked_lanes)
            with contextlib.closing(discovered):
                made = self._made_with_lanes(step, discovered, capture.noted is not None)
                if not self._is_of_one:
                    self._earlier.steps.add(discovered)
        except NativeError as error:
            if error.code == CAPTURES_DIFFER:
                raise OtherGraph(reason_for(error)) from error
            raise
        random = make_rng_graph(capture.first.graph, device, step.stream)
        for recorded in made:
            recorded.random, recorded.draws = random, capture.draws
            recorded.buckets = self._buckets
        self._laps.end("executables")
        return made

    @property
    def _ours(self) -> Sequence[torch.Tensor]:
        return self._trial.own_memory if self._trial is not None else ()

    @property
    def _is_of_one(self) -> bool:
        """Whether the step has been captured once alone."""
        return self._discovered is not None

    def _is_enough(self, step: Step) -> Callable[[Capture], bool] | None:
        """Whether a capture tells enough by itself; None where it cannot. Processes that run a step
        together capture it as often as one another."""
        if (not self._earlier.steps.has_any or not self._chosen.verify or self._needs_two
                or self._agree.has_others or step.numbers is not None or step.has_constants
                or self._effects.counts):
            return None

        def is_enough(capture: Capture) -> bool:
            # Of mapped memory drivers need not say that it is memory.
            if not capture.is_mapped or not may_name_others(step, capture, self._ours):
                self._discovered = self._earlier.steps.discover(
                    step, capture, capture_device(step.device), self._kind.saved_from)
            return self._is_of_one

        return is_enough

    def _made_with_lanes(self, step: Step, discovered: DiscoveredStep,
                         is_noted: bool) -> list[StepRecording]:
        chosen = self._chosen
        lanes = max(chosen.max_parallel_kernels, self.allowance.asked_lanes)

        def with_lanes(lanes: int, parallel_bytes: int = ANY_BYTES) -> StepRecording:
            return StepRecording(step, discovered, chosen.verify, lanes, chosen.prefetch_bytes,
                                 parallel_bytes)

        best = self._earlier.best if self._is_of_one and self._trial is not None else None
        if best is not None:
            made = [with_lanes(lanes if best.is_side_by_side else 1)]
            self._is_in_best = self._does_as(best, made[0])
            if self._is_in_best:
                self._spec.note(why_in_order="" if best.is_side_by_side else NOT_FASTER)
                return made
        made = [with_lanes(1)]
        stays = self._earlier.is_faster(made[0].counts) is False
        self._spec.note(why_in_order=NOT_FASTER if stays
                        else self._why_in_order(step, is_noted))
        if is_noted and not stays:
            try:
                made.append(make_to_fit(made[0], self.allowance.room(made[0]),
                                        lambda beside: with_lanes(lanes, beside)))
            except NativeError as error:
                self._spec.note(why_in_order=str(error))
                log.warning("anabranch: %s keeps its captured order: %s", self._name, error)
        return made

    def _does_as(self, best: Order, made: StepRecording) -> bool:
        """Whether a recording in the best order may do without another one in captured order."""
        allowed = self.allowance
        most = allowed.plain_takes + allowed.granted_bytes + bytes_ahead(made)
        return best.is_about(made.counts) and (
            not best.is_side_by_side or made.launch_bytes <= most)

    def _check_all_was_found(self, step: Step, capture: Capture) -> None:
        """Raises UntrackedTensors if the walk has missed a tensor that the capture names, and makes
        later walks find it."""
        try:
            self._buckets = check_all_tracked(step, capture, capture_device(step.device),
                                              self._ours, bool(self._distributed))
        except UntrackedTensors as error:
            ways = self._spec.state.ways_to(error.tensors)
            if ways is None:
                raise NotRecordable(error.reason) from error
            self._look_farther(ways)
            raise

    def _why_in_order(self, step: Step, is_known: bool) -> str:
        """Why kernels stay in captured order, unless a recording side by side is tried."""
        if not self._chosen.may_have_lanes:
            return ""
        if not step.is_noted:
            return "with notes of what its kernels use it breaks or is wrong"
        return "no two of its kernels may run at once" if is_known else \
            "what its kernels use could not be noted"

    def _first_launch(self, made: list[StepRecording], meter: Meter) -> tuple[Any, StepRecording]:
        """The answer of the run whose results and state stand in the end: a launch that is trusted,
        or another right run."""
        trial, plain, agree = self._trial, self._plain, self._agree
        assert trial and plain
        recorded = made[0]
        if agree.on(recorded.needs_gradients and trial.has_let_gradients_go):
            self._spec.foreseen.needs_gradients = True
            raise Again("it reads the gradients that it finds")
        plain.let_go()
        self._is_rewound = True
        trial.rewind()
        self._effects.forget_first()
        agree.make(lambda: trial.reserve(recorded))
        self._laps.end("copies put back")
        if self._recorded is None:
            words = prove_numbers(trial, recorded, self._step, agree.on, agree.make)
            if words is not None:
                self._proven = recorded, words
                self._laps.end("other numbers")
        verdict = verify(trial, plain, recorded, agree.on)
        self._note(meter, "the launches that are compared")
        self._laps.end("comparison")
        if agree.on(self._is_in_best and not verdict.is_bitwise):
            raise Untrusted("its launches differ from one another, which those of other sizes did "
                            "not")
        answer, why = verdict.standing.answer, NOT_FASTER
        if agree.on(len(made) > 1):
            answer = None
            recorded, gain, why, answer = choose_overlap(
                trial, plain, verdict, recorded, made[-1], agree.on, self.allowance.room(recorded),
                self._earlier)
            self._spec.note(parallel_gain=gain, why_in_order=why)
            self._note(meter, "the launches side by side")
            self._laps.end("side by side")
        if len(made) > 1 and verdict.is_bitwise and why in ("", NOT_FASTER):
            self._earlier.best = Order(recorded is made[-1], recorded.counts.nodes,
                                       recorded.counts.arena_bytes)
        self._note_size(recorded)
        self._spec.note(verified="bitwise" if verdict.is_bitwise else "within bounds")
        return answer, recorded

    def _note_size(self, recorded: StepRecording) -> None:
        is_parallel = self._trial is not None and recorded.counts.lanes > 1
        self._spec.note(slots=recorded.slot_count, launch_peak_bytes=recorded.peak_bytes,
                        answered_bytes=recorded.answered_bytes,
                        parallel_bytes=max(0, recorded.peak_bytes - self.allowance.plain_takes)
                        if is_parallel else 0)

    # Where there is no recording.

    def give_back(self) -> None:
        """Frees everything that the attempt took. Afterwards the state is that of before the call,
        unless the plain run's still stands."""
        trial = self._trial
        if trial is not None and (self._is_rewound or self._plain is None) and not self._answered:
            trial.give_up()
        gc.collect()  # frames of what broke
        close_abandoned()
        if trial is not None and self._plain is not None and not self._is_rewound:
            return  # its copies may be wanted yet
        if trial is not None:
            trial.close()
        empty_cache()

    def fall_back(self, call: Callable[[list[Any]], Any], leaves: list[Any],
                  may_repeat: bool) -> Any:
        """The plain run's answer, as if nothing else had run. Another run would count twice, since
        the state has not been put back.

        ``call(leaves)`` runs instead where the state has been put back, and where the answer needs
        its autograd history; not without ``may_repeat``, since then no other process would take
        part in its collectives. Nothing but ``leaves`` holds what the step was given then."""
        trial, plain = self._trial, self._plain
        if self._answered:
            return self._answered[0]
        if plain is not None and trial is not None and not self._is_rewound:
            if not (plain.has_history and may_repeat):
                trial.settle(plain)
                trial.close()
                return self.leave(plain.answer)
            trial.give_up()
            plain.let_go()
        self.close()
        self._step.tensors.clear()
        return call(leaves)

    def rewind(self) -> None:
        """Puts the state back, before the call raises an error."""
        if self._trial is not None and not self._answered:
            self._trial.give_up()

    def leave_rest(self) -> None:
        """What launches leave out of the step's side effects."""
        self._effects.leave_rest()

    def leave(self, answer: Any) -> Any:
        """The plain run's answer to the caller, with the step's side effects."""
        if self._step.call is not self._effects:
            return answer
        self._effects.leave_first()
        return answer[0]

    def close(self) -> None:
        if self._trial is not None:
            self._trial.close()
