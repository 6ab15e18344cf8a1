# SPDX-License-Identifier: Apache-2.0
"""What is told of a program over torch's streams, with all its syncs and less one line of them, and
an oracle that says so by brute force.

The oracle shares with the package only the list of steps that a graph becomes. It takes the order
from docs/streams.md word for word, bytes one by one, and every pair of steps.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import linecache
from collections.abc import Callable, Iterator
from typing import Any

import torch
from stream_places import Place

import anabranch
from anabranch import _compat
from anabranch._compile.user_streams import check as check_module
from anabranch._compile.user_streams import extract
from anabranch._core.program import READ, ROLE_CONSTANT, ROLE_INPUT, Report, View

KINDS = ("race-flow", "race-mutation", "inexact", "unjoined", "unrecorded")
_RANKS = {"race-mutation": 0, "race-flow": 1, "inexact": 2}  # by gravity
ENTRY, EXIT = -1, -2  # the caller, before and behind a program


@dataclasses.dataclass(frozen=True)
class Told:
    """A report; steps are None where they are none of the program's."""

    kind: str
    first: int | None
    second: int | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass
class Checked:
    """One graph: what is told, and the steps that the oracle goes by."""

    told: list[Told]
    oracle: Oracle

    def texts(self) -> list[str]:
        return [told.text for told in self.told]


def check_graphs(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...],
                 place: Place) -> list[dict[str, Checked]]:
    """Of each graph of a function: what is told by line of syncs that is left out; "" for none."""
    found = []

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        finder = extract._Finder(gm)
        for node in gm.graph.nodes:
            finder.look_at(node)
        lines = {node: _line_of(node) for node in finder.syncs}
        found.append({line: _check(gm, finder, place, {n for n in lines if lines[n] == line})
                      for line in ("", *dict.fromkeys(lines.values()))})
        extract.take_out(gm)
        return gm.forward

    backend._torchdynamo_orig_backend = anabranch.backend  # as which torch is to take it
    torch.compile(function, backend=backend, dynamic=False)(*inputs)
    return found


def _line_of(node: torch.fx.Node) -> str:
    """The text of the line that a node comes from."""
    frame = node.meta["stack_trace"].strip().splitlines()
    place = [line for line in frame if line.strip().startswith("File ")][-1]
    name, number = place.split('"')[1], int(place.split("line ")[1].split(",")[0])
    return linecache.getline(name, number).strip()


def _check(gm: torch.fx.GraphModule, finder: Any, place: Place, without: set[Any]) -> Checked:
    """With syncs replaced by ones that order nothing."""
    nothing = check_module.Syncs("record_stream", ())
    syncs = {node: nothing if node in without else sync for node, sync in finder.syncs.items()}
    ambient = {i for i in finder.ties.streams if _compat.object_of_graph(i) is place.D}
    walk = check_module._ProgramWalk(gm, syncs, ambient)
    program = walk.program()
    names = [step.name.decode() or "sync" for step in program.steps]
    told = [_told(report, names) for report in program.find_reports()]
    return Checked(told, Oracle(walk._between_ends(), list(walk._buffers.values())))


def _told(report: Report, names: list[str]) -> Told:
    kind = KINDS[report.kind]
    name = {i: names[i] for i in (report.first, report.second) if i is not None}
    if kind in ("unjoined", "unrecorded"):
        text = f"{kind}: {', '.join(name.values())}"
    else:
        text = f"{kind}: {name.get(report.first, 'the caller')}, then {name[report.second]}"
    return Told(kind, report.first, report.second, text)


@dataclasses.dataclass
class Race:
    first: int  # ENTRY for the caller
    second: int
    kind: str


class Oracle:
    """Every pair of steps of a program whose order eager leaves open."""

    def __init__(self, steps: list[Any], buffers: list[Any]) -> None:
        self.steps = _as_built(steps)
        self._buffers = buffers
        self._before = self._closure(self._edges())

    def check(self, told: list[Told]) -> None:
        """That what is told is all that is open, and nothing twice."""
        races = [each for each in told if each.kind in _RANKS]
        found = {(race.first, race.second, race.kind) for race in self.races()}
        assert {(_or_entry(each.first), each.second, each.kind) for each in races} <= found
        ordered = self.with_order([_pair(each) for each in races])
        assert not ordered.races(), "a race is not told"
        for i, each in enumerate(races):
            others = [_pair(other) for other in races[:i] + races[i + 1:]
                      if _RANKS[other.kind] <= _RANKS[each.kind]]
            assert not self.with_order(others).is_before(*_pair(each)), f"told twice: {each}"
        ends = ordered.open_ends()
        last = {end for end in ends if not any(ordered.is_before(end, other) for other in ends)}
        assert [each.first for each in told if each.kind == "unjoined"] == sorted(last)

    def is_before(self, first: int, second: int) -> bool:
        return bool(self._before[self._index(second)] >> self._index(first) & 1)

    def races(self) -> list[Race]:
        uses = [(i, use) for i in (ENTRY, *range(len(self.steps))) for use in self._uses(i)]
        found: dict[tuple[int, int], Race] = {}
        for (first, a), (second, b) in itertools.combinations(uses, 2):
            if first == second or self.is_before(first, second) or not _conflict(a, b):
                continue
            race = Race(first, second, self._kind(first, a, b))
            known = found.setdefault((first, second), race)
            if _RANKS[race.kind] < _RANKS[known.kind]:
                found[first, second] = race
        return list(found.values())

    def open_ends(self) -> set[int]:
        """The last works of streams that never come before the end."""
        last = {}
        for i, (kind, stream, *_) in enumerate(self.steps):
            if kind not in ("record_event", "synchronize"):
                last[stream] = i
        return {i for i in last.values() if not self.is_before(i, EXIT)}

    def with_order(self, pairs: list[tuple[int, int]]) -> Oracle:
        more = copy.copy(self)
        more._before = self._closure(self._edges() + pairs)
        return more

    def _kind(self, first: int, a: Any, b: Any) -> str:
        """A read behind the write that gives its bytes their first value means that order alone."""
        if first == ENTRY:
            return "race-flow"
        if not b[2] and a[2] and not self._had_value(first, a):
            return "race-flow"
        return "race-mutation"

    def _had_value(self, writer: int, use: Any) -> bool:
        buffer, touched, _ = use
        if self._buffers[buffer].role in (ROLE_INPUT, ROLE_CONSTANT):
            return True
        return any(number == buffer and writes and (touched & other)
                   for i in range(writer) for number, other, writes in self._uses(i))

    def _uses(self, step: int) -> Iterator[tuple[int, frozenset[int], bool]]:
        """(buffer, bytes, writes)"""
        if step == ENTRY:
            for buffer in self._buffers:
                if buffer.role == ROLE_INPUT:
                    yield buffer.number, frozenset(range(buffer.size_bytes)), True
            return
        if self.steps[step][0] == "compute":
            for mode, buffer, view in self.steps[step][2][1]:
                touched = frozenset(_bytes(view) if view else range(buffer.size_bytes))
                yield buffer.number, touched, mode != READ

    def _edges(self) -> list[tuple[int, int]]:
        edges: list[tuple[int, int]] = []
        last: dict[int, int] = {0: ENTRY}  # by stream
        records: dict[Any, int] = {}
        barriers: list[int] = []
        for i, (kind, stream, what, _) in enumerate(self.steps):
            edges += [(barrier, i) for barrier in barriers]
            if stream in last:
                edges.append((last[stream], i))
            if kind == "record_event":
                records[what] = i
            elif kind == "wait_event" and what in records:
                edges.append((records[what], i))
            elif kind == "synchronize":
                barriers.append(i)
            last[stream] = i
        edges += [(barrier, EXIT) for barrier in barriers]
        return [*edges, (last[0], EXIT)]

    def _closure(self, edges: list[tuple[int, int]]) -> list[int]:
        before = [0] * (len(self.steps) + 2)
        pairs = sorted((self._index(b), self._index(a)) for a, b in edges)
        for second, first in pairs:  # each edge goes forward, so that firsts are complete
            before[second] |= before[first] | 1 << first
        return before

    def _index(self, step: int) -> int:
        return {ENTRY: 0, EXIT: len(self.steps) + 1}.get(step, step + 1)


def _as_built(steps: list[Any]) -> list[Any]:
    """Waits of the host as waits for single streams. For an event it waits by a stream of its own,
    on which nothing else is."""
    streams = [0, *sorted({step[1] for step in steps} - {0})]
    split = []
    for kind, stream, what, source in steps:
        if kind == "synchronize_event":
            split += [("wait_event", "host", what, source), ("synchronize", "host", None, source)]
            streams += ["host"] if "host" not in streams else []
        elif kind == "synchronize_device":
            split += [("synchronize", each, None, source) for each in streams]
        else:
            split.append((kind, stream, what, source))
    return split


def _or_entry(step: int | None) -> int:
    return ENTRY if step is None else step


def _pair(told: Told) -> tuple[int, int]:
    assert told.second is not None
    return _or_entry(told.first), told.second


def _conflict(a: Any, b: Any) -> bool:
    return a[0] == b[0] and (a[2] or b[2]) and not a[1].isdisjoint(b[1])


def _bytes(view: View) -> Iterator[int]:
    for place in itertools.product(*(range(size) for size in view.sizes)):
        start = view.offset_bytes + sum(i * stride for i, stride in
                                        zip(place, view.strides_bytes, strict=True))
        yield from range(start, start + view.item_bytes)
