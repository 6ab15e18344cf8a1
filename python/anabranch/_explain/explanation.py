# SPDX-License-Identifier: Apache-2.0
"""What became of a program: regions, streams, waits, recordings, fall-backs and why."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch import config
from anabranch._arguments import check_function, check_path
from anabranch._compile.report import Collector, GraphReport, collect, timed
from anabranch._explain import text
from anabranch._explain.contents import contents_of, last_launch
from anabranch._explain.page import frame_of, page_of
from anabranch._explain.timelines import chrome_events_of
from anabranch._explain.trace_ids import child_of
from anabranch._record.recorded_callable import RecordedCallable
from anabranch._write_file import write_file

log = logging.getLogger("anabranch.explain")


class Explanation:
    """What one call did, as it was when the call returned: as text, as JSON's types, and as a page.
    Also writes the plans and the timeline of the call. Threads: any."""

    def __init__(self, collector: Collector, name: str = "explain") -> None:
        self._graphs = list(collector.ran)
        self._callables = collector.callables
        streamed = [graph.streamed for graph in self._graphs]
        self._plans = [graph.last.plan for graph in streamed if graph and graph.last]
        last = {graph: last_launch(trace.events) for graph, trace in collector.traces.items()}
        launches = [last.get(graph) if graph else None for graph in streamed]
        self._traceparent = child_of(config.traceparent)
        self._contents = contents_of(name, self._graphs, launches, self._callables, collector.lost)
        self._contents["traceparent"] = self._traceparent
        names = {graph: told["name"] for graph, told
                 in zip(streamed, self._contents["graphs"], strict=True) if graph}
        # Name, when it began by the clock of all, and the events since then.
        self._timelines = [
            (names.get(graph, "graph"), min(event.begin_ns for event in trace.events),
             trace.chrome_json(graph.last.plan))
            for graph, trace in collector.traces.items()
            if graph.last is not None and len(trace)
        ]
        self._text = self._describe(list(collector.lost))

    @property
    def graphs(self) -> list[GraphReport]:
        """The compiled graphs that ran, in order."""
        return self._graphs

    @property
    def callables(self) -> list[RecordedCallable[..., Any]]:
        """The callables of ``anabranch.record`` that ran on a GPU; each has ``reports``."""
        return self._callables

    @property
    def traceparent(self) -> str | None:
        """The call's own id in W3C's trace context, for who goes on with the trace; None where the
        option ``traceparent`` names no trace."""
        return self._traceparent

    def to_dict(self) -> dict[str, Any]:
        """All that is known, in JSON's types; docs/python.md has the keys. It holds names and
        source lines of the model. The dict is the caller's."""
        contents: dict[str, Any] = json.loads(json.dumps(self._contents))
        return contents

    def html(self, path: str | os.PathLike[str]) -> Path:
        """Writes it all as one page, which fetches nothing: the timeline with its waits and the
        critical path, the arena, regions, recordings and reasons. It holds names and source lines
        of the model. Answers the path, and raises as save_plan() does."""
        path = check_path("html", path)
        write_file("write page", path, page_of(self._contents).encode())
        return path

    def print(self) -> None:
        """Prints the text, with colours where standard output is a terminal and the environment
        has no NO_COLOR."""
        text.write(self._text, sys.stdout)

    def _repr_html_(self) -> str:
        return frame_of(page_of(self._contents))

    def __str__(self) -> str:
        return text.fit(self._text)

    __repr__ = __str__

    def _describe(self, lost: list[str]) -> str:
        parts = [text.describe_graph(contents["name"], graph, contents)
                 for graph, contents in zip(self._graphs, self._contents["graphs"], strict=True)]
        parts += [text.with_recordings(f"recorded callable: {step.name}", step.reports)
                  for step in self._callables]
        if not parts:
            parts = ["anabranch: no graph compiled by this backend ran, and nothing recorded."]
        if self._contents["stalls"]:
            parts.append(text.describe_stalls(self._contents["stalls"]))
        if lost:
            parts.append("streams without effect:\n" + textwrap.indent("\n".join(lost), "  "))
        return "\n\n".join(parts)

    def save_plan(self, path: str | os.PathLike[str]) -> list[Path]:
        """Writes a plan file for each graph of several streams: ``path``, and for further graphs
        the same name with -2, -3 and so on. Answers the paths written. Where there is no such graph
        nothing is written, and a warning [E0614] says so. Raises PlanFileError [E0501] where the
        system does not let it write, as into a folder that is not there, and WrongArgument [E0611]
        for what is no path. Files are replaced as docs/file-formats.md says."""
        path = check_path("save_plan", path)
        written: list[Path] = []
        for plan in self._plans:
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
        graph, a track a stream, all by one clock; a process a recording that was timed, a track a
        lane. It names operators and source lines of the model. One without events is written with
        a warning [E0614]. Answers the path, and raises as save_plan() does."""
        path = check_path("save_timeline", path)
        merged: list[Any] = []
        first = min((begin for _, begin, _ in self._timelines), default=0)
        for process, (name, begin, timeline) in enumerate(self._timelines, start=1):
            part = json.loads(timeline)
            for event in part["traceEvents"]:
                event["pid"] = process
                if "ts" in event:
                    event["ts"] = round(event["ts"] + (begin - first) / 1e3, 3)
                if event["name"] == "process_name":
                    event["args"]["name"] = name
                if "id" in event:
                    event["id"] = f"{process}.{event['id']}"
            merged += part["traceEvents"]
        for process, recorded in enumerate(self._contents["timelines"], len(self._timelines) + 1):
            merged += [{**event, "pid": process} for event in chrome_events_of(recorded)]
        about = {"otherData": {"traceparent": self._traceparent}} if self._traceparent else {}
        write_file("write trace", path, json.dumps({"traceEvents": merged, **about}).encode())
        if not merged:
            log.warning("anabranch: save_timeline has no event for %r: no graph of several streams "
                        "ran on the CPU, and no recording was timed; print the explanation for the "
                        "reasons [E0614]", str(path))
        return path


def explain(fn: Callable[..., Any], /, *args: Any, timing: bool = False,
            **kwargs: Any) -> Explanation:
    """Calls ``fn`` once and tells what its compiled graphs did::

        report = anabranch.explain(model, x)
        print(report)
        report.html("report.html")

    ``fn`` is any callable that uses models compiled with this backend: a model, or a whole
    training step, whose backward is then told of as well; or a callable of ``anabranch.record``.
    Of recordings it tells everything since they were made. With ``timing`` the launches of those
    that there are already are timed, kernel by kernel: each takes as long as it does and an event a
    kernel more. A keyword ``timing`` of ``fn``'s own needs a lambda. One call at a time in a
    process. Raises WrongArgument [E0611] unless ``fn`` can be called, [E0612] for coroutines and
    generators; else what the call raises.
    """
    check_function("explain", fn, "Give what is called, and then its arguments: explain(model, x).")
    with timed() if timing else contextlib.nullcontext(lambda: None) as wait:
        with collect("explain") as collector:
            fn(*args, **kwargs)
        wait()
        return Explanation(collector, _name_of(fn))


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__qualname__", None)
    if isinstance(name, str):
        return name
    inner = getattr(fn, "_orig_mod", fn)  # of what torch.compile has made of a model
    return type(inner).__name__
