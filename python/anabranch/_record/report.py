# SPDX-License-Identifier: Apache-2.0
"""What became of one signature of a recorded callable, for people. Times in seconds, memory in
bytes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import NamedTuple

from anabranch._record.launch.timing import Timing
from anabranch._record.launch.timing_tables import text_of_timing
from anabranch.errors import code_text


class RecordingMemory(NamedTuple):
    """Of a recording, in bytes. Its arena is taken from torch's allocator for each launch and given
    back when that is queued; the rest is held between launches. ``driver`` is by how much the
    device's free memory fell while its executables were made."""

    arena: int
    held_on_device: int
    held_pinned: int
    driver: int

    @property
    def held(self) -> int:
        """Between launches."""
        return self.held_on_device + self.held_pinned + self.driver

    def __str__(self) -> str:
        return (f"holds {self.held_on_device} bytes on the device, {self.held_pinned} pinned, and "
                f"{self.driver} of the driver's")


class RecordingCost(NamedTuple):
    """What a try to record took of the GPU, in bytes."""

    peak: int = 0  # reserved by torch, with all that was there besides
    phase: str = ""  # when that was
    plain: int = 0  # what the plain step takes at its peak, beside what was there before it
    copied: int = 0  # of what the step writes, to run it again from where it was
    copied_to: str = ""  # "GPU" or "host"

    def __str__(self) -> str:
        copied = f"; {self.copied} bytes copied to the {self.copied_to}" if self.copied else ""
        return (f"{self.peak} bytes reserved at most while it was recorded ({self.phase}), the "
                f"plain step takes {self.plain}{copied}")


class Laps:
    """How long each phase took; what one does again adds up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = time.perf_counter()

    def end(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._start
        self._start = now


@dataclasses.dataclass(frozen=True)
class RecordingReport:
    """One signature of a recorded callable, as it is when it is asked for: what became of it. Times
    in seconds, memory in bytes."""

    inputs: str  # the first ones, and how many more
    calls: int = 0
    differs: str = ""  # in what its signature differs from the nearest one that there was
    # Why it runs plainly: in short, the code of errors.md, the user's line, and what to write
    # instead; and how often this code came up at this line, in all signatures and graphs.
    reason: str | None = None
    code: int | None = None
    place: str = ""
    remedy: str = ""
    times: int = 0
    plain_calls: int = 0  # of a recorded one, that a launch would not have served
    # Calls in which all had to be looked for again, and what was another one in the last of them.
    slow_calls: int = 0
    slow_because: str = ""
    shortage: str = ""  # of which memory something ran out last, and what comes of it
    recording: RecordingCost = dataclasses.field(default_factory=RecordingCost)
    # Of the last try, in the order in which they ended. The GPU's work counts where it is waited
    # for.
    phase_seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    verified: str = "no"  # "bitwise", "within bounds"
    parallel_gain: float = 0.0  # times as fast with kernels side by side; 0 if that was not timed
    why_in_order: str = ""  # why it was not, where it was wanted

    # Of the recording.
    # Of the step: one where those of other sizes have told of all its kernels, three where numbers
    # are followed.
    captures: int = 0
    nodes: int = 0  # 0: there is none yet
    slots: int = 0  # values that a launch may change
    sites: int = 0  # where the nodes have them
    unsure: int = 0  # words that differ between captures; found to be read by nothing
    known: int = 0  # nodes of which is known what they read and write
    host_copies: int = 0  # copies from memory of the host
    # On which kernels may run side by side: found, or those of the step's own streams where its
    # kernels stay in captured order. 1: one behind the other.
    lanes: int = 0
    asked_lanes: int = 1  # by name, by streams and overlap
    # That a launch takes more than the plain step, for kernels side by side.
    parallel_bytes: int = 0
    # What a launch takes at its peak beside what it is given, and how much of that it answers; as
    # the recording has planned it, before the first one.
    launch_peak_bytes: int = 0
    answered_bytes: int = 0
    arena_bytes: int = 0
    arena_lower_bound_bytes: int = 0
    held_device_bytes: int = 0
    held_host_bytes: int = 0
    held_driver_bytes: int = 0
    dropped: bool = False  # its memory or its place went to others; the report is what it was

    # How launches gave the kernels their addresses.
    launched_unchanged: int = 0
    launched_from_host: int = 0
    launched_from_device: int = 0

    # When its kernels ran, where that is asked for (timing=True); see docs/trace.md.
    timing: Timing | None = None

    @property
    def capture_seconds(self) -> float:
        return self._seconds_of("captures")

    @property
    def make_seconds(self) -> float:
        return self._seconds_of("discovery", "executables", "captures given back")

    @property
    def verify_seconds(self) -> float:
        return self._seconds_of("copies put back", "other numbers", "comparison", "side by side")

    def _seconds_of(self, *phases: str) -> float:
        return sum(self.phase_seconds.get(phase, 0.0) for phase in phases)

    @property
    def memory(self) -> RecordingMemory:
        return RecordingMemory(self.arena_bytes, self.held_device_bytes, self.held_host_bytes,
                               self.held_driver_bytes)

    @property
    def launched(self) -> int:
        """Calls that a launch served."""
        return self.launched_unchanged + self.launched_from_host + self.launched_from_device

    def __str__(self) -> str:
        differs = f"\n  differs from the nearest other signature in {self.differs}" \
            if self.differs else ""
        dropped = "\n  dropped since, for others" if self.dropped else ""
        if self.reason is not None:
            return (f"{self.inputs}: {self.calls} calls, unrecorded: {self.reason}"
                    f"{self._place_text()}{differs}")
        if not self.nodes:
            return f"{self.inputs}: {self.calls} calls, not recorded yet{differs}"
        launches = (f"{self.launched_unchanged} unchanged, {self.launched_from_host} set from the "
                    f"host, {self.launched_from_device} from the device, {self.plain_calls} plain")
        return (f"{self.inputs}: {self.calls} calls: {launches}{differs}\n"
                f"  {self.nodes} nodes, {self.sites} addresses of {self.slots} slots; arena "
                f"{self.arena_bytes} bytes (lower bound {self.arena_lower_bound_bytes})\n"
                f"  {self.memory}\n"
                f"  {self.recording}\n"
                f"{self._shortage_text()}"
                f"{self._slow_text()}"
                f"{self._lanes_text()}"
                f"  captured in {self.capture_seconds:.2f} s, made in {self.make_seconds:.2f} s, "
                f"verified in {self.verify_seconds:.2f} s ({self.verified})"
                f"{dropped}{self._timing_text()}")

    def _place_text(self) -> str:
        code = f"[{code_text(self.code)}]" if self.code is not None else ""
        times = f", {self.times} times so far" if self.times > 1 else ""
        where = f"\n  {f'{self.place} {code}'.strip()}{times}" if self.place or code else ""
        return f"{where}\n  {self.remedy}" if self.remedy else where

    def _shortage_text(self) -> str:
        return f"  ran plainly for want of memory: {self.shortage}\n" if self.shortage else ""

    def _slow_text(self) -> str:
        return (f"  {self.slow_calls} calls looked for everything again, the last because of "
                f"{self.slow_because}\n") if self.slow_calls else ""

    def _timing_text(self) -> str:
        lines = text_of_timing(self.timing) if self.timing is not None else ()
        return "".join(f"\n  {line}" for line in lines)

    def _lanes_text(self) -> str:
        if self.why_in_order:
            lanes = f", on {self.lanes} lanes of its own streams" if self.lanes > 1 else ""
            return f"  in captured order{lanes}: {self.why_in_order}\n"
        if self.lanes <= 1 and not self.parallel_gain:
            return ""
        gain = (f"side by side {self.parallel_gain:.2f} times as fast" if self.parallel_gain
                else "as is asked for by name" if self.asked_lanes > 1
                else "as one of about its size, which was faster side by side")
        more = f", in {self.parallel_bytes} bytes more than the plain step takes" \
            if self.parallel_bytes else ""
        return f"  on {self.lanes} lanes, {self.known} nodes known; {gain}{more}\n"
