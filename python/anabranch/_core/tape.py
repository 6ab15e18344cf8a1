# SPDX-License-Identifier: Apache-2.0
"""tape.h from Python: regions as lists of C calls, which the core runs without Python's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

from anabranch._core.abi import TensorLibrary
from anabranch._core.handle import Handle, encoded, i64s
from anabranch._core.library import core, native_error


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


class TapeBuilder(Handle):
    _free = "tape_builder_free"

    def __init__(self, library: TensorLibrary | None = None) -> None:
        super().__init__(core.tape_builder_new(None if library is None else byref(library)))

    def view(self, access: int, offset_bytes: int, dtype: int, sizes: Sequence[int],
             strides: Sequence[int]) -> int:
        return core.tape_view(self.handle, access, offset_bytes, dtype, len(sizes), i64s(sizes),
                              i64s(strides))

    def view_of(self, base: int, offset_bytes: int, dtype: int, sizes: Sequence[int],
                strides: Sequence[int]) -> int:
        return core.tape_view_of(self.handle, base, offset_bytes, dtype, len(sizes),
                                 i64s(sizes), i64s(strides))

    def call(self, name: str, function: int, arguments: Sequence[Any], fallible: bool) -> None:
        """``arguments``: int, float, Address, DataOf, HandleOf or Integers."""
        for argument in arguments:
            self._add(argument)
        core.tape_call(self.handle, encoded(name), function, fallible)

    def _add(self, argument: Any) -> None:
        if isinstance(argument, Address):
            core.tape_add_address(self.handle, *argument)
        elif isinstance(argument, DataOf):
            core.tape_add_data(self.handle, argument.register)
        elif isinstance(argument, HandleOf):
            core.tape_add_handle(self.handle, argument.register)
        elif isinstance(argument, Integers):
            core.tape_add_ints(self.handle, i64s(argument.values), len(argument.values))
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
        core.tape_dispatch(self.handle, encoded(op), encoded(overload), results, out)
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
        core.tape_expect(self.handle, register, len(sizes), i64s(sizes), i64s(strides))

    def copy(self, to: int, source: int) -> None:
        core.tape_copy(self.handle, to, source)

    def release(self, register: int) -> None:
        core.tape_release(self.handle, register)

    def finish(self) -> Tape:
        return Tape(core.tape_finish(self.handle))


class Tape(Handle):
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
