# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a graph take, before it has run.

Products, convolutions and attention are run, once a shape a process, with ones for their inputs:
these decide how long a model takes. Everything else moves bytes, mostly in kernels that Inductor
fuses, and is taken to take as long as its result at the rate at which the device copies.

Threads: any; two may measure the same. Failure: none; what cannot be run is estimated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from anabranch import _compat
from anabranch._fx.schema import overload_of, tensors_in

log = logging.getLogger("anabranch.offload")
_RUNS = 3
_MEASURED = frozenset((
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution",
    "aten::convolution_backward", "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward"))
_known: dict[tuple[Any, ...], int] = {}


def durations_ns(steps: Sequence[Node], bytes_per_s: float) -> list[int]:
    """By step. ``bytes_per_s``: at which the device copies within its own memory."""
    return [_measured_ns(node) or _moving_ns(node, bytes_per_s) for node in steps]


def _moving_ns(node: Node, bytes_per_s: float) -> int:
    moved = sum(_example(value.numel()) * value.itemsize for value in tensors_in(node.meta["val"]))
    return int(moved / bytes_per_s * 1e9) + 1


def _measured_ns(node: Node) -> int:
    """0 where it is not measured."""
    op = overload_of(node)
    if op is None or op._schema.name not in _MEASURED:
        return 0
    key = (op, *_compat.tree_flatten((_described(node.args), _described(node.kwargs)))[0])
    if key not in _known:
        try:
            _known[key] = _time(node)
        except Exception as error:  # kernels that take no ones, or no memory for them
            log.debug("%s cannot be measured: %s", node, error)
            _known[key] = 0
    return _known[key]


def _time(node: Node) -> int:
    op: Any = node.target
    with _compat.real_tensors(), torch.no_grad():
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _real)
        device = next((value.device for value in tensors_in(list(args))), torch.device("cpu"))
        op(*args, **kwargs)
        return min(elapsed_ns(device, lambda: op(*args, **kwargs)) for _ in range(_RUNS))


def elapsed_ns(device: torch.device, call: Callable[[], object]) -> int:
    """Until all that the call has queued is done."""
    if device.type != "cuda":
        start = time.perf_counter_ns()
        call()
        return time.perf_counter_ns() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    stream.record_event(begin)
    call()
    stream.record_event(end)
    end.synchronize()
    return int(begin.elapsed_time(end) * 1e6)


def _real(node: Node) -> Any:
    value = node.meta["val"]
    if not isinstance(value, Tensor):
        return _example(value)
    sizes, strides = ([_example(n) for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device).fill_(1)


def _described(value: Any) -> Any:
    """What of an argument decides how long a kernel takes, in things that can be compared."""
    def describe(node: Node) -> Any:
        of = node.meta["val"]
        if not isinstance(of, Tensor):
            return _example(of)
        return str((of.dtype, of.device, list(map(_example, of.shape)),
                    list(map(_example, of.stride()))))

    return torch.fx.map_arg(value, describe)


def _example(number: Any) -> Any:
    try:
        return _compat.example_of(number)
    except TypeError:
        return 1

