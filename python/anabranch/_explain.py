# SPDX-License-Identifier: Apache-2.0
"""What became of a program: regions, streams, waits, recordings, fall-backs and why."""

from __future__ import annotations

import json
import logging
import os
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from anabranch._arguments import check_function, check_path
from anabranch._compile.report import Collector, GraphReport, collect
from anabranch._compile.streamed_graph import RegionReport
from anabranch._core.program import Plan
from anabranch._record.recorded_callable import RecordedCallable
from anabranch._record.report import RecordingReport
from anabranch._write_file import write_file
from anabranch.errors import code_text

log = logging.getLogger("anabranch.explain")


class Explanation:
    """Printable; also writes the plans and the timeline of the call that was watched."""

    def __init__(self, collector: Collector) -> None:
        self._graphs = list(collector.ran)
        self._callables = collector.callables
        self._lost = list(collector.lost)
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
    def callables(self) -> list[RecordedCallable[..., Any]]:
        """The callables of ``anabranch.record`` that ran on a GPU; each has ``reports``."""
        return self._callables

    def __str__(self) -> str:
        parts = [_describe(i, graph) for i, graph in enumerate(self._graphs)]
        parts += [_with_recordings(f"recorded callable: {step.name}", step.reports)
                  for step in self._callables]
        if not parts:
            parts = ["anabranch: no graph compiled by this backend ran, and nothing recorded."]
        if self._lost:
            parts.append("streams without effect:\n" + textwrap.indent("\n".join(self._lost), "  "))
        return "\n\n".join(parts)

    __repr__ = __str__

    def save_plan(self, path: str | os.PathLike[str]) -> list[Path]:
        """Writes a plan file for each graph of several streams: ``path``, and for further graphs
        the same name with -2, -3 and so on. Answers the paths written. Where there is no such graph
        nothing is written, and a warning [E0614] says so. Raises PlanFileError [E0501] where the
        system does not let it write, as into a folder that is not there, and WrongArgument [E0611]
        for what is no path. Files are replaced as docs/file-formats.md says."""
        path = check_path("save_plan", path)
        written: list[Path] = []
        for plan in self._plans():
            name = path if not written else path.with_stem(f"{path.stem}-{len(written) + 1}")
            plan.write(str(name))
            written.append(name)
        if not written:
            log.warning("anabranch: save_plan has no plan for %r and wrote nothing: no graph of "
                        "several streams ran; print the explanation for the reasons [E0614]",
                        str(path))
        return written

    def save_timeline(self, path: str | os.PathLike[str]) -> Path:
        """Writes what happened as Chrome trace JSON, which ui.perfetto.dev opens: a process a
        graph, a track a stream. It names operators and source lines of the model. Graphs on a GPU
        are not in it: nobody takes the times of their regions. One without events is written with a
        warning [E0614]. Answers the path, and raises as save_plan() does."""
        path = check_path("save_timeline", path)
        merged: list[Any] = []
        for process, text in enumerate(self._timelines, start=1):
            part = json.loads(text)
            for event in part["traceEvents"]:
                event["pid"] = process
                if "id" in event:
                    event["id"] = f"{process}.{event['id']}"
            merged += part["traceEvents"]
        write_file("write trace", path, json.dumps({"traceEvents": merged}).encode())
        if not merged:
            log.warning("anabranch: save_timeline has no event for %r: no graph of several streams "
                        "ran on the CPU; print the explanation for the reasons [E0614]", str(path))
        return path

    def _plans(self) -> list[Plan]:
        streamed = [g.streamed for g in self._graphs if g.streamed is not None]
        return [s.last.plan for s in streamed if s.last is not None]


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Calls ``fn`` once and tells what its compiled graphs did::

        print(anabranch.explain(model, x))

    ``fn`` is any callable that uses models compiled with this backend: a model, or a whole
    training step, whose backward is then told of as well; or a callable of ``anabranch.record``.
    Of recordings it tells everything since they were made. One call at a time in a process. Raises
    WrongArgument [E0611] unless ``fn`` can be called, [E0612] for coroutines and generators; else
    what the call raises.
    """
    check_function("explain", fn, "Give what is called, and then its arguments: explain(model, x).")
    with collect("explain") as collector:
        fn(*args, **kwargs)
    return Explanation(collector)


def _describe(index: int, graph: GraphReport) -> str:
    head = (f"graph {index}: {graph.kind}, {graph.nodes} operators, "
            f"compiled in {graph.seconds:.1f} s")
    streamed = graph.streamed
    if streamed is None:
        why = f"fell back: {graph.reason}" if graph.reason else "one stream"
        if graph.unrecorded:
            why += f"; not recorded as one: {graph.unrecorded}"
            why += f" [{code_text(graph.code)}]" if graph.code else ""
        return _with_recordings(f"{head}\n  one region, run by Inductor's callable ({why})",
                                graph.recordings)
    planned = streamed.last
    if planned is None:
        return f"{head}\n  {len(streamed.regions)} regions, not run yet"
    plan = planned.plan
    lines = [head, f"  {planned.summary()}", "  regions:"]
    lines += [_region_line(report) for report in planned.reports]
    lines.append("  waits:")
    names = [report.region for report in planned.reports]
    lines += [f"    {names[step]} waits for {names[on]}" for step, on in plan.waits]
    if not plan.waits:
        lines[-1] = "  waits: none"
    return _with_recordings("\n".join(lines), graph.recordings)


def _with_recordings(head: str, reports: Iterable[RecordingReport]) -> str:
    return "\n".join([head, *(textwrap.indent(str(report), "  ") for report in reports)])


def _region_line(report: RegionReport) -> str:
    if report.reason is not None:
        how = f"Inductor's callable under Python's lock ({report.reason})"
    elif report.calls is not None:
        how = f"native, {report.calls} calls"
    else:
        how = f"Inductor's callable on stream {report.stream}"
    return f"    {report.region:<14} {report.nodes:>4} operators   {how}"
