# SPDX-License-Identifier: Apache-2.0
"""A compiled graph of several streams, run by the C++ core.

For each set of sizes it is called with an instance is made. On the host the wrappers of its regions
are recorded as tapes, the core plans streams, waits and memory, and a recording is made; a call
then gathers addresses, allocates the outputs and launches. An instance of ``_cuda_streams`` queues
the regions itself. An instance takes one call at a time, so a graph keeps a pool of them, one for
each thread that was ever inside at once. """

from __future__ import annotations

import logging
import math
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import Node

from anabranch import _compat, errors
from anabranch._assemble import Assembly, StepReport
from anabranch._core.library import last_error
from anabranch._core.program import Plan
from anabranch._core.record import launch_function, new_address_table
from anabranch._core.trace import Trace
from anabranch._graph import StreamGraph
from anabranch._region import CompiledRegion

log = logging.getLogger("anabranch.launch")

# Sizes for which a graph keeps recordings; above it, the least recently used is dropped.
MAX_SIZES = 64


class Planned(Protocol):
    """What an instance runs, for reports."""

    plan: Plan
    reports: list[StepReport]

    def summary(self) -> str: ...


class Instance(Protocol):
    planned: Planned

    def run(self, args: list[Any]) -> tuple[Any, ...]: ...

    def attach_trace(self, trace: Trace | None) -> None: ...


class StreamedGraph:
    """Callable with a list of arguments, as AOTAutograd calls compiled graphs (it is emptied).

    ``make_instance`` is called with such a list, of sizes that have none yet.
    """

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion],
                 make_instance: Callable[[list[Any]], Instance]) -> None:
        self.graph = graph
        self.regions = regions
        self.last: Planned | None = None  # of the instance that was made last
        self._make = make_instance
        self._pools: OrderedDict[tuple[Any, ...], list[Instance]] = OrderedDict()
        self._lock = threading.Lock()
        self._note: Callable[[], None] | None = None
        self._trace: Any = None
        self._sizes_of = _sizes_reader(graph.placeholders)

    def __call__(self, args: list[Any]) -> Any:
        if self._note is not None:
            self._note()
        key = self._sizes_of(args)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._add_pool(key)
        try:
            instance = pool.pop()  # atomic; two threads never get the same one
        except IndexError:
            instance = self._make_instance(args)
        try:
            return instance.run(args)
        finally:
            pool.append(instance)

    def watch(self, note: Callable[[], None] | None, trace: Any) -> None:
        """Calls ``note`` at every call and writes launches to ``trace``; None ends it."""
        with self._lock:
            self._note = note
            self._trace = trace
            for pool in self._pools.values():
                for instance in pool:
                    instance.attach_trace(trace)

    def _add_pool(self, key: tuple[Any, ...]) -> list[Instance]:
        with self._lock:
            pool = self._pools.setdefault(key, [])
            while len(self._pools) > MAX_SIZES:
                dropped, _ = self._pools.popitem(last=False)
                log.info("dropped the recording for sizes %s: more than %d", dropped, MAX_SIZES)
        return pool

    def _make_instance(self, args: list[Any]) -> Instance:
        with self._lock:  # wrappers and libraries are loaded here
            instance = self._make(args)
            self.last = instance.planned
            if self._trace is not None:
                instance.attach_trace(self._trace)
            return instance


class RecordedStreams:
    """A graph of several streams whose ``current_callable`` is exchanged for what records it, as
    that of Inductor's graphs is."""

    def __init__(self, graph: StreamedGraph) -> None:
        self.graph = graph
        self.current_callable: Callable[[list[Any]], Any] = graph

    def __call__(self, args: list[Any]) -> Any:
        return self.current_callable(args)


class HostInstance:
    """One recording and the function that calls it."""

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion], device: Any,
                 native: bool, args: list[Any]) -> None:
        self.planned = Assembly(graph, regions, args, device, native)
        self.run = _make_call(self.planned)

    def attach_trace(self, trace: Trace | None) -> None:
        self.planned.recording.attach_trace(trace)


def _sizes_reader(placeholders: Sequence[Node]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """What of the arguments decides about memory: numbers, and sizes that are not fixed."""
    numbers = [i for i, n in enumerate(placeholders)
               if not isinstance(n.meta["val"], torch.Tensor)]
    dynamic = [i for i, n in enumerate(placeholders)
               if isinstance(n.meta["val"], torch.Tensor) and _is_dynamic(n.meta["val"])]
    if not numbers and not dynamic:
        return lambda args: ()
    return lambda args: (
        *(args[i] for i in numbers),
        *((tuple(args[i].shape), args[i].stride()) for i in dynamic),
    )


def _is_dynamic(value: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))


def _make_call(assembly: Assembly) -> Callable[[list[Any]], Any]:
    """Writes the call as one straight Python function: it is on the hot path of every step."""
    count = len(assembly.graph.placeholders)
    names = [f"a{i}" for i in range(count)]
    lines = ["def run(args):", f"    {', '.join(names)}{',' if count == 1 else ''} = args"
             if count else "    pass", "    args.clear()"]
    addresses = [f"a{i}.data_ptr()" for i in assembly.tensor_arguments]
    addresses += [f"c{i}" for i in range(len(assembly.constants))]
    for i, out in enumerate(assembly.outputs):
        lines.append(f"    o{i} = empty({out.sizes!r}, {out.strides!r}, d{i})")
        addresses.append(f"o{i}.data_ptr()")
    lines += [
        f"    pack(table, 0, {', '.join(addresses)})",
        "    if launch(recording, table, count): fail()",
        f"    return ({''.join(f'{expression}, ' for expression in assembly.results)})",
    ]
    table = new_address_table(len(addresses))
    scope: dict[str, Any] = {
        "empty": _compat.empty_strided_cpu,
        "pack": struct.Struct(f"={len(addresses)}Q").pack_into,
        "table": table,
        "count": len(addresses),
        "launch": launch_function,
        "recording": assembly.recording.handle,
        "fail": _raise_launch_failure,
        "inf": math.inf,
        "nan": math.nan,
    }
    scope.update({f"d{i}": out.dtype for i, out in enumerate(assembly.outputs)})
    scope.update({f"c{i}": c.data_ptr() for i, c in enumerate(assembly.constants)})
    exec("\n".join(lines), scope)
    return scope["run"]


def _raise_launch_failure() -> None:
    error = last_error()
    raise errors.from_native(error.code, error.message)
