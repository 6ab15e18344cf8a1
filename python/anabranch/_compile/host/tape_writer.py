# SPDX-License-Identifier: Apache-2.0
"""Writes the recorded calls of a region as a tape of the core."""

from __future__ import annotations

from typing import Any

from anabranch import _compat
from anabranch._compile.graph import Unsupported
from anabranch._compile.host.part import RegionPart
from anabranch._compile.host.wrapper_trace import (
    Encoded,
    StandInTensor,
    Storage,
    WrapperCall,
    float_as_double,
)
from anabranch._core.abi import TensorLibrary
from anabranch._core.tape import (
    Address,
    DataOf,
    HandleOf,
    Integers,
    ListValue,
    SomeValue,
    TapeBuilder,
    TensorValue,
)


class TapeWriter:
    """Writes the recorded calls of a part as a tape of the core."""

    def __init__(self, part: RegionPart) -> None:
        self._part = part
        self._tape = TapeBuilder(tensor_library())
        self._registers: dict[tuple[Any, ...], int] = {}
        self._results: dict[Storage, int] = {}
        self._made: dict[Storage, StandInTensor] = {}

    def finish(self) -> Any:
        for position, call in enumerate(self._part.recording.calls):
            if call.kind == "dispatch":
                self._dispatch(call)
            else:
                arguments = [a for value in call.arguments for a in self._argument(value, call)]
                self._tape.call(call.name, call.function, arguments,
                                fallible=call.kind == "library")
            self._release(position)
        for access, layout, result in self._part.copies:
            to = self._tape.view(access, self._part.access_offsets[access],
                                 _compat.dtype_code(layout.dtype), layout.sizes, layout.strides)
            self._tape.copy(to, self._handle(result))
        return self._tape.finish()

    def _argument(self, value: Any, call: WrapperCall) -> list[Any]:
        if isinstance(value, StandInTensor):
            if call.kind == "library":
                return [HandleOf(self._handle(value))]
            place = self._part.place(value)
            if place is not None:
                return [Address(*place)]
            if value.offset:
                return [DataOf(self._handle(value))]
            return [DataOf(self._results[value.storage])]
        if isinstance(value, list):
            return [Integers(value)]
        if isinstance(value, float) and call.kind == "kernel":
            return [float_as_double(value)]
        if isinstance(value, (bool, int)):
            return [int(value)]
        if isinstance(value, float):
            return [value]
        raise Unsupported(f"{call.name} is called with {type(value).__name__}")

    def _handle(self, tensor: StandInTensor) -> int:
        """The register with a tensor of just this view."""
        place = self._part.place(tensor)
        dtype = _compat.dtype_code(tensor.dtype)
        key = (place or id(tensor.storage), tensor.offset, dtype, tensor.sizes, tensor.strides)
        if place is None and self._is_whole_result(tensor):
            return self._results[tensor.storage]
        if key not in self._registers:
            if place is not None:
                register = self._tape.view(*place, dtype, tensor.sizes, tensor.strides)
            else:
                register = self._tape.view_of(self._results[tensor.storage], tensor.offset_bytes,
                                              dtype, tensor.sizes, tensor.strides)
            self._registers[key] = register
        return self._registers[key]

    def _is_whole_result(self, tensor: StandInTensor) -> bool:
        made = self._made[tensor.storage]
        return (tensor.offset == 0 and tensor.dtype is made.dtype and tensor.sizes == made.sizes
                and tensor.strides == made.strides)

    def _dispatch(self, call: WrapperCall) -> None:
        arguments = [self._value(a) for a in call.arguments]
        registers = self._tape.dispatch(call.name, call.overload, arguments, len(call.results))
        for result, register in zip(call.results, registers, strict=True):
            self._results[result.storage] = register
            self._made[result.storage] = result
            self._tape.expect(register, result.sizes, result.strides)

    def _value(self, encoded: Encoded) -> Any:
        if encoded.kind == "tensor":
            return TensorValue(self._handle(encoded.value))
        if encoded.kind == "list":
            return ListValue([self._value(v) for v in encoded.value])
        if encoded.kind == "some":
            return SomeValue(self._value(encoded.value))
        return None if encoded.kind == "none" else encoded.value

    def _release(self, position: int) -> None:
        """Gives back the results of operators that no later call uses."""
        kept = {result.storage for _, _, result in self._part.copies}
        for storage, register in list(self._results.items()):
            if storage.last_use == position and storage not in kept:
                self._tape.release(register)


def tensor_library() -> Any:
    """torch's C functions for the tapes."""
    names = ("create_view", "delete_tensor", "new_handle", "data_pointer", "strides", "copy",
             "dispatch", "new_list", "list_push", "delete_list", "last_error")
    functions = {name: _compat.library_function(name) or None for name in names}
    return TensorLibrary(**functions, version=_compat.library_version(), device_type=0,
                         layout=0)
