# SPDX-License-Identifier: Apache-2.0
"""torch.cuda, its allocator and NCCL, as recordings need them."""

from __future__ import annotations

import bisect
import contextlib
import gc
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

# The fast allocator of Inductor's own wrappers: (sizes, strides, dtype) -> tensor.
_guards: Any = torch._C._dynamo.guards
empty_strided_cpu: Callable[..., torch.Tensor] = _guards._empty_strided_cpu
# On the current device.
empty_strided_cuda: Callable[..., torch.Tensor] = _guards._empty_strided_cuda
# Likewise a view: (tensor, sizes, strides, elements to go on by) -> tensor of the same type.
reinterpret_tensor: Callable[..., torch.Tensor] = _guards._reinterpret_tensor


def likeness_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Tells of as many tensors whether each is of the class, type and device of the one here, with
    its sizes and strides, and requires a gradient if that does. It may say no where they are alike:
    in another mode of torch, or of one tensor that comes twice. None where torch has none."""
    try:
        made = _guards.TensorGuards(*tensors,
                                    dynamic_dims_sizes=[list(one.shape) for one in tensors],
                                    dynamic_dims_strides=[list(one.stride()) for one in tensors])
    except (AttributeError, TypeError):
        return None
    check: Callable[..., bool] = made.check
    return check


def storage_at(address: int, size_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Somebody else's memory; nothing is freed when the storage goes."""
    storage: Any = torch._C._construct_storage_from_data_pointer(address, device, size_bytes)
    return storage


def read_otherwise(tensor: torch.Tensor, is_conj: bool, is_neg: bool) -> torch.Tensor:
    """The same memory, whose elements torch reads conjugated or negated where it did not, and does
    not where it did."""
    tensor = torch._conj(tensor) if is_conj else tensor
    return torch._neg_view(tensor) if is_neg else tensor


# The raw current stream of a device, by its number.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # type: ignore[assignment]
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None)  # type: ignore[assignment]


def collectives_so_far() -> dict[Any, int]:
    """How many this process has taken part in, by its groups of several processes, in the order in
    which these were made."""
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return {}
    return {group: group._get_sequence_number_for_group()
            for group in list(distributed.distributed_c10d._world.pg_map)
            if group != distributed.GroupMember.NON_GROUP_MEMBER and group.size() > 1}


def processes_here() -> int:
    """How many of this program may run on this host: one a GPU, of those that there are."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return max(1, min(distributed.get_world_size(), torch.cuda.device_count()))


def store_of(group: Any) -> Any:
    """Which all processes of a group can reach, without others that have the same names there."""
    return torch.distributed.distributed_c10d._world.pg_map[group][1]


def backend_of_group(group: Any, device: torch.device) -> str:
    """What runs a process group's collectives on a device; the group by itself or by its name, as
    functional collectives are given either. RuntimeError where there is none."""
    distributed: Any = torch.distributed.distributed_c10d
    if isinstance(group, str):
        group = distributed._resolve_process_group(group)
    return str(group._get_backend(device).name())


def memory_fraction(device: int) -> float:
    """Of a GPU's memory, what torch may allocate at most; 1 where the user has set no limit."""
    return float(torch._C._cuda_getMemoryFraction(device))


def use_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """How many hold a tensor, and its storage, in C++ and as this call."""
    return tensor._use_count(), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def clear_workspaces() -> None:
    """Gives back the scratch memory that cuBLAS keeps a stream: a capture makes its own anew, and
    work outside must not use one that a capture made."""
    torch._C._cuda_clearCublasWorkspaces()


def copy_all(to: Sequence[torch.Tensor], source: Sequence[torch.Tensor]) -> None:
    """Copies tensors of one type into others of the same sizes, with few launches."""
    torch._foreach_copy_(list(to), list(source))


def allocations_so_far(device: int) -> int:
    """How many blocks torch's allocator has given out."""
    found: int = torch._C._cuda_memoryStats(device)["allocation"]["all"]["allocated"]
    return found


def end_pool(device: int, pool: tuple[int, int]) -> None:
    """Ends the routing of allocations to a pool, if a capture that failed has left it on."""
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)


def release_pool(device: int, pool: torch.cuda.MemPool) -> None:
    """Takes from a pool what graphs hold of it that have been reset: one whose capture broke never
    lets go, and what the pool has cached would count as reserved for ever."""
    while pool.use_count() > 1:  # the last is the pool's own
        torch._C._cuda_releasePool(device, pool.id)


class Event(NamedTuple):
    """A block that torch's allocator gave out or took back."""

    address: int
    bytes: int  # asked for
    is_freed: bool


class PoolHistory(NamedTuple):
    """What happened in torch's allocator for a while."""

    events: list[Event]  # in order of time
    segments: dict[tuple[int, int], dict[int, int]]  # of each pool, bytes by address
    alive: list[tuple[int, int, tuple[int, int]]]  # (address, bytes, pool) of all that is allocated
    is_mapped: bool  # memory of no pool of its own is mapped ("expandable segments")

    def events_in(self, pool: tuple[int, int]) -> list[Event]:
        """Those in segments that a pool has now."""
        segments = self.segments.get(pool, {})
        begins = sorted(segments)

        def is_inside(address: int) -> bool:
            before = bisect.bisect_right(begins, address)
            return before > 0 and address < begins[before - 1] + segments[begins[before - 1]]

        return [event for event in self.events if is_inside(event.address)]


@contextlib.contextmanager
def memory_history(device: int) -> Iterator[Callable[[], PoolHistory]]:
    """Around a run: a function that tells what it has allocated so far. A history that the user
    records goes on, and has to be long enough: a RuntimeError if it has lost its beginning."""
    is_users = torch._C._cuda_isHistoryEnabled()
    if not is_users:
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=1 << 30, clear_history=True)
    last = _snapshot_of(device)[0][-1:] if is_users else []

    def read() -> PoolHistory:
        trace, segments, settings = _snapshot_of(device)
        if last and last[0] not in trace:
            raise RuntimeError("the recorded memory history is too short; raise its max_entries")
        begin = len(trace) - trace[::-1].index(last[0]) if last else 0
        pools: dict[tuple[int, int], dict[int, int]] = {}
        for segment in segments:
            of_pool = pools.setdefault(tuple(segment["segment_pool_id"]), {})
            of_pool[segment["address"]] = segment["total_size"]
        alive = [(block["address"], block["requested_size"], tuple(segment["segment_pool_id"]))
                 for segment in segments for block in segment["blocks"]
                 if block["state"] == "active_allocated"]
        return PoolHistory([Event(event["addr"], event["size"], event["action"] != "alloc")
                            for event in trace[begin:]
                            if event["action"] in ("alloc", "free_completed")],
                           pools, alive, bool(settings.get("expandable_segments")))

    try:
        yield read
    finally:
        if not is_users:
            torch.cuda.memory._record_memory_history(enabled=None)


def _snapshot_of(device: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The trace of events, the segments, of all pools, and the allocator's settings: torch 2.11 may
    crash when asked for the segments of one pool."""
    snapshot = torch.cuda.memory._snapshot(device)
    return snapshot["device_traces"][device], snapshot["segments"], snapshot["allocator_settings"]


def allocated_in_pools(pools: Collection[tuple[int, int]]) -> int:
    """Bytes that tensors still hold in some pools."""
    return sum(block["requested_size"]
               for segment in torch.cuda.memory_snapshot(include_traces=False)
               if tuple(segment["segment_pool_id"]) in pools
               for block in segment["blocks"] if block["state"] == "active_allocated")


def reserved_in_pools(pools: Collection[tuple[int, int]]) -> int:
    """Bytes of some pools, allocated or cached."""
    return sum(segment["total_size"]
               for segment in torch.cuda.memory_snapshot(include_traces=False)
               if tuple(segment["segment_pool_id"]) in pools)


def keep_gpu_busy(cycles: int) -> None:
    """Queues a kernel on the current stream that does nothing for so long."""
    torch.cuda._sleep(cycles)


def tensors_alive() -> list[torch.Tensor]:
    """All tensors with memory of their own that Python knows. The process' objects are told apart
    by type, in C, since they may be millions: isinstance() would ask each for its class, and some
    are more than they seem."""
    things, kinds = gc.get_objects(), set(_kinds_with_memory(torch.Tensor))
    try:
        found = list(itertools.compress(things, map(kinds.__contains__, map(type, things))))
    except TypeError:  # a type whose own type has no hash
        found = [thing for thing in things
                 if issubclass(type(thing), torch.Tensor) and type(thing) in kinds]
    return [thing for thing in found if thing.layout is torch.strided]


def _kinds_with_memory(kind: type[torch.Tensor]) -> Iterator[type[torch.Tensor]]:
    """Of a type and those that inherit from it."""
    if kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__ \
            and not hasattr(kind, "__tensor_flatten__"):
        yield kind
    others: list[type[torch.Tensor]] = type.__subclasses__(kind)
    for other in others:
        yield from _kinds_with_memory(other)


def constants_of_generated_code() -> list[Any]:
    """What Inductor's code holds besides functions: tensors that it never moves, among others."""
    from torch._inductor.codecache import PyCodeCache

    return [value for module in PyCodeCache.modules for value in vars(module).values()]


_generated: list[torch.Tensor] = []  # that a capture keeps, of which there is one at a time


def let_go_of_generated(tensors: Iterable[Any]) -> None:
    """Of what a capture keeps, what these tensors lie in: somebody counts who uses that."""
    begins = {tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()
              for tensor in tensors if isinstance(tensor, torch.Tensor)}
    _generated[:] = [kept for kept in _generated if kept.data_ptr() not in begins]


@contextlib.contextmanager
def keep_generated_tensors() -> Iterator[None]:
    """Around a capture: what Inductor's wrappers allocate stays allocated, so that each of their
    tensors has an address, and so a life, of its own. Kept are other tensors over their memory:
    AccumulateGrad looks at their own use counts, and the engine at those of their storages, of
    which one counts as used from then on that Python has known."""
    from torch._inductor.codecache import PyCodeCache

    def allocate(*arguments: Any) -> torch.Tensor:
        tensor = empty_strided_cuda(*arguments)
        _generated.append(reinterpret_tensor(tensor, (), (), 0))
        return tensor

    modules = [module for module in PyCodeCache.modules if hasattr(module, "empty_strided_cuda")]
    before = [module.empty_strided_cuda for module in modules]
    for module in modules:
        module.empty_strided_cuda = allocate  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, function in zip(modules, before, strict=True):
            module.empty_strided_cuda = function  # type: ignore[attr-defined]
        _generated.clear()
