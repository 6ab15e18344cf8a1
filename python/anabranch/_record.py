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
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _compat, _native, config, errors
from ._capture import NotRecordable, Step, capture_twice
from ._given import units_of
from ._native_capture import capture_device
from ._recorded import Recorded
from ._state import State, find_state, inner_tensors, is_wrapper
from ._verify import Trial, Untrusted, on_stream, verify

log = logging.getLogger("anabranch.record")

_WARM_UP = 1  # plain calls of a signature before it is recorded
_BAD_BINDING = 402


@dataclasses.dataclass
class RecordingReport:
    """One signature of a recorded callable: what became of it. Times in seconds, memory in bytes."""

    inputs: str
    calls: int = 0
    reason: str | None = None  # why it runs plainly
    nodes: int = 0
    sites: int = 0
    unsure: int = 0  # words that differ between captures; found to be read by nothing
    slots: int = 0
    arena_bytes: int = 0
    arena_lower_bound_bytes: int = 0
    capture_seconds: float = 0.0
    make_seconds: float = 0.0
    verify_seconds: float = 0.0
    verified: str = "no"  # "bitwise", "within bounds"
    launched_unchanged: int = 0
    launched_from_host: int = 0
    launched_from_device: int = 0
    plain_calls: int = 0

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.inputs}: {self.calls} calls, unrecorded: {self.reason}"
        if not self.nodes:
            return f"{self.inputs}: {self.calls} calls, not recorded yet"
        launches = (f"{self.launched_unchanged} unchanged, {self.launched_from_host} set from the "
                    f"host, {self.launched_from_device} from the device, {self.plain_calls} plain")
        return (f"{self.inputs}: {self.calls} calls: {launches}\n"
                f"  {self.nodes} nodes, {self.sites} addresses of {self.slots} slots; arena "
                f"{self.arena_bytes} bytes (lower bound {self.arena_lower_bound_bytes})\n"
                f"  captured in {self.capture_seconds:.2f} s, made in {self.make_seconds:.2f} s, "
                f"verified in {self.verify_seconds:.2f} s ({self.verified})")


class Entry:
    """One signature: its recording, or how far it has got."""

    def __init__(self, inputs: str) -> None:
        self.report = RecordingReport(inputs)
        self.recorded: Recorded | None = None
        self.plain = 0  # calls so far
        self.state = State()
        self.known: list[Tensor] = []  # the state's tensors when last launched
        self.fixed: tuple[int, ...] = ()  # addresses of what cannot be re-pointed
        self.owners: list[Any] = []  # places of parameters that had a gradient
        self.leaf_owners: list[int] = []  # the same among the leaves

    def current_report(self) -> RecordingReport:
        if self.recorded is not None:
            counts = self.recorded.counts
            self.report.launched_unchanged = counts.launched_unchanged
            self.report.launched_from_host = counts.launched_from_host
            self.report.launched_from_device = counts.launched_from_device
        return self.report


class Recorder:
    """Records one callable over flat leaves, a signature at a time: what record() and the backend
    share. ``call(leaves)`` runs it, ``find()`` finds what it uses besides."""

    def __init__(self, call: Callable[[list[Any]], Any], chosen: config.Options, name: str,
                 find: Callable[[], State] | None = None) -> None:
        self.name = name
        self.entries: dict[Any, Entry] = {}
        self._call = call
        self._chosen = chosen
        self._find = find  # None: the call has no state and sets no gradients
        self._lock = threading.RLock()
        self._told: set[str] = set()

    def run(self, key: Any, leaves: list[Any], describe: Callable[[], str]) -> Any:
        """The answer of one call, by whatever way its signature has got to."""
        if torch.cuda.is_current_stream_capturing():
            return self._call(leaves)  # becomes part of somebody's graph
        entry = self.entries.get(key)
        if entry is None:
            entry = self._new_entry(key, describe)
        entry.report.calls += 1
        if entry.recorded is not None:
            return self._launch(key, entry, leaves)
        if entry.report.reason is not None:
            return self._call(leaves)
        entry.plain += 1
        if entry.plain <= _WARM_UP:
            with self._on_capture_stream(leaves):
                return self._call(leaves)
        with self._lock:
            if entry.recorded is None and entry.report.reason is None:
                return self._record(key, entry, leaves)
        return self.run(key, leaves, describe)  # another thread was first

    def _new_entry(self, key: Any, describe: Callable[[], str]) -> Entry:
        with self._lock:
            entry = self.entries.setdefault(key, Entry(describe()))
            if len(self.entries) > self._chosen.max_recordings:
                self._refuse(entry, f"there are {self._chosen.max_recordings} signatures already "
                                    "(max_recordings)")
            return entry

    def _on_capture_stream(self, leaves: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        device = _device_of(leaves, [])
        if device is None:
            return contextlib.nullcontext()
        return on_stream(_capture_stream(device), device)

    def _refuse(self, entry: Entry, reason: str) -> None:
        entry.report.reason = reason
        if self._chosen.strict:
            raise errors.RecordError(
                308, f"record: {self.name} cannot be recorded: {reason}, and strict=True forbids "
                "to run it unrecorded.", "Without strict it runs as it is.")
        if reason not in self._told:
            self._told.add(reason)
            log.warning("anabranch: %s runs unrecorded: %s [E0308]", self.name, reason)

    # Recording.

    def _record(self, key: Any, entry: Entry, leaves: list[Any]) -> Any:
        entry.state = self._find() if self._find else State()
        try:
            step, fixed = self._step(entry, leaves)
        except NotRecordable as error:
            self._refuse(entry, str(error))
            return self._call(leaves)
        trial = Trial(step, fixed) if self._chosen.verify else None
        plain = trial.plain() if trial else None
        try:
            if trial and plain:
                _check_history(step, plain)
                trial.rewind()
            recorded = self._make(entry, step)
            given = self._given(entry, leaves)
            answer, entry.report.verified = self._first_launch(entry, recorded, step, trial, plain,
                                                               given)
        except (NotRecordable, _native.NativeError) as error:
            if trial and plain:
                trial.settle(plain)
            self._refuse(entry, str(error))
            return plain.answer if plain else self._call(leaves)
        except Untrusted as error:
            self._refuse(entry, str(error))
            return error.answer
        entry.recorded = recorded
        torch.cuda.empty_cache()  # what only plain runs and captures needed
        log.info("%s: %s", self.name, entry.report)
        return answer

    def _step(self, entry: Entry, leaves: list[Any]) -> tuple[Step, list[Tensor]]:
        """What there is to capture, and tensors of the state that stay where they are."""
        state = entry.state
        device = _device_of(leaves, state.tensors())
        if device is None:
            raise NotRecordable("it is given nothing on a GPU")
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i in places:
            _check_argument(i, leaves[i], device)
        arguments = [leaves[i] for i in places]
        if self._find:
            entry.owners = state.leaves()
            entry.leaf_owners = [i for i in places if leaves[i].is_leaf and leaves[i].requires_grad]
        parameters = [leaves[i] for i in entry.leaf_owners]
        parameters += [place.get() for place in entry.owners]
        entry.known = state.tensors()
        wrapped = [inner for place in state.wrapped if (tensor := place.get()) is not None
                   for inner in inner_tensors(tensor)]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        fixed = wrapped + [inner for grad in gradients if is_wrapper(grad)
                           for inner in inner_tensors(grad)]
        tensors = [*arguments, *entry.known,
                   *(grad for grad in gradients if not is_wrapper(grad))]
        entry.fixed = tuple(tensor.data_ptr() for tensor in wrapped)
        return Step(self._call, leaves, places, tensors, units_of(tensors), parameters, device,
                    _capture_stream(device)), fixed

    def _make(self, entry: Entry, step: Step) -> Recorded:
        report = entry.report
        before = [entry.state.hyperparameters(opt) for opt in entry.state.optimizers]
        start = time.perf_counter()
        device = capture_device(step.device)
        capture = capture_twice(step, device)
        if before != [entry.state.hyperparameters(opt) for opt in entry.state.optimizers]:
            raise NotRecordable("it changes an optimizer's numbers in Python; keep them in tensors "
                                "(lr=torch.tensor(...)), or change them outside")
        captured = time.perf_counter()
        try:
            recorded = Recorded(step, capture, device, self._chosen.verify)
        finally:
            capture.close()
        report.capture_seconds = captured - start
        report.make_seconds = time.perf_counter() - captured
        counts = recorded.counts
        report.nodes, report.sites, report.unsure = counts.nodes, counts.sites, counts.unsure
        report.slots = recorded.slot_count
        report.arena_bytes = counts.arena_bytes
        report.arena_lower_bound_bytes = counts.arena_lower_bound_bytes
        return recorded

    def _first_launch(self, entry: Entry, recorded: Recorded, step: Step, trial: Trial | None,
                      plain: Any, given: list[Tensor]) -> tuple[Any, str]:
        if trial is None:
            return recorded.launch(given, step.parameters), "no"
        start = time.perf_counter()
        answer, bitwise = verify(
            trial, plain, lambda poison: recorded.launch(given, step.parameters, poison),
            recorded.exchange)
        entry.report.verify_seconds = time.perf_counter() - start
        return answer, "bitwise" if bitwise else "within bounds"

    # Launching.

    def _launch(self, key: Any, entry: Entry, leaves: list[Any]) -> Any:
        given = self._given(entry, leaves)
        recorded = entry.recorded
        assert recorded is not None
        if given is None:
            del self.entries[key]  # the state is another: recorded anew
            return self.run(key, leaves, lambda: entry.report.inputs)
        if not recorded.fits(given):
            entry.report.plain_calls += 1
            return self._call(leaves)
        parameters = [leaves[i] for i in entry.leaf_owners]
        parameters += [place.get() for place in entry.owners]
        try:
            return recorded.launch(given, parameters)
        except _native.NativeError as error:
            if error.code != _BAD_BINDING:
                raise errors.from_native(error.code, str(error.message)) from None
        return self._launch_elsewhere(entry, recorded, leaves, given, parameters)

    def _launch_elsewhere(self, entry: Entry, recorded: Recorded, leaves: list[Any],
                          given: list[Tensor], parameters: list[Tensor]) -> Any:
        """Arguments at addresses that the kernels do not take are copied; what overlaps now and
        did not when recorded runs plainly."""
        arguments = sum(isinstance(leaf, Tensor) for leaf in leaves)
        misaligned = recorded.misaligned(given)
        if misaligned and all(i < arguments for i in misaligned):
            with torch.no_grad():
                copies = {i: given[i].detach().clone() for i in misaligned}
            moved = [copies.get(i, tensor) for i, tensor in enumerate(given)]
            with contextlib.suppress(_native.NativeError):
                answer = recorded.launch(moved, parameters)
                for i, copy in copies.items():
                    if i in recorded.mutated:
                        given[i].data.copy_(copy)
                return answer
        entry.report.plain_calls += 1
        return self._call(leaves)

    def _given(self, entry: Entry, leaves: Sequence[Any]) -> Any:
        """The tensors a launch is given, or None where the state cannot be launched at."""
        try:
            state = entry.state.tensors()
        except (KeyError, IndexError, AttributeError):
            return None
        for tensor, known in zip(state, entry.known, strict=True):
            if tensor is not known and not _alike(tensor, known):
                return None
        entry.known = state
        if entry.fixed and entry.fixed != tuple(
                inner.data_ptr() for place in entry.state.wrapped
                for inner in inner_tensors(place.get())):
            return None
        owners = [leaves[i] for i in entry.leaf_owners] + [place.get() for place in entry.owners]
        gradients = [grad for owner in owners
                     if (grad := owner.grad) is not None and not is_wrapper(grad)]
        return [*(leaf for leaf in leaves if isinstance(leaf, Tensor)), *state, *gradients]


def _alike(tensor: Any, known: Tensor) -> bool:
    return (isinstance(tensor, Tensor) and tensor.shape == known.shape
            and tensor.stride() == known.stride() and tensor.dtype == known.dtype
            and tensor.device == known.device)


@functools.cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _device_of(leaves: Iterable[Any], state: Iterable[Tensor]) -> int | None:
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


def _check_history(step: Step, plain: Any) -> None:
    """Results that want gradients belong to a backward; where the step ran none, somebody else
    will, and a recording could not serve it."""
    if plain.has_history and not any(grad is not None for grad in plain.gradients):
        raise NotRecordable(
            "it answers tensors that require gradients and runs no backward itself; call it under "
            "torch.no_grad(), put the backward inside, or use torch.compile(backend=\"anabranch\")")


class RecordedGraph:
    """A compiled graph, called as Inductor's callables are: one list of inputs, which is emptied.

    Tensors come in the sizes that the graph was compiled for, so that only its numbers are looked
    at; and with ``dynamic`` their sizes.
    """

    def __init__(self, call: Callable[[list[Any]], Any], chosen: config.Options, name: str,
                 dynamic: bool) -> None:
        self._recorder = Recorder(lambda leaves: call(list(leaves)), chosen, name)
        self._dynamic = dynamic

    def __call__(self, inputs: list[Any]) -> Any:
        key: tuple[Any, ...] = tuple([leaf for leaf in inputs if not isinstance(leaf, Tensor)])
        if self._dynamic:
            key += tuple([(leaf.shape, leaf.stride()) for leaf in inputs
                          if isinstance(leaf, Tensor)])
        answer = self._recorder.run(key, inputs, lambda: _describe(inputs))
        inputs.clear()
        return answer

    @property
    def report(self) -> list[RecordingReport]:
        return [entry.current_report() for entry in self._recorder.entries.values()]


class RecordedCallable:
    """What ``record`` answers: called as the callable it stands for."""

    def __init__(self, function: Callable[..., Any], static: Iterable[Any],
                 chosen: config.Options) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._static = list(static)
        self._chosen = chosen
        self._state: State | None = None
        self._trees: list[Any] = []
        self._recorder = Recorder(self._call_flat, chosen, _name_of(function), self._find)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._chosen.record or not _has_gpu():
            return self._function(*args, **kwargs)
        if self._state is None:
            self._state = find_state(self._function, self._static)
        leaves, tree = _compat.tree_flatten((args, kwargs))
        number = self._number_of(tree)
        key = (number, tuple(map(_signature, leaves)), self._state.guards(), _modes(),
               tuple([place.get().grad is None for place in self._state.leaves()]))
        return self._recorder.run(key, [number, *leaves], lambda: _describe(leaves))

    def _call_flat(self, leaves: list[Any]) -> Any:
        args, kwargs = _compat.tree_unflatten(leaves[1:], self._trees[leaves[0]])
        return self._function(*args, **kwargs)

    def _find(self) -> State:
        return find_state(self._function, self._static)

    def _number_of(self, tree: Any) -> int:
        for number, known in enumerate(self._trees):
            if known == tree:
                return number
        self._trees.append(tree)
        return len(self._trees) - 1

    @property
    def report(self) -> list[RecordingReport]:
        """One entry a signature, in the order of their first calls."""
        return [entry.current_report() for entry in self._recorder.entries.values()]


def record(function: Callable[..., Any] | None = None, *, static: Iterable[Any] = (),
           options: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Records a callable of tensors: inference, or a whole training step with its optimizer.

    ``static`` names modules, optimizers and tensors that the callable uses and that cannot be
    found from it (those in its closure, its globals, its object and its arguments are found).
    ``options``, or keywords, are those of ``anabranch.config`` and beat it: ``strict``,
    ``verify``, ``record``, ``max_recordings``. Also a decorator. The answer is a callable with a
    ``report``.

    A recording repeats what the callable does on the GPU and not what it does in Python: numbers,
    branches and side effects are those of the recording. What it answers are fresh tensors without
    history. It must return, or leave in ``.grad``, all new tensors that outlive the call.
    """
    if function is None:
        return lambda given: record(given, static=static, options=options, **more)
    return RecordedCallable(function, static, config.resolve({**(options or {}), **more}))


@functools.cache
def _has_gpu() -> bool:
    return torch.cuda.is_available()


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad, leaf.is_leaf,
                type(leaf))
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), leaf


def _modes() -> tuple[Any, ...]:
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))


def _describe(leaves: Sequence[Any]) -> str:
    parts = [f"{str(leaf.dtype).removeprefix('torch.')}[{', '.join(map(str, leaf.shape))}]"
             if isinstance(leaf, Tensor) else repr(leaf)[:40] for leaf in leaves]
    return f"({', '.join(parts)})"
