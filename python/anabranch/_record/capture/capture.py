# SPDX-License-Identifier: Apache-2.0
"""Captures a step twice, at fresh addresses; once where that is enough.

Nothing runs on the device meanwhile. The step's Python does, both times: what it does to Python's
own objects happens then and never again. Threads: one capture at a time in a process. Failure:
NotRecordable with the reason; streams, allocator and gradients are then as before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import (
    Block,
    CaptureDevice,
    CaptureMemory,
    CaptureSnapshot,
    Noted,
)
from anabranch._core.library import NativeError
from anabranch._record.capture.captured import Capture, Captured, Noting
from anabranch._record.capture.compare import compare, describe, match_allocations, open_answers
from anabranch._record.capture.host_constants import CONSTANTS_BYTES, HostConstants
from anabranch._record.capture.host_draws import Draws, HostDraws
from anabranch._record.capture.host_tables import HostTables
from anabranch._record.capture.now import captured_now
from anabranch._record.capture.preallocate import allocate_ahead
from anabranch._record.capture.stand_ins import StandIns, one_at_a_time
from anabranch._record.capture.step import Step
from anabranch._record.memory.garbage import collect_of_late, no_collection
from anabranch._record.memory.gpu import capture_allocator
from anabranch._record.memory.lasting import lasting
from anabranch._record.memory.shortage import Short, is_out_of_memory, phase, short_of
from anabranch._record.numbers.noted import NumberTrace
from anabranch._record.refusals import (
    FROM_THE_CPU,
    RANDOM_ON_CPU,
    Again,
    BrokeUntold,
    BrokeWhileNoted,
    Cause,
    CopiedFromTheCpu,
    Moved,
    NotRecordable,
    reason_for,
    reason_of,
)
from anabranch._record.tensors import MemoryOf, units_of, version_of
from anabranch.streams import asked_within

# Of a capture and those behind it: whether the one tells enough.
IsEnough = Callable[[Capture], bool]
# Captures that failed, in whose memory torch's tensors may still lie, and that memory: stand-ins
# may lie there for ever, in whatever the step has put them.
_abandoned: list[list[Captured]] = []
_abandoned_memory: list[CaptureMemory] = []


def close_abandoned() -> None:
    """Gives back captures that failed and in whose memory no tensor of torch's lies any more: it
    counts their addresses."""
    with one_at_a_time:
        for begun in list(_abandoned):
            if not _compat.allocated_in_pools([captured.pool_id for captured in begun]):
                for captured in begun:
                    captured.close()
                _abandoned.remove(begun)


def capture_twice(step: Step, device: CaptureDevice, is_enough: IsEnough | None = None) -> Capture:
    """Both captures of a step, and its memory in them; the first alone where ``is_enough`` says so
    of it. Gradient accumulators of graphs that are garbage live on, on other streams, and what they
    break is captured once more. To collect all garbage takes as long as the captures, and is done
    where these fail; that of late takes next to nothing."""
    collect_of_late()
    try:
        return _capture_twice(step, device, is_enough)
    except (Short, BrokeWhileNoted, BrokeUntold, CopiedFromTheCpu):
        raise
    except NotRecordable:
        if not gc.collect():
            raise
    return _capture_twice(step, device, is_enough)


def _capture_twice(step: Step, device: CaptureDevice, is_enough: IsEnough | None) -> Capture:
    with one_at_a_time, torch.cuda.device(step.device), no_collection():
        with phase("the page behind captures", step.device):
            memory = CaptureMemory(device)
        made: list[Captured] = []
        random = torch.get_rng_state()
        try:
            with _compat.memory_history(step.device) as history:
                for is_third in (False, False, True)[:2 if step.numbers is None else 3]:
                    if step.drawn_to is not None:
                        torch.set_rng_state(random)
                    if is_third and step.numbers is not None and made[0].trace is not None:
                        step.numbers = step.numbers.apart(made[0].trace)
                    capture_over_stand_ins(step, memory, device, made, is_third)
                    if len(made) == 1 and is_enough is not None:
                        one = of_one(step, memory, made[0], history())
                        one.draws = _draws_of(step, made, random)
                        if is_enough(one):
                            made[0].answer, made[0].gradients = None, {}
                            check_nothing_is_kept(made)
                            return one
                draws = _draws_of(step, made, random)
                told = history()
                blocks = match_allocations(step, made[:2], told)
                others = match_allocations(step, [made[0], made[2]], told) if made[2:] else []
                noted = noted_of(step, made[0], blocks)
            open_answers(step, made)
            for i, captured in enumerate(made):
                describe(step, captured, others if i == 2 else blocks, second=i > 0)
            for captured in made[1:]:
                compare(made[0], captured)
            check_nothing_is_kept(made)
        except BaseException as error:
            abandon(memory, made)
            if isinstance(error, Exception) and is_out_of_memory(error):
                raise short_of("a capture", error, step.device) from error
            if isinstance(error, NativeError):
                raise NotRecordable(reason_for(error)) from error
            if isinstance(error, Exception) and not isinstance(error, NotRecordable):
                raise NotRecordable(reason_of(error)) from error
            raise
    third = made[2] if made[2:] else None
    return Capture(memory, made[0], made[1], blocks, noted, alive_beside(made, told),
                   told.is_mapped, third, [block.second_address for block in others], draws)


def of_one(step: Step, memory: CaptureMemory, only: Captured,
           told: _compat.PoolHistory) -> Capture:
    """What the first capture tells by itself. It stays as it is, so that a second may follow."""
    blocks = match_allocations(step, [only, only], told)
    noted = noted_of(step, only, blocks)
    described = dataclasses.replace(only)
    open_answers(step, [described])
    describe(step, described, blocks, second=False)
    return Capture(memory, described, None, blocks, noted, alive_beside([only], told),
                   told.is_mapped)


def noted_of(step: Step, captured: Captured, blocks: Sequence[Block]) -> Noted | None:
    given = len(step.units)
    return captured.noting.noted(given, len(blocks) - given) if captured.noting else None


def _draws_of(step: Step, made: Sequence[Captured], before: Tensor) -> Draws | None:
    """What the step draws on the CPU, if it does, where that is all it draws there. ``before`` is
    the generator's state in which each capture began. What else has drawn in the plain run, such
    as a compiler, may have done so once, so the next call tries again."""
    if step.drawn_to is None:
        return None
    first, *others = [captured.draws.draws() for captured in made if captured.draws]
    if any(other != first for other in others) or not first.leads_to(before, step.drawn_to):
        raise Again(f"{RANDOM_ON_CPU}: not all of them are drawn by its own code alone",
                    Cause.RANDOM_ON_CPU)
    return first


def alive_beside(made: Sequence[Captured],
                 told: _compat.PoolHistory) -> list[tuple[int, int]]:
    pools = {captured.pool_id for captured in made}
    return [(address, size) for address, size, pool in told.alive if pool not in pools]


def abandon(memory: CaptureMemory, begun: list[Captured]) -> None:
    """Frames may still hold tensors there."""
    abandon_captures(begun)
    _abandoned_memory.append(memory)


def abandon_captures(begun: list[Captured]) -> None:
    for captured in begun:
        captured.answer, captured.result, captured.gradients = None, [], {}
    _abandoned.append(begun)


def capture_over_stand_ins(step: Step, memory: CaptureMemory, device: CaptureDevice,
                           begun: list[Captured], is_third: bool = False) -> None:
    """Adds a capture, as soon as there is one."""
    state = step.tensors[step.arguments:]
    memory.begin_capture()
    stand_ins = StandIns(step.tensors, step.units, memory)
    leaves, tables = leaves_of(step, stand_ins)
    parameters = [leaves[place] for place in step.places if leaves[place].requires_grad]
    parameters = [*parameters, *step.parameters[len(parameters):]] if step.parameters else []
    captured = Captured(torch.cuda.CUDAGraph(keep_graph=True),
                        torch.cuda.MemPool(capture_allocator().allocator(), no_split=True),
                        stand_ins.at,
                        tables=HostTables(tables, step.on_cpu) if tables else None,
                        draws=HostDraws() if step.drawn_to is not None else None,
                        device=step.device)
    begun.append(captured)
    owners = [*stand_ins.tensors[:step.arguments], *state]
    versions = list(map(version_of, owners))
    before = [parameter.grad for parameter in parameters]
    with stand_ins.in_place_of(state, step.arguments), memory_stays(step, owners):
        try:
            with _numbers_noted(step, leaves, captured, is_third):
                captured.answer = run_captured(step, leaves, captured, memory, device,
                                               has_marks=len(begun) == 1)
            captured.owners = {id(tensor): i for i, tensor in enumerate(owners)}
            captured.gradients = {
                i: parameter.grad for i, (parameter, grad) in
                enumerate(zip(parameters, before, strict=True)) if parameter.grad is not grad}
            captured.mutated = [i for i, tensor in enumerate(owners)
                                if version_of(tensor) != versions[i]]
            if captured.tables is not None:
                step.waited.update(step.on_host[i] for i in captured.tables.waited)
        finally:
            for parameter, grad in zip(parameters, before, strict=True):
                parameter.grad = grad


def leaves_of(step: Step, stand_ins: StandIns) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """What is captured is called with these; and arguments on the CPU, each with what it has on the
    GPU. Where the step was given one object twice, so it is here: compiled code guards on that."""
    leaves, tables = list(step.leaves), []
    known: dict[int, Tensor] = {}
    for i, place in enumerate(step.places):
        original = step.leaves[place]
        if i in step.on_host:  # a copy, which the step may not write all the same
            leaves[place] = _like(original.detach().clone(), original)
            tables.append((leaves[place], stand_ins.tensors[i]))
        else:
            if id(original) not in known:
                known[id(original)] = _like(stand_ins.tensors[i], original)
            leaves[place] = stand_ins.tensors[i] = known[id(original)]
    return leaves, tables


@contextlib.contextmanager
def memory_stays(step: Step, owners: Sequence[Tensor]) -> Iterator[None]:
    """Refuses a step that gives tensors other memory, that of the capture mostly, which nothing
    fills. What breaks midway may have done so, too."""
    memory = MemoryOf([*owners, *step.beside])
    has_moved = False
    try:
        yield
        has_moved = bool(memory.moved())
    finally:
        memory.give_back()
    if has_moved:
        raise Moved()


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


def run_captured(step: Step, leaves: list[Any], captured: Captured, memory: CaptureMemory,
                 device: CaptureDevice, has_marks: bool) -> Any:
    """The answer of the step's Python, all of whose work is captured."""
    graph, pool = captured.graph, captured.pool_id
    torch.cuda.synchronize()
    if step.has_constants:
        pinned = torch.empty(CONSTANTS_BYTES, dtype=torch.uint8, device="cpu",
                             pin_memory=True)
        captured.constants = HostConstants(pinned, step.on_cpu)
    with no_collection(), torch.cuda.stream(step.stream), _compat.keep_generated_tensors():
        _compat.clear_workspaces()
        torch.clear_autocast_cache()  # a cast kept from before would be frozen
        memory.open()
        try:
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                with captured_now(), asked_within() as asked, _untold(step), \
                        lasting(step.lasting), \
                        _compat.captures_of_fused_steps(step.optimizers), \
                        _noting(step, captured, device if has_marks else None), \
                        _constants(captured), \
                        captured.draws.captured() if captured.draws else \
                        contextlib.nullcontext(), \
                        captured.tables.captured() if captured.tables else \
                        contextlib.nullcontext():
                    allocate_ahead(step.ahead)
                    answer = step.call(leaves)
                captured.asked_lanes = asked.lanes
                graph.capture_end()  # raises where a stream was not joined
            except BaseException:
                with contextlib.suppress(RuntimeError):
                    graph.capture_end()
                _compat.end_pool(step.device, pool)
                _end_of_capture()
                raise
            # At once: pinned memory that it copies from and has freed may be given out again.
            captured.snapshot = CaptureSnapshot(device, graph.raw_cuda_graph(), [
                (unit.address, unit.size_bytes) for unit in units_of(step.pinned)])
            return answer
        finally:
            memory.shut()
            torch.clear_autocast_cache()
            _compat.clear_workspaces()


@contextlib.contextmanager
def _numbers_noted(step: Step, leaves: list[Any], captured: Captured,
                   is_third: bool) -> Iterator[None]:
    if step.numbers is None:
        yield
        return
    captured.trace = NumberTrace()
    with step.numbers.noted(leaves, captured.trace, are_other=is_third):
        yield


@contextlib.contextmanager
def _untold(step: Step) -> Iterator[None]:
    """Hides the capture from code outside torch: ``is_current_stream_capturing()`` answers False
    there, so that such code takes the branch that it takes in plain runs. If the step raises after
    it has asked, BrokeUntold says so, and it is captured once more with the true answer."""
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
def _noting(step: Step, captured: Captured, device: CaptureDevice | None) -> Iterator[None]:
    """All captures are noted, though one would do: lest they differ by it. Without a device, nodes
    get no marks."""
    if not step.is_noted:
        yield
        return
    noting = captured.noting = Noting(device, step.device, step.is_timed and not step.is_compiled)
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


def _end_of_capture() -> None:
    """A capture that broke leaves torch's generator believing that it goes on. One that ends well
    tells it otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty graph
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.capture_begin(capture_error_mode="thread_local")
        graph.capture_end()


def check_nothing_is_kept(made: Sequence[Captured]) -> None:
    pools = [captured.pool_id for captured in made]
    held = _compat.allocated_in_pools(pools)
    if held:
        gc.collect()
        held = _compat.allocated_in_pools(pools)
    if held:
        raise NotRecordable(f"it keeps {held} bytes of tensors that it does not return, in an "
                            "attribute or a list", Cause.LEAVES_TENSORS)
