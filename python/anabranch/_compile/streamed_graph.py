# SPDX-License-Identifier: Apache-2.0
"""A compiled graph of several streams, run by the C++ core.

For each set of sizes it is called with an instance is made: of ``host`` on the CPU, of
``cuda_streams`` on a GPU. Where sizes are fixed, that is when the graph is compiled. On the host
there is another instance where the options of a launch are others. An instance takes one call at a
time, so a graph keeps a pool of them, one for each thread that was ever inside at once.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import Node

from anabranch import _compat
from anabranch._compile.graph import StreamGraph
from anabranch._compile.regions import CompiledRegion
from anabranch._compile.threads import HostOptions
from anabranch._core.program import Plan
from anabranch._core.trace import Trace

log = logging.getLogger("anabranch.launch")
# Sizes for which a graph keeps recordings; above it, the least recently used is dropped.
MAX_SIZES = 64


class InstancePlan(Protocol):
    """What an instance runs, for reports."""

    plan: Plan
    reports: list[RegionReport]
    has_arena: bool  # what regions make lies where the plan has it; else memory is torch's

    def summary(self) -> str: ...


class Instance(Protocol):
    @property
    def planned(self) -> InstancePlan: ...

    def run(self, args: list[Any]) -> tuple[Any, ...]: ...

    def attach_trace(self, trace: Trace | None) -> None: ...


class StreamedGraph:
    """Callable with a list of arguments, as AOTAutograd calls compiled graphs (it is emptied).

    ``make_instance`` is called with such a list, of sizes that have none yet, and with what
    ``options`` answers.
    """

    def __init__(self, graph: StreamGraph, regions: Sequence[CompiledRegion],
                 make_instance: Callable[[list[Any], HostOptions], Instance],
                 options: Callable[[], HostOptions]) -> None:
        self.graph = graph
        self.regions = regions
        self.last: InstancePlan | None = None  # of the instance that was made last
        self._make = make_instance
        self._options = options
        self._pools: OrderedDict[tuple[Any, ...], list[Instance]] = OrderedDict()
        self._lock = threading.Lock()
        self._note: Callable[[list[Any]], None] | None = None
        self._trace: Any = None
        self._sizes_of = _sizes_reader(graph.placeholders)
        self._name = f"{len(regions)} regions on {', '.join(graph.stream_names)}"

    def __call__(self, args: list[Any]) -> Any:
        if self._note is not None:
            self._note(args)
        options = self._options()
        key = (options, self._sizes_of(args))
        pool = self._pools.get(key)
        if pool is None:
            pool = self._add_pool(key)
        try:
            instance = pool.pop()  # atomic; two threads never get the same one
        except IndexError:
            instance = self._make_instance(args, options)
        try:
            return _compat.in_profiles(instance.run, self._name)(args)
        finally:
            pool.append(instance)

    def prepare(self) -> None:
        """Makes the first instance, where sizes are fixed: what it raises is raised then."""
        examples = [node.meta["val"] for node in self.graph.placeholders]
        if self._sizes_of is _no_sizes:
            options = self._options()
            self._add_pool((options, ())).append(self._make_instance(examples, options))

    def watch(self, note: Callable[[list[Any]], None] | None, trace: Any) -> None:
        """Calls ``note`` with the arguments of every call and writes launches to ``trace``; None
        ends it."""
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
                log.info("dropped the recording for %s: more than %d", dropped, MAX_SIZES)
        return pool

    def _make_instance(self, args: list[Any], options: HostOptions) -> Instance:
        with self._lock:  # wrappers and libraries are loaded here
            instance = self._make(args, options)
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


def _sizes_reader(placeholders: Sequence[Node]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """What of the arguments decides about memory: numbers, and sizes that are not fixed."""
    numbers = [i for i, n in enumerate(placeholders)
               if not isinstance(n.meta["val"], torch.Tensor)]
    dynamic = [i for i, n in enumerate(placeholders)
               if isinstance(n.meta["val"], torch.Tensor) and _is_dynamic(n.meta["val"])]
    if not numbers and not dynamic:
        return _no_sizes
    return lambda args: (
        *(args[i] for i in numbers),
        *((tuple(args[i].shape), args[i].stride()) for i in dynamic),
    )


def _no_sizes(args: list[Any]) -> tuple[Any, ...]:
    return ()


def _is_dynamic(value: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))


@dataclasses.dataclass
class RegionReport:
    """How one region runs: as a tape of ``calls`` calls, or in Python for ``reason``; on a GPU as
    Inductor's callable, without either."""

    region: str
    stream: str
    nodes: int
    calls: int | None = None
    scratch_bytes: int = 0
    reason: str | None = None
