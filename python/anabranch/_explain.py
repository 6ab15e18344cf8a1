# SPDX-License-Identifier: Apache-2.0
"""What became of a program: regions, streams, waits, recordings, fall-backs and why."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ._assemble import Assembly, StepReport
from ._record import RecordedCallable, RecordingReport
from ._report import Collector, GraphReport, collect


class Explanation:
    """Printable; also writes the plans and the timeline of the call that was watched."""

    def __init__(self, collector: Collector) -> None:
        self._graphs = list(collector.ran)
        self._callables = collector.callables
        self._timelines = [
            trace.chrome_json(graph.last.plan)
            for graph, trace in collector.traces.items()
            if graph.last is not None and len(trace)
        ]

    @property
    def graphs(self) -> list[GraphReport]:
        """The compiled graphs that ran, in order."""
        return self._graphs

    @property
    def callables(self) -> list[RecordedCallable]:
        """The callables of ``anabranch.record`` that ran on a GPU; each has a ``report``."""
        return self._callables

    def __str__(self) -> str:
        if not self._graphs and not self._callables:
            return "anabranch: no graph compiled by this backend ran, and nothing recorded."
        parts = [_describe(i, graph) for i, graph in enumerate(self._graphs)]
        parts += [_with_recordings(f"recorded callable: {step.name}", step.report)
                  for step in self._callables]
        return "\n\n".join(parts)

    __repr__ = __str__

    def save_plan(self, path: str | Path) -> list[Path]:
        """Writes a plan file for each graph of several streams: ``path``, and for further graphs
        the same name with -2, -3 and so on. Answers the paths written."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = []
        for assembly in self._assemblies():
            name = path if not written else path.with_stem(f"{path.stem}-{len(written) + 1}")
            assembly.plan.write(str(name))
            written.append(name)
        return written

    def save_timeline(self, path: str | Path) -> Path:
        """Writes what happened as Chrome trace JSON, which ui.perfetto.dev opens: a process a
        graph, a track a stream. It names operators and source lines of the model."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        merged: list[Any] = []
        for process, text in enumerate(self._timelines, start=1):
            part = json.loads(text)
            for event in part["traceEvents"]:
                event["pid"] = process
                if "id" in event:
                    event["id"] = f"{process}.{event['id']}"
            merged += part["traceEvents"]
        path.write_text(json.dumps({"traceEvents": merged}))
        return path

    def _assemblies(self) -> list[Assembly]:
        streamed = [g.streamed for g in self._graphs if g.streamed is not None]
        return [s.last for s in streamed if s.last is not None]


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Calls ``fn`` once and tells what its compiled graphs did::

        print(anabranch.explain(model, x))

    ``fn`` is any callable that uses models compiled with this backend: a model, or a whole
    training step, whose backward is then told of as well; or a callable of ``anabranch.record``.
    Of recordings it tells everything since they were made. One call at a time in a process.
    """
    with collect() as collector:
        fn(*args, **kwargs)
    return Explanation(collector)


def _describe(index: int, graph: GraphReport) -> str:
    head = f"graph {index}: {graph.kind}, {graph.nodes} operators, compiled in {graph.seconds:.1f} s"
    streamed = graph.streamed
    if streamed is None:
        why = f"fell back: {graph.reason}" if graph.reason else "one stream"
        if graph.unrecorded:
            why += f"; not recorded as one: {graph.unrecorded}"
        return _with_recordings(f"{head}\n  one region, run by Inductor's callable ({why})",
                                graph.recordings)
    assembly = streamed.last
    if assembly is None:
        return f"{head}\n  {len(streamed.regions)} regions, not run yet"
    plan = assembly.plan
    lines = [head, _summary(assembly), "  regions:"]
    lines += [_region_line(report) for report in assembly.reports]
    lines.append("  waits:")
    names = [report.region for report in assembly.reports]
    lines += [f"    {names[step]} waits for {names[on]}" for step, on in plan.waits]
    if not plan.waits:
        lines[-1] = "  waits: none"
    return "\n".join(lines)


def _with_recordings(head: str, reports: Iterable[RecordingReport]) -> str:
    return "\n".join([head, *(textwrap.indent(str(report), "  ") for report in reports)])


def _summary(assembly: Assembly) -> str:
    plan = assembly.plan
    streams = len({report.stream for report in assembly.reports})
    return (f"  {len(assembly.reports)} regions on {streams} streams, "
            f"{assembly.recording.lane_count} threads, {len(plan.waits)} waits; "
            f"arena {plan.arena_bytes} bytes (lower bound {plan.arena_lower_bound_bytes}, "
            f"without reuse {plan.arena_naive_bytes})")


def _region_line(report: StepReport) -> str:
    if report.reason is not None:
        how = f"Inductor's callable under Python's lock ({report.reason})"
    else:
        how = f"native, {report.calls} calls"
    return f"    {report.region:<14} {report.nodes:>4} operators   {how}"
