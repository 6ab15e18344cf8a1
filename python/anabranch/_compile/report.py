# SPDX-License-Identifier: Apache-2.0
"""What was compiled and how, kept for ``explain``."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from anabranch import _compat, errors
from anabranch._compile.contents import contents_of_lines, contents_of_streams
from anabranch._compile.cuts import recordings_of
from anabranch._compile.kept_graphs import GraphFacts
from anabranch._compile.streamed_graph import RecordedStreams, StreamedGraph
from anabranch._core.trace import Trace
from anabranch._fx.source import SourceLine
from anabranch._offload.planned import Planned
from anabranch._record.launch.recording import StepRecording
from anabranch._record.launch.timing import Timing
from anabranch._record.launch.timing_tables import contents_of_timing
from anabranch._record.recorded_callable import (
    RecordedCallable,
    recorded_callables,
    recordings_of_callables,
)
from anabranch._record.refusals import Reason
from anabranch._record.report import RecordingReport

_lock = threading.Lock()
_known: list[GraphReport] = []
_collector: Collector | None = None


class Phases:
    """How long what took of a compilation, in seconds; what is in no phase counts to the whole."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def of(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def whole(self) -> float:
        return time.perf_counter() - self._start


@dataclasses.dataclass(frozen=True, eq=False)
class GraphReport:
    """One compiled graph. ``reason`` says why annotations were not followed, if they were not, and
    ``unrecorded`` why a graph on a GPU is not recorded at all, or only in parts, with the code of
    errors.md, the user's line and what to write instead, where there are. ``lines`` are those of
    the model, where torch knows them."""

    kind: str  # "forward", "backward" or "inference"
    nodes: int
    reason: str | None
    unrecorded: str | None
    code: int | None
    place: str
    remedy: str
    seconds: float
    phase_seconds: Mapping[str, float]
    lines: list[SourceLine]
    compiled: weakref.ref[Any]
    kept: GraphModule | None = None  # as it was compiled, where a collector keeps graphs
    activations: Planned | None = None  # of a forward, where activation_memory has been planned

    @property
    def streamed(self) -> StreamedGraph | None:
        compiled = self.compiled()
        graph = compiled.graph if isinstance(compiled, RecordedStreams) else compiled
        return graph if isinstance(graph, StreamedGraph) else None

    @property
    def recordings(self) -> list[RecordingReport]:
        """What became of it on CUDA, an entry a signature, and of its parts where it is recorded in
        parts; empty where it is not recorded."""
        return [report for recorded in recordings_of(self.compiled())
                for report in recorded.reports]

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types; docs/python.md has the keys."""
        streamed = self.streamed
        streams: dict[str, Any] = {"summary": "one region, run by Inductor's callable",
                                   "regions": [], "waits": [], "memory": None, "plan": None}
        return {"kind": self.kind, "operators": self.nodes, "reason": self.reason,
                "unrecorded": self.unrecorded, "code": self.code, "place": self.place,
                "remedy": self.remedy, "compile_seconds": self.seconds,
                "phase_seconds": dict(self.phase_seconds),
                "lines": contents_of_lines(self.lines),
                **(contents_of_streams(streamed) if streamed else streams),
                "activations": self.activations and self.activations.to_dict(),
                "recordings": [contents_of_recording(report) for report in self.recordings]}


def contents_of_recording(report: RecordingReport) -> dict[str, Any]:
    """Its fields by their names, in JSON's types."""
    timing = contents_of_timing(report.timing) if report.timing is not None else None
    return {**dataclasses.asdict(dataclasses.replace(report, timing=None)),
            "recording": report.recording._asdict(),
            "phase_seconds": dict(report.phase_seconds), "timing": timing}


class Collector:
    """The graphs that ran while it was on, in order, the traces of their launches and the streams
    that had no effect; when it has ended, the recorded callables that ran too.

    One that ``keeps_graphs`` has copies of those that are compiled while it is on. ``on_call`` gets
    each call of a graph, with its arguments, before it runs; None: nobody.
    """

    def __init__(self, keeps_graphs: bool = False) -> None:
        self.keeps_graphs = keeps_graphs
        self.on_call: Callable[[GraphReport, list[Any]], None] | None = None
        self.ran: list[GraphReport] = []
        self.callables: list[RecordedCallable[..., Any]] = []
        self.lost: dict[str, None] = {}
        self.traces: dict[StreamedGraph, Trace] = {}
        self.restore = contextlib.ExitStack()

    def note(self, report: GraphReport, args: list[Any]) -> None:
        if report not in self.ran:
            self.ran.append(report)
        if self.on_call is not None:
            self.on_call(report, args)


def keep(gm: GraphModule) -> GraphModule | None:
    """A copy of a graph that is about to be compiled, for whoever keeps graphs: Inductor's passes
    change the graph itself."""
    return copy_of(gm) if keeps_graphs() else None


def keeps_graphs() -> bool:
    with _lock:
        return _collector is not None and _collector.keeps_graphs


def copy_of(gm: GraphModule) -> GraphModule:
    """Its graph; tensors that it names are the same."""
    return GraphModule(gm, copy.deepcopy(gm.graph))


def add(facts: GraphFacts, compiled: Any, reason: str | None, unrecorded: Reason | None,
        phases: Phases, kept: GraphModule | None = None,
        activations: Planned | None = None) -> None:
    text, code, remedy, place = unrecorded or (None, None, "", "")
    report = GraphReport(facts.kind, facts.operators, reason, text, code or None, place, remedy,
                         phases.whole(), phases.seconds, list(facts.lines), weakref.ref(compiled),
                         kept, activations)
    with _lock:
        _known[:] = [known for known in _known if known.compiled() is not None]
        _known.append(report)
        if _collector is not None:
            _watch(_collector, report)
    _compat.trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": f"anabranch_{facts.kind}", "encoding": "json"},
        payload_fn=lambda: _told(report),
    )


def _told(report: GraphReport) -> dict[str, Any]:
    """For torch's trace of compilations, which what is told here must not stop."""
    try:
        return report.to_dict()
    except Exception as error:
        return {"kind": report.kind, "operators": report.nodes, "fault": str(error)}


def lose(message: str) -> None:
    """A stream that had no effect, for whoever watches."""
    with _lock:
        if _collector is not None:
            _collector.lost[message] = None


@contextlib.contextmanager
def collect(act: str, keeps_graphs: bool = False) -> Iterator[Collector]:
    """Watches all graphs, those compiled before and those compiled inside. One at a time: ``act``
    names who does in the message of another."""
    global _collector
    collector = Collector(keeps_graphs)
    before = {step: _calls(step) for step in recorded_callables()}
    with _lock:
        if _collector is not None:
            raise errors.CompileError(
                615, f"{act}: another call of explain or bisect is running in this process, and "
                "graphs are watched for one at a time.", "Call it when that one has returned.")
        _collector = collector
    try:
        with _lock:
            for report in _known:
                _watch(collector, report)
        yield collector
    finally:
        with _lock:
            _collector = None
            collector.restore.close()
        collector.callables = [step for step in recorded_callables()
                               if _calls(step) != before.get(step, [])]


def _all_recordings() -> list[tuple[str, StepRecording]]:
    """With what each is of."""
    with _lock:
        graphs = [(f"a {report.kind} graph", graph) for report in _known
                  for graph in recordings_of(report.compiled())]
    return [*recordings_of_callables(),
            *((name, recording) for name, graph in graphs for recording in graph.recordings)]


def named_recordings() -> list[tuple[str, Timing]]:
    """Nodes of all recordings that there are, with what each is of."""
    return [(name, recording.described()) for name, recording in _all_recordings()]


@contextlib.contextmanager
def timed() -> Iterator[Callable[[], None]]:
    """Inside, each launch of the recordings that there are is timed. Yields what waits for them."""
    recordings = [one for _, one in _all_recordings() if not one.is_timed]

    def wait() -> None:
        for device in {recording.device for recording in recordings}:
            torch.cuda.synchronize(device)

    for recording in recordings:
        recording.time(every=1)
    try:
        yield wait
    finally:
        for recording in recordings:
            recording.time_no_more()


def _calls(step: RecordedCallable[..., Any]) -> list[tuple[str, int]]:
    """Changes with every call. Counted anyway, so that nobody has to watch the calls themselves."""
    return [(report.inputs, report.calls) for report in step.reports]


def _watch(collector: Collector, report: GraphReport) -> None:
    """Notes when the graph runs. Inductor's graphs cost nothing while nobody watches: their
    callable is exchanged for the time."""
    compiled = report.compiled()
    if compiled is None:
        return
    if isinstance(compiled, StreamedGraph):
        trace = collector.traces.setdefault(compiled, Trace())
        compiled.watch(lambda args: collector.note(report, args), trace)
        collector.restore.callback(compiled.watch, None, None)
        return
    if not _compat.is_inductors_graph(compiled):
        return
    original = compiled.current_callable

    def noting(inputs: Any) -> Any:
        collector.note(report, inputs)
        return original(inputs)

    compiled.current_callable = noting
    collector.restore.callback(setattr, compiled, "current_callable", original)
