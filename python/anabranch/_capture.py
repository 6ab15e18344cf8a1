# SPDX-License-Identifier: Apache-2.0
"""Captures a step twice, at fresh addresses, and tells what it allocated and answered.

Nothing runs on the device meanwhile. The step's Python does, both times: what it does to Python's
own objects happens then and never again. Threads: one capture at a time in a process. Failure:
NotRecordable with the reason; streams, allocator and gradients are then as before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._answers import Shape, Unlike, flatten
from anabranch._blocks_ahead import allocate_ahead
from anabranch._constants import ROOM_BYTES, Constants
from anabranch._core.capture import (
    Block,
    CaptureDevice,
    CaptureMarks,
    CaptureMemory,
    CaptureSnapshot,
    Noted,
)
from anabranch._core.library import NativeError
from anabranch._device_memory import capture_allocator
from anabranch._given import StandIns, Unit, units_behind, units_of
from anabranch._notes import Notes
from anabranch._reasons import (
    ANOTHER_ANSWER,
    FROM_THE_CPU,
    ON_CPU,
    BrokeUntold,
    BrokeWhileNoted,
    CopiedFromTheCpu,
    NotRecordable,
    OtherGraph,
    reason_of,
)
from anabranch._shortage import Short, is_out_of_memory, phase, short_of
from anabranch._state import is_wrapper, version_of


@dataclasses.dataclass(frozen=True)
class Fresh:
    """A tensor in memory that the step allocated: which allocation, and the view of it."""

    allocation: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Alias:
    """A tensor in memory that the step was given; ``view`` is None for the tensor itself."""

    tensor: int
    view: tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype] | None


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """A tensor of a wrapping class, by the plain ones inside it."""

    kind: type
    names: tuple[str, ...]
    parts: tuple[Any, ...]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Held:
    """One of the step's objects."""

    index: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """Anything else: the same value every time."""

    value: Any


@dataclasses.dataclass
class Step:
    """What is captured: a call over leaves, and the tensors it is given.

    ``tensors`` are the plain tensors of ``leaves`` (by ``places``) and then those of the state. An
    argument that is a tensor of the state as well, one layer's weights where the state has all
    layers, is a unit of its own: mostly it is used as an argument alone, and may then be another.
    Where it is not, ``joined()`` is what to capture.
    """

    call: Callable[[list[Any]], Any]
    leaves: list[Any]
    places: list[int]
    tensors: list[Tensor]
    units: list[Unit]
    gradients: int  # how many at the end of `tensors` are gradients
    parameters: list[Tensor]  # that may get a gradient, those among the leaves first
    device: int
    stream: torch.cuda.Stream
    is_noted: bool = False  # who reads and writes what
    is_compiled: bool = False  # `call` is what Inductor has made
    optimizers: Sequence[torch.optim.Optimizer] = ()  # that it may step
    is_told: bool = False  # that it is captured, if it asks
    # What it uses besides, and may not move: insides of wrapping classes.
    fixed: Sequence[Tensor] = ()
    objects: Sequence[Any] = ()  # that it finds: it may answer one
    on_cpu: Sequence[Tensor] = ()  # at whose changes its signature looks
    has_constants: bool = False  # that it makes on the CPU and copies
    is_retried: bool = False  # its captures have differed once
    ahead: Sequence[int] = ()  # bytes of blocks that captures shall find

    def joined(self) -> Step:
        """With tensors that share memory in one unit, whoever has them."""
        return dataclasses.replace(self, units=units_of(self.tensors))

    @property
    def arguments(self) -> int:
        return len(self.places)

    @property
    def own(self) -> int:
        """How many of the tensors are arguments or state; those behind are gradients."""
        return len(self.tensors) - self.gradients

    @functools.cached_property
    def object_numbers(self) -> dict[int, int]:
        """Of the objects, by their ids."""
        return {id(thing): i for i, thing in enumerate(self.objects)}


class _Noting:
    """Notes of one capture, with marks on its nodes and the time told by torch's allocator."""

    def __init__(self, device: CaptureDevice, ordinal: int) -> None:
        self.marks = CaptureMarks(device)
        self.notes = Notes(self._mark)
        self._ordinal = ordinal
        self._begin = _compat.allocations_so_far(ordinal)
        self._end = self._begin
        self._count = 0
        self._is_whole = True

    def around(self, step: Step) -> contextlib.AbstractContextManager[None]:
        return self.notes.noted() if step.is_compiled else self.notes.known_calls(step.optimizers)

    def _mark(self) -> int:
        try:
            now = _compat.allocations_so_far(self._ordinal) - self._begin
            self.marks.mark(_compat.current_stream(self._ordinal), now)
        except NativeError:  # of somebody's capture of his own
            self._is_whole = False
        self._count += 1
        return self._count - 1

    def end(self) -> None:
        self._end = _compat.allocations_so_far(self._ordinal)

    def noted(self, before: int, allocations: int) -> Noted | None:
        """None where other threads have allocated too, so that the time cannot be told."""
        if not self._is_whole or self._end - self._begin != allocations:
            return None
        return Noted(self.marks, False, before, self.notes.works)


@dataclasses.dataclass
class Captured:
    """One capture. ``graph`` and ``pool`` keep its memory; the rest is plain data."""

    graph: torch.cuda.CUDAGraph
    pool: torch.cuda.MemPool
    given_at: list[int]
    snapshot: CaptureSnapshot | None = None
    answer: Any = None
    result: list[Any] = dataclasses.field(default_factory=list)  # the leaves of the answer
    shape: Shape | None = None  # and how they lie in it
    owners: dict[int, int] = dataclasses.field(default_factory=dict)  # of the tensors, by their ids
    gradients: dict[int, Any] = dataclasses.field(default_factory=dict)  # by parameter
    mutated: list[int] = dataclasses.field(default_factory=list)  # of the tensors
    noting: _Noting | None = None
    constants: Constants | None = None

    def close(self) -> None:
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None
        self.graph.reset()


@dataclasses.dataclass
class Capture:
    """Both captures and what they name; close() frees all but the graphs' nodes. ``alive`` is what
    was allocated beside them, (address, bytes)."""

    memory: CaptureMemory
    first: Captured
    second: Captured
    blocks: list[Block]  # the units that were given, then what was allocated, in order of time
    allocations: list[int]  # the largest size at the place of each
    noted: Noted | None  # during the first
    alive: list[tuple[int, int]]
    is_mapped: bool  # launches will be given mapped memory

    def close(self) -> None:
        self.first.close()
        self.second.close()
        if self.noted is not None:
            self.noted.marks.close()
        del self.first, self.second
        self.memory.close()


one_at_a_time = threading.RLock()
# Captures that failed, in whose memory torch's tensors may still lie, and that memory: stand-ins
# may lie there for ever, in whatever the step has put them.
_abandoned: list[list[Captured]] = []
_abandoned_memory: list[CaptureMemory] = []


def wait_for_captures() -> None:
    """Until no other thread captures."""
    with one_at_a_time:
        pass


def close_abandoned(device: int) -> None:
    """Gives back captures that failed and in whose memory no tensor of torch's lies any more: it
    counts their addresses."""
    with one_at_a_time:
        for begun in list(_abandoned):
            if not _compat.allocated_in_pools(device, [captured.pool.id for captured in begun]):
                for captured in begun:
                    captured.close()
                _abandoned.remove(begun)


def capture_twice(step: Step, device: CaptureDevice) -> Capture:
    """Both captures of a step, and its memory in them. To collect Python's garbage takes as long as
    they do, and is done where they fail: gradient accumulators of graphs that are garbage live on,
    on other streams, and what they break is captured once more."""
    try:
        return _capture_twice(step, device)
    except (Short, BrokeWhileNoted, BrokeUntold, CopiedFromTheCpu):
        raise
    except NotRecordable:
        if not gc.collect():
            raise
    return _capture_twice(step, device)


def _capture_twice(step: Step, device: CaptureDevice) -> Capture:
    with one_at_a_time, torch.cuda.device(step.device):
        with phase("the page behind captures", step.device):
            memory = CaptureMemory(device)
        made: list[Captured] = []
        try:
            with _compat.memory_history(step.device) as history:
                for _ in range(2):
                    _capture(step, memory, device, made)
                told = history()
                blocks, sizes = _match(step, made, told)
                noting = made[0].noting
                noted = noting.noted(len(step.units), len(sizes)) if noting else None
            _open_answers(step, made)
            for captured in made:
                _describe(step, captured, blocks, second=captured is made[1])
            _compare(*made)
            _check_nothing_is_kept(step.device, made)
        except BaseException as error:
            _abandon(memory, made)
            if isinstance(error, Exception) and is_out_of_memory(error):
                raise short_of("a capture", error, step.device) from error
            if isinstance(error, NativeError):
                raise NotRecordable(str(error)) from error
            if isinstance(error, Exception) and not isinstance(error, NotRecordable):
                raise NotRecordable(reason_of(error)) from error
            raise
    pools = {captured.pool.id for captured in made}
    alive = [(address, size) for address, size, pool in told.alive if pool not in pools]
    first, second = made
    return Capture(memory, first, second, blocks, sizes, noted, alive, told.is_mapped)


def named_of(tensors: Sequence[Tensor], step: Step, device: CaptureDevice) -> list[Tensor]:
    """Those of some tensors that one more capture names, for which they lie elsewhere too, apart
    from what the step is given. NotRecordable where it breaks."""
    known = len(step.tensors)
    units = [*step.units, *units_behind(tensors, known)]
    moved = dataclasses.replace(step, tensors=[*step.tensors, *tensors], units=units,
                                is_noted=False)
    with one_at_a_time, torch.cuda.device(step.device):
        memory, made = CaptureMemory(device), list[Captured]()
        try:
            _capture(moved, memory, device, made)
            members = {i for number in _named_units(made[0], units)
                       for i, _ in units[number].members}
            made[0].answer, made[0].gradients = None, {}
            _check_nothing_is_kept(step.device, made)
        except Exception as error:
            _abandon(memory, made)
            if is_out_of_memory(error):
                raise short_of("a capture", error, step.device) from error
            raise NotRecordable(reason_of(error)) from error
        made.pop().close()
        memory.close()
    return [tensor for i, tensor in enumerate(tensors, known) if i in members]


def _abandon(memory: CaptureMemory, begun: list[Captured]) -> None:
    """Frames may still hold tensors there."""
    for captured in begun:
        captured.answer, captured.result, captured.gradients = None, [], {}
    _abandoned.append(begun)
    _abandoned_memory.append(memory)


def _named_units(captured: Captured, units: Sequence[Unit]) -> list[int]:
    assert captured.snapshot is not None
    order = sorted(range(len(units)), key=captured.given_at.__getitem__)
    ranges = [(captured.given_at[i], units[i].size_bytes) for i in order]
    return [order[number] for number, _ in captured.snapshot.mentions(ranges)]


def _capture(step: Step, memory: CaptureMemory, device: CaptureDevice,
             begun: list[Captured]) -> None:
    """Adds a capture, as soon as there is one."""
    state = step.tensors[step.arguments:]
    memory.begin_capture()
    stand_ins = StandIns(step.tensors, step.units, memory)
    leaves = list(step.leaves)
    for i, place in enumerate(step.places):
        original = leaves[place]
        leaves[place] = stand_ins.tensors[i] = _like(stand_ins.tensors[i], original)
    parameters = [leaves[place] for place in step.places if leaves[place].requires_grad]
    parameters = [*parameters, *step.parameters[len(parameters):]] if step.parameters else []
    captured = Captured(torch.cuda.CUDAGraph(keep_graph=True),
                        torch.cuda.MemPool(capture_allocator().allocator(), no_split=True),
                        stand_ins.at)
    begun.append(captured)
    owners = [*stand_ins.tensors[:step.arguments], *state]
    versions = list(map(version_of, owners))
    before = [parameter.grad for parameter in parameters]
    with stand_ins.in_place_of(state, step.arguments):
        try:
            captured.answer = _run(step, leaves, captured, memory, device)
            captured.owners = {id(tensor): i for i, tensor in enumerate(owners)}
            captured.gradients = {
                i: parameter.grad for i, (parameter, grad) in
                enumerate(zip(parameters, before, strict=True)) if parameter.grad is not grad}
            captured.mutated = [i for i, tensor in enumerate(owners)
                                if version_of(tensor) != versions[i]]
        finally:
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad


def _like(stand_in: Tensor, original: Tensor) -> Tensor:
    """Everything that compiled code looks at before it runs: class, attributes, gradients
    wanted."""
    wants = original.requires_grad and original.is_leaf
    if isinstance(original, torch.nn.Parameter):
        stand_in = torch.nn.Parameter(stand_in, requires_grad=wants)
    elif wants:
        stand_in.requires_grad_()
    if wants:
        stand_in.grad = original.grad
    stand_in.__dict__.update(original.__dict__)
    return stand_in


def _run(step: Step, leaves: list[Any], captured: Captured, memory: CaptureMemory,
         device: CaptureDevice) -> Any:
    graph, pool = captured.graph, captured.pool
    torch.cuda.synchronize()
    if step.has_constants:
        room = torch.empty(ROOM_BYTES, dtype=torch.uint8, pin_memory=True)
        captured.constants = Constants(room, step.on_cpu)
    with _no_collection(), torch.cuda.stream(step.stream), _compat.keep_generated_tensors():
        _compat.clear_workspaces()
        torch.clear_autocast_cache()  # a cast kept from before would be frozen
        memory.open()
        try:
            graph.capture_begin(pool=_handle_of(pool), capture_error_mode="thread_local")
            try:
                with _untold(step), _noting(step, captured, device), _constants(captured):
                    allocate_ahead(step.ahead)
                    answer = step.call(leaves)
                graph.capture_end()  # raises where a stream was not joined
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                _compat.end_pool(step.device, pool.id)
                _end_of_capture()
                raise
            # At once: pinned memory that it copies from and has freed may be given out again.
            captured.snapshot = CaptureSnapshot(device, graph.raw_cuda_graph())
            return answer
        finally:
            memory.shut()
            torch.clear_autocast_cache()
            _compat.clear_workspaces()


@contextlib.contextmanager
def _untold(step: Step) -> Iterator[None]:
    """Code outside torch that asks whether it is captured is told that it is not, so that it goes
    the way of plain runs, which is the one to repeat. Where it breaks, it may have asked for a
    reason: BrokeUntold."""
    if step.is_told or step.is_compiled:
        yield
        return
    truth, has_asked = torch.cuda.is_current_stream_capturing, False

    def is_captured() -> bool:
        nonlocal has_asked
        asker = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if asker in ("torch", "anabranch") or torch.cuda.current_stream() != step.stream:
            return truth()
        has_asked = True
        return False

    torch.cuda.is_current_stream_capturing = is_captured
    try:
        yield
    except Exception as error:
        if has_asked and not isinstance(error, NotRecordable):
            raise BrokeUntold(reason_of(error)) from error
        raise
    finally:
        torch.cuda.is_current_stream_capturing = truth


@contextlib.contextmanager
def _noting(step: Step, captured: Captured, device: CaptureDevice) -> Iterator[None]:
    """Both captures are noted, though one would do: lest they differ by it."""
    if not step.is_noted:
        yield
        return
    noting = captured.noting = _Noting(device, step.device)
    try:
        with noting.around(step):
            yield
    except Exception as error:
        if noting.notes.has_raised and not isinstance(error, NotRecordable):
            raise BrokeWhileNoted(reason_of(error)) from error
        raise
    noting.end()


@contextlib.contextmanager
def _constants(captured: Captured) -> Iterator[None]:
    """Where there are any, the next capture of the step has to know it: CopiedFromTheCpu."""
    try:
        with captured.constants.captured() if captured.constants else contextlib.nullcontext():
            yield
    except RuntimeError as error:
        if captured.constants is None and FROM_THE_CPU in str(error):
            raise CopiedFromTheCpu(reason_of(error)) from error
        raise


def _handle_of(pool: torch.cuda.MemPool) -> Any:
    """As torch takes it: of a type of its own since 2.15."""
    return pool.id


def _end_of_capture() -> None:
    """A capture that broke leaves torch's generator believing that it goes on. One that ends well
    tells it otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty graph
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.capture_begin(capture_error_mode="thread_local")
        graph.capture_end()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A finalizer that frees a graph or an event would end the capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _open_answers(step: Step, made: Sequence[Captured]) -> None:
    """Into leaves, and the one shape of both: what is the same object in both was there before."""
    answers = [captured.answer for captured in made]
    try:
        leaves, shape = flatten(answers, step.object_numbers)
    except Unlike:
        raise NotRecordable(ANOTHER_ANSWER) from None
    for captured, of_it in zip(made, leaves, strict=True):
        captured.result, captured.shape, captured.answer = of_it, shape, None


def _match(step: Step, made: Sequence[Captured],
           history: _compat.PoolHistory) -> tuple[list[Block], list[int]]:
    """The blocks of both captures, where they allocated alike."""
    traces = []
    for captured in made:
        segments = history.segments.get(captured.pool.id, ())
        traces.append([(event.address, event.bytes) for event in history.events
                       if event.address in segments and not event.is_freed])
    first, second = traces
    if len(first) != len(second):
        raise OtherGraph(f"two captures of it allocate {len(first)} times and {len(second)}")
    largest: dict[int, int] = {}  # by address
    partner: dict[int, int] = {}
    for i, ((address, size), (other, other_size)) in enumerate(zip(first, second, strict=True)):
        if size != other_size:
            raise OtherGraph(
                f"allocation {i} has {size} bytes in one capture and {other_size} in another")
        if partner.setdefault(address, other) != other:
            raise OtherGraph(f"allocation {i} takes memory used before in one capture only")
        largest[address] = max(largest.get(address, 0), size)
    given = [Block(a, b, unit.size_bytes, True)
             for a, b, unit in zip(made[0].given_at, made[1].given_at, step.units, strict=True)]
    return [*given, *(Block(address, partner[address], size, False) for address, size in first)], \
        [largest[address] for address, _ in first]


def _describe(step: Step, captured: Captured, blocks: Sequence[Block], *, second: bool) -> None:
    """Turns tensors into what they are, so that nothing of the capture is held."""
    describer = _Describer(step, blocks, captured.owners, second)
    captured.result = [describer.describe(leaf) for leaf in captured.result]
    captured.gradients = {i: describer.describe(grad) for i, grad in captured.gradients.items()}


class _Describer:
    def __init__(self, step: Step, blocks: Sequence[Block], owners: Mapping[int, int],
                 second: bool) -> None:
        self._step = step
        self._owners = owners
        given = len(step.units)
        self._given = [block[1 if second else 0] for block in blocks[:given]]
        # Of those at one address the last, which is what there is now.
        self._allocated = {block[1 if second else 0]: i for i, block in enumerate(blocks[given:])}

    def describe(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            held = self._step.object_numbers.get(id(leaf))
            return Constant(leaf) if held is None else Held(held)
        if id(leaf) in self._owners:
            return Alias(self._owners[id(leaf)], None)
        if is_wrapper(leaf):
            names, context = leaf.__tensor_flatten__()  # type: ignore[attr-defined]
            parts = tuple(self.describe(getattr(leaf, name)) for name in names)
            return Wrapped(type(leaf), tuple(names), parts, context, tuple(leaf.shape),
                           tuple(leaf.stride()))
        if not leaf.is_cuda:
            raise NotRecordable(ON_CPU)
        view = (tuple(leaf.shape), tuple(leaf.stride()))
        storage = leaf.untyped_storage().data_ptr()
        if storage in self._allocated:
            offset = int(leaf.storage_offset()) * leaf.element_size()
            return Fresh(self._allocated[storage], offset, *view, leaf.dtype)
        alias = self._alias(leaf, view)
        if alias is not None:
            return alias
        if leaf.numel() == 0:
            return Fresh(-1, 0, *view, leaf.dtype)
        return Constant(leaf)  # of before the capture: the object itself

    def _alias(self, leaf: Tensor, view: tuple[Any, ...]) -> Alias | None:
        address = leaf.data_ptr()
        for unit, at in zip(self._step.units, self._given, strict=True):
            if at <= address < at + unit.size_bytes:
                tensor, _ = unit.members[0]
                return Alias(tensor, (*view, address - at, leaf.dtype))
        return None


def _compare(first: Captured, second: Captured) -> None:
    same = (first.mutated == second.mutated
            and all(map(_same, first.result, second.result))
            and first.gradients.keys() == second.gradients.keys()
            and all(_same(grad, second.gradients[i]) for i, grad in first.gradients.items()))
    if not same:
        made_anew = _object_made_anew(first.result, second.result)
        raise NotRecordable(f"it answers a {made_anew}, another one in each call; answer the "
                            "tensors in it" if made_anew else ANOTHER_ANSWER)


def _object_made_anew(first: Sequence[Any], second: Sequence[Any]) -> str:
    """Of which class an object is that both captures answer, each one of its own."""
    for a, b in zip(first, second, strict=False):
        if isinstance(a, Constant) and isinstance(b, Constant) and not _same(a, b) \
                and type(a.value) is type(b.value) and hasattr(a.value, "__dict__"):
            return type(a.value).__name__
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Constant) and isinstance(b, Constant):
        if a.value is b.value:
            return True
        return type(a.value) is type(b.value) and not isinstance(a.value, Tensor) \
            and bool(a.value == b.value)
    return bool(a == b)


def _check_nothing_is_kept(device: int, made: Sequence[Captured]) -> None:
    pools = [captured.pool.id for captured in made]
    held = _compat.allocated_in_pools(device, pools)
    if held:
        gc.collect()
        held = _compat.allocated_in_pools(device, pools)
    if held:
        raise NotRecordable(f"it keeps {held} bytes of tensors that it does not return, in an "
                            "attribute or a list; return them, or compute them outside")
