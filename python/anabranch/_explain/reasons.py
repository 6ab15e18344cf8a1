# SPDX-License-Identifier: Apache-2.0
"""What does not run as it could, why, and what to do about it: a row each, in JSON's types.

Threads: any. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anabranch import errors

_SPLIT = ("Results are right, on one stream. To have it in streams, change what the reason names; "
          "with strict=True the graph raises instead.")
_LOCKED = ("Results are right; the region holds Python's lock while it runs. Move the operator out "
           "of the stream, or keep its region short.")
_WHOLE = ("The parts around such operators are recorded. To record the graph as one, move the "
          "operator out of what is compiled.")
_RECORD = ("Results are right, as torch computes them. To have it recorded, move what the reason "
           "names out of the step; with strict=True it raises instead.")
_IN_ORDER = "Nothing has to be done. docs/memory.md says what running side by side takes."
_SHORTAGE = "Free memory of the GPU, or lower max_recording_bytes and parallel_bytes."
_LOST = ("Move the graph break out of the loop, the try or the with, or put the block into a "
         "function of its own. TORCH_LOGS=graph_breaks names the break.")
_SWITCHED_OFF = "It is switched off: "


def reasons_of(contents: dict[str, Any]) -> list[dict[str, str]]:
    """Of what explain() tells, in its order."""
    rows: list[dict[str, str]] = []
    for graph in contents["graphs"]:
        rows += _of_graph(graph)
    for step in contents["callables"]:
        rows += _of_recordings(step["name"], step["recordings"])
    rows += [_row("streams", "a stream had no effect", line, _LOST, 613)
             for line in contents["lost_streams"]]
    return rows


def _of_graph(graph: dict[str, Any]) -> Iterator[dict[str, str]]:
    where = graph["name"]
    if graph["reason"]:
        yield _row(where, "not split by streams", graph["reason"],
                   _switched_off(graph["reason"]) or _SPLIT, 602)
    if graph["unrecorded"]:
        yield _row(where, "not recorded as one", _at(graph, "unrecorded"),
                   _switched_off(graph["unrecorded"]) or graph["remedy"] or _WHOLE,
                   graph["code"] or "")
    for region in graph["regions"]:
        if region["reason"]:
            yield _row(f"{where}, {region['name']}", "not run by the C++ core", region["reason"],
                       _switched_off(region["reason"]) or _LOCKED)
    yield from _of_recordings(where, graph["recordings"])


def _of_recordings(where: str, recordings: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    for one in recordings:
        place = f"{where}, {one['inputs']}"
        if one["reason"] is not None:
            yield _row(place, "not recorded", _at(one, "reason"),
                       _switched_off(one["reason"]) or one["remedy"] or _RECORD, one["code"] or "")
        if one["why_in_order"]:
            yield _row(place, "kernels in captured order", one["why_in_order"], _IN_ORDER)
        if one["shortage"]:
            yield _row(place, "ran plainly for want of memory", one["shortage"], _SHORTAGE)


def _at(told: dict[str, Any], key: str) -> str:
    """With the user's line, where it is known."""
    return f"{told[key]} ({told['place']})" if told["place"] else str(told[key])


def _switched_off(reason: str) -> str:
    """The remedy where an option did it, which is then all of the reason."""
    name, is_set, value = reason.partition("=")
    return f"{_SWITCHED_OFF}set {name}=True." if is_set and value == "False" else ""


def _row(where: str, what: str, why: str, remedy: str, code: int | str = "") -> dict[str, str]:
    return {"where": where, "what": what, "why": why, "remedy": remedy,
            "code": errors.code_text(code) if isinstance(code, int) else code}
