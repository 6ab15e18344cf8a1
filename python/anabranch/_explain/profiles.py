# SPDX-License-Identifier: Apache-2.0
"""What our recordings know of their kernels, written into a trace of torch.profiler: there a launch
is a call and a row of kernels without an operator above them.

A launch is found by what its kernels have in common, the correlation of the call that queued them,
and the recording by the kernels' names: the n-th kernel of a name is the n-th node of that name. So
it needs no ids of nodes, which drivers before CUDA 13.1 do not tell.

Threads: any. Failure: errors of the file that is read; PlanFileError of the one that is written.
"""

from __future__ import annotations

import collections
import gzip
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from anabranch._arguments import check_path, wrong
from anabranch._compile.report import named_recordings
from anabranch._explain.timelines import source_of
from anabranch._record.launch.timing import Timing
from anabranch._record.launch.timing_tables import described_nodes
from anabranch._write_file import write_file

_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_OURS = ("anabranch_fetch", "anabranch_update", "anabranch_repoint")  # of launches, and no nodes
_KINDS = {"gpu_memcpy": "memcpy", "gpu_memset": "memset", "copy": "memcpy", "host copy": "memcpy",
          "fill": "memset"}


def label_profile(path: str | os.PathLike[str],
                  to: str | os.PathLike[str] | None = None) -> int:
    """Gives the kernels of recorded launches in a trace of torch.profiler what is known of them::

        profiler.export_chrome_trace("trace.json")
        anabranch.label_profile("trace.json")

    Each gets the arguments ``source`` (your line), ``operator``, ``lane``, ``node`` (its number)
    and ``step`` (what was recorded), as far as they are known, of recordings that are still there.
    Where kernels of one name run on several lanes, two may be told for one another. The trace goes
    to ``to``, or takes the old one's place. Answers how many kernels were labelled. Raises
    WrongArgument [E0611] for what is no path or no trace, what reading the file raises, and
    PlanFileError [E0501] where it cannot be written.
    """
    source = check_path("label_profile", path)
    target = check_path("label_profile", to) if to is not None else source
    trace = _read(source)
    known = [_Known.of(name, timing) for name, timing in named_recordings()]
    labelled = sum(_label(launch, known) for launch in _launches(trace["traceEvents"]))
    data = json.dumps(trace).encode()
    write_file("write profile", target, gzip.compress(data) if target.suffix == ".gz" else data)
    return labelled


def _read(path: os.PathLike[str]) -> dict[str, Any]:
    with open(path, "rb") as file:
        data = file.read()
    try:
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        trace = {"traceEvents": trace} if isinstance(trace, list) else trace
        if all(isinstance(event, dict) for event in trace["traceEvents"]):
            return dict(trace)
    except (ValueError, KeyError, TypeError, EOFError):
        pass
    raise wrong("label_profile", "the file", os.fspath(path), "a trace as torch.profiler's "
                "export_chrome_trace() writes it", "Give the path that it was written to.")


def _launches(events: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The GPU's events of each call that queued several."""
    groups = collections.defaultdict(list)
    for event in events:
        args = event.get("args")
        if event.get("cat") in _ON_GPU and isinstance(args, dict) and "correlation" in args:
            groups[args["correlation"]].append(event)
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda event: event.get("ts", 0))


class _Known(NamedTuple):
    """A recording's nodes, by what a profiler calls them, in the order in which they run."""

    step: str
    nodes: list[dict[str, Any]]
    by_name: dict[str, list[int]]

    @classmethod
    def of(cls, step: str, timing: Timing) -> _Known:
        nodes = described_nodes(timing)
        by_name = collections.defaultdict(list)
        for i in sorted(range(len(nodes)), key=lambda i: (nodes[i]["begin_ns"] or 0, i)):
            function = timing.nodes[i].name
            by_name[_spelled(function) if function else _KINDS.get(nodes[i]["kind"], "")].append(i)
        return cls(step, nodes, by_name)

    def match(self, launch: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], int]] | None:
        """Each event with its node; None where it is no launch of this recording."""
        seen: collections.Counter[str] = collections.Counter()
        found = []
        for event in launch:
            name = _KINDS.get(event["cat"]) or _spelled(str(event.get("name", "")))
            if name in _OURS:
                continue
            numbers = self.by_name.get(name, ())
            if seen[name] == len(numbers):
                return None
            found.append((event, numbers[seen[name]]))
            seen[name] += 1
        # Nodes that are no kernel, copy or fill have no event.
        wanted = sum(len(numbers) for name, numbers in self.by_name.items() if name)
        return found if found and len(found) == wanted else None


def _spelled(name: str) -> str:
    return "".join(name.split())


def _label(launch: Sequence[dict[str, Any]], known: Sequence[_Known]) -> int:
    for recording in known:
        matched = recording.match(launch)
        if matched is None:
            continue
        for event, i in matched:
            node = recording.nodes[i]
            event["args"].update({
                "step": recording.step, "node": i, "lane": node["lane"],
                **({"operator": node["operator"]} if node["operator"] else {}),
                **({"source": source_of(node)} if node["line"] else {})})
        return len(matched)
    return 0
