# SPDX-License-Identifier: Apache-2.0
"""Seams of Inductor and of optimizers at which kernels are noted. One that a release lacks is left
alone: nothing is noted there."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, NoneType
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch.library import _scoped_library
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode_temporarily,
)

# Called in place of a method, with the method and then its own arguments.
Around = Callable[..., Any]


@contextlib.contextmanager
def _around(module: str, owner: str | None, method: str, around: Around) -> Iterator[None]:
    """Of a class, or of the module itself."""
    try:
        kind: Any = importlib.import_module(module)
        kind = kind if owner is None else getattr(kind, owner)
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
def operators_on_cpu(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """While inside, these run in the place of torch's own operators, by their names with overload,
    where those are given and make nothing but tensors on the CPU. Only for operators that have no
    kernel for the CPU: torch would not find that again."""
    with _scoped_library("aten", "IMPL") as library:
        for name, function in functions.items():
            library.impl(name, function, "CPU")
        yield


def dispatch_modes() -> list[TorchDispatchMode]:
    """That are on in this thread, outermost first."""
    return _get_current_dispatch_mode_stack()


def without_innermost_mode() -> contextlib.AbstractContextManager[Any]:
    """Inside, that mode is off in this thread, and on autograd's that work for it."""
    return _pop_mode_temporarily()


# By which torch refuses to capture a step; the name of 2.11, and of later ones.
_CHECKS = ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check")


@contextlib.contextmanager
def captures_of_fused_steps(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Around a capture. Torch captures no step of an optimizer that was not made with
    ``capturable=True``, since it may count its steps on the CPU. Fused ones count them where their
    parameters are, and queue the same kernels either way: steps of those of these that are torch's,
    run eagerly, and have parameters of the GPU alone are captured inside."""
    fused = [optimizer for optimizer in optimizers
             if all(group.get("fused") and all(parameter.is_cuda for parameter in group["params"])
                    for group in optimizer.param_groups)
             and not all(group.get("capturable", True) for group in optimizer.param_groups)]
    unchecked = [vars(optimizer) for optimizer in filter(_runs_eagerly, fused)]
    for attributes in unchecked:
        attributes.update(dict.fromkeys(_CHECKS, _no_check))
    try:
        yield
    finally:
        for attributes in unchecked:
            for name in _CHECKS:
                attributes.pop(name, None)


def _no_check() -> None:
    pass


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


def runs_of_backward(around: Around) -> contextlib.AbstractContextManager[None]:
    """While inside, every run of autograd's engine goes through ``around``, with the tensors that
    it begins from as the first argument."""
    return _around("torch.autograd", None, "_engine_run_backward", around)


def is_backward_of_compiled_graphs(roots: Iterable[Any], most_others: int) -> bool:
    """Whether a run of the engine from these tensors, or edges, goes through several compiled
    graphs, and next to no nodes besides; leaves do not count."""
    todo: list[Any] = [getattr(root, "grad_fn", None) or getattr(root, "node", None)
                       for root in roots]
    seen, compiled, others = set[Any](), 0, 0
    while todo and others <= most_others:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        compiled += name == "CompiledFunctionBackward"
        others += name not in ("CompiledFunctionBackward", "torch::autograd::AccumulateGrad")
        todo += [other for other, _ in node.next_functions]
    return compiled > 1 and others <= most_others


def lines_behind_generated_code(path: str, line: int) -> list[tuple[str, int, str]] | None:
    """(file, line, function) of the user's frames, innermost first, behind a line of a wrapper that
    Inductor has generated; empty where it does not know them, None for other files."""
    cache: Any = sys.modules.get("torch._inductor.codecache")
    known: Any = getattr(getattr(cache, "PyCodeCache", None), "linemaps", {})
    if path not in known:
        return None
    try:
        frames = cache.PyCodeCache.stack_frames_for_code(path, line) or []
        return [(frame["filename"], frame["line"], frame["name"]) for frame in frames]
    except (AttributeError, KeyError, TypeError, ValueError):  # of another release
        return []


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
    written: Any = getattr(tuner, "mutated_arg_names", None)
    is_listed = isinstance(written, list)  # a tuple is what stands there if nothing was said
    values = [*zip(names, args, strict=False), *kwargs.items()]
    values = [(name, value) for name, value in values if name != "stream"]
    if any(not isinstance(value, (torch.Tensor, int, float, NoneType)) for _, value in values):
        return None
    return [(value, not (is_listed and _INPUT.fullmatch(name) and name not in written))
            for name, value in values if isinstance(value, torch.Tensor)]
