# SPDX-License-Identifier: Apache-2.0
"""In which of torch's modes a thread is: settings by which torch chooses what it records for
autograd, types, and kernels on a GPU; and whether somebody sees each operator that it runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from anabranch._compat.library import dtype_code, library_function


class _Mode(NamedTuple):
    """A function of torch's and what it is called with; and the same in C++, by our name for it:
    ``given`` are its arguments, numbers of torch's enums, behind torch's context where it is asked
    of that. It answers a byte, or two."""

    ask: Callable[..., Any]
    arguments: tuple[Any, ...]
    function: str
    is_of_context: bool = True
    given: tuple[int, ...] = ()
    bytes: int = 1


# As torch's C++ numbers them.
_CUDA = 1  # c10::DeviceType
_OF_CUDA, _CONVOLUTION, _PRODUCT = 1, 1, 3  # at::Float32Backend, at::Float32Op
_PRECISIONS = ("none", "ieee", "tf32", "bf16")  # at::Float32Precision
_REDUCTIONS = ((True, True), (False, True), (False, False))  # at::CuBLASReductionOption

_precision: Any = torch._C._get_fp32_precision_getter
_MODES = [
    _Mode(torch.is_grad_enabled, (), "is_grad_enabled", False),
    _Mode(torch.is_inference_mode_enabled, (), "is_inference_mode", False),
    _Mode(torch.is_autocast_enabled, ("cuda",), "is_autocast_enabled", False, (_CUDA,)),
    _Mode(torch.get_autocast_dtype, ("cuda",), "autocast_dtype", False, (_CUDA,)),
    _Mode(torch.get_default_dtype, (), "default_dtype", False, (), 2),
    _Mode(torch._C._get_deterministic_algorithms, (), "is_deterministic"),
    _Mode(torch._C._get_cudnn_deterministic, (), "is_cudnn_deterministic"),
    _Mode(torch._C._get_cudnn_enabled, (), "is_cudnn_enabled"),
    _Mode(_precision, ("cuda", "matmul"), "float32_precision", True, (_OF_CUDA, _PRODUCT)),
    _Mode(_precision, ("cuda", "conv"), "float32_precision", True, (_OF_CUDA, _CONVOLUTION)),
    _Mode(torch._C._get_cublas_allow_fp16_accumulation, (), "float16_accumulation"),
    _Mode(torch._C._get_cublas_allow_fp16_reduced_precision_reduction, (), "float16_reduction"),
    _Mode(torch._C._get_cublas_allow_bf16_reduced_precision_reduction, (), "bfloat16_reduction"),
    _Mode(torch._C._get_flash_sdp_enabled, (), "flash_attention"),
    _Mode(torch._C._get_mem_efficient_sdp_enabled, (), "efficient_attention"),
    _Mode(torch._C._get_math_sdp_enabled, (), "math_attention"),
    _Mode(torch._C._get_cudnn_sdp_enabled, (), "cudnn_attention")]


def modes() -> tuple[Any, ...]:
    return tuple([mode.ask(*mode.arguments) for mode in _MODES])


def modes_in_cpp() -> list[int]:
    """How C++ is asked for the same: of each mode the address of a function, three arguments of its
    call, of which it may take fewer, and the bits that it answers. Nothing where this torch has
    other functions, or is not known."""
    at = [library_function(mode.function) for mode in _MODES]
    make_context = library_function("global_context")
    if not make_context or not all(at):
        return []
    context = ctypes.CFUNCTYPE(ctypes.c_void_p)(make_context)() or 0
    rows = []
    for mode, address in zip(_MODES, at, strict=True):
        given = (*([context] if mode.is_of_context else []), *mode.given, 0, 0, 0)
        rows += [address, *given[:3], (1 << 8 * mode.bytes) - 1]
    return rows


def numbers_of_modes() -> list[int]:
    """What C++ answers then, as Python tells it. LookupError where that has no number here."""
    return list(map(_number_of, modes()))


def _number_of(answer: Any) -> int:
    if isinstance(answer, torch.dtype):
        return dtype_code(answer)
    if isinstance(answer, str):
        return dict(zip(_PRECISIONS, range(len(_PRECISIONS)), strict=True))[answer]
    if isinstance(answer, tuple):
        return dict(zip(_REDUCTIONS, range(len(_REDUCTIONS)), strict=True))[answer]
    return int(answer)


class Intercepting:
    """Functions and their arguments that tell whether somebody sees each operator that this thread
    runs, or derives it: a dispatch mode, a transform of torch.func, derivatives in forward mode, a
    search for anomalies. And what they answer where nobody does."""

    functions: tuple[Callable[..., Any], ...] = (
        torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack,
        vars(torch.autograd.forward_ad).__getitem__, torch.is_anomaly_enabled)
    arguments: tuple[tuple[Any, ...], ...] = (), (), ("_current_level",), ()
    answers = 0, None, -1, False


def is_intercepted() -> bool:
    return tuple([function(*arguments) for function, arguments in
                  zip(Intercepting.functions, Intercepting.arguments, strict=True)]) \
        != Intercepting.answers
