# SPDX-License-Identifier: Apache-2.0
"""Timings of recorded steps for tests, as explain has them: made of nodes with times by hand."""

from __future__ import annotations

from anabranch._compile.report import contents_of_recording
from anabranch._core.timed_recording import RecordedNode
from anabranch._fx.source import SourceLine
from anabranch._record.capture.labels import Label
from anabranch._record.launch.timing import Sample, Timing
from anabranch._record.report import RecordingReport


def node(took, after=(), kind="kernel", name="triton_poi_0", lane=0, line=None, size_bytes=0,
         operator="aten::add"):
    """``took`` in microseconds; ``line`` is a number."""
    source = SourceLine("/m/model.py", line, "forward", f"line {line}") if line else None
    return (RecordedNode(kind, "" if kind in ("copy", "host copy", "fill", "host call") else name,
                         size_bytes, lane, tuple(after)), Label(operator, source), took)


def timing(*nodes, idle_us=0.0):
    """Nodes begin when all have ended that they wait for."""
    times = []
    for made, _, took in nodes:
        begin = max((times[on][1] for on in made.after), default=0)
        times.append((begin, begin + round(took * 1000)))
    step_ns = max(end for _, end in times)
    sample = Sample(3, step_ns, step_ns, idle_us * 1000, [end - begin for begin, end in times],
                    times)
    return Timing([made for made, *_ in nodes], [label for _, label, _ in nodes], sample, 64)


def report(timed, **fields):
    return RecordingReport("(float32[4])", calls=10, nodes=len(timed.nodes), lanes=2,
                           parallel_gain=1.2, timing=timed, **fields)


def contents(*reports):
    """Of a recorded callable, as far as it is timed."""
    return {"graphs": [], "callables": [
        {"name": "step", "recordings": [contents_of_recording(one) for one in reports]}]}
