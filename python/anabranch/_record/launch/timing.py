# SPDX-License-Identifier: Apache-2.0
"""Times inside launches of a recording: some launches go through a timed twin of it.

A timer stands in the place of a recording's launch function, so that launches of recordings without
one are what they are. One launch in many is timed, as many as keep the mean within a budget; the
twin's cost is measured for that. Nothing waits: times are read when the next launch is to be timed,
or when somebody asks.

Threads: any; while one launch is being timed, others go the plain way. Failure: none: where a twin
cannot be made or launched, ``why_not`` says why and launches go the plain way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from anabranch._core.capture import CapturedRecording
from anabranch._core.library import NativeError
from anabranch._core.timed_recording import RecordedNode, TimedRecording, nodes_of
from anabranch._record.capture.labels import Label

_BUDGET = 0.01  # of a step's time, for its mean
_FIRST, _MOST = 64, 100_000  # launches from one that is timed to the next
_BUSY = 401
Launch = Callable[[bytes, int], None]


class Sample(NamedTuple):
    """Means of the launches that were timed, in nanoseconds."""

    launches: int
    step_ns: float  # of the twin, from the begin to the last end
    plain_ns: float  # of a launch that is not timed, on the GPU; 0 where that is not known
    idle_ns: float  # from the end of the launch before to the begin, while nothing was queued
    node_ns: Sequence[float]  # by node
    last: Sequence[tuple[int, int]]  # begin and end of each node in the last launch


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of one recording's nodes, and what these are. ``labels`` is empty where nothing was
    noted."""

    nodes: Sequence[RecordedNode]
    labels: Sequence[Label | None]
    sample: Sample | None  # None: no launch through the twin has ended
    every: int  # one launch in so many is timed
    why_not: str = ""  # why none is


def joined(timings: Sequence[Timing]) -> Timing:
    """Of graphs that a launch queues one after the other, as of one."""
    first = timings[0]
    if len(timings) == 1:
        return first
    nodes: list[RecordedNode] = []
    for timing in timings:
        begin = len(nodes)
        nodes += [node._replace(after=tuple([begin + i for i in node.after]))
                  for node in timing.nodes]
    samples = [timing.sample for timing in timings if timing.sample is not None]
    return Timing(nodes, [label for timing in timings for label in timing.labels],
                  _sum_of(samples) if len(samples) == len(timings) else None,
                  first.every, next((one.why_not for one in timings if one.why_not), ""))


def _sum_of(samples: Sequence[Sample]) -> Sample:
    last: list[tuple[int, int]] = []
    for sample in samples:
        begin = max((end for _, end in last), default=0)
        last += [(begin + start, begin + end) for start, end in sample.last]
    plain = [sample.plain_ns for sample in samples]
    later_ns = sum(one.plain_ns or one.step_ns for one in samples[1:])
    return Sample(min(sample.launches for sample in samples),
                  sum(sample.step_ns for sample in samples), sum(plain) if all(plain) else 0,
                  # From the first's end to its next begin the others run, too.
                  max(samples[0].idle_ns - later_ns, 0),
                  [ns for sample in samples for ns in sample.node_ns], last)


class Timer:
    """Times launches of a recording; ``launch`` goes in the place of the recording's own.
    ``every``: one launch in so many; None: as the budget allows."""

    def __init__(self, recording: CapturedRecording, labels: Sequence[Label | None],
                 every: int | None = None) -> None:
        self._recording, self._labels = recording, labels
        self._plain: Launch = recording.launch
        self._is_chosen, self.every = every is not None, every or _FIRST
        self._left = min(self.every, 2)  # launches up to the next that is timed
        self._twin: TimedRecording | None = None
        self._nodes: list[RecordedNode] | None = None
        self._lock = threading.Lock()
        self._sums = _Sums()
        self._is_unread = False  # whether the twin has times that nobody has read
        self._since = time.perf_counter_ns()  # when a launch was timed last
        self._cost_ns = 0  # of the host, for a timed launch
        self.why_not = ""

    def launch(self, addresses: bytes, stream: int) -> None:
        self._left -= 1
        if self._left > 1 or self.why_not or not self._lock.acquire(blocking=False):
            self._plain(addresses, stream)
            return
        try:
            if self._left == 1:
                self._launch_marked(addresses, stream)
            else:
                self._launch_timed(addresses, stream)
        finally:
            self._lock.release()

    def _launch_marked(self, addresses: bytes, stream: int) -> None:
        """The launch before one that is timed, to compare that with. Put off while the GPU is
        behind by more than the launches between two that are timed: both have one set of events."""
        with self._told():
            twin = self._made(addresses)
            self._read()
            if self._is_unread:
                self._left = 2
            else:
                twin.mark_plain(False, stream)
        self._plain(addresses, stream)
        with self._told():
            if self._twin is not None and self._left == 1:
                self._twin.mark_plain(True, stream)

    def _launch_timed(self, addresses: bytes, stream: int) -> None:
        begin = time.perf_counter_ns()
        if not self._is_chosen and self._sums.launches:
            self._choose_every((begin - self._since) / self.every)
        self._left = self.every
        is_queued = False
        with self._told():
            twin = self._made(addresses)
            self._read()
            begin = time.perf_counter_ns()  # the twin is made once
            twin.launch(addresses, stream)
            is_queued = self._is_unread = True
        if not is_queued:
            self._plain(addresses, stream)
            return
        self._since = time.perf_counter_ns()
        self._cost_ns = self._since - begin

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the twin cannot do is told in ``why_not``, unless it is only busy."""
        try:
            yield
        except NativeError as error:
            if error.code != _BUSY:
                self.why_not = str(error)

    def _made(self, addresses: bytes) -> TimedRecording:
        if self._twin is None:
            self._twin = TimedRecording(self._recording, addresses)
        return self._twin

    def _choose_every(self, period_ns: float) -> None:
        """So that what timed launches take more stays within the budget of all of them. The host's
        part may be hidden behind the GPU, or not; it counts. Reading takes about as long again."""
        sums = self._sums
        more = max(sums.step_ns - sums.plain_ns, 0.0) + 2 * self._cost_ns
        self.every = min(max(math.ceil(more / max(_BUDGET * period_ns, 1.0)), _FIRST), _MOST)

    def _read(self) -> None:
        """Takes the times of the last timed launch, if that has ended."""
        if self._twin is not None and self._is_unread and self._twin.is_over:
            self._is_unread = False
            self._sums.add(self._twin.times(), *self._twin.plain_times())

    def timing(self) -> Timing:
        """What is known now. The launch that was timed last is in it once it has ended."""
        with self._lock:
            if self._nodes is None:
                self._nodes = nodes_of(self._recording)
            with self._told():
                self._read()
            return Timing(self._nodes, self._labels, self._sums.sample(), self.every, self.why_not)

    def close(self) -> None:
        """Gives the twin back; launches that went through it may still run."""
        with self._lock:
            self.why_not = self.why_not or "it is timed no more"
            if self._twin is not None:
                self._twin.close()
                self._twin = None


class _Sums:
    """Of timed launches; means over the last ones, of which older ones count less and less."""

    def __init__(self) -> None:
        self.launches = 0
        self.step_ns = self.plain_ns = self.idle_ns = 0.0
        self._node_ns: list[float] = []
        self._last: Sequence[tuple[int, int]] = ()

    def add(self, times: Sequence[tuple[int, int]], plain_ns: int, idle_ns: int) -> None:
        self.launches += 1
        weight = max(1 / self.launches, 1 / 16)
        took = [end - begin for begin, end in times]
        before = self._node_ns or [0.0] * len(took)
        self._node_ns = [mean + weight * (now - mean)
                         for mean, now in zip(before, took, strict=True)]
        step_ns = max((end for _, end in times), default=0)
        self.step_ns += weight * (step_ns - self.step_ns)
        self.idle_ns += weight * (idle_ns - self.idle_ns)
        if plain_ns:
            self.plain_ns += (weight if self.plain_ns else 1.0) * (plain_ns - self.plain_ns)
        self._last = times

    def sample(self) -> Sample | None:
        return Sample(self.launches, self.step_ns, self.plain_ns, self.idle_ns, self._node_ns,
                      self._last) if self.launches else None
