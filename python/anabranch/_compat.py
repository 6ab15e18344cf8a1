# SPDX-License-Identifier: Apache-2.0
"""Every private name of torch that Anabranch touches, and every branch on its version.

Nothing else in the package names ``torch._`` (a test holds that), so a new torch release is met
here. Imported only after torch is known to be there and new enough.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, NoneType
from typing import Any, NamedTuple

import torch
import torch._functorch.config as functorch_config
import torch._dynamo.graph_bytecode_inputs as graph_bytecode_inputs
import torch._inductor.config as inductor_config
from torch._C._dynamo import eval_frame
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.resume_execution import TORCH_DYNAMO_RESUME_IN_PREFIX
from torch._guards import TracingContext, tracing
from torch._inductor import fx_utils, utils as inductor_utils
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch._inductor.fx_passes import post_grad
from torch._inductor.select_algorithm import extern_kernels
from torch._inductor.virtualized import V
from torch._logging import trace_structured
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from functorch.compile import min_cut_rematerialization_partition

__all__ = [
    "CustomPartitionerFn",
    "allocated_in_pools",
    "allocations_so_far",
    "backend_of_group",
    "arguments_of_generated_kernel",
    "calls_of_compiled_graphs",
    "clear_workspaces",
    "collectives_so_far",
    "current_device",
    "current_stream",
    "FakeTensorMode",
    "gather_together",
    "HigherOrderOperator",
    "LIBRARY_FUNCTIONS",
    "OpOverload",
    "TorchDispatchMode",
    "V",
    "compile_fx",
    "compile_fx_inner",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "end_pool",
    "extern_kernels",
    "is_inductors_graph",
    "is_missing_compiler",
    "is_unsafe_in_captures",
    "in_parts",
    "kernels_at_the_end",
    "keep_generated_tensors",
    "keep_saved_tensors",
    "kinds_of_results",
    "memory_history",
    "free_unbacked_symbols",
    "get_hash_for_files",
    "library_function",
    "min_cut_rematerialization_partition",
    "must_save",
    "numeric_modes",
    "reinterpret_tensor",
    "results_of_forward",
    "own_buffers",
    "parts_of",
    "replace_parts",
    "own_compile_context",
    "runs_of_generated_kernels",
    "steps_of_optimizers",
    "storage_at",
    "take_events_behind_writes",
    "region_compile_context",
    "trace_structured",
    "tree_flatten",
    "tree_unflatten",
]

# The fast allocator of Inductor's own wrappers: (sizes, strides, dtype) -> tensor.
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda  # on the current device
# Likewise a view: (tensor, sizes, strides, elements to go on by) -> tensor of the same type.
reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor

version: tuple[int, int] = tuple(int(part) for part in torch.__version__.split(".")[:2])  # type: ignore[assignment]


def storage_at(address: int, size_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Somebody else's memory; nothing is freed when the storage goes."""
    return torch._C._construct_storage_from_data_pointer(address, device, size_bytes)


def must_save() -> Any:
    """The partitioner's mark for a value that backward must not compute again."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE


def numeric_modes() -> tuple[Any, ...]:
    """Settings by which torch chooses kernels on a GPU."""
    precision = torch._C._get_fp32_precision_getter
    return (torch._C._get_deterministic_algorithms(), torch._C._get_cudnn_deterministic(),
            precision("cuda", "matmul"), precision("cuda", "conv"))


@contextlib.contextmanager
def own_compile_context() -> Iterator[None]:
    """Around the compilation of a model.

    AOTAutograd's cache would hand back its graphs as Inductor compiled them, past streams, records
    and reports. Inductor's own cache still spares the kernels.
    """
    with functorch_config.patch(enable_autograd_cache=False), _copies_of_overwritten_inputs():
        yield


# Inductor's settings by which each intermediate has memory of its own. Memory that is used again
# orders kernels that share nothing else; a recording's arena finds by itself what can be used again.
OWN_BUFFERS = {"allow_buffer_reuse": False}


def own_buffers() -> contextlib.AbstractContextManager[None]:
    """Around calls that may compile, on this thread."""
    return inductor_config.patch(OWN_BUFFERS)


@contextlib.contextmanager
def _copies_of_overwritten_inputs() -> Iterator[None]:
    """Keeps copies of inputs that the graph overwrites later. Inductor's pass takes them for no
    operation (2.11; 2.15 does not any more), and who reads one then reads what was written: wrong
    in silence, under torch.compile too. Hidden from the pass, by another target for the time."""
    original = post_grad.remove_noop_ops

    def remove_noop_ops(graph: torch.fx.Graph) -> Any:
        storages = {fx_utils.get_node_storage(node.args[0]) for node in graph.find_nodes(
            op="call_function", target=torch.ops.aten.copy_.default)}
        hidden = [(node, node.target) for node in graph.nodes
                  if node.target in post_grad.noop_registry and not storages.isdisjoint(
                      map(fx_utils.get_node_storage, node.all_input_nodes))]
        for node, _ in hidden:
            node.target = _hidden
        try:
            return original(graph)
        finally:
            for node, target in hidden:
                node.target = target

    post_grad.remove_noop_ops = remove_noop_ops
    try:
        yield
    finally:
        post_grad.remove_noop_ops = original


def _hidden(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("stands in a graph for the time of a pass, and is never called")


def keep_saved_tensors() -> None:
    """To be called while a forward graph is compiled: its backward may overwrite nothing saved.

    By default Inductor's backward reuses the memory of saved tensors, and a second backward
    through one graph, which eager allows, is an error.
    """
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def results_of_forward() -> int | None:
    """While a forward graph is compiled: how many of its results are not for the backward alone."""
    context = TracingContext.try_get()
    return context.fw_metadata.num_forward if context and context.fw_metadata else None


def kinds_of_results() -> list[str]:
    """While a graph of a forward or of inference is compiled: what AOTAutograd calls each of its
    results that is not for the backward alone; inputs that it writes, which come first, "written",
    and memory of several results, which comes last, "base"."""
    context = TracingContext.try_get()
    about = context.fw_metadata if context else None
    if about is None:
        return []
    kinds = ["written"] * about.num_mutated_inp_runtime_indices
    kinds += [info.output_type.name for info in about.output_info]
    return kinds + ["base"] * (about.num_forward_returns - len(kinds))


@contextlib.contextmanager
def region_compile_context(fake_mode: Any, threads: int) -> Iterator[None]:
    """Around the compilation of one region.

    The fresh tracing context keeps Inductor from reading the donated buffers of the whole
    backward: those are indices into other inputs, and it would overwrite saved tensors.
    ``comment_origin`` salts the key of the FX graph cache, which ignores that we pin the strides
    of outputs. ``memory_planning`` stays off: our tape plans the scratch memory.
    """
    options = {"cpp.threads": threads, "comment_origin": True, "memory_planning": False}
    with tracing(TracingContext(fake_mode)), inductor_config.patch(options):
        yield


_waiting_moved = threading.RLock()


@contextlib.contextmanager
def kernels_at_the_end() -> Iterator[None]:
    """Around several compilations: the C++ compiler works on the kernels of all of them at once.

    A generated wrapper waits for its kernels while it is loaded. Here it goes on, and the waiting is
    done when the block ends; until then nothing may be run. An error of the compiler comes then.
    """
    with _waiting_moved:
        owner, wait, waits = threading.get_ident(), AsyncCompile.wait, []

        def wait_later(self: AsyncCompile, scope: dict[str, Any]) -> None:
            if threading.get_ident() == owner:
                waits.append((self, scope))
            else:
                wait(self, scope)

        AsyncCompile.wait = wait_later  # type: ignore[method-assign]
        try:
            yield
        finally:
            AsyncCompile.wait = wait  # type: ignore[method-assign]
        for compiler, scope in waits:
            wait(compiler, scope)


def is_missing_compiler(error: BaseException) -> bool:
    """Whether Inductor failed for want of a C++ compiler; it wraps that error in others, as text."""
    return "InvalidCxxCompiler" in f"{type(error).__name__} {error}"


def is_inductors_graph(compiled: Any) -> bool:
    """Whether it has a ``current_callable``: where there are no operators Inductor answers a plain
    function, as of the backward of ``x + 1``."""
    return hasattr(compiled, "current_callable")


# What Inductor cuts a graph into so that CUDA graphs may hold the parts ("graph partition").


def is_unsafe_in_captures(node: torch.fx.Node) -> bool:
    """Whether Inductor knows an operator for one that cannot be captured: by torch's tag, its own
    list, or what it is given."""
    return inductor_utils.is_cudagraph_unsafe_fx_node(node)


def in_parts(operators: Collection[str],
             may_reorder: bool) -> contextlib.AbstractContextManager[None]:
    """Around ``compile_fx_inner`` on this thread: cuts also at ``operators``, by their full names.
    Inductor does so only where it would make CUDA graphs itself, which the argument of that name
    decides, and not the setting."""
    return inductor_config.patch({
        "graph_partition": True,
        "triton.cudagraphs": True,
        "triton.reorder_for_reducing_graph_partitions": may_reorder,
        "custom_should_partition_ops": [*inductor_config.custom_should_partition_ops, *operators],
    })


def parts_of(compiled: Any) -> list[Callable[[list[Any]], Any]]:
    """The functions of a graph's parts, each called as the graph; none of a graph in one."""
    return list(getattr(getattr(compiled, "compiled_fn_runner", None), "partitions", ()))


def replace_parts(compiled: Any, parts: Sequence[Callable[[list[Any]], Any]]) -> None:
    if parts:
        compiled.recursively_apply_fns([lambda _, part=part: part for part in parts])


def wrapper_function(compiled: Any) -> Callable[..., Any]:
    """The ``call`` function of the Python wrapper that Inductor generated, or TypeError."""
    call = getattr(compiled, "current_callable", None)
    function = getattr(call, "__func__", call)
    if not hasattr(function, "__code__") or getattr(call, "__self__", None) is None:
        raise TypeError(f"{type(call).__name__} is no generated wrapper")
    if "empty_strided_cpu" not in function.__globals__:
        raise TypeError(f"{function.__qualname__} is no generated wrapper")
    return call


def annotation(node: torch.fx.Node, key: str) -> Any:
    """What a node was annotated with, or None."""
    return (node.meta.get("custom") or {}).get(key)


# Functions of the tensor library that a tape calls, by the name it gives them.
LIBRARY_FUNCTIONS = {
    "create_view": "aoti_torch_create_tensor_from_blob_v2",
    "delete_tensor": "aoti_torch_delete_tensor_object",
    "new_handle": "aoti_torch_new_tensor_handle",
    "data_pointer": "aoti_torch_get_data_ptr",
    "strides": "aoti_torch_get_strides",
    "copy": "aoti_torch_copy_",
    "dispatch": "torch_call_dispatcher",
    "new_list": "torch_new_list_reserve_size",
    "list_push": "torch_list_push_back",
    "delete_list": "torch_delete_list",
    "last_error": "torch_exception_get_what",  # 2.12 and later
    "mm_out": "aoti_torch_cpu_mm_out",
    "addmm_out": "aoti_torch_cpu_addmm_out",
    "bmm_out": "aoti_torch_cpu_bmm_out",
    "baddbmm_out": "aoti_torch_cpu_baddbmm_out",
    "randint_low_out": "aoti_torch_cpu_randint_low_out",
    "prepare_threads": "torch_get_num_threads",
    "set_mkl_threads": "MKL_Set_Num_Threads_Local",  # the lower-case symbol is Fortran's
}


@functools.cache
def _torch_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@functools.cache
def _openmp_library() -> ctypes.CDLL | None:
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*.so*")):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(path))
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libgomp.so.1")
    return None


@functools.cache
def library_function(name: str) -> int:
    """The address of a function of torch's C ABI, by our name for it; 0 if this torch lacks it."""
    return _address(_torch_library(), LIBRARY_FUNCTIONS[name])


@functools.cache
def openmp_function(name: str) -> int:
    library = _openmp_library()
    return _address(library, name) if library is not None else 0


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """torch's number for a dtype in its C ABI; KeyError where it has none."""
    name = f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}"
    try:
        return getattr(_torch_library(), name)()
    except AttributeError:
        raise KeyError(dtype) from None


def library_version() -> int:
    major, minor = version
    return major << 56 | minor << 48


def kernel_address(function: Any) -> int:
    """The C entry of a kernel that Inductor compiled, from its Python binding."""
    path = getattr(getattr(function, "__self__", None), "__file__", None)
    if path is None or not os.path.exists(path):
        raise TypeError(f"{function!r} is no compiled kernel")
    return _kernel_in(path, function.__name__)


@functools.cache
def _kernel_in(path: str, name: str) -> int:
    return _address(ctypes.CDLL(path), name)


def gather_together() -> OpOverload:
    """The collective that gathers a list of tensors."""
    return torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default


# What recording needs of torch.cuda.

# The raw current stream of a device, by its number.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # type: ignore[assignment]
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None)  # type: ignore[assignment]


def collectives_so_far() -> int:
    """Grows with every collective that this process takes part in; 0 where it can take in none."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() \
            or distributed.get_world_size() == 1:
        return 0
    groups = list(distributed.distributed_c10d._world.pg_map)
    return 1 + sum(group._get_sequence_number_for_group() for group in groups
                   if group != distributed.GroupMember.NON_GROUP_MEMBER)


def backend_of_group(group: Any, device: torch.device) -> str:
    """What runs a process group's collectives on a device; the group by itself or by its name, as
    functional collectives are given either. RuntimeError where there is none."""
    if isinstance(group, str):
        group = torch.distributed.distributed_c10d._resolve_process_group(group)
    return group._get_backend(device).name()


def clear_workspaces() -> None:
    """Gives back the scratch memory that cuBLAS keeps a stream: a capture makes its own anew, and
    work outside must not use one that a capture made."""
    torch._C._cuda_clearCublasWorkspaces()


def allocations_so_far(device: int) -> int:
    """How many blocks torch's allocator has given out."""
    return torch.cuda.memory_stats_as_nested_dict(device)["allocation"]["all"]["allocated"]


def end_pool(device: int, pool: tuple[int, int]) -> None:
    """Ends the routing of allocations to a pool, if a capture that failed has left it on."""
    with contextlib.suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)


class PoolHistory(NamedTuple):
    """What happened in torch's allocator while a capture went on."""

    allocations: list[tuple[int, int]]  # (address, bytes asked for), in order of time
    segments: dict[tuple[int, int], set[int]]  # where those of each pool begin


@contextlib.contextmanager
def memory_history(device: int) -> Iterator[Callable[[], PoolHistory]]:
    """Around captures: a function that tells what they have allocated so far. A history that the
    user records goes on, and has to be long enough: a RuntimeError if it has lost its beginning."""
    is_users = torch._C._cuda_isHistoryEnabled()
    if not is_users:
        torch.cuda.memory._record_memory_history(
            enabled="all", context=None, stacks="python", max_entries=1 << 30, clear_history=True)
    last = _snapshot_of(device)[0][-1:] if is_users else []

    def read() -> PoolHistory:
        trace, segments = _snapshot_of(device)
        if last and last[0] not in trace:
            raise RuntimeError("the recorded memory history is too short; raise its max_entries")
        begin = len(trace) - trace[::-1].index(last[0]) if last else 0
        pools: dict[tuple[int, int], set[int]] = {}
        for segment in segments:
            pools.setdefault(tuple(segment["segment_pool_id"]), set()).add(segment["address"])
        return PoolHistory([(event["addr"], event["size"]) for event in trace[begin:]
                            if event["action"] == "alloc"], pools)

    try:
        yield read
    finally:
        if not is_users:
            torch.cuda.memory._record_memory_history(enabled=None)


def _snapshot_of(device: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The trace of events, and the segments, of all pools: torch 2.11 may crash when asked for
    those of one."""
    snapshot = torch.cuda.memory._snapshot(device)
    return snapshot["device_traces"][device], snapshot["segments"]


def allocated_in_pools(device: int, pools: Collection[tuple[int, int]]) -> int:
    """Bytes that tensors still hold in some pools."""
    _, segments = _snapshot_of(device)
    return sum(block["requested_size"] for segment in segments
               if tuple(segment["segment_pool_id"]) in pools
               for block in segment["blocks"] if block["state"] == "active_allocated")


@contextlib.contextmanager
def keep_generated_tensors() -> Iterator[list[Any]]:
    """Around a capture: what Inductor's wrappers allocate stays allocated, so that each of their
    tensors has an address, and so a life, of its own. Storages are kept and not tensors, whose
    use counts AccumulateGrad looks at."""
    from torch._inductor.codecache import PyCodeCache

    kept: list[Any] = []

    def allocate(*arguments: Any) -> torch.Tensor:
        tensor = empty_strided_cuda(*arguments)
        kept.append(tensor.untyped_storage())
        return tensor

    modules = [module for module in PyCodeCache.modules if hasattr(module, "empty_strided_cuda")]
    before = [module.empty_strided_cuda for module in modules]
    for module in modules:
        module.empty_strided_cuda = allocate  # type: ignore[attr-defined]
    try:
        yield kept
    finally:
        for module, function in zip(modules, before, strict=True):
            module.empty_strided_cuda = function  # type: ignore[attr-defined]
        kept.clear()


# Streams and events in what Dynamo traced. They stand in a table that each call fills anew.


_REFUSAL = "check_event_record_after_input_mutation"


def take_events_behind_writes(ours: Callable[..., Any]) -> None:
    """Lets graphs for the backend ``ours`` record an event behind a write to an input. Dynamo
    refuses that since 2.15, because torch's compiler writes inputs behind the last record; ``ours``
    records events behind that. Other backends are refused as before."""
    refuse = getattr(OutputGraph, _REFUSAL, None)
    if refuse is None:
        return

    @functools.wraps(refuse)
    def check(graph: Any, *args: Any) -> None:
        if _innermost_backend(graph.compiler_fn) is not ours:
            refuse(graph, *args)

    setattr(OutputGraph, _REFUSAL, check)


def _innermost_backend(backend: Any) -> Any:
    while inner := (getattr(backend, "_torchdynamo_orig_backend", None)
                    or getattr(backend, "compiler_fn", None)):
        backend = inner
    return backend


# The object that stands at a number of Dynamo's table.
object_of_graph: Callable[[int], Any] = graph_bytecode_inputs.get_external_object_by_index


def is_made_by_graph(number: int) -> bool:
    """Whether each call of the graph makes that object of the table anew, while the graph is
    compiled. Dynamo keeps apart by the function that puts it there alone."""
    make = graph_bytecode_inputs.index_to_bytecode_constructor[number]
    return "construct_fn" in make.__code__.co_freevars


def is_object_of_graph(node: torch.fx.Node) -> bool:
    return node.target is graph_bytecode_inputs.get_external_object_by_index


_METHODS = ("wait_stream", "wait_event", "record_event", "record_stream", "synchronize")


def breaks_around(gm: torch.fx.GraphModule) -> tuple[bool, bool]:
    """Whether Dynamo cut the function that a graph is of: before the graph, and behind it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None:
        return False, False
    frames = [frame.name for frame in reason.user_stack]
    return any(name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX) for name in frames), \
        reason.graph_break


def stream_operation(node: torch.fx.Node) -> str | None:
    """What a node does with streams or events, by torch's name for it. Up to 2.12 some stand in the
    graph as methods and functions, all of them as operators later."""
    if node.target is torch.accelerator.synchronize:
        return "synchronize_device"
    if node.op == "call_method":
        takes = node.args[1 if node.target == "record_stream" else 0]
        is_theirs = isinstance(takes, torch.fx.Node) and (
            is_object_of_graph(takes) or stream_operation(takes) is not None)
        return str(node.target) if node.target in _METHODS and is_theirs else None
    name = getattr(node.target, "_qualified_op_name", None)
    if isinstance(node.target, OpOverload):
        name = node.target._schema.name
    kind, _, operation = str(name).partition("::")
    return operation if node.op == "call_function" and kind == "streams" else None


# What noting needs of Inductor. A seam that a release lacks is left alone: nothing is noted there.

# Called in place of a method, with the method and then its own arguments.
Around = Callable[..., Any]


@contextlib.contextmanager
def _around(module: str, owner: str, method: str, around: Around) -> Iterator[None]:
    try:
        kind: Any = getattr(importlib.import_module(module), owner)
        original = vars(kind)[method]
    except (ImportError, AttributeError, KeyError):
        yield
        return

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(kind, method, replacement)
    try:
        yield
    finally:
        setattr(kind, method, original)


@contextlib.contextmanager
def steps_of_optimizers(optimizers: Sequence[torch.optim.Optimizer], begin: Callable[[], None],
                        end: Callable[[], None]) -> Iterator[None]:
    """While inside, ``begin()`` is called before each step of one of them that runs eagerly, and
    ``end()`` after it if it has not raised, on the thread of the step. The others are left alone:
    Dynamo guards on their hooks, and would compile them anew."""
    hooks: list[Any] = []
    for optimizer in filter(_runs_eagerly, optimizers):
        hooks.append(optimizer.register_step_pre_hook(lambda *_: begin()))
        hooks.append(optimizer.register_step_post_hook(lambda *_: end()))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _runs_eagerly(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is one of torch's, and nothing of its class has been compiled."""
    modules = [sys.modules[kind.__module__] for kind in type(optimizer).__mro__
               if issubclass(kind, torch.optim.Optimizer)]
    if not all(module.__name__.startswith("torch.optim") for module in modules):
        return False
    functions = [thing for holder in (*modules, *type(optimizer).__mro__)
                 for thing in vars(holder).values() if isinstance(thing, FunctionType)]
    return not any(_has_compiled_code(function) for function in functions)


def _has_compiled_code(function: Any) -> bool:
    while isinstance(function, FunctionType):
        if eval_frame._debug_get_cache_entry_list(function.__code__):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def calls_of_compiled_graphs(around: Around) -> contextlib.AbstractContextManager[None]:
    """While inside, every call of a graph that Inductor has compiled goes through ``around``."""
    return _around("torch._inductor.output_code", "CompiledFxGraph", "__call__", around)


def runs_of_generated_kernels(around: Around) -> contextlib.AbstractContextManager[None]:
    """While inside, every launch of a Triton kernel by a generated wrapper goes through ``around``.
    Faster ways of a launcher are behind this method in all releases known."""
    return _around("torch._inductor.runtime.triton_heuristics", "CachingAutotuner", "run", around)


_GENERATED = ("POINTWISE", "REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN", "FIXED", "TEMPLATE")
_INPUT = re.compile(r"in_ptr\d+")


def arguments_of_generated_kernel(
        tuner: Any, args: Sequence[Any],
        kwargs: Mapping[str, Any]) -> list[tuple[torch.Tensor, bool]] | None:
    """The tensors that a Triton kernel is run with, and whether it writes them; None for a kernel
    that Inductor did not generate, and where the arguments cannot be told apart.

    Kernels made from its templates do not list what they write, and write inputs (flex attention's
    backward does): there each tensor counts as written.
    """
    kind = getattr(getattr(tuner, "heuristic_type", None), "name", None)
    names = getattr(getattr(tuner, "fn", None), "arg_names", None)
    if kind not in _GENERATED or getattr(tuner, "custom_kernel", True) or names is None \
            or len(args) > len(names):
        return None
    written = getattr(tuner, "mutated_arg_names", None)
    is_listed = isinstance(written, list)  # a tuple is what stands there if nothing was said
    values = [*zip(names, args, strict=False), *kwargs.items()]
    values = [(name, value) for name, value in values if name != "stream"]
    if any(not isinstance(value, (torch.Tensor, int, float, NoneType)) for _, value in values):
        return None
    return [(value, not (is_listed and _INPUT.fullmatch(name) and name not in written))
            for name, value in values if isinstance(value, torch.Tensor)]
