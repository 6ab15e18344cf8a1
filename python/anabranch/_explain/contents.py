# SPDX-License-Identifier: Apache-2.0
"""All that an explanation knows, in JSON's types: what pages show and scripts read. docs/python.md
has the keys.

Threads: any. Failure: none. Times of launches are in nanoseconds since the launch began.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from anabranch._compile.report import GraphReport, contents_of_recording
from anabranch._core.abi import TraceEvent
from anabranch._core.library import version
from anabranch._core.trace import EVENT_LAUNCH, EVENT_STEP, EVENT_WAIT
from anabranch._explain.reasons import reasons_of
from anabranch._explain.stalls import stalls_of
from anabranch._explain.timelines import timelines_of
from anabranch._record.recorded_callable import RecordedCallable

VERSION = 1  # of the keys: it is raised when one goes or changes its meaning


def contents_of(title: str, graphs: Sequence[GraphReport],
                launches: Sequence[dict[str, Any] | None],
                callables: Iterable[RecordedCallable[..., Any]],
                lost: Iterable[str]) -> dict[str, Any]:
    """``launches`` has the last launch of each graph, where its times were taken."""
    contents: dict[str, Any] = {
        "version": VERSION,
        "title": title,
        "versions": {"anabranch": version, "torch": str(torch.__version__),
                     "Python": platform.python_version()},
        "graphs": [{"name": f"graph {i}: {graph.kind}", **graph.to_dict(), "launch": launch}
                   for i, (graph, launch) in enumerate(zip(graphs, launches, strict=True))],
        "callables": [{"name": step.name,
                       "recordings": [contents_of_recording(report) for report in step.reports]}
                      for step in callables],
        "lost_streams": list(lost),
    }
    contents["reasons"] = reasons_of(contents)
    contents["timelines"] = timelines_of(contents)
    contents["stalls"] = stalls_of(contents)
    return contents


def last_launch(events: Sequence[TraceEvent]) -> dict[str, Any] | None:
    """Of the launches that were traced the last, and how many there were; None if there is none."""
    launches = [event for event in events if event.kind == EVENT_LAUNCH]
    if not launches:
        return None
    last = max(launches, key=lambda event: event.begin_ns)
    inside = [event for event in events
              if last.begin_ns <= event.begin_ns and event.end_ns <= last.end_ns]
    begin = last.begin_ns
    return {
        "launches": len(launches),
        "took_ns": last.end_ns - begin,
        "steps": [[event.step, event.lane, event.begin_ns - begin, event.end_ns - begin]
                  for event in inside if event.kind == EVENT_STEP],
        "waits": [[event.step, event.other, event.begin_ns - begin, event.end_ns - begin]
                  for event in inside if event.kind == EVENT_WAIT],
    }
