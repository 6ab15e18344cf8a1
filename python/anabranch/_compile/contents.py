# SPDX-License-Identifier: Apache-2.0
"""What is known of a graph of several streams, in JSON's types. docs/python.md has the keys.

Threads: any, between launches. Failure: none. Memory in bytes, times in seconds.
"""

from __future__ import annotations

from typing import Any

from anabranch._compile.streamed_graph import InstancePlan, RegionReport, StreamedGraph
from anabranch._core.trace import plan_contents
from anabranch._fx.source import SourceLine, lines_of

_ROLES = {"input": "inputs_bytes", "output": "outputs_bytes", "constant": "constants_bytes"}


def contents_of_streams(streamed: StreamedGraph) -> dict[str, Any]:
    """Regions, waits, memory and the plan, as far as they are known: sizes that are not fixed have
    a plan once it has run."""
    found: dict[str, Any] = {"summary": f"{len(streamed.regions)} regions, not run yet",
                             "regions": [], "waits": [], "memory": None, "plan": None}
    planned = streamed.last
    if planned is None:
        return found
    plan = plan_contents(planned.plan)
    names = [step["name"] for step in plan["steps"]]
    if planned.has_arena:
        found["memory"] = _memory(plan)
    else:
        plan["arena"] = None
    return found | {"summary": planned.summary(), "regions": _regions(streamed, planned),
                    "waits": [[names[step], names[on]] for step, on in plan["waits"]],
                    "plan": plan}


def contents_of_lines(lines: list[SourceLine]) -> list[dict[str, Any]]:
    return [line._asdict() for line in lines]


def _regions(streamed: StreamedGraph, planned: InstancePlan) -> list[dict[str, Any]]:
    by_name = {region.graph.name: region for region in streamed.regions}
    return [{
        "name": report.region,
        "stream": report.stream,
        "operators": report.nodes,
        "runs_as": _how(report),
        "calls": report.calls,
        "scratch_bytes": report.scratch_bytes,
        "reason": report.reason,
        "compile_seconds": by_name[report.region].seconds,
        "lines": contents_of_lines(lines_of(by_name[report.region].graph.nodes)),
    } for report in planned.reports]


def _how(report: RegionReport) -> str:
    if report.reason is not None:
        return "Inductor's callable under Python's lock"
    return "Inductor's callable" if report.calls is None else "native"


def _memory(plan: dict[str, Any]) -> dict[str, int]:
    arena = plan["arena"]
    sums = dict.fromkeys(_ROLES.values(), 0)
    for buffer in plan["buffers"]:
        if buffer["role"] in _ROLES:
            sums[_ROLES[buffer["role"]]] += buffer["size_bytes"]
    return {"arena_bytes": arena["size_bytes"],
            "arena_lower_bound_bytes": arena["lower_bound_bytes"],
            "arena_naive_bytes": arena["naive_bytes"], **sums}
