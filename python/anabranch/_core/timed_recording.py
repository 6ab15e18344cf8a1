# SPDX-License-Identifier: Apache-2.0
"""timed_recording.h from Python: nodes of a recording, and when they ran in a launch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from anabranch._core.abi import NodeTime
from anabranch._core.capture import CapturedRecording, CaptureMarks
from anabranch._core.handle import Handle
from anabranch._core.library import core, last_error


class RecordedNode(NamedTuple):
    """One node, in the order in which the step was captured; see timed_recording.h."""

    kind: str  # "kernel", "copy", "host copy", "fill", ...
    name: str  # of a kernel's function
    size_bytes: int  # of a copy or a fill
    lane: int
    after: tuple[int, ...]  # nodes that it runs behind


def nodes_of(recording: CapturedRecording) -> list[RecordedNode]:
    text = core.captured_nodes(recording.handle)
    if text is None:
        raise last_error()
    return [_node_of(line) for line in text.decode(errors="replace").splitlines()]


def _node_of(line: str) -> RecordedNode:
    kind, size_bytes, lane, after, name = line.split("\t", 4)
    return RecordedNode(kind, name, int(size_bytes), int(lane),
                        tuple(map(int, after.split(",") if after else ())))


def marks_of(recording: CapturedRecording, marks: CaptureMarks) -> list[int]:
    """By node the number of its mark; a number that no mark has where none followed the node."""
    count = core.captured_marks(recording.handle, marks.handle, None)
    array = (c_uint32 * count)()
    core.captured_marks(recording.handle, marks.handle, array)
    return list(array)


class TimedRecording(Handle):
    """A twin of a recording whose launches are timed. ``addresses`` are those of a launch: their
    memory is there when the twin is made."""

    _free = "timed_free"

    def __init__(self, recording: CapturedRecording, addresses: bytes) -> None:
        super().__init__(core.timed_new(recording.handle, addresses, len(addresses) // 8),
                         recording)
        self._count = int(recording.counts.nodes)

    @property
    def is_over(self) -> bool:
        """Whether the last launch has ended, or there was none. Waits for nothing."""
        over = c_uint32()
        if core.timed_is_over(self.handle, ctypes.byref(over)):
            raise last_error()
        return bool(over.value)

    def launch(self, addresses: bytes, stream: int) -> None:
        """As CapturedRecording.launch(). NativeError with E0401 where the last one has not
        ended."""
        if core.timed_launch(self.handle, addresses, len(addresses) // 8, c_void_p(stream)):
            raise last_error()

    def mark_plain(self, is_end: bool, stream: int) -> None:
        """Ahead of a launch of the recording itself on ``stream``, and behind it."""
        if core.timed_mark_plain(self.handle, is_end, c_void_p(stream)):
            raise last_error()

    def plain_times(self) -> tuple[int, int]:
        """Of the launch that was marked before the last one: how long it ran, and how long the GPU
        was idle from its end until the last one, if the host came late; see PlainTimes. In
        nanoseconds."""
        launch_ns, idle_ns = c_uint64(), c_uint64()
        if core.timed_plain_times(self.handle, ctypes.byref(launch_ns), ctypes.byref(idle_ns)):
            raise last_error()
        return launch_ns.value, idle_ns.value

    def times(self) -> Sequence[tuple[int, int]]:
        """By node, begin and end in nanoseconds since the last launch began, which has ended."""
        array = (NodeTime * self._count)()
        if core.timed_times(self.handle, array, self._count):
            raise last_error()
        return [(time.begin_ns, time.end_ns) for time in array]
