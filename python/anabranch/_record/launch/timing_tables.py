# SPDX-License-Identifier: Apache-2.0
"""Times of a recording's nodes, summed up by line, kernel and lane: as JSON's types, as text.

Pure. Times are means over the launches that were timed, in nanoseconds.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from anabranch._record.capture.labels import Label
from anabranch._record.launch.timing import Timing

_MOST_ROWS = 5  # of a text


def contents_of_timing(timing: Timing) -> dict[str, Any]:
    """docs/trace.md has the keys."""
    sample = timing.sample
    told: dict[str, Any] = {
        "every": timing.every, "why_not": timing.why_not,
        "launches": sample.launches if sample is not None else 0,
        "step_ns": None, "plain_ns": None, "idle_ns": None, "nodes": [], "lines": [],
        "kernels": [], "lanes": [], "attributed": None}
    if sample is None:
        return told
    nodes = described_nodes(timing)
    total = sum(node["mean_ns"] for node in nodes)
    known = sum(node["mean_ns"] for node in nodes if node["line"] is not None)
    return {**told, "step_ns": round(sample.step_ns), "idle_ns": round(sample.idle_ns),
            "plain_ns": round(sample.plain_ns) or None, "nodes": nodes,
            "lines": _by(nodes, lambda node: node["line"], "line"),
            "kernels": _by(nodes, lambda node: node["name"], "name"),
            "lanes": _lanes(nodes, round(sample.step_ns)),
            "attributed": known / total if total else None}


def described_nodes(timing: Timing) -> list[dict[str, Any]]:
    """Without times where there are none."""
    sample, nodes = timing.sample, []
    for i, node in enumerate(timing.nodes):
        begin, end = sample.last[i] if sample is not None else (None, None)
        label = timing.labels[i] if i < len(timing.labels) else None
        nodes.append({
            "name": _name(node.name or node.kind, label), "kind": node.kind,
            "operator": (label.operator or None) if label is not None else None,
            "line": label.line._asdict() if label is not None and label.line else None,
            "lane": node.lane, "after": list(node.after), "size_bytes": node.size_bytes,
            "begin_ns": begin, "end_ns": end,
            "mean_ns": round(sample.node_ns[i]) if sample is not None else None})
    return nodes


def _name(function: str, label: Label | None) -> str:
    """A kernel's name without what its templates and arguments are, which may be pages long."""
    function = function.replace("(anonymous namespace)::", "")
    name = function.partition("<")[0].partition("(")[0].split(" ")[-1] or function
    return f"{name} ({label.operator})" if label and "::" in label.operator else name


def _by(nodes: Sequence[dict[str, Any]], pick: Any, key: str) -> list[dict[str, Any]]:
    """Rows of what is alike, those first that took longest."""
    rows: dict[str, dict[str, Any]] = {}
    for node in nodes:
        value = pick(node)
        row = rows.setdefault(str(value), {key: value, "nodes": 0, "mean_ns": 0})
        row["nodes"] += 1
        row["mean_ns"] += node["mean_ns"]
    return sorted(rows.values(), key=lambda row: -row["mean_ns"])


def _lanes(nodes: Sequence[dict[str, Any]], step_ns: int) -> list[dict[str, Any]]:
    busy: dict[int, int] = collections.Counter()
    for node in nodes:
        busy[node["lane"]] += node["mean_ns"]
    return [{"lane": lane, "busy_ns": busy[lane], "idle_ns": max(step_ns - busy[lane], 0)}
            for lane in sorted(busy)]


def text_of_timing(timing: Timing) -> Iterator[str]:
    """Lines without an indent."""
    told = contents_of_timing(timing)
    if told["why_not"]:
        yield f"not timed: {told['why_not']}"
    if not told["launches"]:
        if not told["why_not"]:
            yield "not timed yet: no timed launch has ended"
        return
    plain = f", {_ms(told['plain_ns'])} where it is not timed" if told["plain_ns"] else ""
    yield (f"timed in {told['launches']} launches, one in {told['every']}: "
           f"{_ms(told['step_ns'])} on the GPU{plain}")
    total = sum(row["mean_ns"] for row in told["lines"]) or 1
    yield "by line:"
    for row in told["lines"][:_MOST_ROWS]:
        yield f"  {_share(row, total)}  {_line(row['line'])}"
    yield "by kernel:"
    for row in told["kernels"][:_MOST_ROWS]:
        count = f", {row['nodes']} times" if row["nodes"] > 1 else ""
        yield f"  {_share(row, total)}  {row['name']}{count}"
    if len(told["lanes"]) > 1:
        lanes = ", ".join(f"lane {lane['lane']} {_ms(lane['busy_ns'])}" for lane in told["lanes"])
        yield f"busy: {lanes}"


def _share(row: dict[str, Any], total: int) -> str:
    return f"{100 * row['mean_ns'] / total:4.1f} %  {_ms(row['mean_ns'])}"


def _line(line: dict[str, Any] | None) -> str:
    if line is None:
        return "no line known"
    return f"{line['file'].rsplit('/', 1)[-1]}:{line['line']}  {line['text']}".rstrip()


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"
