# SPDX-License-Identifier: Apache-2.0
"""Recorded steps whose kernels were timed, as pages and Perfetto draw them: by lane, on the times
of the launch that was timed last.

Threads: any. Failure: none. Times are in nanoseconds since that launch began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def timelines_of(contents: dict[str, Any]) -> list[dict[str, Any]]:
    """One a timed recording, shaped as graphs are: `plan` has a stream a lane and a step a node."""
    return [_timeline(where, one) for where, one in recordings_in(contents)
            if one["timing"] is not None and one["timing"]["launches"]]


def recordings_in(contents: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """With where each is."""
    for holder in (*contents["graphs"], *contents["callables"]):
        for one in holder["recordings"]:
            yield f"{holder['name']}, {one['inputs']}", one


def source_of(node: dict[str, Any]) -> str:
    """"model.py:12 x = self.norm(x)"."""
    line = node["line"]
    if line is None:
        return ""
    return f"{line['file'].rsplit('/', 1)[-1]}:{line['line']} {line['text']}".rstrip()


def _timeline(where: str, one: dict[str, Any]) -> dict[str, Any]:
    timing = one["timing"]
    nodes = timing["nodes"]
    lanes = [row["lane"] for row in timing["lanes"]]
    steps = [{"name": node["name"], "kind": node["kind"], "stream": lanes.index(node["lane"]),
              "source": source_of(node), "reads": [], "writes": []} for node in nodes]
    order = sorted(range(len(nodes)), key=lambda i: (nodes[i]["begin_ns"], i))
    return {
        "name": f"timed launch of {where}", "arena_bytes": one["arena_bytes"],
        "summary": f"{timing['launches']} launches were timed; this is the last",
        "plan": {"streams": [{"name": f"lane {lane}", "priority": 0, "is_users": False}
                             for lane in lanes],
                 "steps": steps, "buffers": [], "order": order,
                 "waits": [[i, on] for i in order for on in nodes[i]["after"]
                           if nodes[on]["lane"] != nodes[i]["lane"]],
                 "exits": [], "arena": None},
        "launch": {"launches": timing["launches"],
                   "took_ns": max((node["end_ns"] for node in nodes), default=0),
                   "steps": [[i, nodes[i]["lane"], nodes[i]["begin_ns"], nodes[i]["end_ns"]]
                             for i in order],
                   "waits": []}}


def chrome_events_of(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """As in Chrome's trace format, with categories that `anabranch show` knows: a thread a lane,
    and two counters; times in microseconds."""
    plan = timeline["plan"]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": timeline["name"]}}]
    events += [{"ph": "M", "pid": 0, "tid": i, "name": "thread_name",
                "args": {"name": stream["name"]}} for i, stream in enumerate(plan["streams"])]
    events.append({"ph": "X", "cat": "launch", "pid": 0, "tid": 0, "name": "launch", "ts": 0,
                   "dur": timeline["launch"]["took_ns"] / 1e3})
    for i, _, begin, end in timeline["launch"]["steps"]:
        step = plan["steps"][i]
        events.append({"ph": "X", "cat": "step", "pid": 0, "tid": step["stream"],
                       "name": step["name"],
                       "ts": begin / 1e3, "dur": (end - begin) / 1e3,
                       "args": {"node": i, "kind": step["kind"], "source": step["source"]}})
    return [*events, *_counters(timeline)]


def _counters(timeline: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How many nodes run at a time, and the arena, which is taken for the whole launch."""
    took_ns, running = timeline["launch"]["took_ns"], 0
    changes = sorted(change for _, _, begin, end in timeline["launch"]["steps"]
                     for change in ((begin, 1), (end, -1)))
    for at, change in changes:
        running += change
        yield {"ph": "C", "pid": 0, "name": "nodes running", "ts": at / 1e3,
               "args": {"nodes": running}}
    for at, size in ((0, timeline["arena_bytes"]), (took_ns, 0)):
        yield {"ph": "C", "pid": 0, "name": "arena", "ts": at / 1e3, "args": {"bytes": size}}
