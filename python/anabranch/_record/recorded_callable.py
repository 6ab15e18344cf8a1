# SPDX-License-Identifier: Apache-2.0
"""``anabranch.record(fn)``: any callable of tensors, recorded once and launched ever after.

    step = anabranch.record(train_step)

The first calls run plainly. Then the step is captured twice, made into a recording whose addresses
are arguments, compared with a plain run from the same state, and from then on launched. What cannot
be recorded runs plainly for ever, with the reason in ``report`` and in the log; under strict it
raises RecordError.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import operator
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anabranch import _compat, config
from anabranch._arguments import check_function, wrong
from anabranch._record.ready_calls import ReadyCalls
from anabranch._record.recorder import MISSED, Recorder
from anabranch._record.report import RecordingReport
from anabranch._record.signature import (
    ARGUMENTS_ALONE,
    LEAF_TYPES,
    describe,
    explain_difference,
    kind_of,
    signature_of,
    unpack,
)
from anabranch._record.state.cache import StateCache, is_lasting
from anabranch._record.state.fingerprint import is_object
from anabranch._record.state.guards import changed
from anabranch._record.state.state import State

log = logging.getLogger("anabranch.record")
_NO_GPU = "torch finds no GPU, and nothing else is recorded"
_lock = threading.Lock()
_callables: weakref.WeakSet[RecordedCallable] = weakref.WeakSet()


class RecordedCallable:
    """What ``record`` answers: called as the callable it stands for."""

    def __init__(self, function: Callable[..., Any], static: tuple[Any, ...],
                 options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function, updated=())
        self._made_of = function, static, options
        self._function = function
        self._chosen = chosen = config.resolve(options)
        self._states = StateCache((function, *static), chosen.max_recordings)
        self._trees: dict[Any, Any] = {}  # by what leaves[0] says
        self._ready = ReadyCalls()
        self._recorder = Recorder(self._call_flat, chosen, _name_of(function),
                                  takes_gradients=True, differences=explain_difference,
                                  look_farther=self._states.look_farther)
        with _lock:
            _callables.add(self)

    @property
    def name(self) -> str:
        return self._recorder.name

    def __repr__(self) -> str:
        """Without the recorder's lock: who prints it may not wait for one who records."""
        specs = list(self._recorder.specializations.values())
        launched = sum(spec.recording is not None for spec in specs)
        return f"<anabranch.record of {self.name}: {len(specs)} signatures, {launched} recorded>"

    def __copy__(self) -> RecordedCallable:
        """Over the same callable. No copy has recordings: they belong to addresses."""
        return RecordedCallable(*self._made_of)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedCallable:
        """Over a copy of the callable: a method's is that of its object's copy, a function is
        itself."""
        made = memo[id(self)] = RecordedCallable.__new__(RecordedCallable)
        made.__init__(*copy.deepcopy(self._made_of, memo))  # type: ignore[misc]
        return made

    def __reduce__(self) -> Any:
        """By name where that leads here, as a decorated function's does; else what it was made
        of."""
        module = sys.modules.get(getattr(self, "__module__", None) or "")
        name = getattr(self, "__qualname__", "")
        if _at(module, name) is self:
            return name
        return RecordedCallable.__new__, (RecordedCallable,), self._made_of

    def __setstate__(self, made_of: tuple[Any, ...]) -> None:
        self.__init__(*made_of)  # type: ignore[misc]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """In a class it is a method; objects of one make share its recordings."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._chosen.record:
            return self._function(*args, **kwargs)
        if not _has_gpu():
            self._tell_of_no_gpu()
            return self._function(*args, **kwargs)
        if torch.cuda.is_current_stream_capturing() or _compat.is_intercepted():
            return self._function(*args, **kwargs)
        objects: Sequence[Any] = ()
        if kwargs or not LEAF_TYPES.issuperset(map(type, args)):
            leaves = self._flat(args, kwargs)
            if not LEAF_TYPES.issuperset(map(type, leaves)):
                objects = list(filter(is_object, leaves[1:]))
        else:
            leaves = [ARGUMENTS_ALONE, *args]
        kind = kind_of(leaves) if not objects or all(map(is_lasting, objects)) else None
        answer = self._recorder.launch_ready(self._ready.by_kind.get(kind, ()), leaves)
        if answer is MISSED:
            return self._call_fully(leaves, objects, kind)
        if self._states.are_several and self._states.note_use(objects):
            self._ready.keep(self._states.kept())
        return answer

    def _call_fully(self, leaves: list[Any], objects: Sequence[Any], kind: Any) -> Any:
        """Finds state, signature and specialization. ``kind`` is what is seen of the arguments,
        None where the next call with such arguments cannot be quick."""
        state = self._states.current(objects)
        key = signature_of(leaves, state) if state is not None else None
        spec = self._recorder.specializations.get(key)
        is_new = spec is None and not self._recorder.is_full
        if state is None or is_new or (spec and spec.recording is None
                                       and spec.report.reason is None):
            # Not a time to be quick: whatever has come since, an optimizer's state, is found.
            state = self._states.find(objects)
            self._ready.keep(self._states.kept())
            return self._run_and_compare(signature_of(leaves, state), leaves, state, objects)
        answer = self._recorder.run(key, leaves, state, lambda: describe(leaves[1:]), spec)
        if kind is not None and key is not None \
                and (ready := self._recorder.ready(key, state, key[-1])):
            self._ready.keep(self._states.kept())
            self._ready.add(kind, ready)
        return answer

    def _tell_of_no_gpu(self) -> None:
        """In the report, and once a process in the log: a program that was written on a machine
        without a GPU is right there, and not quicker."""
        if torch.compiler.is_compiling():
            return
        self._recorder.note_plain("any arguments", _NO_GPU)
        if not _told_of_no_gpu.is_set():
            _told_of_no_gpu.set()
            log.warning("anabranch: %s runs as it is: %s. anabranch.doctor.report() says what "
                        "torch finds; what torch.compile(backend=\"anabranch\") has compiled runs "
                        "in streams all the same [E0308]", self.name, _NO_GPU)

    def _run_and_compare(self, key: Any, leaves: list[Any], state: State,
                         objects: Sequence[Any]) -> Any:
        """A call whose Python runs. Numbers that it changes itself tell no signatures apart: what
        they count is left to Python. Nor do those in whose places it leaves tensors, which launches
        see."""
        *rest, guards = key
        numbers = guards.numbers
        answer = self._recorder.run(key, leaves, state, lambda: describe(leaves[1:]))
        after = state if state.is_current() else self._states.find(objects)
        paths = changed(numbers, after.numbers()) | self._recorder.left_paths(key)
        if numbers is not None and paths.intersection(path for path, _ in numbers.each()):
            self._states.ignore(paths)
            self._recorder.rename(key, (*rest, guards.without(paths)))
        return answer

    def _call_flat(self, leaves: list[Any]) -> Any:
        if leaves[0] == ARGUMENTS_ALONE:
            return self._function(*leaves[1:])
        args, kwargs = _compat.tree_unflatten(leaves[1:], self._trees[leaves[0]])
        return self._function(*args, **kwargs)

    def _flat(self, args: Any, kwargs: Any) -> list[Any]:
        """The containers, as something hashable, and then the leaves in torch's order."""
        leaves: list[Any] = [None]
        containers = unpack((args, kwargs), leaves)
        if containers in self._trees:
            leaves[0] = containers
            return leaves
        flat, tree = _compat.tree_flatten((args, kwargs))
        if containers is None:
            containers = next((i for i, known in self._trees.items() if known == tree),
                              len(self._trees))
        self._trees[containers] = tree
        return [containers, *flat]

    @property
    def report(self) -> list[RecordingReport]:
        """One spec a signature, in the order of their first calls."""
        return self._recorder.reports()


def record(function: Callable[..., Any] | None = None, *, static: Iterable[Any] = (),
           options: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Records a callable of tensors: inference, or a whole training step with its optimizer.

    ``static`` names modules, optimizers and tensors that the callable uses and that cannot be
    found from it (those in its closure, its globals, its object and its arguments are found).
    ``options``, or keywords, are those of ``anabranch.config`` and beat it: ``strict``,
    ``verify``, ``record``, ``max_recordings``. Also a decorator. The answer is a callable with a
    ``report``. Raises WrongArgument [E0611] where ``function`` cannot be called or ``static`` is no
    list or tuple of these, [E0612] for coroutines and generators, and ConfigError for options.

    A recording repeats what the callable does on the GPU and not what it does in Python: branches
    and side effects are those of the recording. Numbers that it may read and does not change are
    looked at before each launch; with others it is recorded anew. What it answers are fresh tensors
    without history. New tensors that outlive the call it returns, leaves in ``.grad``, or binds in
    objects, containers and variables that are found from it: launches then leave theirs there.
    """
    roots = _roots_in(static)
    config.resolve(options, **more)  # refused here, and not only where it decorates
    wanted = {**(options or {}), **more}

    def recorded(given: Any) -> RecordedCallable:
        check_function("record", given, "Give a function, or a model: anabranch.record(step). As a "
                       "decorator it stands below @classmethod and @property.")
        return RecordedCallable(given, roots, wanted)

    return recorded if function is None else recorded(function)


_WHOLE = (Tensor, nn.Module, torch.optim.Optimizer, Mapping, str, bytes)
_LISTS = (nn.ModuleList, nn.ParameterList)


def _roots_in(static: Any) -> tuple[Any, ...]:
    """What is in ``static``. A model would give its layers, and a tensor its rows."""
    wanted = "a list or tuple of modules, optimizers and tensors"
    remedy = "One alone is static=(model,), with the comma."
    if not isinstance(static, Iterable) or (isinstance(static, _WHOLE) \
                                            and not isinstance(static, _LISTS)):
        raise wrong("record", "static", static, wanted, remedy)
    roots = tuple(static)
    for i, root in enumerate(roots):
        if isinstance(root, (str, bytes, int, float, complex)):
            raise wrong("record", f"static[{i}]", root, "something that leads to a tensor", remedy)
    return roots


def recorded_callables() -> list[RecordedCallable]:
    """All that are alive, in no order."""
    with _lock:
        return list(_callables)


@functools.cache
def _has_gpu() -> bool:
    return torch.cuda.is_available()


_told_of_no_gpu = threading.Event()


def _at(module: Any, name: str) -> Any:
    """What stands there by a qualified name, or None."""
    with contextlib.suppress(AttributeError):
        return operator.attrgetter(name)(module) if name else None
    return None


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
