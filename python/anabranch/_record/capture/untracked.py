# SPDX-License-Identifier: Apache-2.0
"""Tensors that a capture names and the step was not given.

What two captures agree on is frozen, and so is the address of a tensor that nobody found: an
attribute of a class, something inside an object of a module. Kernels would go on to read it where
it was, whoever moves or replaces it. So addresses in a capture are held against the memory that
torch has given out.

Threads: the recorder's, one at a time. Failure: NotRecordable.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import CaptureDevice, CaptureMemory, CaptureSnapshot
from anabranch._record.capture.capture import (
    abandon,
    capture_over_stand_ins,
    check_nothing_is_kept,
)
from anabranch._record.capture.captured import Capture, Captured
from anabranch._record.capture.stand_ins import one_at_a_time
from anabranch._record.capture.step import Step
from anabranch._record.memory.shortage import is_out_of_memory, short_of
from anabranch._record.refusals import Cause, NotRecordable, reason_of
from anabranch._record.tensors import Unit, units_behind


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
            capture_over_stand_ins(moved, memory, device, made)
            members = {i for number in _named_units(made[0], units)
                       for i, _ in units[number].members}
            made[0].answer, made[0].gradients = None, {}
            check_nothing_is_kept(made)
        except Exception as error:
            abandon(memory, made)
            if is_out_of_memory(error):
                raise short_of("a capture", error, step.device) from error
            raise NotRecordable(reason_of(error)) from error
        made.pop().close()
        memory.close()
    return [tensor for i, tensor in enumerate(tensors, known) if i in members]


def _named_units(captured: Captured, units: Sequence[Unit]) -> list[int]:
    assert captured.snapshot is not None
    order = sorted(range(len(units)), key=captured.given_at.__getitem__)
    ranges = [(captured.given_at[i], units[i].size_bytes) for i in order]
    return [order[number] for number, _ in captured.snapshot.mentions(ranges)]


class UntrackedTensors(NotRecordable):
    """The step uses tensors that were not found from it. As a reason it says how to name them."""

    cause = Cause.UNTRACKED_TENSOR

    def __init__(self, tensors: list[Tensor]) -> None:
        one = tensors[0]
        kind = str(one.dtype).removeprefix("torch.")
        super().__init__(
            f"it uses a tensor ({kind}{list(one.shape)}) that nothing which was found from it "
            "leads to, so that a launch would not see where it is")
        self.tensors = tensors


def check_all_tracked(step: Step, capture: Capture, device: CaptureDevice, ours: Iterable[Tensor],
                      has_reducer: bool = False) -> list[torch.UntypedStorage]:
    """Raises UntrackedTensors where it was not. Memory that no tensor in Python has is left alone:
    torch's generators have some, and libraries. So is what not both captures name at one
    place, left over from before, and what is ``ours``, which a step cannot use.

    Answers memory that is to be kept as long as the recording. Where the step ``has_reducer``, that
    of DistributedDataParallel, its buckets have been seen in Python, but belong to C++."""
    alive = sorted(_without(capture.alive, (*step.fixed, *ours)))
    first, *others = capture.captures
    named_in = [_mentioned(first, alive, other) for other in others] or [_mentioned(first, alive)]
    memory = sorted(alive[i] for i in set.intersection(*named_in))
    generators = _of_generator(memory, step, device) if memory else set()
    suspects = _tensors_in([one for i, one in enumerate(memory) if i not in generators],
                           but=step.tensors)
    # Bytes of a struct that nothing has set may hold an address of long ago. Where they do, a
    # capture does not follow the tensor to another one.
    named = named_of(suspects, step, device) if suspects else []
    del suspects
    buckets = _compat.of_cpp_alone(named) if has_reducer else []
    if len(buckets) < len(named):
        kept = set(map(id, buckets))
        raise UntrackedTensors([tensor for tensor in named if id(tensor) not in kept])
    return [bucket.untyped_storage() for bucket in buckets]


def _of_generator(memory: Sequence[tuple[int, int]], step: Step,
                  device: CaptureDevice) -> set[int]:
    """In which of some ranges torch's generator keeps seed and offset, for the kernels of graphs
    that draw: all that one draw names. torch holds tensors there while it has such a graph, and has
    told Python of them where a graph of its own came first."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(step.stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            torch.empty(1, device=f"cuda:{step.device}").uniform_()
        finally:
            graph.capture_end()
    named = CaptureSnapshot(device, graph.raw_cuda_graph()).mentions(memory)
    return {number for number, _ in named}


def may_name_others(step: Step, capture: Capture, ours: Iterable[Tensor]) -> bool:
    """Whether the first capture has a word that may be the address of a tensor which is alive and
    neither the step's nor ours."""
    alive = sorted(_without(capture.alive, (*step.fixed, *ours)))
    named = _mentioned(capture.first, alive)
    return bool(_tensors_in(sorted(alive[i] for i in named), but=step.tensors))


def _mentioned(captured: Captured, memory: Sequence[tuple[int, int]],
               other: Captured | None = None) -> set[int]:
    assert captured.snapshot is not None
    return {i for i, _ in captured.snapshot.mentions(memory, other.snapshot if other else None)}


def _without(memory: Sequence[tuple[int, int]], fixed: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Ranges in which none of some tensors is. Those that may not move, which launches check, have
    views that nobody finds, as FSDP has of its shards."""
    addresses = sorted(map(_address, fixed))
    return [(begin, size) for begin, size in memory
            if (i := bisect.bisect_left(addresses, begin)) == len(addresses)
            or addresses[i] >= begin + size]


def _tensors_in(memory: Sequence[tuple[int, int]], but: Iterable[Tensor]) -> list[Tensor]:
    """All in one of some ranges, which are sorted. Constants of compiled code stay where they
    are."""
    if not memory:
        return []
    begins = [begin for begin, _ in memory]
    ends = [begin + size for begin, size in memory]
    known = {id(thing) for thing in (*but, *_compat.constants_of_generated_code())}
    return [tensor for tensor in _compat.tensors_alive()
            if tensor.is_cuda and id(tensor) not in known and tensor.numel() > 0
            and (i := bisect.bisect(begins, address := _address(tensor)) - 1) >= 0
            and address < ends[i]]


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # one that torch.func has wrapped
        return 0
