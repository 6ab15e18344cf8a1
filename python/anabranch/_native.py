# SPDX-License-Identifier: Apache-2.0
"""The C++ core from Python: thin classes over the C functions of bridge/anabranch_c.h.

No logic and no torch. Ownership: an object frees its handle when it dies or is closed, and keeps
alive what the handle needs. Threads: as the C++ headers say; ctypes gives up Python's lock around
each call. Failure: NativeError with the core's code and words, which is also of the code's
documented class; LibraryMissing where there is no library. """

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ._native_library import (
    Buffer,
    HostOptions,
    LibraryMissing,
    NativeError,
    RegionCall,
    ReportFields,
    Step,
    TensorLibrary,
    TraceEvent,
    core,
    last_error,
    native_error,
)

__all__ = [
    "Address", "Buffer", "DataOf", "Device", "HandleOf", "Integers", "LibraryMissing", "ListValue",
    "NativeError", "Plan", "Program", "ProgramBuilder", "Recording", "RegionCall",
    "RegionFunction", "Report", "SomeValue", "Step", "Tape", "TapeBuilder", "TensorLibrary",
    "TensorValue", "Trace", "TraceEvent", "View", "last_error", "launch_function",
    "new_address_table", "record", "version", "write_region_error",
]

READ, WRITE, READ_WRITE = 1, 2, 3
ORIGIN_PLACED, ORIGIN_USER_SYNCHRONISED = range(2)
(REPORT_RACE_FLOW, REPORT_RACE_MUTATION, REPORT_INEXACT, REPORT_UNJOINED,
 REPORT_UNRECORDED) = range(5)
SEVERITY_NOTE, SEVERITY_WARNING, SEVERITY_ERROR = range(3)
ROLE_INPUT, ROLE_OUTPUT, ROLE_CONSTANT, ROLE_TEMPORARY = range(4)
(KIND_COMPUTE, KIND_COPY, KIND_FILL, KIND_HOST, KIND_RECORD_EVENT, KIND_WAIT_EVENT,
 KIND_SYNCHRONIZE) = range(7)
EVENT_LAUNCH, EVENT_STEP, EVENT_WAIT = range(3)

_NONE = 2**32 - 1  # for a step or a buffer

_Read = TypeVar("_Read", bound=ctypes.Structure)

# A region written in Python: (context, POINTER(RegionCall)) -> 0, or another number as failure.
RegionFunction = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(RegionCall))

# The hot path: (Recording.handle, new_address_table(n), n) -> 0, or a code and last_error().
# Exactly these types, none is checked; and the caller vouches for the size behind each address.
launch_function: Callable[[c_void_p, ctypes.Array[c_uint64], int], int] = core.undeclared(
    "recording_launch")
version: str = core.version().decode()


class _Handle:
    """Owns one handle; ``_free`` names the function that gives it back."""

    _free = ""

    def __init__(self, handle: int | None, *needs: Any) -> None:
        if not handle:
            raise last_error()
        self.handle = c_void_p(handle)
        self._give_back = getattr(core, self._free)  # still there when the module is not
        self._needs = needs

    def close(self) -> None:
        """Gives the handle back now; the object cannot be used any more."""
        handle = self.__dict__.pop("handle", None)
        if handle is not None:
            self._give_back(handle)

    __del__ = close


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


class _Reports(_Handle):
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


class ProgramBuilder(_Handle):
    _free = "builder_free"

    def __init__(self) -> None:
        super().__init__(core.builder_new())

    def add_stream(self, name: str, origin: int = ORIGIN_PLACED, priority: int = 0) -> int:
        return core.builder_add_stream(self.handle, _text(name), origin, priority)

    def add_event(self, name: str) -> int:
        return core.builder_add_event(self.handle, _text(name))

    def add_buffer(self, name: str, role: int, size_bytes: int, alignment: int = 1) -> int:
        return core.builder_add_buffer(self.handle, _text(name), role, size_bytes, alignment)

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
        core.builder_begin_step(self.handle, kind, stream, _text(name), _text(source))
        for mode, what in accesses:
            if isinstance(what, View):
                core.builder_add_access(self.handle, mode, what.buffer, what.offset_bytes,
                                         what.item_bytes, len(what.sizes), _u64s(what.sizes),
                                         _i64s(what.strides_bytes))
            else:
                core.builder_add_whole(self.handle, mode, what)
        core.builder_set_event(self.handle, event)
        core.builder_set_fill_byte(self.handle, byte)
        return core.builder_end_step(self.handle)

    def build(self) -> Program:
        return Program(core.builder_build(self.handle))


class Program(_Handle):
    _free = "program_free"

    @property
    def steps(self) -> list[Step]:
        """In program order; valid as long as the program lives."""
        return _read_all(Step, self, core.program_step_count, core.program_step)

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


class Plan(_Handle):
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


class Device(_Handle):
    _free = "device_free"

    @staticmethod
    def host(*, max_lanes: int = 0, spin_ns: int = 50_000, delays_seed: int | None = None,
             prepare_threads: int = 0, get_openmp: int = 0, set_openmp: int = 0,
             set_mkl_local: int = 0, team_run: int = 0, team_index: int = 0,
             team_size: int = 0) -> Device:
        """The host device; the functions are addresses, 0 for none (ThreadControl in device.h)."""
        options = HostOptions(max_lanes, spin_ns, delays_seed is not None, delays_seed or 0,
                               prepare_threads or None, get_openmp or None, set_openmp or None,
                               set_mkl_local or None, team_run or None, team_index or None,
                               team_size or None)
        return Device(core.device_host(byref(options)))


class CudaFacts(_Handle):
    """What the machine has for CUDA; NativeError where there is no driver that serves."""

    _free = "cuda_facts_free"

    def __init__(self) -> None:
        super().__init__(core.cuda_facts_new())

    @property
    def driver_version(self) -> int:
        """13000 for CUDA 13.0."""
        return core.cuda_facts_driver_version(self.handle)

    @property
    def features(self) -> dict[str, str]:
        """By name: why it is off; empty where it is on."""
        return {self._text("feature_name", i): self._text("feature_why_off", i)
                for i in range(core.cuda_facts_feature_count(self.handle))}

    @property
    def gpus(self) -> list[str]:
        """By ordinal."""
        return [self._text("gpu", i) for i in range(core.cuda_facts_gpu_count(self.handle))]

    @property
    def why_no_gpus(self) -> str:
        """Empty where there is one."""
        return self._text("why_no_gpus")

    def _text(self, name: str, *index: int) -> str:
        return getattr(core, f"cuda_facts_{name}")(self.handle, *index).decode(errors="replace")


class Recording(_Handle):
    """Launched through launch_function; the regions' contexts must outlive it."""

    _free = "recording_free"

    @property
    def lane_count(self) -> int:
        return core.recording_lane_count(self.handle)

    def attach_trace(self, trace: Trace | None) -> None:
        self._trace = trace
        core.trace_attach(self.handle, None if trace is None else trace.handle)

    def launch(self, addresses: Sequence[int], sizes_bytes: Sequence[int] | None = None) -> None:
        """For people and tests; hot paths call launch_function with a table of their own.
        Without sizes the caller vouches for them."""
        table = _u64s(addresses)
        if sizes_bytes is None:
            code = core.recording_launch(self.handle, table, len(addresses))
        else:
            code = core.recording_launch_sized(self.handle, table, _u64s(sizes_bytes),
                                                len(addresses))
        if code:
            raise last_error()


def record(plan: Plan, device: Device, regions: Mapping[str, tuple[int, int]]) -> Recording:
    """``regions``: name -> (address of a RegionFunction, address of its context)."""
    count = len(regions)
    names = (c_char_p * count)(*(_text(name) for name in regions))
    functions = (c_void_p * count)(*(function for function, _ in regions.values()))
    contexts = (c_void_p * count)(*(context or None for _, context in regions.values()))
    handle = core.recording_make(plan.handle, device.handle, count, names, functions, contexts)
    return Recording(handle, plan, device)


def new_address_table(count: int) -> Any:
    """Memory for ``count`` addresses, for launch_function; writable through struct.pack_into."""
    return (c_uint64 * max(count, 1))()


class Trace(_Handle):
    _free = "trace_free"

    def __init__(self, capacity: int = 1 << 16) -> None:
        super().__init__(core.trace_new(capacity))

    def __len__(self) -> int:
        return core.trace_count(self.handle)

    @property
    def events(self) -> list[TraceEvent]:
        """Only between launches."""
        out = (TraceEvent * len(self))()
        return list(out[:core.trace_events(self.handle, out, len(out))])

    @property
    def dropped(self) -> int:
        """Events for which there was no room."""
        return core.trace_dropped(self.handle)

    def clear(self) -> None:
        core.trace_clear(self.handle)

    def chrome_json(self, plan: Plan) -> str:
        return core.trace_chrome_json(self.handle, plan.handle).decode()

    def dump(self, plan: Plan) -> str:
        return core.trace_dump(self.handle, plan.handle).decode()


# ---- tapes


class Address(NamedTuple):
    access: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class DataOf:
    register: int


@dataclass(frozen=True)
class HandleOf:
    register: int


@dataclass(frozen=True)
class Integers:
    values: Sequence[int]


@dataclass(frozen=True)
class TensorValue:
    register: int


@dataclass(frozen=True)
class ListValue:
    items: Sequence[Any]


@dataclass(frozen=True)
class SomeValue:
    """An optional that is there."""

    value: Any


class TapeBuilder(_Handle):
    _free = "tape_builder_free"

    def __init__(self, library: TensorLibrary | None = None) -> None:
        super().__init__(core.tape_builder_new(None if library is None else byref(library)))

    def view(self, access: int, offset_bytes: int, dtype: int, sizes: Sequence[int],
             strides: Sequence[int]) -> int:
        return core.tape_view(self.handle, access, offset_bytes, dtype, len(sizes), _i64s(sizes),
                               _i64s(strides))

    def view_of(self, base: int, offset_bytes: int, dtype: int, sizes: Sequence[int],
                strides: Sequence[int]) -> int:
        return core.tape_view_of(self.handle, base, offset_bytes, dtype, len(sizes),
                                  _i64s(sizes), _i64s(strides))

    def call(self, name: str, function: int, arguments: Sequence[Any], fallible: bool) -> None:
        """``arguments``: int, float, Address, DataOf, HandleOf or Integers."""
        for argument in arguments:
            self._add(argument)
        core.tape_call(self.handle, _text(name), function, fallible)

    def _add(self, argument: Any) -> None:
        if isinstance(argument, Address):
            core.tape_add_address(self.handle, *argument)
        elif isinstance(argument, DataOf):
            core.tape_add_data(self.handle, argument.register)
        elif isinstance(argument, HandleOf):
            core.tape_add_handle(self.handle, argument.register)
        elif isinstance(argument, Integers):
            core.tape_add_ints(self.handle, _i64s(argument.values), len(argument.values))
        elif isinstance(argument, float):
            core.tape_add_double(self.handle, argument)
        else:
            core.tape_add_int(self.handle, argument)

    def dispatch(self, op: str, overload: str, arguments: Sequence[Any],
                 results: int) -> list[int]:
        """``arguments``: None, int, float, TensorValue, ListValue or SomeValue."""
        for argument in arguments:
            self._value(argument)
        out = (c_uint32 * results)()
        core.tape_dispatch(self.handle, _text(op), _text(overload), results, out)
        return list(out)

    def _value(self, value: Any) -> None:
        if value is None:
            core.tape_value_none(self.handle)
        elif isinstance(value, TensorValue):
            core.tape_value_tensor(self.handle, value.register)
        elif isinstance(value, (ListValue, SomeValue)):
            is_list = isinstance(value, ListValue)
            (core.tape_open_list if is_list else core.tape_open_some)(self.handle)
            for item in value.items if isinstance(value, ListValue) else [value.value]:
                self._value(item)
            core.tape_close(self.handle)
        elif isinstance(value, float):
            core.tape_value_double(self.handle, value)
        else:
            core.tape_value_int(self.handle, value)

    def expect(self, register: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        core.tape_expect(self.handle, register, len(sizes), _i64s(sizes), _i64s(strides))

    def copy(self, to: int, source: int) -> None:
        core.tape_copy(self.handle, to, source)

    def release(self, register: int) -> None:
        core.tape_release(self.handle, register)

    def finish(self) -> Tape:
        return Tape(core.tape_finish(self.handle))


class Tape(_Handle):
    _free = "tape_free"
    region_function: int = core.tape_region_function()

    @property
    def handle_value(self) -> int:
        """The context for region_function."""
        return self.handle.value or 0

    def run(self, addresses: Sequence[int]) -> None:
        """Runs on the calling thread over buffers at these addresses."""
        buffers = (c_void_p * len(addresses))(*addresses)
        error = ctypes.create_string_buffer(512)
        code = core.tape_run(self.handle, buffers, len(addresses), error, len(error))
        if code:
            raise native_error(403, error.value.decode(errors="replace"))

    def __str__(self) -> str:
        return core.tape_dump(self.handle).decode()


def write_region_error(call: Any, text: str) -> None:
    """Puts a text where the core looks for a failing region's words (call: POINTER(RegionCall))."""
    contents = call.contents
    if contents.error and contents.error_bytes:
        data = text.encode()[: contents.error_bytes - 1] + b"\0"
        ctypes.memmove(contents.error, data, len(data))


def _read_all(kind: type[_Read], program: Program, count: Callable[[c_void_p], int],
              read: Callable[[c_void_p, int, Any], None]) -> list[_Read]:
    things = [kind() for _ in range(count(program.handle))]
    for i, thing in enumerate(things):
        read(program.handle, i, byref(thing))
    return things


def _text(text: str) -> bytes:
    return text.encode(errors="replace")


def _i64s(values: Sequence[int]) -> Any:
    return (c_int64 * max(len(values), 1))(*values)


def _u64s(values: Sequence[int]) -> Any:
    return (c_uint64 * max(len(values), 1))(*values)
