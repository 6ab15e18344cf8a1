# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a graph take, before it has run.

Products, convolutions and attention are run, once a shape a process, with random numbers for their
inputs: these decide how long a model takes. Everything else moves bytes, in kernels that Inductor
fuses. Between two of the former each tensor is taken to be read once, and written once if somebody
else reads it, at the rate at which the device copies.

Threads: any; two may measure the same. Failure: none; what cannot be run is estimated.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from anabranch import _compat
from anabranch._fx.schema import is_getitem, is_scalar, is_view, overload_of, tensors_in

log = logging.getLogger("anabranch.offload")
_RUNS = 3
_MEASURED = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution",
                       "aten::convolution_backward"))
_ATTENTION = "aten::_scaled_dot_product_"
_HEAD_START = 200_000  # cycles, in which the host queues what is timed
_known: dict[tuple[Any, ...], _Measured] = {}


class _Measured(NamedTuple):
    """Of one call. ``workspace_bytes``: what it takes beside its answer, on a GPU."""

    ns: int = 0
    workspace_bytes: int = 0


def durations_ns(steps: Sequence[Node], bytes_per_s: float) -> list[int]:
    """By step, of a forward and its backward. ``bytes_per_s``: at which the device copies within
    its own memory."""
    measured = {node: found for node in steps if (found := _measured(node).ns)}
    moved = _moved_bytes(steps, measured)
    return [measured.get(node) or int(moved[node] / (2 * bytes_per_s) * 1e9) + 1 for node in steps]


def _moved_bytes(steps: Sequence[Node], apart: Container[Node]) -> dict[Node, int]:
    """What each step reads and writes. Those that are ``apart`` fuse with nobody."""
    level = levels(steps, apart)
    has_read: set[tuple[int, Node]] = set()
    moved = {}
    for node in steps:
        made_by = makers_of(node)
        moved[node] = 0
        if _is_reshaped(node):
            continue
        for given, maker in made_by.items():
            read = (level[node], maker)
            is_at_hand = maker in level and maker not in apart and level[maker] == level[node]
            if not is_at_hand and read not in has_read:
                has_read.add(read)
                moved[node] += min(_bytes_in(given), _bytes_in(maker))
    for node in steps:
        if _is_constant(node) or _is_reshaped(node):
            continue
        if any(level.get(user) != level[node] or user in apart for user in _read_by(node)):
            moved[node] += _bytes_in(node)
    return moved


def levels(steps: Sequence[Node], apart: Container[Node]) -> dict[Node, int]:
    """Those that are not ``apart`` fuse with whatever is as many of these from the inputs on: by
    step, how many. Others have one of their own."""
    level: dict[Node, int] = {}
    for node in steps:
        level[node] = max((level.get(maker, 0) + ((maker in apart) != (node in apart))
                           for maker in makers_of(node).values()), default=0)
    return level


def makers_of(node: Node) -> dict[Node, Node]:
    """What a step is given, without constants, and who has made it."""
    return {given: maker for given in node.all_input_nodes
            if not _is_constant(maker := _made_by(given))}


def _made_by(node: Node) -> Node:
    """The step, or the input, whose memory a value lies in."""
    while not is_scalar(node) and _is_no_work(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _read_by(node: Node) -> Iterator[Node]:
    for user in node.users:
        if _is_no_work(user):
            yield from _read_by(user)
        else:
            yield user


def _is_no_work(node: Node) -> bool:
    return is_view(node) or is_getitem(node) or _is_reshaped(node)


def _is_reshaped(node: Node) -> bool:
    """A view, of which the schema does not say so."""
    op = overload_of(node)
    return op is not None and op._schema.name == "aten::_unsafe_view"


def _is_constant(node: Node) -> bool:
    """What Inductor writes into the kernels that use it."""
    return node.op == "call_function" and not node.all_input_nodes


def _bytes_in(node: Node) -> int:
    return sum(int(_example(value.numel())) * value.itemsize
               for value in tensors_in(node.meta["val"]))


def is_apart(node: Node) -> bool:
    """Whether a library's kernels run it, which fuse with nobody."""
    op = overload_of(node)
    return op is not None and (op._schema.name in _MEASURED
                               or op._schema.name.startswith(_ATTENTION))


def workspace_bytes(node: Node) -> int:
    """What a step takes beside its answer while it runs, where a library's kernels run it."""
    return _measured(node).workspace_bytes


def _measured(node: Node) -> _Measured:
    """All 0 where it is not measured."""
    if not is_apart(node):
        return _Measured()
    key = (overload_of(node),
           *_compat.tree_flatten((_described(node.args), _described(node.kwargs)))[0])
    if key not in _known:
        try:
            _known[key] = _measure(node)
        except Exception as error:  # kernels that take no ones, or no memory for them
            log.debug("%s cannot be measured: %s", node, error)
            _known[key] = _Measured()
    return _known[key]


def _measure(node: Node) -> _Measured:
    op: Any = node.target
    with _compat.real_tensors(), torch.no_grad():
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _real)
        device = next((value.device for value in tensors_in(list(args))), torch.device("cpu"))
        op(*args, **kwargs)
        ns = min(elapsed_ns(device, lambda: op(*args, **kwargs)) for _ in range(_RUNS))
        return _Measured(ns, _workspace_bytes(device, lambda: op(*args, **kwargs)))


def _workspace_bytes(device: torch.device, call: Callable[[], Any]) -> int:
    """0 where torch does not tell."""
    if device.type != "cuda":
        return 0
    try:
        with _compat.memory_history(device.index or 0) as history:
            answer = call()
            events = history().events
    except Exception as error:
        log.debug("what it allocates is not told: %s", error)
        return 0
    taken = itertools.accumulate(-event.bytes if event.is_freed else event.bytes
                                 for event in events)
    answered = {one.untyped_storage()._cdata: one.untyped_storage().nbytes()
                for one in tensors_in([answer])}
    return max(0, max(taken, default=0) - sum(answered.values()))


def elapsed_ns(device: torch.device, call: Callable[[], object]) -> int:
    """Until all that the call has queued is done, from when the device begins."""
    if device.type != "cuda":
        start = time.perf_counter_ns()
        call()
        return time.perf_counter_ns() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        _compat.keep_gpu_busy(_HEAD_START)
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
    real = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
    if not value.is_floating_point() or value.itemsize == 1:
        return real.fill_(1)
    # Products of numbers that are all alike take less power, and so less time.
    return real.normal_(generator=torch.Generator(value.device))


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

