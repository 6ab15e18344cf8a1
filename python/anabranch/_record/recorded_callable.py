# SPDX-License-Identifier: Apache-2.0
"""What ``anabranch.record`` answers: a callable of tensors, recorded once and launched ever after.

The first calls run plainly. Then the step is captured twice, made into a recording whose addresses
are arguments, compared with a plain run from the same state, and from then on launched. What cannot
be recorded runs plainly for ever, with the reason in ``reports`` and in a warning; under strict it
raises RecordError.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from anabranch import _compat, config
from anabranch._arguments import wrong
from anabranch._record.checks import MISSED, call
from anabranch._record.draws.serving import having_taken, run_served, take, watching
from anabranch._record.draws.taken import (
    Draw,
    Drawn,
    Ways,
    is_iterator,
    tensors_drawn,
    with_item,
)
from anabranch._record.draws.watcher import Watcher
from anabranch._record.faults import BEGUN, behind_answer, may_run_plainly, run_users
from anabranch._record.launch.recording import StepRecording
from anabranch._record.observe.observer import Observer
from anabranch._record.observe.observing import observing, run_observed
from anabranch._record.observe.reads import reads_of
from anabranch._record.quick import is_intercepted
from anabranch._record.recorder import Recorder
from anabranch._record.refusals import Cause, Reason
from anabranch._record.report import RecordingReport
from anabranch._record.signatures.call_plans import Call, CallPlans
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.following import Following
from anabranch._record.signatures.lists import Listed, with_lists
from anabranch._record.signatures.signature import (
    ARGUMENTS_ALONE,
    LEAF,
    LEAF_TYPES,
    describe,
    differences,
    of_any_iterator,
    signature_of,
    unpack,
)
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.cache import StateCache, is_lasting
from anabranch._record.state.fingerprint import is_object
from anabranch._record.state.guards import Guards, changed
from anabranch._record.state.paths import Path, name_of
from anabranch._record.state.state import State
from anabranch._record.trial.plain_steps import PLAIN_STEPS

_MOST_NAMES = 4
_NO_GPU = Cause.NOTHING_ON_GPU.because(
    "torch finds no GPU, and nothing else is recorded",
    "anabranch.doctor.report() says what torch finds; what torch.compile(backend=\"anabranch\") "
    "has compiled runs in streams all the same.")._replace(place="on this machine")
# Of a call by precompile() that says nothing of its signature.
_UNCOUNTED = ("it ran plainly, as it does with record=False, while somebody else captures, and in "
              "modes that see each operator")
_RESET = "it was reset while it ran"
_P = ParamSpec("_P")
_R = TypeVar("_R")
_lock = threading.Lock()
_callables: weakref.WeakSet[RecordedCallable[..., Any]] = weakref.WeakSet()


def _bound(recorded: Any, instance: Any, owner: type | None = None) -> Any:
    """Its ``__get__`` to Dynamo, which knows partials and no classes of ours."""
    return recorded if instance is None else functools.partial(recorded, instance)


class RecordedCallable(Generic[_P, _R]):
    """What ``record`` answers: called as the callable it stands for.

    Threads: calls from several at once; one of them records at a time. Failure: what the callable
    raises; RecordError under strict where it cannot be recorded, with the code of the cause.
    """

    def __init__(self, function: Callable[_P, _R], state: tuple[Any, ...],
                 guard: Callable[[], Any] | None, options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._made_of = function, state, guard, options
        self._function, self._guard = function, guard
        self._call: Callable[..., Any] = function
        self._chosen = config.resolve(options)
        self.reset()
        with _lock:
            _callables.add(self)

    def reset(self) -> None:
        """Lets go of all recordings and what was learned for them, and begins anew with the next
        call. Memory that a recording holds is free when the launches that use it have ended."""
        chosen = self._chosen
        self._is_recorded = chosen.record  # until a mistake of ours
        self._states = StateCache((self._function, *self._made_of[1]), chosen.max_recordings,
                                  chosen.guards)
        self._trees: dict[Any, Any] = {}  # by what leaves[0] says
        self._has_told = False  # of what its Python counts
        self._plans, self._ways = CallPlans(), Ways()
        self._drawn_from: frozenset[int] = frozenset()  # leaves
        following = Following(self._states)
        self._lists = following.lists
        self._recorder = Recorder(self._call_flat, chosen, _name_of(self._function),
                                  CallableKind(takes_gradients=True), differences=differences,
                                  following=following if chosen.follow_numbers else None,
                                  look_farther=self._states.look_farther)

    def precompile(self, /, *args: _P.args, **kwargs: _P.kwargs) -> RecordingReport:
        """Calls it with these arguments until they are launched, or are not going to be, and
        answers what became of them. Each call is one: a step that trains has trained. So it is for
        before a checkpoint is loaded, or for steps that change nothing."""
        while True:
            known = self._recorder.specializations
            before = {id(spec): spec.calls for spec in known.known()}
            self(*args, **kwargs)
            spec = next((spec for spec in known.known()
                         if spec.calls != before.get(id(spec), 0)), None)
            if spec is None or known is not self._recorder.specializations:
                leaves, _ = _compat.tree_flatten((args, kwargs))
                return RecordingReport(describe(leaves), calls=1, reason=_UNCOUNTED if spec is None
                                       else _RESET)
            if spec.recording is not None or spec.refusal is not None:
                return spec.current_report()

    @property
    def name(self) -> str:
        return self._recorder.name

    def __repr__(self) -> str:
        """Without the recorder's lock: who prints it may not wait for one who records."""
        specs = list(self._recorder.specializations.values())
        launched = sum(spec.recording is not None for spec in specs)
        return f"<anabranch.record of {self.name}: {len(specs)} signatures, {launched} recorded>"

    def __copy__(self) -> RecordedCallable[_P, _R]:
        """Over the same callable. No copy has recordings: they belong to addresses."""
        return self._anew(*self._made_of)  # type: ignore[no-any-return]

    def with_options(self, /, **options: Any) -> RecordedCallable[_P, _R]:
        """A copy with these options besides its own, which they beat."""
        function, state, guard, own = self._made_of
        return self._anew(  # type: ignore[no-any-return]
            function, state, guard, {**own, **options})

    def _anew(self, *made_of: Any) -> Any:
        return type(self)(*made_of)

    @property
    def state(self) -> tuple[Any, ...]:
        """What ``state=`` was given."""
        return self._made_of[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedCallable[_P, _R]:
        """Over a copy of the callable: a method's is that of its object's copy, a function is
        itself."""
        made = memo[id(self)] = type(self).__new__(type(self))
        made.__init__(*copy.deepcopy(self._made_of, memo))  # type: ignore[misc]
        return made

    def __reduce__(self) -> Any:
        """By name where that leads here, as a decorated function's does; else what it was made
        of."""
        module = sys.modules.get(getattr(self, "__module__", None) or "")
        name = getattr(self, "__qualname__", "")
        if _at(module, name) is self:
            return name
        return type(self).__new__, (type(self),), self._made_of

    def __setstate__(self, made_of: tuple[Any, ...]) -> None:
        self.__init__(*made_of)  # type: ignore[misc]

    @_compat.traced_as(_bound)
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """In a class it is a method; objects of one make share its recordings."""
        return self if instance is None else RecordedMethod(self, instance)

    def __call__(self, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not self._is_recorded:
            return self._function(*args, **kwargs)
        if not (self._plans.of_args or _has_gpu()):  # calls that are ready have been launched
            self._tell_of_no_gpu()
            return self._function(*args, **kwargs)
        if torch.cuda.is_current_stream_capturing():
            return self._function(*args, **kwargs)
        return self._call_recorded(args, kwargs)  # type: ignore[no-any-return]

    @_compat.untraced
    def _call_recorded(self, args: Any, kwargs: Any) -> Any:
        begun, tracer = BEGUN.runs, _compat.trace_by(None)
        if tracer is not None:
            BEGUN.tracer = tracer
        try:
            guarded = None if self._guard is None else self._guarded()
            BEGUN.runs += 1  # a plan may launch; its checks raise nothing
            answer = call(self._plans.of_args, args, kwargs, guarded)
            if answer is not MISSED:
                if self._states.are_several:
                    self._note_use(self._leaves(args, kwargs)[1:])
                return answer
            BEGUN.runs -= 1
            if not _compat.is_fx_tracing():
                if not is_intercepted():
                    return self._call_fully(args, kwargs, guarded)
                self._tell_who_intercepts()
        except Exception as error:
            if not may_run_plainly(error, begun):
                raise
            self._break_off(error)
        finally:
            if tracer is not None:
                BEGUN.tracer = None  # as in all that is the user's
                _compat.trace_by(tracer)
        return self._function(*args, **kwargs)

    def _break_off(self, error: Exception) -> None:
        """Records nothing any more, after a mistake of ours."""
        self._is_recorded = False
        self._recorder.break_off(error)

    def _note_use(self, leaves: Sequence[Any]) -> None:
        objects = list(filter(is_object, leaves))
        with behind_answer(self._break_off):
            if self._states.note_use(objects):
                self._plans.keep(self._states.kept())

    @_compat.untraced
    def _guarded(self) -> Any:
        """What the user's guard answers, which is not the step."""
        assert self._guard is not None
        begun = BEGUN.runs
        BEGUN.runs += 1
        answer = self._guard() if BEGUN.tracer is None else run_users(self._guard)
        BEGUN.runs = begun
        try:
            hash(answer)
        except TypeError:
            raise wrong("record", "what guard= answers", answer, "something that can be hashed",
                        "A tuple of numbers and texts can.") from None
        return answer

    def _call_fully(self, args: Any, kwargs: Any, guarded: Any) -> Any:
        """A call that no plan serves, unless one does by its leaves."""
        return self._call_leaves(args, kwargs, guarded, self._leaves(args, kwargs))

    def _call_leaves(self, args: Any, kwargs: Any, guarded: Any, leaves: list[Any]) -> Any:
        if self._plans.of_leaves:
            BEGUN.runs += 1
            answer = call(self._plans.of_leaves, leaves, None, guarded)
            if answer is not MISSED:
                if self._states.are_several:
                    self._note_use(leaves[1:])
                return answer
            BEGUN.runs -= 1
        objects = [leaf for leaf in leaves[1:] if is_object(leaf)]
        state, named = self._states.current(objects), self._recorder.specializations.now_named
        key = named(signature_of(leaves, state, guarded, self._drawn_from)) \
            if state is not None else None
        spec = self._recorder.specializations.get(key)
        if state is not None and spec is not None and spec.draw is not None:
            found = _found(args, kwargs, guarded, leaves, key, state)
            return self._draw_first(found, spec, spec.draw)
        is_new = spec is None and not self._recorder.specializations.is_full
        if state is None or is_new or (spec and spec.recording is None
                                       and spec.refusal is None):
            # Not a time to be quick: whatever has come since, an optimizer's state, is found.
            state = self._states.find(objects)
            key = named(signature_of(leaves, state, guarded, self._drawn_from))
            spec = self._recorder.specializations.get(key)
            if spec is not None and spec.draw is not None:
                found = _found(args, kwargs, guarded, leaves, key, state)
                return self._draw_first(found, spec, spec.draw)
            if is_new and self._recorder.follow(key, state):
                leaves = self._lists.taken_from(leaves)
                state = self._states.find(objects)
                key = signature_of(leaves, state, guarded, self._drawn_from)
            self._plans.keep(self._states.kept())
            return self._run_and_compare(key, leaves, state, objects)
        assert key is not None
        answer = self._recorder.run(key, leaves, state, lambda: describe(leaves[1:]), spec)
        with behind_answer(self._break_off):
            self._plans.keep(self._states.kept())
            if not self._drawn_from:  # or a plan would keep iterators
                found = _found(args, kwargs, guarded, leaves, key, state)
                self._recorder.plan(self._plans, found, key, self._leaves)
        return answer

    def _draw_first(self, found: Call, spec: Specialization, draw: Draw) -> Any:
        """A call whose step is going to take something from an iterator. Leaves a plan for calls
        like this one."""
        if not self._drawn_from:
            self._plans.keep(self._states.kept())
            self._plans.add(found, spec, None, functools.partial(
                self._draw_planned, spec, draw, found.state, found.guarded))
        spec.passed += 1
        return self._draw(spec, draw, found.state, found.args, found.kwargs, found.guarded,
                          list(found.leaves))

    def _draw_planned(self, spec: Specialization, draw: Draw, state: State, guarded: Any, code: int,
                      args: Any, kwargs: Any, *of_launch: Any) -> Any:
        """What a plan does whose checks have held."""
        BEGUN.runs -= 1  # which the call has counted for a launch
        return self._draw(spec, draw, state, args, kwargs, guarded, self._leaves(args, kwargs))

    def _draw(self, spec: Specialization, draw: Draw, state: State, args: Any, kwargs: Any,
              guarded: Any, leaves: list[Any]) -> Any:
        """Takes what the step is going to take, and is a call with one argument more. Where it
        cannot be one, the step runs, and is given it."""
        iterator = self._ways.iterator_of(draw, state)
        state.forget_walk()
        if iterator is None:  # it is looked for anew
            spec.draw, spec.plain = None, 0
            return self._call_leaves(args, kwargs, guarded, leaves)
        outcome = take(iterator, draw)
        begun = BEGUN.runs
        with having_taken(outcome, is_first=not isinstance(leaves[0], Drawn)):
            try:
                if (more := with_item(leaves, draw, outcome, self._flattened)) is not None:
                    return self._call_leaves(args, kwargs, guarded, more)
            except Exception as error:
                if not may_run_plainly(error, begun):
                    raise
                self._break_off(error)
            return self._call_flat(leaves)

    def _item_of(self, containers: Any, leaves: Sequence[Any]) -> Any:
        return leaves[0] if containers == LEAF else \
            _compat.tree_unflatten(leaves, self._trees[containers])

    def _tell_of_no_gpu(self) -> None:
        """In the reports, and once a process in a warning: a program that was written on a machine
        without a GPU is right there, and not quicker."""
        if torch.compiler.is_compiling():
            return
        self._note_plain(_NO_GPU)

    def _note_plain(self, why: Reason) -> None:
        if self._recorder.note_plain("any arguments", why):
            self._recorder.tell(f"{self.name} runs as it is", why)

    def _tell_who_intercepts(self) -> None:
        """Unless that is a try of ours to record a step around it."""
        if not PLAIN_STEPS.is_trying():
            self._note_plain(Cause.OPERATORS_SEEN.because(
                f"it is called under {_compat.who_intercepts()}, which a launch would pass by"))

    def _run_and_compare(self, key: Any, leaves: list[Any], state: State,
                         objects: Sequence[Any]) -> Any:
        """A call whose Python runs. It shows which values the step itself changes, and what its
        code reads."""
        changing, observer = state.changing_values(), Observer()
        watcher = Watcher.of(state, tensors_drawn(leaves), self._ways.owned)
        if watcher is not None:
            self._ways.note_functions(state)
        try:
            with observing(observer), watching(watcher):
                answer = self._recorder.run(key, leaves, state, lambda: describe(leaves[1:]))
        except BaseException:
            state.forget_walk()
            with behind_answer(self._break_off):
                self._note_draw(self._recorder.specializations.get(key), watcher, leaves)
            raise
        with behind_answer(self._break_off):
            things = [self._function, *state.modules, *state.callables, *(
                thing for _, thing in state.walk_before_run().entered.values())]
            state.forget_walk()
            after = state if state.is_current() else self._states.find(objects)
            after.forget_walk()
            spec = self._recorder.specializations.get(key)
            self._note_changes(key, after, changed(changing, state.changing_values()))
            if seeing := self._states.see(reads_of(observer, things), after, objects):
                seen = seeing.seen_values()
                self._recorder.specializations.rename_all(
                    lambda key: (*key[:-1], key[-1].with_seen(seen))
                    if isinstance(key[-1], Guards) else key)
            self._note_draw(spec, watcher, leaves)
            if watcher is not None:
                self._ways.note_ran(observer)
        return answer

    def _note_draw(self, spec: Specialization | None, watcher: Watcher | None,
                   leaves: Sequence[Any]) -> None:
        """What calls of this signature take first from now on."""
        if spec is None or watcher is None or watcher.found is None or spec.recording is not None:
            return
        spec.draw = watcher.found
        spec.refuse(None)
        spec.note(inputs=f"{spec.report.inputs} before next({name_of(spec.draw.paths[0])})")
        spec.constants = [one for one in spec.constants if not is_iterator(one)]
        objects = [i for i, leaf in enumerate(leaves) if i and is_object(leaf)]
        self._drawn_from = self._drawn_from.union(spec.draw.leaves_among(objects))
        if watcher.moved:
            self._states.ignore(watcher.moved)
        self._recorder.specializations.rename_all(lambda key: (
            *of_any_iterator(key, self._drawn_from)[:-1], key[-1].without(watcher.moved)))

    def _note_changes(self, key: Any, after: State, changing: set[Path]) -> None:
        """What a call has changed that it is guarded by. Only what changes in further calls, too,
        is no guard from then on: the first may have set up what stays. What launches leave where
        it changes is no guard either, unless they leave the same each time. ``changing``: values
        that are no guards, and have changed."""
        *rest, guards = key
        known = self._recorder.specializations
        spec, effects = known.get(key), known.effects_of(key)
        found = changed(guards.python_values, after.python_values()) \
            | changed(guards.seen, after.seen_values())
        if spec is not None and spec.recording is None and spec.refusal is None:
            known.note_changed(key, found)
            return
        known.note_changed(key, None)
        # What a model of DDP notes of exchanges stays guarded. Where a step's change of it matters,
        # reducers.py refuses the step.
        found = {path for path in found
                 if path[-1] != _compat.NOTED_OF_EXCHANGES and not effects.set_again(path)}
        self._tell_of_counts(key, {path for path in found | changing
                                   if not effects.are_repeated(path)})
        paths = found.union(filter(effects.are_repeated, guards.paths()))
        if paths:
            self._states.ignore(paths)
            known.rename(key, (*rest, guards.without(paths)))

    def _tell_of_counts(self, key: Any, paths: set[Path]) -> None:
        """Warns where a step has been recorded whose Python changes values that it may read: in
        launches they stay as they are."""
        spec = self._recorder.specializations.get(key)
        if paths and spec is not None and spec.recording is not None and not self._has_told:
            self._has_told = True
            names = sorted(map(name_of, paths))[:_MOST_NAMES]
            self._recorder.tell(self.name, Cause.PYTHON_CHANGES.because(
                f"its Python changes {', '.join(names)}, which launches do not do, and what it "
                "decides by that stays as it is now"), key=(self.name, "changes", *names))

    def _call_flat(self, leaves: list[Any]) -> Any:
        return run_observed(self._call_served, leaves)

    def _call_served(self, leaves: list[Any]) -> Any:
        return run_served(self._call_unflattened, leaves, self._item_of,
                          self._ways.namespaces)

    def _call_unflattened(self, leaves: list[Any]) -> Any:
        if leaves[0] == ARGUMENTS_ALONE:
            return run_users(self._call, *leaves[1:])
        args, kwargs = with_lists(leaves) if isinstance(leaves[0], Listed) else \
            _compat.tree_unflatten(leaves[1:], self._trees[leaves[0]])
        return run_users(self._call, *args, **kwargs)

    def _leaves(self, args: Any, kwargs: Any) -> list[Any]:
        """What a plan was called with: leaves, where there are no keywords."""
        if kwargs is None:
            given: list[Any] = args
            return given
        if kwargs or not LEAF_TYPES.issuperset(map(type, args)):
            return self._flat(args, kwargs)
        return [ARGUMENTS_ALONE, *args]

    def _flat(self, args: Any, kwargs: Any) -> list[Any]:
        """The containers, as something hashable, and then the leaves in torch's order."""
        containers, flat = self._flattened((args, kwargs))
        leaves = [containers, *flat]
        return self._lists.taken_from(leaves) if self._lists.has_any else leaves

    def _flattened(self, thing: Any) -> tuple[Any, list[Any]]:
        """The containers, and the leaves."""
        leaves: list[Any] = []
        containers = unpack(thing, leaves)
        if containers in self._trees or containers == LEAF:
            return containers, leaves
        flat, tree = _compat.tree_flatten(thing)
        if containers is None:
            containers = next((i for i, known in self._trees.items() if known == tree),
                              len(self._trees) + 1)
        self._trees[containers] = tree
        return containers, flat

    @property
    def reports(self) -> list[RecordingReport]:
        """One a signature, in the order of their first calls."""
        return self._recorder.specializations.reports()

    def _recordings(self) -> list[StepRecording]:
        return self._recorder.specializations.recordings()


class RecordedStatic(RecordedCallable[_P, _R]):
    """What ``record`` answers of a staticmethod."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self


class RecordedOfClass(RecordedCallable[_P, _R]):
    """What ``record`` answers of a classmethod: its first argument is the class."""

    @_compat.traced_as(lambda recorded, instance, owner: functools.partial(recorded, owner))
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return RecordedMethod(self, type(instance) if owner is None else owner)


class RecordedMethod(functools.partial[Any]):
    # A recorded callable as the method of an object, or of a class. It is called by C, takes the
    # object itself for precompile, and leaves all else to the callable, whose reports and
    # recordings are those of all objects. Equal, hashed, copied and pickled as Python's methods.
    __doc__ = property(lambda self: self.func.__doc__)

    func: Any

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return self.func

    @property
    def __wrapped__(self) -> Any:
        return types.MethodType(self.func.__wrapped__, self.args[0])

    def precompile(self, /, *args: Any, **kwargs: Any) -> RecordingReport:
        report: RecordingReport = self.func.precompile(self.args[0], *args, **kwargs)
        return report

    def with_options(self, /, **options: Any) -> RecordedMethod:
        return RecordedMethod(self.func.with_options(**options), self.args[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__qualname__"):
            raise AttributeError(name)
        return getattr(self.func, name)

    def __get__(self, instance: Any, owner: type | None = None) -> RecordedMethod:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedMethod) and self.func is other.func \
            and self.args[0] is other.args[0]

    def __hash__(self) -> int:
        return hash((id(self.func), id(self.args[0])))

    def __repr__(self) -> str:
        return f"<method of {self.args[0]!r}: {self.func!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self.args[0], self.func.__name__)


def _found(args: Any, kwargs: Any, guarded: Any, leaves: Sequence[Any], key: Any,
           state: State) -> Call:
    return Call(args, kwargs, guarded, leaves, key[2], tuple([
        id(leaf) for leaf in leaves[1:] if is_object(leaf) and is_lasting(leaf)]), state, key[-1])


def recordings_of_callables() -> list[tuple[str, StepRecording]]:
    """Those that there are now, with the names of their callables."""
    return [(step.name, recording) for step in recorded_callables()
            for recording in step._recordings()]


def recorded_callables() -> list[RecordedCallable[..., Any]]:
    """All that are alive, in no order."""
    with _lock:
        return list(_callables)


@_compat.constant_when_compiled
def _has_gpu() -> bool:
    return _finds_gpu()


_finds_gpu = functools.cache(torch.cuda.is_available)


def _at(module: Any, name: str) -> Any:
    """What stands there by a qualified name, or None."""
    with contextlib.suppress(AttributeError):
        return operator.attrgetter(name)(module) if name else None
    return None


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
