# SPDX-License-Identifier: Apache-2.0
"""How Inductor and AOTAutograd compile a graph."""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config
from torch._dynamo import compiled_autograd
from torch._dynamo.callback import callback_handler
from torch._dynamo.decorators import skip
from torch._dynamo.eval_frame import OptimizedModule
from torch._guards import TracingContext, tracing
from torch._inductor import fx_utils
from torch._inductor import utils as inductor_utils
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppCodeCache
from torch._inductor.fx_passes import post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch._subclasses import fake_tensor

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NothingCompiled:
    """Used as a context: a frame that Dynamo would compile there, on this thread, raises, and
    leaves Dynamo as it was. ``is_met``: whether there was one. Not noticed while another thread
    compiles something."""

    def __init__(self) -> None:
        self.is_met = False

    def __enter__(self) -> NothingCompiled:
        self._thread = threading.get_ident()
        callback_handler.register_start_callback(self._begin)
        return self

    def __exit__(self, *error: object) -> None:
        callback_handler.remove_start_callback(self._begin)

    def _begin(self, what: object) -> None:
        if threading.get_ident() == self._thread:
            self.is_met = True
            raise RuntimeError("nothing is compiled here")


# The module whose functions are called while Dynamo compiles a frame, and at no other time.
COMPILES = "torch._dynamo.convert_frame"


@contextlib.contextmanager
def around_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> Iterator[None]:
    """Inside, these are called around whatever Dynamo compiles, on the thread that does."""
    started = callback_handler.register_start_callback(lambda what: begins())
    ended = callback_handler.register_end_callback(lambda what: ends())
    try:
        yield
    finally:
        callback_handler.remove_start_callback(started)
        callback_handler.remove_end_callback(ended)


def must_save() -> Any:
    """The partitioner's mark for a value that backward must not compute again."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE


def is_cpu_offload(policy: Any) -> bool:
    """Whether the partitioner's mark on a value is one of CheckpointPolicy's members for the CPU,
    which torch has since 2.15."""
    return getattr(policy, "name", "") in ("MUST_CPU_OFFLOAD", "PREFER_CPU_OFFLOAD")


@contextlib.contextmanager
def own_compile_context() -> Iterator[None]:
    """Around the compilation of a model."""
    with _copies_of_overwritten_inputs():
        yield


@contextlib.contextmanager
def random_as_eager() -> Iterator[None]:
    """Compiled code that is made inside draws the random numbers that eager draws, and one function
    may be compiled as often as it takes."""
    with inductor_config.patch(fallback_random=True), \
            dynamo_config.patch(recompile_limit=_OFTEN, accumulated_recompile_limit=8 * _OFTEN):
        yield


_OFTEN = 64


def real_tensors() -> contextlib.AbstractContextManager[Any]:
    """While a graph is compiled: operators that are called inside run."""
    return fake_tensor.unset_fake_temporarily()


def all_eager() -> contextlib.AbstractContextManager[None]:
    """What is compiled runs as it was written."""
    return torch.compiler.set_stance("force_eager")


def uncompiled(function: Any) -> Any:
    """What torch.compile was given, or what it is."""
    return getattr(function, "_orig_mod", None) \
        or getattr(function, "_torchdynamo_orig_callable", None) or function


def compiled_from(thing: Any) -> Any:
    """The function or module that torch.compile has made this of; None where it has not."""
    if isinstance(thing, torch.nn.Module):
        original = getattr(thing, "_orig_mod", None) if isinstance(thing, OptimizedModule) else None
        return original or (thing if thing.__dict__.get("_compiled_call_impl") else None)
    return thing.__dict__.get("_torchdynamo_orig_callable") \
        if isinstance(thing, FunctionType) else None


def is_compilers(module: str) -> bool:
    """Whether code in a module of this name compiles, and is not compiled."""
    return module.startswith(("anabranch", "torch._dynamo", "torch._inductor", "torch._functorch",
                              "torch.fx"))


def changed_settings() -> str:
    """Inductor's settings that are not the default, as lines of Python."""
    lines = inductor_config.codegen_config()
    return f"import torch._inductor.config\n{lines}\n" if lines else ""


# Inductor's settings by which each intermediate has memory of its own. Memory that is used again
# orders kernels that share nothing else; a recording's arena finds by itself what can be used
# again.
OWN_BUFFERS = {"allow_buffer_reuse": False}


def own_buffers() -> contextlib.AbstractContextManager[None]:
    """Around calls that may compile, on this thread."""
    return inductor_config.patch(OWN_BUFFERS)


def lays_channels_last(forward: torch.fx.GraphModule) -> bool:
    """Whether Inductor will prefer that layout for what is around convolutions."""
    try:
        return bool(GraphLowering.decide_layout_opt(forward, is_inference=False))
    except Exception:  # its heuristics look into nodes as they like
        return False


# Sets what Dynamo traces this thread's frames by, None: nothing; answers what that was.
trace_by: Callable[[Any], Any] = torch._C._dynamo.eval_frame.set_eval_frame


def untraced(function: _Function) -> _Function:
    """Dynamo traces no call of it; what it calls is compiled as if it were called by itself."""
    skip(function)
    return function


def in_graph_order() -> contextlib.AbstractContextManager[None]:
    """Around ``compile_fx_inner`` on this thread: Inductor keeps nodes in the graph's order, but
    for what it fuses."""
    return inductor_config.patch(reorder_for_peak_memory=False, reorder_for_locality=False)


class _FusedWhereUsed:
    """Inductor's choices, but for two kernels that share what they read and have a library's call
    between them: what the later one makes would be there before that call."""

    def __init__(self, choices: Any) -> None:
        self._choices = choices
        self._known: tuple[Any, list[int]] = (None, [])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._choices, name)

    def can_fuse_horizontal(self, scheduler: Any, first: Any, second: Any, *rest: Any) -> bool:
        if not self._choices.can_fuse_horizontal(scheduler, first, second, *rest):
            return False
        try:
            return not self._are_apart(scheduler, first, second)
        except Exception:  # what it is told of nodes is Inductor's own
            return True

    def _are_apart(self, scheduler: Any, first: Any, second: Any) -> bool:
        if self._known[0] is not scheduler:
            self._known = scheduler, sorted(node.min_order for node in scheduler.nodes
                                            if node.is_extern())
        calls = self._known[1]
        if first.min_order > second.min_order:
            first, second = second, first
        made = sum(write.numbytes_hint() for write in second.read_writes.writes)
        return made >= _MUCH and bisect.bisect(calls, first.max_order) \
            < bisect.bisect_left(calls, second.min_order)


_MUCH = 1 << 20  # bytes


def fused_where_used() -> contextlib.AbstractContextManager[None]:
    """Around ``compile_fx_inner`` on this thread: no kernel makes much for a later one because both
    read the same."""
    choices: Any = _FusedWhereUsed(V.choices)
    return V.set_choices_handler(choices)


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


def saves_unseen() -> bool:
    """Whether what a forward saves now is seen by autograd alone: not by hooks on saved tensors,
    nor by compiled autograd."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is None \
        and not (compiled_autograd.compiled_autograd_enabled or dynamo_config.compiled_autograd)


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

    A generated wrapper waits for its kernels while it is loaded. Here it goes on, and the waiting
    is done when the block ends; until then nothing may be run. An error of the compiler comes then.
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
    """Whether Inductor failed for want of a C++ compiler; it wraps that error in others, as
    text."""
    return "InvalidCxxCompiler" in f"{type(error).__name__} {error}"


def check_libraries(check: Callable[[str], None]) -> None:
    """Has ``check`` see the path of each library before Inductor loads it, while nobody writes
    it."""
    cache: Any = CppCodeCache
    load = cache._load_library.__func__

    def checked(cls: type[CppCodeCache], path: str, key: str) -> Any:
        check(path)
        return load(cls, path, key)

    cache._load_library = classmethod(checked)


def inductors_cache() -> str:
    """The folder in which Inductor keeps what it has compiled."""
    return str(cache_dir())


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


def wrapper_function(compiled: Any) -> Any:
    """The ``call`` function of the Python wrapper that Inductor generated, or TypeError."""
    call: Any = getattr(compiled, "current_callable", None)
    function: Any = getattr(call, "__func__", call)
    if not hasattr(function, "__code__") or getattr(call, "__self__", None) is None:
        raise TypeError(f"{type(call).__name__} is no generated wrapper")
    if "empty_strided_cpu" not in function.__globals__:
        raise TypeError(f"{function.__qualname__} is no generated wrapper")
    return call


def constant_when_compiled(function: _Function) -> _Function:
    """Dynamo calls it once, when it compiles, and takes the answer for ever, as torch.compiler's
    assume_constant_result has it, which imports all of Dynamo."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def traced_as(other: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Dynamo traces another function in place of the decorated one, where compiled code calls
    it."""
    def traced(function: _Function) -> _Function:
        function._torchdynamo_inline = other  # type: ignore[attr-defined]
        return function

    return traced


def annotation(node: torch.fx.Node, key: str) -> Any:
    """What a node was annotated with, or None."""
    return (node.meta.get("custom") or {}).get(key)


def example_of(number: Any) -> Any:
    """What a number that is not fixed was in the example that a graph was traced with; others as
    they are. TypeError where it depends on data."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return number
    if number.node.hint is None:
        raise TypeError(f"{number} depends on data")
    return number.node.hint


def gather_together() -> OpOverload:
    """The collective that gathers a list of tensors."""
    return torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default
