# SPDX-License-Identifier: Apache-2.0
"""From a compiled region to a tape: the calls that Inductor's wrapper makes, recorded once.

Inductor writes a Python function that allocates memory, calls compiled kernels and library
operators, and returns tensors. Its vocabulary is small, and every word of it is a global of the
generated module. So the function is run once with a namespace of recorders in place of these
globals: nothing is computed, every call is written down with the memory it names. The C++ core
replays the list without Python and without allocating. What the recorders do not know raises
Unsupported, and the region runs through Inductor's own function instead.
"""

from __future__ import annotations

import dataclasses
import struct
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from anabranch import _compat
from anabranch._compile.graph import Unsupported
from anabranch._fx.extents import extent_bytes


@dataclasses.dataclass(eq=False)
class Storage:
    """Memory that a recorded tensor lies in.

    ``kind`` is "input" (``index`` of the region's inputs), "scratch" (allocated by the region),
    "constant" (``tensor`` of the compiled module) or "result" (made by a library operator).
    """

    kind: str
    size_bytes: int = 0
    index: int = 0
    tensor: torch.Tensor | None = None
    first_use: int = -1
    last_use: int = -1


@dataclasses.dataclass(eq=False)
class StandInTensor:
    """A tensor as the wrapper sees it while it is recorded; offsets and strides in elements."""

    storage: Storage
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def size(self, dim: int | None = None) -> Any:
        return self.sizes if dim is None else self.sizes[dim]

    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[dim]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def offset_bytes(self) -> int:
        return self.offset * self.dtype.itemsize

    def fake(self) -> torch.Tensor:
        """A tensor of this layout without memory; only inside a fake mode."""
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device="cpu")


@dataclasses.dataclass
class WrapperCall:
    """One recorded call; ``tensors`` are all it touches."""

    kind: str  # "kernel", "library", "dispatch"
    name: str
    arguments: list[Any]
    tensors: list[StandInTensor]
    results: list[StandInTensor] = dataclasses.field(default_factory=list)
    function: int = 0
    overload: str = ""


@dataclasses.dataclass
class CallList:
    """All calls of a region and what it returns."""

    calls: list[WrapperCall]
    results: list[Any]


def trace_wrapper(compiled: Any, inputs: Sequence[Any]) -> CallList:
    """Runs the wrapper of a compiled region on stand-ins for ``inputs`` (Recorded or numbers)."""
    try:
        call = _compat.wrapper_function(compiled)
    except TypeError as error:
        raise Unsupported(str(error)) from None
    recorder = _Tracer(call.__func__.__globals__)
    function = types.FunctionType(
        call.__func__.__code__, recorder.namespace, call.__func__.__name__,
        call.__func__.__defaults__, call.__func__.__closure__,
    )
    try:
        results = function(call.__self__, list(inputs))
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"the generated wrapper does {error}") from error
    return CallList(recorder.calls, list(results))


class _Tracer:
    def __init__(self, wrapper_globals: dict[str, Any]) -> None:
        self.calls: list[WrapperCall] = []
        self.namespace = dict(wrapper_globals)
        self.namespace.update(
            empty_strided_cpu=self._empty_strided,
            reinterpret_tensor=_reinterpret,
            assert_size_stride=_assert_size_stride,
            assert_size_stride_grouped=_assert_size_stride_grouped,
            assert_alignment=lambda *_: None,
            assert_tensor_metadata=_assert_size_stride,
            extern_kernels=_Extern(self),
            aten=_Operators(self, "aten"),
            inductor_ops=_Operators(self, "inductor"),
            torch=_Torch(self),
        )
        for name, value in wrapper_globals.items():
            if isinstance(value, types.BuiltinFunctionType) and name.startswith("cpp_fused"):
                self.namespace[name] = self._kernel(name, value)
            elif isinstance(value, torch.Tensor):
                self.namespace[name] = _constant(value)

    def _empty_strided(self, sizes: Any, strides: Any, dtype: torch.dtype) -> StandInTensor:
        size_bytes = extent_bytes(sizes, strides, dtype)
        return StandInTensor(Storage("scratch", size_bytes), dtype, tuple(sizes), tuple(strides))

    def _kernel(self, name: str, function: Any) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            self.add(WrapperCall("kernel", name, list(arguments), _tensors_in(arguments),
                                 function=_compat.kernel_address(function)))

        return call

    def add(self, call: WrapperCall) -> None:
        position = len(self.calls)
        for tensor in [*call.tensors, *call.results]:
            if tensor.storage.first_use < 0:
                tensor.storage.first_use = position
            tensor.storage.last_use = position
        self.calls.append(call)

    def library(self, name: str, arguments: list[Any], fallible: bool = True) -> None:
        function = _compat.library_function(name)
        if not function:
            raise Unsupported(f"this torch has no {name}")
        self.add(WrapperCall("library", name, arguments, _tensors_in(arguments), function=function))

    def dispatch(self, op: _compat.OpOverload, args: Any, kwargs: Any) -> Any:
        """Writes down a call of an operator through torch's dispatcher."""
        values = _bind(op, args, kwargs)
        with torch.no_grad(), _compat.FakeTensorMode():
            made = op(*_to_fake(args), **_to_fake(kwargs))
        outs = [v for v, a in zip(values, op._schema.arguments, strict=True) if a.is_out]
        made_list = list(made) if isinstance(made, (tuple, list)) else [made]
        if not all(isinstance(t, torch.Tensor) for t in made_list):
            raise Unsupported(f"{op} answers no tensors")
        if op._schema.is_mutable and not outs:
            raise Unsupported(f"{op} writes to its arguments")
        results = [_result(t) for t in made_list]
        encoded = [_encode(v, a.type)
                   for v, a in zip(values, op._schema.arguments, strict=True)]
        self.add(WrapperCall("dispatch", op._schema.name, encoded, _tensors_in(values), results,
                             overload=op._schema.overload_name))
        if outs:
            return outs[0] if len(outs) == 1 else tuple(outs)
        return tuple(results) if isinstance(made, (tuple, list)) else results[0]


class _Extern:
    """Stands for ``extern_kernels``: matrix products by their own entries, the rest dispatched."""

    def __init__(self, recorder: _Tracer) -> None:
        self._recorder = recorder

    def mm(self, a: Any, b: Any, *, out: StandInTensor) -> None:
        self._recorder.library("mm_out", [out, a, b])

    def bmm(self, a: Any, b: Any, *, out: StandInTensor) -> None:
        self._recorder.library("bmm_out", [out, a, b])

    def addmm(self, c: Any, a: Any, b: Any, *, alpha: float = 1, beta: float = 1,
              out: StandInTensor) -> None:
        self._recorder.library("addmm_out", [out, c, a, b, float(beta), float(alpha)])

    def baddbmm(self, c: Any, a: Any, b: Any, *, alpha: float = 1, beta: float = 1,
                out: StandInTensor) -> None:
        self._recorder.library("baddbmm_out", [out, c, a, b, float(beta), float(alpha)])

    def __getattr__(self, name: str) -> Any:
        packet = getattr(torch.ops.aten, name, None)
        if packet is None or not hasattr(packet, "default"):
            raise Unsupported(f"extern kernel {name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            if "out" in kwargs:
                raise Unsupported(f"extern kernel {name} with out=")
            return self._recorder.dispatch(packet.default, args, kwargs)

        return call


class _Operators:
    """Stands for a namespace of operators: ``aten.sort.stable(...)``."""

    def __init__(self, recorder: _Tracer, namespace: str) -> None:
        self._recorder = recorder
        self._namespace = getattr(torch.ops, namespace)

    def __getattr__(self, name: str) -> Any:
        return _Packet(self._recorder, getattr(self._namespace, name))


class _Packet:
    def __init__(self, recorder: _Tracer, packet: Any) -> None:
        self._recorder = recorder
        self._packet = packet

    def __getattr__(self, overload: str) -> Any:
        op = getattr(self._packet, overload)

        def call(*args: Any, **kwargs: Any) -> Any:
            if op is torch.ops.aten.randint.low_out:
                low, high, size = args
                self._recorder.library("randint_low_out", [kwargs["out"], low, high, list(size),
                                                           len(size)])
                return kwargs["out"]
            if not isinstance(op, _compat.OpOverload):
                raise Unsupported(f"{self._packet} without overload")
            return self._recorder.dispatch(op, args, kwargs)

        return call


class _Torch:
    """Stands for ``torch``: operators are recorded, dtypes and the like are themselves."""

    def __init__(self, recorder: _Tracer) -> None:
        self.ops = _TorchOps(recorder)

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return value
        raise Unsupported(f"the generated wrapper uses torch.{name}")


class _TorchOps:
    def __init__(self, recorder: _Tracer) -> None:
        self._recorder = recorder

    def __getattr__(self, namespace: str) -> Any:
        return _Operators(self._recorder, namespace)


def _reinterpret(base: StandInTensor, sizes: Any, strides: Any, offset: int = 0) -> StandInTensor:
    return StandInTensor(base.storage, base.dtype, tuple(sizes), tuple(strides),
                         base.offset + offset)


def _assert_size_stride(tensor: StandInTensor, sizes: Any, strides: Any, *_: Any) -> None:
    have = [(n, s if n > 1 else 0) for n, s in zip(tensor.sizes, tensor.strides, strict=True)]
    want = [(n, s if n > 1 else 0) for n, s in zip(sizes, strides, strict=True)]
    if have != want and 0 not in tensor.sizes:
        raise Unsupported(f"a tensor of sizes {tensor.sizes} strides {tensor.strides} comes where "
                          f"{tuple(sizes)} {tuple(strides)} was compiled for")


def _assert_size_stride_grouped(tensors: Any, sizes: Any, strides: Any, *_: Any) -> None:
    for tensor, size, stride in zip(tensors, sizes, strides, strict=True):
        _assert_size_stride(tensor, size, stride)


def _constant(tensor: torch.Tensor) -> StandInTensor:
    storage = Storage("constant", tensor=tensor)
    return StandInTensor(storage, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))


def _result(fake: torch.Tensor) -> StandInTensor:
    size_bytes = extent_bytes(fake.shape, fake.stride(), fake.dtype)
    return StandInTensor(Storage("result", size_bytes), fake.dtype, tuple(fake.shape),
                         tuple(fake.stride()))


def _tensors_in(value: Any) -> list[StandInTensor]:
    return list(_walk(value))


def _walk(value: Any) -> Iterator[StandInTensor]:
    if isinstance(value, StandInTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk(item)
    elif isinstance(value, dict):
        yield from _walk(list(value.values()))


def _to_fake(value: Any) -> Any:
    if isinstance(value, StandInTensor):
        return value.fake()
    if isinstance(value, (list, tuple)):
        return type(value)(_to_fake(v) for v in value)
    if isinstance(value, dict):
        return {k: _to_fake(v) for k, v in value.items()}
    return value


def _bind(op: Any, args: Any, kwargs: Any) -> list[Any]:
    """All arguments of a call in the order of the schema, defaults filled in."""
    values = list(args)
    for argument in op._schema.arguments[len(args):]:
        if argument.name in kwargs:
            values.append(kwargs[argument.name])
        elif argument.has_default_value():
            values.append(argument.default_value)
        else:
            raise Unsupported(f"{op} is called without {argument.name}")
    return values


@dataclasses.dataclass
class Encoded:
    """An argument of a dispatched call: ``kind`` is "none", "int", "double", "tensor", "list" or
    "some" (an optional that is there)."""

    kind: str
    value: Any = None


def _encode(value: Any, kind: Any) -> Encoded:
    """Encodes by the schema's type, as the stable C ABI asks."""
    if kind.kind() == "OptionalType":
        if value is None:
            return Encoded("none")
        return Encoded("some", _encode(value, kind.getElementType()))
    if kind.kind() == "ListType":
        return Encoded("list", [_encode(v, kind.getElementType()) for v in value])
    if isinstance(value, StandInTensor) and kind.kind() == "TensorType":
        return Encoded("tensor", value)
    name = str(kind)
    if isinstance(value, torch.dtype):
        return Encoded("int", _compat.dtype_code(value))
    if isinstance(value, torch.device) and value == torch.device("cpu"):
        return Encoded("int", 0xFFFFFFFF)  # no index in the lower half; CPU is type 0
    if name in ("int", "bool", "SymInt") and isinstance(value, (int, bool)):
        return Encoded("int", int(value))
    if name == "float" and isinstance(value, (int, float)):
        return Encoded("double", float(value))
    raise Unsupported(f"an argument of type {name}")


def float_as_double(value: float) -> float:
    """A double whose register holds the C float ``value`` in its lower half, where a callee that
    takes a float looks for it."""
    return struct.unpack("<d", struct.pack("<fI", value, 0))[0]
