# SPDX-License-Identifier: Apache-2.0
"""Changes of torch's ambient state, each a context around a call: what a user or a library writes.

``VALUES`` are told from one another: a call under another one is another signature. Under ``SEEN``
somebody sees or derives operators, so that a call runs plainly. ``HOOKS`` are torch's hooks for all
modules and optimizers: another signature, too. A name that this torch lacks has no row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._dynamo.compiled_autograd
import torch.nn.attention
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
from torch.autograd import forward_ad, grad_mode
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

C, CUDA, CUDNN = torch._C, torch.backends.cuda, torch.backends.cudnn
Make = Callable[[], AbstractContextManager[Any]]


def between(change: Callable[[], Any], change_back: Callable[[], Any]) -> Make:
    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        change()
        try:
            yield
        finally:
            change_back()

    return changed


def attribute(owner: Any, name: str, value: Any) -> Make:
    """Set by the owner's own ways, and as before behind it."""
    before = getattr(owner, name)
    return between(lambda: setattr(owner, name, value), lambda: setattr(owner, name, before))


def setter(name: str, value: Any, before: Any) -> Make:
    return between(lambda: getattr(C, name)(value), lambda: getattr(C, name)(before))


def made(kind: Any, *given: Any) -> Make:
    return lambda: kind(*given)


def by_function(function: Callable[..., Any], value: Any, before: Any) -> Make:
    return between(lambda: function(value), lambda: function(before))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def transform() -> Iterator[None]:
    C._functorch._grad_increment_nesting()
    try:
        yield
    finally:
        C._functorch._grad_decrement_nesting()


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """In the state that torch.jit.trace sets."""
    states = []
    torch.jit.trace(lambda x: (states.append(C._get_tracing_state()), x)[1], torch.ones(1))
    C._set_tracing_state(states[0])
    try:
        yield
    finally:
        C._set_tracing_state(None)


def nothing(*given: Any, **named: Any) -> None:
    pass


def one_key() -> Any:
    return C.DispatchKeySet(C.DispatchKey.ADInplaceOrView)


LINALG, BLAS = C._LinalgBackend, C._BlasBackend
ATTENTION = torch.nn.attention
VALUES: dict[str, Make] = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "no forward gradients": made(forward_ad._set_fwd_grad_enabled, False),
    "a backward on one thread": made(torch.autograd.set_multithreading_enabled, False),
    "views replayed": made(grad_mode._force_original_view_tracking, True),
    "autocast": between(lambda: torch.set_autocast_enabled("cuda", True),
                        lambda: torch.set_autocast_enabled("cuda", False)),
    "type of autocast": between(lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
                                lambda: torch.set_autocast_dtype("cuda", torch.float16)),
    "autocast of the CPU": made(torch.autocast, "cpu"),
    "type of the CPU's autocast": made(torch.autocast, "cpu", torch.float16, False),
    "autocast without its cache": by_function(torch.set_autocast_cache_enabled, False, True),
    "default type": by_function(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": by_function(torch.set_default_device, "meta", None),
    "device around a call": made(torch.device, "meta"),
    "a key of dispatch left out": lambda: C._ExcludeDispatchKeyGuard(one_key()),
    "implicit replication": setter("_set_dtensor_allow_implicit_replication", True, False),
    "determinism": by_function(torch.use_deterministic_algorithms, True, False),
    "warnings of what is not deterministic": between(
        lambda: torch.use_deterministic_algorithms(False, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False)),
    "no fills": attribute(torch.utils.deterministic, "fill_uninitialized_memory", False),
    "no cuDNN": attribute(CUDNN, "enabled", False),
    "cuDNN's determinism": attribute(CUDNN, "deterministic", True),
    "cuDNN's benchmarks": attribute(CUDNN, "benchmark", True),
    "limit of cuDNN's benchmarks": setter("_cuda_set_cudnn_benchmark_limit", 3, 10),
    "depthwise kernels": setter("_set_cudnn_depthwise_kernel", "native", "auto"),
    "products in TF32": attribute(CUDA.matmul, "fp32_precision", "tf32"),
    "products in IEEE's": attribute(CUDA.matmul, "fp32_precision", "ieee"),
    "convolutions in IEEE's": attribute(CUDNN.conv, "fp32_precision", "ieee"),
    "recurrent layers in IEEE's": attribute(CUDNN.rnn, "fp32_precision", "ieee"),
    "sums in half": attribute(CUDA.matmul, "allow_fp16_accumulation", True),
    "reductions in half": attribute(CUDA.matmul, "allow_fp16_reduced_precision_reduction", False),
    "reductions in bfloat16": attribute(
        CUDA.matmul, "allow_bf16_reduced_precision_reduction", False),
    "no split sums": between(
        lambda: C._set_cublas_allow_bf16_reduced_precision_reduction(False, False),
        lambda: C._set_cublas_allow_bf16_reduced_precision_reduction(True, True)),
    "grouped products by cuBLASLt": setter("_set_cublaslt_prefer_grouped_gemm", True, False),
    "library of products": by_function(CUDA.preferred_blas_library, "cublaslt", "cublas"),
    "library of linear algebra": by_function(
        CUDA.preferred_linalg_library, "cusolver", "default"),
    "multiprocessors left": setter("_set_sm_carveout_experimental", 8, None),
    "TunableOp": setter("_cuda_tunableop_enable", True, False),
    "no tuning": setter("_cuda_tunableop_tuning_enable", False, True),
    "no kernels compiled ahead": setter("_set_native_aot_enabled", False, True),
    "masked kernels compiled ahead": setter("_set_native_aot_unconditional_masked", True, False),
    "no flash attention": setter("_set_sdp_use_flash", False, True),
    "no efficient attention": setter("_set_sdp_use_mem_efficient", False, True),
    "no attention by products": setter("_set_sdp_use_math", False, True),
    "no attention of cuDNN": setter("_set_sdp_use_cudnn", False, True),
    "no attention of others": setter("_set_sdp_use_overrideable", False, True),
    "flash attention 3": setter("_set_sdp_use_fa3", True, False),
    "flash attention 4": setter("_set_sdp_use_fa4", True, False),
    "attention by products in half": setter("_set_math_sdp_allow_fp16_bf16_reduction", True, False),
    "order of attention": between(
        lambda: C._set_sdp_priority_order([2, 1, 0, 3, 4]),
        lambda: C._set_sdp_priority_order([1, 2, 0, 3, 4])),
    "kernels of attention": made(ATTENTION.sdpa_kernel, [ATTENTION.SDPBackend.MATH]),
    "another flash attention": attribute(
        ATTENTION._registry, "_FLASH_ATTENTION_ACTIVE", ("mine", [])),
    "compiled code runs eagerly": made(torch.compiler.set_stance, "force_eager"),
    "backwards are compiled": attribute(
        torch._dynamo.compiled_autograd, "compiled_autograd_enabled", True),
    "parametrizations are cached": parametrize.cached,
    "no early stop of checkpoints": made(checkpoint.set_checkpoint_early_stop, False),
    "checkpoints for debugging": made(checkpoint.set_checkpoint_debug_enabled, True),
    "parameters overwritten": by_function(
        torch.__future__.set_overwrite_module_params_on_conversion, True, False),
    "parameters swapped": by_function(
        torch.__future__.set_swap_module_params_on_conversion, True, False),
    "no fast path of attention": by_function(torch.backends.mha.set_fastpath_enabled, False, True),
}
SEEN: dict[str, Make] = {
    "a mode that sees operators": Operators,
    "a mode that sees functions": Functions,
    "a transform": transform,
    "derivatives in forward mode": forward_ad.dual_level,
    "a search for anomalies": made(torch.autograd.set_detect_anomaly, True),
    "no functions of subclasses": C.DisableTorchFunctionSubclass,
    "no functions of classes": C.DisableTorchFunction,
    "hooks on saved tensors": made(torch.autograd.graph.saved_tensors_hooks, torch.clone,
                                   torch.clone),
    "saved tensors on the CPU": torch.autograd.graph.save_on_cpu,
    "no hooks on saved tensors": made(torch.autograd.graph.disable_saved_tensors_hooks, "none"),
    "changes of saved tensors": torch.autograd.graph.allow_mutation_on_saved_tensors,
    "a tracer": traced,
    "checkpoints computed once": checkpoint.GraphExecGroup,
}


def handle_of(register: Callable[..., Any]) -> Make:
    @contextlib.contextmanager
    def registered() -> Iterator[None]:
        handle = register(nothing)
        try:
            yield
        finally:
            handle.remove()

    return registered


HOOKS: dict[str, Make] = {register.__name__: handle_of(register) for register in (
    modules.register_module_forward_pre_hook, modules.register_module_forward_hook,
    modules.register_module_full_backward_pre_hook, modules.register_module_full_backward_hook,
    modules.register_module_buffer_registration_hook,
    modules.register_module_module_registration_hook,
    modules.register_module_parameter_registration_hook,
    optimizers.register_optimizer_step_pre_hook, optimizers.register_optimizer_step_post_hook)}

if hasattr(torch.autograd, "enforce_grad_layout_policy"):
    VALUES["gradients in any layout"] = made(torch.autograd.enforce_grad_layout_policy, False)
if hasattr(torch.autograd.graph, "node_creation_hook"):
    SEEN["hooks on new nodes"] = made(torch.autograd.graph.node_creation_hook, nothing)
if torch.backends.opt_einsum.is_available():
    VALUES["order of sums"] = attribute(torch.backends.opt_einsum, "strategy", "optimal")
for name, needed in (("depthwise kernels", "_set_cudnn_depthwise_kernel"),
                     ("grouped products by cuBLASLt", "_set_cublaslt_prefer_grouped_gemm"),
                     ("no kernels compiled ahead", "_set_native_aot_enabled"),
                     ("masked kernels compiled ahead", "_set_native_aot_unconditional_masked"),
                     ("flash attention 4", "_set_sdp_use_fa4")):
    if not hasattr(C, needed):
        del VALUES[name]
