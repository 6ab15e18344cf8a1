# SPDX-License-Identifier: Apache-2.0
"""record.h and launch.h from Python: recordings of plans on the host device, and their launches."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

from anabranch._core.device import Device
from anabranch._core.handle import Handle, encoded, u64s
from anabranch._core.library import core, last_error, native_error
from anabranch._core.program import Plan
from anabranch._core.trace import Trace


class RegionCall(ctypes.Structure):
    """What a region is given; see RegionCall in device.h."""

    _fields_ = [("buffers", POINTER(c_void_p)), ("buffer_count", c_uint32), ("error", c_void_p),
                ("error_bytes", c_uint32), ("stream", c_void_p)]


# A region written in Python: (context, POINTER(RegionCall)) -> 0, or another number as failure.
RegionFunction = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(RegionCall))
# The hot path: (Recording.handle, new_address_table(n), n) -> 0, or a code and last_error().
# Exactly these types, none is checked; and the caller vouches for the size behind each address.
launch_function: Callable[[c_void_p, ctypes.Array[c_uint64], int], int] = core.undeclared(
    "recording_launch")


class Recording(Handle):
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
        table = u64s(addresses)
        if sizes_bytes is None:
            code = core.recording_launch(self.handle, table, len(addresses))
        else:
            code = core.recording_launch_sized(self.handle, table, u64s(sizes_bytes),
                                               len(addresses))
        if code:
            raise last_error()


def record(plan: Plan, device: Device, regions: Mapping[str, tuple[int, int]]) -> Recording:
    """``regions``: name -> (address of a RegionFunction, address of its context)."""
    count = len(regions)
    names = (c_char_p * count)(*(encoded(name) for name in regions))
    functions = (c_void_p * count)(*(function for function, _ in regions.values()))
    contexts = (c_void_p * count)(*(context or None for _, context in regions.values()))
    handle = core.recording_make(plan.handle, device.handle, count, names, functions, contexts)
    return Recording(handle, plan, device)


def run_region(function: tuple[int, int], addresses: Sequence[int]) -> None:
    """Runs one region on the calling thread over buffers at these addresses, without a recording:
    the function as record() takes it. Fails with code 403 and the region's words."""
    buffers = (c_void_p * max(len(addresses), 1))(*addresses)
    error = ctypes.create_string_buffer(512)
    call = RegionCall(buffers, len(addresses), ctypes.addressof(error), len(error), None)
    address, context = function
    if RegionFunction(address)(context, byref(call)):
        raise native_error(403, error.value.decode(errors="replace"))


def new_address_table(count: int) -> Any:
    """Memory for ``count`` addresses, for launch_function; writable through struct.pack_into."""
    return (c_uint64 * max(count, 1))()


def write_region_error(call: Any, text: str) -> None:
    """Puts a text where the core looks for a failing region's words (call: POINTER(RegionCall))."""
    contents = call.contents
    if contents.error and contents.error_bytes:
        data = text.encode()[: contents.error_bytes - 1] + b"\0"
        ctypes.memmove(contents.error, data, len(data))
