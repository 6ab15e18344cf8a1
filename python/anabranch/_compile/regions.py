# SPDX-License-Identifier: Apache-2.0
"""Compiling the regions of a graph with Inductor."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from anabranch import _compat
from anabranch._compile.graph import RegionGraph, StreamGraph
from anabranch._compile.threads import region_threads

log = logging.getLogger("anabranch.compile")
_PROGRESS_AFTER_SECONDS = 2.0


@dataclasses.dataclass
class CompiledRegion:
    graph: RegionGraph
    compiled: Any  # Inductor's CompiledFxGraph: call it with a list, it answers a tuple
    seconds: float


def compile_regions(
    graph: StreamGraph, regions: Sequence[RegionGraph], fake_mode: Any, lanes: int,
    keywords: dict[str, Any], progress: bool | None,
) -> list[CompiledRegion]:
    """Compiles each region on its own; regions of equal content are compiled once. What runs one
    after the other is Inductor's lowering: the C++ compiler has the kernels of all at once. Not so
    those of a GPU, which Inductor may run to time them.

    ``keywords`` are what torch hands the compiler of a whole graph; ``lanes`` is how many threads
    will run regions at once.
    """
    compiled = []
    on_host = graph.device.type == "cpu"
    later = _compat.kernels_at_the_end() if on_host else nullcontext()
    with _progress(len(regions), progress) as step, later:
        for region in regions:
            step(region.name)
            start = time.perf_counter()
            threads = region_threads(lanes, region.alone)
            result = _compile_region(region, fake_mode, threads, keywords)
            compiled.append(CompiledRegion(region, result, time.perf_counter() - start))
            log.debug("region %s: %d nodes in %.2f s", region.name, len(region.nodes),
                      compiled[-1].seconds)
    return compiled


def _compile_region(
    region: RegionGraph, fake_mode: Any, threads: int, keywords: dict[str, Any]
) -> Any:
    inputs = [value.meta["val"] for value in region.inputs]
    passed = {k: v for k, v in keywords.items() if k not in ("static_input_idxs", "graph_id")}
    with _compat.region_compile_context(fake_mode, threads):
        return _compat.compile_fx_inner(region.module, inputs, static_input_idxs=(), **passed)


@contextmanager
def _progress(total: int, wanted: bool | None) -> Iterator[Any]:
    """A line on a terminal from the third second on: which region, of how many."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda name: None
        return
    line = _ProgressLine(total)
    try:
        yield line.step
    finally:
        line.close()


class _ProgressLine:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._name = ""
        self._shown = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(_PROGRESS_AFTER_SECONDS, self._show)
        self._timer.daemon = True
        self._timer.start()

    def step(self, name: str) -> None:
        with self._lock:
            self._done += 1
            self._name = name
            if self._shown:
                self._write()

    def _show(self) -> None:
        with self._lock:
            self._shown = True
            self._write()

    def _write(self) -> None:
        text = f"anabranch: compiling region {self._done} of {self._total} ({self._name})"
        sys.stderr.write(f"\r{text:<78}")
        sys.stderr.flush()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._shown:
                sys.stderr.write("\r" + " " * 78 + "\r")
                sys.stderr.flush()
