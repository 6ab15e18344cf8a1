# SPDX-License-Identifier: Apache-2.0
"""Compiling the regions of a graph with Inductor."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from anabranch import _compat
from anabranch._compile.graph import RegionGraph, StreamGraph
from anabranch._compile.progress import progress_line
from anabranch._compile.threads import region_threads

log = logging.getLogger("anabranch.compile")


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
    with progress_line(len(regions), progress) as step, later:
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
