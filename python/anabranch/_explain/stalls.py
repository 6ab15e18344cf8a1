# SPDX-License-Identifier: Apache-2.0
"""What holds a timed step up, most of it first: a row each, with what to do about it, in JSON's
types.

Threads: any. Failure: none. Times are in nanoseconds a step. A node begins when all has ended that
it waits for, so what starts late for another reason is a long node here, and no gap.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from anabranch._explain.timelines import recordings_in, source_of

_LEAST = 0.02  # of a step, for a row
_SHORT_NS = 5_000  # a kernel that mostly starts
_SHORT_SHARE, _COPY_SHARE = 0.2, 0.1  # of a step
_UNEVEN_SHARE = 0.1  # of a step: some slack there is at every join
_LINE_SHARE, _PLAIN_SHARE = 0.5, 0.1  # of the time of all kernels; of all calls
_FEW_CALLS = 20  # of which those that warm up and record are many
_SLOW_BYTES_PER_NS = 8.0  # less than half of what copies from pinned memory reach over PCIe 4.0
_COPY_NAMES = ("copy", "clone", "transpose", "contiguous", "anabranch_fill")

_LATE = ("Look for what waits for the GPU between the calls (item(), cpu(), print of a tensor, "
         "synchronize), or takes the host's time there (a loader, logging, copies of pageable "
         "memory).")
_SLOW = "Give larger pieces, from pinned memory: pin_memory() on what is copied."
_ALONE = ("Ask for it earlier, so that kernels of the layer before run beside it: copies from "
          "pinned memory run ahead by prefetch_bytes.")
_UNEVEN = "Move work to the lane that waits, or begin the other branch's part earlier."
_IN_ORDER = "Set max_parallel_kernels above 1, with verify=True."
_SHORT = "Compile that part, so that its kernels are fused, or give larger batches."
_HOST = "Move the function out of the step: the GPU waits while it runs."
_COLLECTIVE = "Let it run beside the backward, or look at the other processes: they may be late."
_COPIES = "Keep one layout and one type: look for contiguous(), to() and transposes at these lines."
_LONG = "This is where a faster kernel, a smaller type or less work counts."
_PLAIN = "The reasons above say which calls run plainly, or what memory ran short."

Stall = dict[str, Any]


def stalls_of(contents: dict[str, Any]) -> list[Stall]:
    """Of what explain() tells, those first that take longest."""
    rows = [row for where, one in recordings_in(contents) if _is_timed(one)
            for row in _of_recording(where, one)]
    for holder in (*contents["graphs"], *contents["callables"]):
        if any(map(_is_timed, holder["recordings"])):
            rows += _plain_calls(holder["name"], holder["recordings"])
    return sorted(rows, key=lambda row: -row["took_ns"])


def _is_timed(one: dict[str, Any]) -> bool:
    return bool(one["timing"] is not None and one["timing"]["launches"])


def _of_recording(where: str, one: dict[str, Any]) -> Iterator[Stall]:
    timing = one["timing"]
    step_ns, nodes = max(timing["step_ns"], 1), timing["nodes"]
    path = _critical_path(nodes)
    for what, took_ns, least, why, remedy in (
            *_late_host(timing), *_host_copies(nodes, path), *_late_lanes(nodes),
            *_short_kernels(nodes, _event_ns(timing, path)), *_of_kind(nodes, path),
            *_copies(nodes), *_long_line(timing)):
        if took_ns >= least * step_ns:
            yield {"where": where, "what": what, "took_ns": took_ns, "why": why, "remedy": remedy}
    if one["lanes"] <= 1 and one["nodes"] > 1 and not one["why_in_order"] \
            and not one["parallel_gain"]:
        yield {"where": where, "what": "kernels run one after the other", "took_ns": 0,
               "why": "nobody has tried them side by side: it is switched off",
               "remedy": _IN_ORDER}


_Found = tuple[str, int, float, str, str]  # what, how long, the least share, why, remedy


def _late_host(timing: dict[str, Any]) -> Iterator[_Found]:
    idle = timing["idle_ns"]
    yield ("the host comes late", idle, _LEAST, f"the GPU had nothing to do for {_ms(idle)} "
           "before the step: it was queued when the one before had long ended", _LATE)


def _host_copies(nodes: Sequence[dict[str, Any]], path: Sequence[int]) -> Iterator[_Found]:
    on_path = [nodes[i] for i in path if nodes[i]["kind"] == "host copy"]
    for is_slow, what, remedy in ((True, "a slow copy", _SLOW),
                                  (False, "a copy that nothing runs beside", _ALONE)):
        found = [node for node in on_path if _is_slow(node) == is_slow]
        alone = sum(_alone_ns(node, nodes) for node in found)
        size = sum(node["size_bytes"] for node in found)
        took = sum(node["mean_ns"] for node in found)
        if found:
            yield (what, took if is_slow else alone, _LEAST,
                   f"{len(found)} copies with the host's memory bring {size / 1e6:.1f} MB in "
                   f"{_ms(took)} ({size / max(took, 1):.1f} GB/s), for {_ms(alone)} of it with "
                   f"nothing beside them{_at(found)}", remedy)


def _is_slow(node: dict[str, Any]) -> bool:
    return bool(node["size_bytes"] < _SLOW_BYTES_PER_NS * node["mean_ns"])


def _alone_ns(node: dict[str, Any], nodes: Sequence[dict[str, Any]]) -> int:
    """How long no other node runs while this one does, in the last launch."""
    begin, end = node["begin_ns"], node["end_ns"]
    beside = sorted((max(other["begin_ns"], begin), min(other["end_ns"], end)) for other in nodes
                    if other is not node and other["begin_ns"] < end and other["end_ns"] > begin)
    alone, at = 0, begin
    for first, last in beside:
        alone += max(first - at, 0)
        at = max(at, last)
    return int(alone + max(end - at, 0))


def _late_lanes(nodes: Sequence[dict[str, Any]]) -> Iterator[_Found]:
    """For how long nodes waited for one lane when all others had come, by the node that came
    last."""
    waited: collections.Counter[int] = collections.Counter()
    for node in nodes:
        last = max(node["after"], key=lambda on: nodes[on]["end_ns"], default=None)
        others = [nodes[on]["end_ns"] for on in node["after"]
                  if last is not None and nodes[on]["lane"] != nodes[last]["lane"]]
        if last is not None and others:
            waited[last] += nodes[last]["end_ns"] - max(others)
    for on, took in waited.most_common(1):
        yield ("a lane waits for a late one", took, _UNEVEN_SHARE,
               f"what other lanes have ready waits {_ms(took)} for {nodes[on]['name']} of lane "
               f"{nodes[on]['lane']}{_at([nodes[on]])}", _UNEVEN)


def _event_ns(timing: dict[str, Any], path: Sequence[int]) -> float:
    """About how much of a node's time is that of the event behind it."""
    more = timing["step_ns"] - (timing["plain_ns"] or timing["step_ns"])
    return max(more, 0) / max(len(path), 1)


def _short_kernels(nodes: Sequence[dict[str, Any]], event_ns: float) -> Iterator[_Found]:
    short = [node for node in nodes
             if node["kind"] == "kernel" and node["mean_ns"] - event_ns < _SHORT_NS]
    took = sum(node["mean_ns"] for node in short)
    yield ("kernels that mostly start", took, _SHORT_SHARE,
           f"{len(short)} kernels take less than {_SHORT_NS / 1e3:.0f} µs each and {_ms(took)} "
           f"together{_at(short)}", _SHORT)


def _of_kind(nodes: Sequence[dict[str, Any]], path: Sequence[int]) -> Iterator[_Found]:
    on_path = [nodes[i] for i in path]
    kinds: tuple[tuple[str, str, Callable[[dict[str, Any]], bool], str], ...] = (
        ("the GPU waits for the host", "functions of the host", lambda node:
            node["kind"] == "host call", _HOST),
        ("collectives that nothing hides", "kernels of collectives", lambda node:
            node["name"].startswith("nccl"), _COLLECTIVE))
    for what, name, is_one, remedy in kinds:
        found = [node for node in on_path if is_one(node)]
        took = sum(_alone_ns(node, nodes) for node in found)
        if found:
            yield (what, took, _LEAST, f"{len(found)} {name} run for {_ms(took)} with nothing "
                   f"beside them{_at(found)}", remedy)


def _copies(nodes: Sequence[dict[str, Any]]) -> Iterator[_Found]:
    found = [node for node in nodes if node["kind"] in ("copy", "fill") or (
        node["kind"] == "kernel" and any(
            word in f"{node['name']} {node['operator']}".lower() for word in _COPY_NAMES))]
    took = sum(node["mean_ns"] for node in found)
    yield ("copies within the GPU", took, _COPY_SHARE,
           f"{len(found)} copies and fills of its memory take {_ms(took)}{_at(found)}", _COPIES)


def _long_line(timing: dict[str, Any]) -> Iterator[_Found]:
    total = sum(row["mean_ns"] for row in timing["lines"])  # more than the step, on several lanes
    for row in timing["lines"][:1]:
        if row["line"] is not None and row["mean_ns"] >= _LINE_SHARE * total:
            yield ("most of the time is one line's", row["mean_ns"], 0.0,
                   f"{_ms(row['mean_ns'])} in {row['nodes']} of {len(timing['nodes'])} nodes"
                   f"{_at([{'line': row['line'], 'mean_ns': 0}])}", _LONG)


def _plain_calls(where: str, recordings: Sequence[dict[str, Any]]) -> Iterator[Stall]:
    calls = sum(one["calls"] for one in recordings)
    plain = sum(one["plain_calls"] if one["nodes"] else one["calls"] for one in recordings)
    if calls >= _FEW_CALLS and plain >= _PLAIN_SHARE * calls:
        yield {"where": where, "what": "calls that are not launched", "took_ns": 0,
               "why": f"{plain} of {calls} calls ran plainly", "remedy": _PLAIN}


def _critical_path(nodes: Sequence[dict[str, Any]]) -> list[int]:
    """From the node that ends last, each time to the one before it that ends last."""
    path: list[int] = []
    at = max(range(len(nodes)), key=lambda i: nodes[i]["end_ns"], default=None)
    while at is not None:
        path.append(at)
        at = max(nodes[at]["after"], key=lambda on: nodes[on]["end_ns"], default=None)
    return path


def _at(found: Sequence[dict[str, Any]]) -> str:
    """The line that takes most of it."""
    lines: collections.Counter[str] = collections.Counter()
    for node in found:
        if source := source_of(node):
            lines[source] += node["mean_ns"]
    return f", most at {max(lines, key=lambda line: lines[line])}" if lines else ""


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms"
