# SPDX-License-Identifier: Apache-2.0
"""torch's own state around a call: what both copies of a program are called in."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import gc
import logging
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Coarse(TorchFunctionMode):
    """Linear layers of little precision."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return (out * 8).round() / 8 if function in (F.linear, F.layer_norm, torch.tanh) else out


class Seeing(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def _larger(module: nn.Module, args: Any, out: Any) -> Any:
    return out * 1.5 if isinstance(out, Tensor) else out


def _larger_input(module: nn.Module, args: Any) -> Any:
    return tuple(one * 1.5 if isinstance(one, Tensor) and one.is_floating_point() else one
                 for one in args)


@contextlib.contextmanager
def removed_after(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def set_to(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


def setting(holder: Any, name: str) -> Any:
    """A switch, the other way."""
    return set_to(lambda: getattr(holder, name), lambda now: setattr(holder, name, now),
                  not getattr(holder, name))


@contextlib.contextmanager
def attribute(holder: Any, name: str, value: Any) -> Iterator[None]:
    """One that there is, or a new one."""
    before = vars(holder).get(name, holder)
    setattr(holder, name, value)
    try:
        yield
    finally:
        if before is holder:
            delattr(holder, name)
        else:
            setattr(holder, name, before)


def _halved(grads: Any) -> Any:
    return tuple(grad / 2 if grad is not None else None for grad in grads)


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad * 0.5


@contextlib.contextmanager
def all_of(contexts: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@contextlib.contextmanager
def longer(items: list[Any]) -> Iterator[None]:
    items.append("/campaign_unread")
    try:
        yield
    finally:
        items.pop()


@contextlib.contextmanager
def item(mapping: Any, key: Any, value: Any) -> Iterator[None]:
    mapping[key] = value
    try:
        yield
    finally:
        del mapping[key]


OTHER = contextvars.ContextVar("campaign_unread", default=0)
modules = torch.nn.modules.module
AMBIENT: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast(DEVICE, torch.bfloat16),
    "default dtype": lambda: set_to(torch.get_default_dtype, torch.set_default_dtype,
                                    torch.float64),
    "default device": lambda: torch.device(DEVICE),
    "function mode": Coarse,
    "dispatch mode": Seeing,
    "deterministic": lambda: set_to(torch.are_deterministic_algorithms_enabled,
                                    torch.use_deterministic_algorithms, True),
    "fill uninitialized": lambda: setting(torch.utils.deterministic, "fill_uninitialized_memory"),
    "anomaly": torch.autograd.detect_anomaly,
    "no functions of subclasses": torch._C.DisableTorchFunctionSubclass,
    "saved tensors in half": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.bfloat16() if x.dtype is torch.float32 else x,
        lambda x: x.float() if x.dtype is torch.bfloat16 else x),
    "saved tensors on the CPU": torch.autograd.graph.save_on_cpu,
    "no saved-tensor hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("none"),
    "one thread of autograd": lambda: torch.autograd.set_multithreading_enabled(False),
    "forward hook of all modules": lambda: removed_after(
        modules.register_module_forward_hook(_larger)),
    "forward pre-hook of all modules": lambda: removed_after(
        modules.register_module_forward_pre_hook(_larger_input)),
    "backward hook of all modules": lambda: removed_after(
        modules.register_module_full_backward_hook(lambda module, grads, _: _halved(grads))),
    "pre-hook of all optimizers": lambda: removed_after(
        register_optimizer_step_pre_hook(_stepped)),
    "gelu replaced": lambda: attribute(F, "gelu", lambda x, **_: x.relu()),
    "linear replaced": lambda: attribute(F, "linear", lambda x, w, b=None: x @ w.mT),
    "softmax of tensors replaced": lambda: attribute(Tensor, "softmax", lambda x, d: x * 0.5),
    "forward of Linear replaced": lambda: attribute(
        nn.Linear, "forward", lambda layer, x: F.linear(x, layer.weight)),
    "threads of the CPU": lambda: set_to(torch.get_num_threads, torch.set_num_threads, 2),
    "cuDNN off": lambda: torch.backends.cudnn.flags(enabled=False),
    "math attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "tf32": lambda: setting(torch.backends.cuda.matmul, "allow_tf32"),
}


# Called with the modules of both copies.
UNREAD: dict[str, Callable[..., Any]] = {
    "a new global": lambda *modules: all_of(
        attribute(module, "campaign_unread", 1) for module in modules),
    "a longer list": lambda *_: longer(sys.path),
    "triton's folders": lambda *_: longer(getattr(
        sys.modules.get("triton.backends.nvidia.driver"), "include_dirs", [])),
    "torch.nn.functional": lambda *_: attribute(F, "campaign_unread", 1),
    "torch": lambda *_: attribute(torch, "campaign_unread", 1),
    "torch.Tensor": lambda *_: attribute(Tensor, "campaign_unread", 1),
    "nn.Module": lambda *_: attribute(nn.Module, "campaign_unread", 1),
    "nn.Linear": lambda *_: attribute(nn.Linear, "campaign_unread", 1),
    "torch.optim.SGD": lambda *_: attribute(torch.optim.SGD, "campaign_unread", 1),
    "torch._dynamo": lambda *_: attribute(sys.modules["torch._dynamo"], "campaign_unread", 1),
    "collections": lambda *_: attribute(collections, "campaign_unread", 1),
    "sys.modules": lambda *_: item(sys.modules, "campaign_unread", torch),
    "os.environ": lambda *_: item(os.environ, "CAMPAIGN_UNREAD", "1"),
    "random": lambda *_: set_to(random.getstate, random.setstate, random.Random(5).getstate()),
    "torch's generator": lambda *_: set_to(torch.get_rng_state, torch.set_rng_state,
                                        torch.Generator().manual_seed(5).get_state()),
    "logging": lambda *_: set_to(lambda: logging.root.level, logging.root.setLevel, logging.ERROR),
    "recursion limit": lambda *_: set_to(sys.getrecursionlimit, sys.setrecursionlimit, 5000),
    "a context variable": lambda *_: set_to(OTHER.get, OTHER.set, 1),
    "garbage collected": lambda *_: contextlib.nullcontext(gc.collect()),
}
