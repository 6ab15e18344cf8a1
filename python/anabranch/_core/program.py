# SPDX-License-Identifier: Apache-2.0
"""program.h and plan.h from Python: thin classes over the C functions.

No logic and no torch. Ownership: an object frees its handle when it dies or is closed, and keeps
alive what the handle needs. Threads: as the C++ headers say; ctypes gives up Python's lock around
each call. Failure: NativeError with the core's code and words, which is also of the code's
documented class. The other modules of this room keep the same rules.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import byref, c_size_t, c_uint32, c_void_p
from typing import Any, NamedTuple, TypeVar

from anabranch._core.abi import Buffer, ReportFields, StepFields
from anabranch._core.handle import Handle, encoded, i64s, u64s
from anabranch._core.library import core, last_error

READ, WRITE, READ_WRITE = 1, 2, 3
ORIGIN_PLACED, ORIGIN_USER_SYNCHRONISED = range(2)
(REPORT_RACE_FLOW, REPORT_RACE_MUTATION, REPORT_INEXACT, REPORT_UNJOINED,
 REPORT_UNRECORDED) = range(5)
SEVERITY_NOTE, SEVERITY_WARNING, SEVERITY_ERROR = range(3)
ROLE_INPUT, ROLE_OUTPUT, ROLE_CONSTANT, ROLE_TEMPORARY = range(4)
(KIND_COMPUTE, KIND_COPY, KIND_FILL, KIND_HOST, KIND_RECORD_EVENT, KIND_WAIT_EVENT,
 KIND_SYNCHRONIZE) = range(7)
_NONE = 2**32 - 1  # for a step or a buffer
_Read = TypeVar("_Read", bound=ctypes.Structure)


class View(NamedTuple):
    """A strided part of a buffer; see View in program.h."""

    buffer: int
    offset_bytes: int
    item_bytes: int
    sizes: Sequence[int] = ()
    strides_bytes: Sequence[int] = ()


class Report(NamedTuple):
    """What a sync of the user's streams lacks; see Report in plan.h. None: no such step or
    buffer."""

    kind: int
    severity: int
    first: int | None
    second: int | None
    buffer: int | None
    begin_byte: int
    end_byte: int
    message: str


class _Reports(Handle):
    _free = "reports_free"

    def read(self) -> list[Report]:
        return [self._read(i) for i in range(core.reports_count(self.handle))]

    def _read(self, number: int) -> Report:
        fields = ReportFields()
        core.reports_report(self.handle, number, byref(fields))
        first, second, buffer = (None if i == _NONE else i
                                 for i in (fields.first, fields.second, fields.buffer))
        return Report(fields.kind, fields.severity, first, second, buffer, fields.begin_byte,
                      fields.end_byte, fields.message.decode(errors="replace"))


class ProgramBuilder(Handle):
    _free = "builder_free"

    def __init__(self) -> None:
        super().__init__(core.builder_new())

    def add_stream(self, name: str, origin: int = ORIGIN_PLACED, priority: int = 0) -> int:
        return core.builder_add_stream(self.handle, encoded(name), origin, priority)

    def add_event(self, name: str) -> int:
        return core.builder_add_event(self.handle, encoded(name))

    def add_buffer(self, name: str, role: int, size_bytes: int, alignment: int = 1) -> int:
        return core.builder_add_buffer(self.handle, encoded(name), role, size_bytes, alignment)

    def compute(self, stream: int, region: str, accesses: Sequence[tuple[int, int | View]],
                source: str = "") -> int:
        """A region with accesses (mode, buffer), to the whole of a buffer, or (mode, View)."""
        return self._step(KIND_COMPUTE, stream, region, accesses, source)

    def host(self, stream: int, region: str, accesses: Sequence[tuple[int, int | View]],
             source: str = "") -> int:
        return self._step(KIND_HOST, stream, region, accesses, source)

    def copy(self, stream: int, to: int | View, source: int | View) -> int:
        return self._step(KIND_COPY, stream, "", [(WRITE, to), (READ, source)])

    def fill(self, stream: int, to: int | View, byte: int) -> int:
        return self._step(KIND_FILL, stream, "", [(WRITE, to)], byte=byte)

    def record_event(self, stream: int, event: int, source: str = "") -> int:
        return self._step(KIND_RECORD_EVENT, stream, source=source, event=event)

    def wait_event(self, stream: int, event: int, source: str = "") -> int:
        return self._step(KIND_WAIT_EVENT, stream, source=source, event=event)

    def synchronize(self, stream: int, source: str = "") -> int:
        return self._step(KIND_SYNCHRONIZE, stream, source=source)

    def _step(self, kind: int, stream: int, name: str = "",
              accesses: Sequence[tuple[int, int | View]] = (), source: str = "", event: int = 0,
              byte: int = 0) -> int:
        core.builder_begin_step(self.handle, kind, stream, encoded(name), encoded(source))
        for mode, what in accesses:
            if isinstance(what, View):
                core.builder_add_access(self.handle, mode, what.buffer, what.offset_bytes,
                                        what.item_bytes, len(what.sizes), u64s(what.sizes),
                                        i64s(what.strides_bytes))
            else:
                core.builder_add_whole(self.handle, mode, what)
        core.builder_set_event(self.handle, event)
        core.builder_set_fill_byte(self.handle, byte)
        return core.builder_end_step(self.handle)

    def build(self) -> Program:
        return Program(core.builder_build(self.handle))


class Program(Handle):
    _free = "program_free"

    @property
    def steps(self) -> list[StepFields]:
        """In program order; valid as long as the program lives."""
        return _read_all(StepFields, self, core.program_step_count, core.program_step)

    @property
    def buffers(self) -> list[Buffer]:
        """In the order of declaration; valid as long as the program lives."""
        return _read_all(Buffer, self, core.program_buffer_count, core.program_buffer)

    @property
    def streams(self) -> list[str]:
        return [core.program_stream_name(self.handle, i).decode(errors="replace")
                for i in range(core.program_stream_count(self.handle))]

    @property
    def origins(self) -> list[int]:
        """Of each stream, who orders its work: ORIGIN_PLACED or ORIGIN_USER_SYNCHRONISED."""
        return [core.program_stream_origin(self.handle, i)
                for i in range(core.program_stream_count(self.handle))]

    @property
    def priorities(self) -> list[int]:
        """Of each stream: the lower, the more urgent."""
        return [core.program_stream_priority(self.handle, i)
                for i in range(core.program_stream_count(self.handle))]

    def find_regions(self) -> list[int]:
        """The group of each step, numbered in an order in which the groups can run."""
        groups = (c_uint32 * core.program_step_count(self.handle))()
        if core.program_find_regions(self.handle, groups):
            raise last_error()
        return list(groups)

    def find_reports(self, strict: bool = False) -> list[Report]:
        """What the syncs of the user's streams leave open; none where all streams are placed."""
        reports = _Reports(core.program_find_reports(self.handle, strict))
        try:
            return reports.read()
        finally:
            reports.close()

    def make_plan(self, strict: bool = False) -> Plan:
        """Fails with code 203 where a report is an error."""
        return Plan(core.plan_make(self.handle, strict))


class Plan(Handle):
    _free = "plan_free"

    @staticmethod
    def read(path: str) -> Plan:
        return Plan(core.plan_read(os.fsencode(path)))

    def write(self, path: str) -> None:
        if core.plan_write(self.handle, os.fsencode(path)):
            raise last_error()

    @staticmethod
    def from_bytes(data: bytes) -> Plan:
        return Plan(core.plan_from_bytes(data, len(data)))

    def to_bytes(self) -> bytes:
        """What write() puts into a file."""
        size = c_size_t()
        start = core.plan_bytes(self.handle, byref(size))
        if not start:
            raise last_error()
        return ctypes.string_at(start, size.value)

    @property
    def program(self) -> Program:
        return Program(core.plan_program(self.handle))

    @property
    def arena_bytes(self) -> int:
        return core.plan_arena_bytes(self.handle)

    @property
    def arena_lower_bound_bytes(self) -> int:
        return core.plan_arena_lower_bound_bytes(self.handle)

    @property
    def arena_naive_bytes(self) -> int:
        return core.plan_arena_naive_bytes(self.handle)

    def offset(self, buffer: int) -> int:
        """Where in the arena a temporary lies."""
        return core.plan_offset(self.handle, buffer)

    @property
    def order(self) -> list[int]:
        """All steps, in the order in which they are handed out."""
        return self._numbers(core.plan_order)

    @property
    def waits(self) -> list[tuple[int, int]]:
        """Pairs of step numbers: the first waits for the second."""
        out = self._numbers(core.plan_waits, 2)
        return list(zip(out[::2], out[1::2], strict=True))

    @property
    def slots(self) -> list[int]:
        """The buffers for which a launch takes addresses, in that order."""
        return self._numbers(core.plan_slots)

    @property
    def exits(self) -> list[int]:
        """Steps that end last on a side stream, for which the end of a launch waits."""
        return self._numbers(core.plan_exits)

    @property
    def redundant_waits(self) -> list[int]:
        """wait_event steps that order nothing that was not ordered already."""
        return self._numbers(core.plan_redundant_waits)

    def _numbers(self, read: Callable[[c_void_p, Any], int], width: int = 1) -> list[int]:
        out = (c_uint32 * (width * read(self.handle, None)))()
        read(self.handle, out)
        return list(out)

    def __str__(self) -> str:
        return core.plan_dump(self.handle).decode()


def _read_all(kind: type[_Read], program: Program, count: Callable[[c_void_p], int],
              read: Callable[[c_void_p, int, Any], None]) -> list[_Read]:
    things = [kind() for _ in range(count(program.handle))]
    for i, thing in enumerate(things):
        read(program.handle, i, byref(thing))
    return things
