# SPDX-License-Identifier: Apache-2.0
"""The C ABI of torch's tensor library, and of what Inductor compiled."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import torch

version: tuple[int, int] = tuple(int(part) for part in torch.__version__.split(".")[:2])  # type: ignore[assignment]

# Functions of the tensor library that a tape or a launch calls, by the name it gives them.
LIBRARY_FUNCTIONS = {
    "create_view": "aoti_torch_create_tensor_from_blob_v2",
    "delete_tensor": "aoti_torch_delete_tensor_object",
    "new_handle": "aoti_torch_new_tensor_handle",
    "data_pointer": "aoti_torch_get_data_ptr",
    "assign": "aoti_torch_assign_tensors",
    "reinterpret": "aoti_torch__reinterpret_tensor",
    "strides": "aoti_torch_get_strides",
    "copy": "aoti_torch_copy_",
    "dispatch": "torch_call_dispatcher",
    "new_list": "torch_new_list_reserve_size",
    "list_push": "torch_list_push_back",
    "delete_list": "torch_delete_list",
    "last_error": "torch_exception_get_what",  # 2.12 and later
    "mm_out": "aoti_torch_cpu_mm_out",
    "addmm_out": "aoti_torch_cpu_addmm_out",
    "bmm_out": "aoti_torch_cpu_bmm_out",
    "baddbmm_out": "aoti_torch_cpu_baddbmm_out",
    "randint_low_out": "aoti_torch_cpu_randint_low_out",
    # Of C++: a name says the types that a function is given, and not what it answers.
    "requires_gradient": "_ZNK3c1010TensorImpl13requires_gradEv",
    "gradient": "_ZNK3c1010TensorImpl4gradEv",
    "mutable_gradient": "_ZN3c1010TensorImpl12mutable_gradEv",
    "increment_version": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    "global_context": "_ZN2at13globalContextEv",
    "is_grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "is_inference_mode": "_ZN3c1013InferenceMode10is_enabledEv",
    "is_autocast_enabled": "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",
    "autocast_dtype": "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
    "default_dtype": "_ZN3c1017get_default_dtypeEv",
    "is_deterministic": "_ZNK2at7Context23deterministicAlgorithmsEv",
    "is_cudnn_deterministic": "_ZNK2at7Context18deterministicCuDNNEv",
    "is_cudnn_enabled": "_ZNK2at7Context16userEnabledCuDNNEv",
    "float32_precision": "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE",
    "float16_accumulation": "_ZNK2at7Context27allowFP16AccumulationCuBLASEv",
    "float16_reduction": "_ZNK2at7Context24allowFP16ReductionCuBLASEv",
    "bfloat16_reduction": "_ZNK2at7Context24allowBF16ReductionCuBLASEv",
    "flash_attention": "_ZNK2at7Context19userEnabledFlashSDPEv",
    "efficient_attention": "_ZNK2at7Context26userEnabledMemEfficientSDPEv",
    "math_attention": "_ZNK2at7Context18userEnabledMathSDPEv",
    "cudnn_attention": "_ZNK2at7Context19userEnabledCuDNNSDPEv",
    "prepare_threads": "torch_get_num_threads",
    "set_mkl_threads": "MKL_Set_Num_Threads_Local",  # the lower-case symbol is Fortran's
}


_NEWEST_KNOWN = (2, 15)  # of whose functions of C++ it is known what they answer


@functools.cache
def _torch_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@functools.cache
def _openmp_library() -> ctypes.CDLL | None:
    for path in sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*.so*")):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(path))
    with contextlib.suppress(OSError):
        return ctypes.CDLL("libgomp.so.1")
    return None


@functools.cache
def byte_allocator() -> tuple[int, int]:
    """The addresses of two functions of torch's C ABI that take memory from its allocator for GPUs,
    for the current device and stream, and give it back; 0 where it has none."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    except OSError:
        return 0, 0
    name = "aoti_torch_cuda_caching_allocator_raw_"
    return _address(library, name + "alloc"), _address(library, name + "delete")


@functools.cache
def library_function(name: str) -> int:
    """The address of a function of torch's C ABI, by our name for it; 0 if this torch lacks it. Of
    C++ only where this torch has been tried: a newer one might answer something else."""
    symbol = LIBRARY_FUNCTIONS[name]
    is_known = not symbol.startswith("_Z") or version <= _NEWEST_KNOWN
    return _address(_torch_library(), symbol) if is_known else 0


@functools.cache
def openmp_function(name: str) -> int:
    library = _openmp_library()
    return _address(library, name) if library is not None else 0


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


@functools.cache
def dtype_code(dtype: torch.dtype) -> int:
    """torch's number for a dtype in its C ABI; KeyError where it has none."""
    name = f"aoti_torch_dtype_{str(dtype).removeprefix('torch.')}"
    try:
        return getattr(_torch_library(), name)()
    except AttributeError:
        raise KeyError(dtype) from None


def library_version() -> int:
    major, minor = version
    return major << 56 | minor << 48


def kernel_address(function: Any) -> int:
    """The C entry of a kernel that Inductor compiled, from its Python binding."""
    path = getattr(getattr(function, "__self__", None), "__file__", None)
    if path is None or not os.path.exists(path):
        raise TypeError(f"{function!r} is no compiled kernel")
    return _kernel_in(path, function.__name__)


@functools.cache
def _kernel_in(path: str, name: str) -> int:
    return _address(ctypes.CDLL(path), name)
