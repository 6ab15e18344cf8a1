# SPDX-License-Identifier: Apache-2.0
"""What became of one signature of a recorded callable, for people. Times in seconds, memory in
bytes."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from anabranch._core.abi import CaptureCounts


class RecordingMemory(NamedTuple):
    """Of a recording, in bytes. Its arena is taken from torch's allocator for each launch and given
    back when that is queued; the rest is held between launches. ``driver`` is by how much the
    device's free memory fell while its executables were made."""

    arena: int
    held_on_device: int
    held_pinned: int
    driver: int

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


@dataclasses.dataclass
class RecordingReport:
    """One signature of a recorded callable: what became of it. Times in seconds, memory in
    bytes."""

    inputs: str
    calls: int = 0
    reason: str | None = None  # why it runs plainly
    counts: CaptureCounts = dataclasses.field(default_factory=CaptureCounts)
    slots: int = 0
    capture_seconds: float = 0.0
    make_seconds: float = 0.0
    verify_seconds: float = 0.0
    verified: str = "no"  # "bitwise", "within bounds"
    overlap_gain: float = 0.0  # times as fast with kernels side by side; 0 if that was not timed
    why_in_order: str = ""  # why it was not, where it was wanted
    plain_calls: int = 0  # that a launch would not have served
    shortage: str = ""  # of which memory something ran out last, and what comes of it
    recording: RecordingCost = dataclasses.field(default_factory=RecordingCost)

    @property
    def nodes(self) -> int:
        return self.counts.nodes

    @property
    def sites(self) -> int:
        return self.counts.sites

    @property
    def unsure(self) -> int:
        """Words that differ between captures; found to be read by nothing."""
        return self.counts.unsure

    @property
    def arena_bytes(self) -> int:
        return self.counts.arena_bytes

    @property
    def arena_lower_bound_bytes(self) -> int:
        return self.counts.arena_lower_bound_bytes

    @property
    def memory(self) -> RecordingMemory:
        return RecordingMemory(self.counts.arena_bytes, self.counts.held_device_bytes,
                               self.counts.held_host_bytes, self.counts.held_driver_bytes)

    @property
    def lanes(self) -> int:
        """On which kernels may run side by side; 1: they run in their captured order."""
        return self.counts.lanes

    @property
    def known(self) -> int:
        """Nodes of which is known what they read and write."""
        return self.counts.known

    @property
    def launched_unchanged(self) -> int:
        return self.counts.launched_unchanged

    @property
    def launched_from_host(self) -> int:
        return self.counts.launched_from_host

    @property
    def launched_from_device(self) -> int:
        return self.counts.launched_from_device

    @property
    def launched(self) -> int:
        """Calls that a launch served, by whatever way it gave the kernels their addresses."""
        return self.launched_unchanged + self.launched_from_host + self.launched_from_device

    def __str__(self) -> str:
        if self.reason is not None:
            return f"{self.inputs}: {self.calls} calls, unrecorded: {self.reason}"
        if not self.nodes:
            return f"{self.inputs}: {self.calls} calls, not recorded yet"
        launches = (f"{self.launched_unchanged} unchanged, {self.launched_from_host} set from the "
                    f"host, {self.launched_from_device} from the device, {self.plain_calls} plain")
        return (f"{self.inputs}: {self.calls} calls: {launches}\n"
                f"  {self.nodes} nodes, {self.sites} addresses of {self.slots} slots; arena "
                f"{self.arena_bytes} bytes (lower bound {self.arena_lower_bound_bytes})\n"
                f"  {self.memory}\n"
                f"  {self.recording}\n"
                f"{self._shortage_text()}"
                f"{self._lanes_text()}"
                f"  captured in {self.capture_seconds:.2f} s, made in {self.make_seconds:.2f} s, "
                f"verified in {self.verify_seconds:.2f} s ({self.verified})")

    def _shortage_text(self) -> str:
        return f"  ran plainly for want of memory: {self.shortage}\n" if self.shortage else ""

    def _lanes_text(self) -> str:
        if not self.overlap_gain:
            return f"  in captured order: {self.why_in_order}\n" if self.why_in_order else ""
        return (f"  on {self.lanes} lanes, {self.known} nodes known; side by side "
                f"{self.overlap_gain:.2f} times as fast\n")
