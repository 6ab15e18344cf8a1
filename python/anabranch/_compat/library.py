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
    "warns_of_nondeterministic": "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv",
    "fills_memory": "_ZNK2at7Context36deterministicFillUninitializedMemoryEv",
    "is_cudnn_benchmark": "_ZNK2at7Context14benchmarkCuDNNEv",
    "cudnn_benchmark_limit": "_ZNK2at7Context19benchmarkLimitCuDNNEv",
    "multiprocessors_left": "_ZNK2at7Context24_SMCarveout_EXPERIMENTALEv",
    "workspace_of_cublaslt": "_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv",
    "tuning_context": "_ZN2at4cuda7tunable16getTuningContextEv",
    "is_tunable": "_ZNK2at4cuda7tunable13TuningContext18IsTunableOpEnabledEv",
    "is_tuned": "_ZNK2at4cuda7tunable13TuningContext15IsTuningEnabledEv",
    "prefers_grouped_products": "_ZNK2at7Context25preferCublasltGroupedGemmEv",
    "blas_library": "_ZN2at7Context20blasPreferredBackendEv",
    "linear_algebra_library": "_ZNK2at7Context22linalgPreferredBackendEv",
    "is_native_aot": "_ZNK2at7Context14allowNativeAotEv",
    "is_native_aot_masked": "_ZNK2at7Context26maskUnconditionalNativeAotEv",
    "overrideable_attention": "_ZNK2at7Context26userEnabledOverrideableSDPEv",
    "flash_attention_3": "_ZNK2at7Context17userEnabledFA3SDPEv",
    "flash_attention_4": "_ZNK2at7Context17userEnabledFA4SDPEv",
    "math_attention_reduction": "_ZNK2at7Context29allowFP16BF16ReductionMathSDPEv",
    "is_autocast_cache_enabled": "_ZN2at8autocast25is_autocast_cache_enabledEv",
    "autograd_state": "_ZN3c1013AutogradState13get_tls_stateEv",
    "reapplies_views": "_ZN2at17functionalization4impl35getFunctionalizationReapplyViewsTLSEv",
    "replicates_implicitly": "_ZN2at38get_dtensor_allow_implicit_replicationEv",
    "function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "dispatch_modes": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "transforms": "_ZN2at9functorch20getDynamicLayerStackEv",
    "has_forward_level": "_ZN5torch8autograd14ForwardADLevel13has_any_levelEv",  # 2.15
    "searches_anomalies": "_ZN5torch8autograd11AnomalyMode8_enabledE",  # a byte
    "tracing_state": "_ZN5torch3jit6tracer15getTracingStateEv",
    "depthwise_kernel": "_ZNK2at7Context20cudnnDepthwiseKernelEv",  # 2.15
    "attention_order": "_ZN2at7Context16sDPPriorityOrderEv",
    "saved_tensors_hooks": "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv",
    "has_no_node_hooks": "_ZN2at4impl17NodeCreationHooks5emptyEv",  # 2.15
    "disabled_functions": "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
    "dispatch_keys": "_ZN3c104impl26raw_local_dispatch_key_setE",  # words of each thread
    "prepare_threads": "torch_get_num_threads",
    "set_mkl_threads": "MKL_Set_Num_Threads_Local",  # the lower-case symbol is Fortran's
}


_NEWEST_KNOWN = (2, 15)  # of whose functions of C++ it is known what they answer


@functools.cache
def _torch_library() -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@functools.cache
def _cuda_library() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
    return None


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
    library = _cuda_library()
    if library is None:
        return 0, 0
    name = "aoti_torch_cuda_caching_allocator_raw_"
    return _address(library, name + "alloc"), _address(library, name + "delete")


@functools.cache
def library_function(name: str) -> int:
    """The address of a function of torch's C ABI, by our name for it; 0 if this torch lacks it. Of
    C++ only where this torch has been tried: a newer one might answer something else."""
    symbol = LIBRARY_FUNCTIONS[name]
    if symbol.startswith("_Z") and version > _NEWEST_KNOWN:
        return 0
    library = _cuda_library() if "2at4cuda" in symbol else _torch_library()
    return _address(library, symbol) if library is not None else 0


def dispatch_keys() -> tuple[int, bytes]:
    """Where each thread finds the keys by which it dispatches operators: the library, as the loader
    knows it, and the name there."""
    return _torch_library()._handle, LIBRARY_FUNCTIONS["dispatch_keys"].encode()


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
