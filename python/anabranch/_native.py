# SPDX-License-Identifier: Apache-2.0
"""The C++ core from Python: declarations of bridge/anabranch_c.h and thin classes over them.

No logic and no torch. Ownership: an object frees its handle when it dies, and keeps alive what
the handle needs. Threads: as the C++ headers say; ctypes gives up Python's lock around each call.
Failure: NativeError with the core's code and words; LibraryMissing where there is no library.
"""

from __future__ import annotations

import ctypes
import importlib.resources
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import config, errors

READ, WRITE, READ_WRITE = 1, 2, 3
ROLE_INPUT, ROLE_OUTPUT, ROLE_CONSTANT, ROLE_TEMPORARY = range(4)
KIND_COMPUTE = 0

_NAME = "libanabranch_bridge.so"


class NativeError(errors.AnabranchError):
    """A failure of the core, in its own words."""


class LibraryMissing(errors.CompileError, ImportError):
    """The native library cannot be loaded. Also an ImportError."""


def _find_library() -> Path:
    looked = []
    if config.library is not None:
        looked.append(Path(config.library))
    else:
        looked.append(Path(str(importlib.resources.files("anabranch"))) / "lib" / _NAME)
        looked.append(Path(__file__).resolve().parents[2] / "build/release/bridge" / _NAME)
    for path in looked:
        if path.is_file():
            return path
    raise LibraryMissing(
        606, f"import: {_NAME} is not there: {', '.join(map(str, looked))}.",
        "Install the package again, or build it (make) and set ANABRANCH_LIBRARY to its path.")


def _load() -> ctypes.CDLL:
    path = _find_library()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryMissing(606, f"import: {path} cannot be loaded: {error}.") from error


class _HostOptions(ctypes.Structure):
    _fields_ = [("max_lanes", c_uint32), ("spin_ns", c_uint64), ("has_delays", c_int32),
                ("delays_seed", c_uint64), ("prepare_threads", c_void_p),
                ("get_openmp", c_void_p), ("set_openmp", c_void_p), ("set_mkl_local", c_void_p)]


class TensorLibrary(ctypes.Structure):
    """Addresses of a tensor library's C functions; see TensorLibrary in tape.h."""

    _fields_ = [(name, c_void_p) for name in
                ("create_view", "delete_tensor", "new_handle", "data_pointer", "strides", "copy",
                 "dispatch", "new_list", "list_push", "delete_list", "last_error")]
    _fields_ += [("version", c_uint64), ("device_type", c_int32), ("layout", c_int32)]


class RegionCall(ctypes.Structure):
    """What a region is given; see RegionCall in device.h."""

    _fields_ = [("buffers", POINTER(c_void_p)), ("buffer_count", c_uint32), ("error", c_void_p),
                ("error_bytes", c_uint32)]


RegionFunction = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(RegionCall))

_I64S = POINTER(c_int64)
_U32S = POINTER(c_uint32)
# Name -> result, arguments. Handles are void pointers.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "last_error_code": (c_int32,),
    "last_error_text": (c_char_p,),
    "version": (c_char_p,),
    "builder_new": (c_void_p,),
    "builder_free": (None, c_void_p),
    "builder_add_stream": (c_uint32, c_void_p, c_char_p),
    "builder_add_event": (c_uint32, c_void_p, c_char_p),
    "builder_add_buffer": (c_uint32, c_void_p, c_char_p, c_int32, c_uint64, c_uint64),
    "builder_begin_step": (None, c_void_p, c_int32, c_uint32, c_char_p, c_char_p),
    "builder_add_whole": (None, c_void_p, c_int32, c_uint32),
    "builder_end_step": (c_uint32, c_void_p),
    "builder_build": (c_void_p, c_void_p),
    "program_free": (None, c_void_p),
    "program_step_count": (c_uint32, c_void_p),
    "program_find_regions": (c_int32, c_void_p, _U32S),
    "plan_make": (c_void_p, c_void_p),
    "plan_free": (None, c_void_p),
    "plan_arena_bytes": (c_uint64, c_void_p),
    "plan_arena_lower_bound_bytes": (c_uint64, c_void_p),
    "plan_arena_naive_bytes": (c_uint64, c_void_p),
    "plan_offset": (c_uint64, c_void_p, c_uint32),
    "plan_order": (c_size_t, c_void_p, _U32S),
    "plan_waits": (c_size_t, c_void_p, _U32S),
    "plan_dump": (c_char_p, c_void_p),
    "plan_write": (c_int32, c_void_p, c_char_p),
    "plan_read": (c_void_p, c_char_p),
    "device_host": (c_void_p, POINTER(_HostOptions)),
    "device_free": (None, c_void_p),
    "recording_make": (c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_char_p),
                       POINTER(c_void_p), POINTER(c_void_p)),
    "recording_free": (None, c_void_p),
    "recording_lane_count": (c_uint32, c_void_p),
    "recording_launch": (c_int32, c_void_p, c_void_p, c_size_t),
    "trace_new": (c_void_p, c_size_t),
    "trace_free": (None, c_void_p),
    "trace_attach": (None, c_void_p, c_void_p),
    "trace_count": (c_size_t, c_void_p),
    "trace_chrome_json": (c_char_p, c_void_p, c_void_p),
    "trace_dump": (c_char_p, c_void_p, c_void_p),
    "tape_builder_new": (c_void_p, POINTER(TensorLibrary)),
    "tape_builder_free": (None, c_void_p),
    "tape_view": (c_uint32, c_void_p, c_uint32, c_uint64, c_int32, c_size_t, _I64S, _I64S),
    "tape_view_of": (c_uint32, c_void_p, c_uint32, c_uint64, c_int32, c_size_t, _I64S, _I64S),
    "tape_add_int": (None, c_void_p, c_int64),
    "tape_add_double": (None, c_void_p, c_double),
    "tape_add_address": (None, c_void_p, c_uint32, c_uint64),
    "tape_add_data": (None, c_void_p, c_uint32),
    "tape_add_handle": (None, c_void_p, c_uint32),
    "tape_add_ints": (None, c_void_p, _I64S, c_size_t),
    "tape_call": (None, c_void_p, c_char_p, c_void_p, c_int32),
    "tape_value_none": (None, c_void_p),
    "tape_value_int": (None, c_void_p, c_int64),
    "tape_value_double": (None, c_void_p, c_double),
    "tape_value_tensor": (None, c_void_p, c_uint32),
    "tape_open_list": (None, c_void_p),
    "tape_open_some": (None, c_void_p),
    "tape_close": (None, c_void_p),
    "tape_dispatch": (None, c_void_p, c_char_p, c_char_p, c_uint32, _U32S),
    "tape_expect": (None, c_void_p, c_uint32, c_size_t, _I64S, _I64S),
    "tape_copy": (None, c_void_p, c_uint32, c_uint32),
    "tape_release": (None, c_void_p, c_uint32),
    "tape_finish": (c_void_p, c_void_p),
    "tape_free": (None, c_void_p),
    "tape_dump": (c_char_p, c_void_p),
    "tape_region_function": (c_void_p,),
    "tape_run": (c_int32, c_void_p, POINTER(c_void_p), c_uint32, c_char_p, c_uint32),
}


class _Core:
    """The functions of the library, as attributes without their prefix."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(library, f"anabranch_{name}")
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


_core = _Core(_load())
# (recording handle, address of a table of addresses, their number) -> 0 or a code.
launch_function = _core.recording_launch
version: str = _core.version().decode()


def last_error() -> NativeError:
    """This thread's last failure."""
    return NativeError(_core.last_error_code(), _core.last_error_text().decode(errors="replace"))


class _Handle:
    """Owns one handle; ``_free`` names the function that gives it back."""

    _free = ""

    def __init__(self, handle: int | None, *needs: Any) -> None:
        if not handle:
            raise last_error()
        self.handle = c_void_p(handle)
        self._needs = needs

    def __del__(self) -> None:
        handle = self.__dict__.pop("handle", None)
        if handle is not None:
            getattr(_core, self._free)(handle)


class ProgramBuilder(_Handle):
    _free = "builder_free"

    def __init__(self) -> None:
        super().__init__(_core.builder_new())

    def add_stream(self, name: str) -> int:
        return _core.builder_add_stream(self.handle, name.encode())

    def add_buffer(self, name: str, role: int, size_bytes: int, alignment: int = 1) -> int:
        return _core.builder_add_buffer(self.handle, name.encode(), role, size_bytes, alignment)

    def compute(self, stream: int, region: str, accesses: Sequence[tuple[int, int]],
                source: str = "") -> int:
        """A region with accesses (mode, buffer), each to the whole of its buffer."""
        _core.builder_begin_step(self.handle, KIND_COMPUTE, stream, region.encode(),
                                 source.encode())
        for mode, buffer in accesses:
            _core.builder_add_whole(self.handle, mode, buffer)
        return _core.builder_end_step(self.handle)

    def build(self) -> Program:
        return Program(_core.builder_build(self.handle))


class Program(_Handle):
    _free = "program_free"

    def find_regions(self) -> list[int]:
        """The group of each step, numbered in an order in which the groups can run."""
        groups = (c_uint32 * _core.program_step_count(self.handle))()
        if _core.program_find_regions(self.handle, groups):
            raise last_error()
        return list(groups)

    def make_plan(self) -> Plan:
        return Plan(_core.plan_make(self.handle))


class Plan(_Handle):
    _free = "plan_free"

    @staticmethod
    def read(path: str) -> Plan:
        return Plan(_core.plan_read(path.encode()))

    def write(self, path: str) -> None:
        if _core.plan_write(self.handle, path.encode()):
            raise last_error()

    @property
    def arena_bytes(self) -> int:
        return _core.plan_arena_bytes(self.handle)

    @property
    def arena_lower_bound_bytes(self) -> int:
        return _core.plan_arena_lower_bound_bytes(self.handle)

    @property
    def arena_naive_bytes(self) -> int:
        return _core.plan_arena_naive_bytes(self.handle)

    def offset(self, buffer: int) -> int:
        """Where in the arena a temporary lies."""
        return _core.plan_offset(self.handle, buffer)

    @property
    def order(self) -> list[int]:
        out = (c_uint32 * _core.plan_order(self.handle, None))()
        _core.plan_order(self.handle, out)
        return list(out)

    @property
    def waits(self) -> list[tuple[int, int]]:
        """Pairs of step numbers: the first waits for the second."""
        out = (c_uint32 * (2 * _core.plan_waits(self.handle, None)))()
        _core.plan_waits(self.handle, out)
        return list(zip(out[::2], out[1::2]))

    def __str__(self) -> str:
        return _core.plan_dump(self.handle).decode()


class Device(_Handle):
    _free = "device_free"

    @staticmethod
    def host(*, max_lanes: int = 0, spin_ns: int = 50_000, delays_seed: int | None = None,
             prepare_threads: int = 0, get_openmp: int = 0, set_openmp: int = 0,
             set_mkl_local: int = 0) -> Device:
        """The host device; the functions are addresses, 0 for none (ThreadControl in device.h)."""
        options = _HostOptions(max_lanes, spin_ns, delays_seed is not None, delays_seed or 0,
                               prepare_threads or None, get_openmp or None, set_openmp or None,
                               set_mkl_local or None)
        return Device(_core.device_host(byref(options)))


class Recording(_Handle):
    """Launched through launch_function; the regions' contexts must outlive it."""

    _free = "recording_free"

    @property
    def lane_count(self) -> int:
        return _core.recording_lane_count(self.handle)

    def attach_trace(self, trace: Trace | None) -> None:
        self._trace = trace
        _core.trace_attach(self.handle, trace.handle if trace else None)

    def launch(self, addresses: Sequence[int]) -> None:
        """Checked for people and tests; hot paths call launch_function themselves."""
        table = (c_uint64 * len(addresses))(*addresses)
        if launch_function(self.handle, table, len(addresses)):
            raise last_error()


def record(plan: Plan, device: Device, regions: Mapping[str, tuple[int, int]]) -> Recording:
    """``regions``: name -> (address of a RegionFunction, address of its context)."""
    count = len(regions)
    names = (c_char_p * count)(*(name.encode() for name in regions))
    functions = (c_void_p * count)(*(function for function, _ in regions.values()))
    contexts = (c_void_p * count)(*(context or None for _, context in regions.values()))
    handle = _core.recording_make(plan.handle, device.handle, count, names, functions, contexts)
    return Recording(handle, plan, device)


def new_address_table(count: int) -> Any:
    """Memory for ``count`` addresses, for launch_function; writable through struct.pack_into."""
    return (c_uint64 * max(count, 1))()


class Trace(_Handle):
    _free = "trace_free"

    def __init__(self, capacity: int = 1 << 16) -> None:
        super().__init__(_core.trace_new(capacity))

    def __len__(self) -> int:
        return _core.trace_count(self.handle)

    def chrome_json(self, plan: Plan) -> str:
        return _core.trace_chrome_json(self.handle, plan.handle).decode()

    def dump(self, plan: Plan) -> str:
        return _core.trace_dump(self.handle, plan.handle).decode()


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

    def __init__(self, library: TensorLibrary) -> None:
        super().__init__(_core.tape_builder_new(byref(library)))

    def view(self, access: int, offset_bytes: int, dtype: int, sizes: Sequence[int],
             strides: Sequence[int]) -> int:
        return _core.tape_view(self.handle, access, offset_bytes, dtype, len(sizes), _i64s(sizes),
                               _i64s(strides))

    def view_of(self, base: int, offset_bytes: int, dtype: int, sizes: Sequence[int],
                strides: Sequence[int]) -> int:
        return _core.tape_view_of(self.handle, base, offset_bytes, dtype, len(sizes),
                                  _i64s(sizes), _i64s(strides))

    def call(self, name: str, function: int, arguments: Sequence[Any], fallible: bool) -> None:
        """``arguments``: int, float, Address, DataOf, HandleOf or Integers."""
        for argument in arguments:
            self._add(argument)
        _core.tape_call(self.handle, name.encode(), function, fallible)

    def _add(self, argument: Any) -> None:
        if isinstance(argument, Address):
            _core.tape_add_address(self.handle, *argument)
        elif isinstance(argument, DataOf):
            _core.tape_add_data(self.handle, argument.register)
        elif isinstance(argument, HandleOf):
            _core.tape_add_handle(self.handle, argument.register)
        elif isinstance(argument, Integers):
            _core.tape_add_ints(self.handle, _i64s(argument.values), len(argument.values))
        elif isinstance(argument, float):
            _core.tape_add_double(self.handle, argument)
        else:
            _core.tape_add_int(self.handle, argument)

    def dispatch(self, op: str, overload: str, arguments: Sequence[Any],
                 results: int) -> list[int]:
        """``arguments``: None, int, float, TensorValue, ListValue or SomeValue."""
        for argument in arguments:
            self._value(argument)
        out = (c_uint32 * results)()
        _core.tape_dispatch(self.handle, op.encode(), overload.encode(), results, out)
        return list(out)

    def _value(self, value: Any) -> None:
        if value is None:
            _core.tape_value_none(self.handle)
        elif isinstance(value, TensorValue):
            _core.tape_value_tensor(self.handle, value.register)
        elif isinstance(value, (ListValue, SomeValue)):
            is_list = isinstance(value, ListValue)
            (_core.tape_open_list if is_list else _core.tape_open_some)(self.handle)
            for item in value.items if is_list else [value.value]:
                self._value(item)
            _core.tape_close(self.handle)
        elif isinstance(value, float):
            _core.tape_value_double(self.handle, value)
        else:
            _core.tape_value_int(self.handle, value)

    def expect(self, register: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        _core.tape_expect(self.handle, register, len(sizes), _i64s(sizes), _i64s(strides))

    def copy(self, to: int, source: int) -> None:
        _core.tape_copy(self.handle, to, source)

    def release(self, register: int) -> None:
        _core.tape_release(self.handle, register)

    def finish(self) -> Tape:
        return Tape(_core.tape_finish(self.handle))


class Tape(_Handle):
    _free = "tape_free"
    region_function: int = _core.tape_region_function()

    @property
    def handle_value(self) -> int:
        """The context for region_function."""
        return self.handle.value or 0

    def run(self, addresses: Sequence[int]) -> None:
        """Runs on the calling thread over buffers at these addresses."""
        buffers = (c_void_p * len(addresses))(*addresses)
        error = ctypes.create_string_buffer(512)
        code = _core.tape_run(self.handle, buffers, len(addresses), error, len(error))
        if code:
            raise NativeError(403, error.value.decode(errors="replace"))

    def __str__(self) -> str:
        return _core.tape_dump(self.handle).decode()


def write_region_error(call: Any, text: str) -> None:
    """Puts a text where the core looks for a failing region's words (call: POINTER(RegionCall))."""
    contents = call.contents
    if contents.error and contents.error_bytes:
        data = text.encode()[: contents.error_bytes - 1] + b"\0"
        ctypes.memmove(contents.error, data, len(data))


def _i64s(values: Sequence[int]) -> Any:
    return (c_int64 * max(len(values), 1))(*values)
