# SPDX-License-Identifier: Apache-2.0
"""torch's ambient state: what no argument of an operator says, and yet decides what it does, what
autograd records of it, what a backward or a module's call does, or who sees each operator.

Of each part there is a function of torch's Python, and where it is known the same in C++. What says
that somebody sees operators has one answer where ``nobody`` does: calls under another one run
plainly. All else is compared by its value.

Threads: most of it is the thread's own. Failure: none.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
import torch._dynamo.compiled_autograd
import torch._dynamo.eval_frame
import torch.backends.mha
import torch.backends.opt_einsum
import torch.nn.attention
import torch.nn.utils.parametrize
import torch.optim.optimizer as optimizers
import torch.utils.checkpoint
from torch.autograd import forward_ad, grad_mode
from torch.fx import _symbolic_trace
from torch.utils._device import DeviceContext

from anabranch._compat.library import dtype_code, library_function

_BY_VALUE = (1 << 64) - 1  # in place of the number where nobody sees operators
_ANSWER, _OPTIONAL, _BEHIND, _BETWEEN, _ORDER, _OF_THREAD, _THERE = range(7)
_BYTE, _SHORT, _INT, _INT_OR_NONE, _WORD = ((1 << bits) - 1 for bits in (8, 16, 32, 33, 64))


class _Cpp(NamedTuple):
    """The same in C++: a function, by our name for it, and ``given``, numbers of torch's enums,
    behind the object that the function ``of`` answers. ``how`` its answer tells a number, of which
    ``mask`` is taken: it is that; or one that may be none; bit ``at`` of what lies where it points;
    how far two words there are apart, the second one in the bits of ``at`` from 8 on; ``at``
    numbers in a row. Or it is no function, but the thread's words, of which ``at`` is one, or a
    byte. ``number`` makes the same number of what Python answers."""

    function: str
    of: str = "global_context"
    given: tuple[int, ...] = ()
    mask: int = _BYTE
    how: int = _ANSWER
    at: int = 0
    number: Callable[[Any], int] = int


class _Mode(NamedTuple):
    """A function of torch's and what it is called with, and the same in C++. ``nobody``: empty, or
    what it answers where nobody sees operators, and who does else. ``without``: it answers this as
    long as there are no function modes, which is asked first. ``is_of_keys``: where it changes, so
    do the keys by which this thread dispatches."""

    ask: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    cpp: _Cpp | None = None
    nobody: tuple[Any, ...] = ()
    without: tuple[Any, ...] = ()
    is_of_keys: bool = False


def _c(name: str, cpp: _Cpp | str | None = None, *arguments: Any,
       nobody: tuple[Any, ...] = (), of: Any = torch._C, is_of_keys: bool = False) -> list[_Mode]:
    """A function of torch's C module, where this torch has it. ``cpp`` is a switch of torch's
    context where it is a name alone."""
    ask = getattr(of, name, None)
    return [_Mode(ask, arguments, _Cpp(cpp) if isinstance(cpp, str) else cpp, nobody,
                  is_of_keys=is_of_keys)] if ask else []


# As torch's C++ numbers them.
_CPU, _CUDA = 0, 1  # c10::DeviceType
_OF_CUDA, _CONVOLUTION, _RECURRENT, _PRODUCT = 1, 1, 2, 3  # at::Float32Backend, at::Float32Op
_PRECISIONS = ("none", "ieee", "tf32", "bf16")  # at::Float32Precision
_REDUCTIONS = ((True, True), (False, True), (False, False))  # at::CuBLASReductionOption
_DEPTHWISE = ("auto", "cudnn", "native")  # at::CuDNNDepthwiseKernel


def _autocast(device: str, number: int) -> list[_Mode]:
    return [_Mode(torch.is_autocast_enabled, (device,),
                  _Cpp("is_autocast_enabled", "", (number,)), is_of_keys=True),
            _Mode(torch.get_autocast_dtype, (device,),
                  _Cpp("autocast_dtype", "", (number,), number=dtype_code))]


def _precision(of: str, number: int) -> list[_Mode]:
    return _c("_get_fp32_precision_getter", _Cpp("float32_precision", given=(_OF_CUDA, number),
                                                 number=_PRECISIONS.index), "cuda", of)


_OF_AUTOGRAD: list[Callable[[], bool]] = [
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch._C._is_fwd_grad_enabled,
    torch._C._is_multithreading_enabled, torch._C._is_view_replay_enabled]
if hasattr(torch._C, "_is_grad_layout_enforcement_enabled"):  # 2.15
    _OF_AUTOGRAD.append(torch._C._is_grad_layout_enforcement_enabled)


def _autograd_state() -> int:
    """The switches of c10::AutogradState, where they lie behind an optional object."""
    return sum(ask() << bit for bit, ask in enumerate(_OF_AUTOGRAD))


def _of_keys(name: str, at: int) -> _Mode:
    """By which keys this thread dispatches operators besides those of their tensors, or does not:
    as C++ keeps it, without those that each thread begins with."""
    ask = getattr(torch._C, name)
    usual = int(ask().raw_repr())
    return _Mode(lambda: int(ask().raw_repr()) ^ usual, (),
                 _Cpp("dispatch_keys", "", mask=_WORD, how=_OF_THREAD, at=at))


def _hooks_on_new_nodes() -> list[_Mode]:
    """Only C++ tells of them."""
    address = library_function("has_no_node_hooks")
    return [_Mode(ctypes.PYFUNCTYPE(ctypes.c_bool)(address), (),
                  _Cpp("has_no_node_hooks", ""), (True, "hooks on new nodes"))] if address else []


_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_function_mode_at: Callable[[int], Any] = torch._C._get_function_stack_at


def _default_device() -> torch.device | None:
    """torch keeps one at most, below all other function modes."""
    lowest = _function_mode_at(0) if _function_modes() else None
    return lowest.device if type(lowest) is DeviceContext else None


def _others_than_a_device() -> int:
    """How many function modes see each function of torch's."""
    count = _function_modes()
    return count - (count > 0 and type(_function_mode_at(0)) is DeviceContext)


def _or_none(number: int | None) -> int:
    return 0 if number is None else 1 << 32 | number & _INT


def _attention_order() -> tuple[int, ...]:
    return tuple(torch._C._get_sdp_priority_order())


def _in_order(numbers: tuple[int, ...]) -> int:
    return sum((number & 15) << 4 * i for i, number in enumerate(numbers))


_ORDER_OF_ATTENTION = _Mode(_attention_order, (), _Cpp(
    "attention_order", mask=_WORD, how=_ORDER, at=len(_attention_order()), number=_in_order))
_COUNT_OF_FUNCTION_MODES = _Mode(_function_modes, (), _Cpp("function_modes", "", mask=_INT))
_MODES = [
    # How operators are chosen, typed and recorded for autograd.
    _Mode(_autograd_state, (), _Cpp("autograd_state", "", mask=(1 << len(_OF_AUTOGRAD)) - 1,
                                    how=_BEHIND, at=192)),
    *_autocast("cuda", _CUDA), *_autocast("cpu", _CPU),
    _Mode(torch.is_autocast_cache_enabled, (), _Cpp("is_autocast_cache_enabled", "")),
    _Mode(torch.get_default_dtype, (), _Cpp("default_dtype", "", mask=_SHORT,
                                            number=dtype_code)),
    *_c("_get_default_device"),  # of the default type of tensors
    _COUNT_OF_FUNCTION_MODES,
    _Mode(_default_device, without=(None,)),
    _of_keys("_dispatch_tls_local_include_set", 0), _of_keys("_dispatch_tls_local_exclude_set", 1),
    *_c("_functionalization_reapply_views_tls", _Cpp("reapplies_views", "")),
    *_c("_get_dtensor_allow_implicit_replication", _Cpp("replicates_implicitly", "")),
    # Which kernels they run.
    *_c("_get_deterministic_algorithms", "is_deterministic"),
    *_c("_get_deterministic_algorithms_warn_only", "warns_of_nondeterministic"),
    *_c("_get_deterministic_fill_uninitialized_memory", "fills_memory"),
    *_c("_get_cudnn_enabled", "is_cudnn_enabled"),
    *_c("_get_cudnn_deterministic", "is_cudnn_deterministic"),
    *_c("_get_cudnn_benchmark", "is_cudnn_benchmark"),
    *_c("_cuda_get_cudnn_benchmark_limit", _Cpp("cudnn_benchmark_limit", mask=_INT)),
    *_c("_get_cudnn_depthwise_kernel", _Cpp("depthwise_kernel", number=_DEPTHWISE.index)),  # 2.15
    *_precision("matmul", _PRODUCT), *_precision("conv", _CONVOLUTION),
    *_precision("rnn", _RECURRENT),
    *_c("_get_cublas_allow_fp16_accumulation", "float16_accumulation"),
    *_c("_get_cublas_allow_fp16_reduced_precision_reduction",
        _Cpp("float16_reduction", number=_REDUCTIONS.index)),
    *_c("_get_cublas_allow_bf16_reduced_precision_reduction",
        _Cpp("bfloat16_reduction", number=_REDUCTIONS.index)),
    *_c("_get_cublaslt_prefer_grouped_gemm", "prefers_grouped_products"),  # 2.15
    *_c("_get_blas_preferred_backend", "blas_library"),
    *_c("_get_linalg_preferred_backend", "linear_algebra_library"),
    *_c("_get_sm_carveout_experimental",
        _Cpp("multiprocessors_left", mask=_INT_OR_NONE, how=_OPTIONAL, number=_or_none)),
    *_c("_cuda_getCublasLtWorkspaceSize",  # 2.15
        _Cpp("workspace_of_cublaslt", "", mask=_WORD)),
    *_c("_cuda_tunableop_is_enabled", _Cpp("is_tunable", "tuning_context")),
    *_c("_cuda_tunableop_tuning_is_enabled", _Cpp("is_tuned", "tuning_context")),
    *_c("_get_native_aot_enabled", "is_native_aot"),  # 2.15
    *_c("_get_native_aot_unconditional_masked", "is_native_aot_masked"),
    *_c("_get_flash_sdp_enabled", "flash_attention"),
    *_c("_get_mem_efficient_sdp_enabled", "efficient_attention"),
    *_c("_get_math_sdp_enabled", "math_attention"),
    *_c("_get_cudnn_sdp_enabled", "cudnn_attention"),
    *_c("_get_overrideable_sdp_enabled", "overrideable_attention"),
    *_c("_get_fa3_sdp_enabled", "flash_attention_3"),
    *_c("_get_fa4_sdp_enabled", "flash_attention_4"),
    *_c("_get_math_sdp_allow_fp16_bf16_reduction", "math_attention_reduction"),
    _ORDER_OF_ATTENTION,
    # Who sees each operator, or derives it; and whether nobody does that somebody would.
    *_c("_len_torch_dispatch_stack", _Cpp("dispatch_modes", "", mask=_INT),
        nobody=(0, "a mode that sees operators"), is_of_keys=True),
    *_c("peek_interpreter_stack", _Cpp("transforms", "", mask=_WORD, how=_BETWEEN, at=1 << 8),
        nobody=(None, "a transform of torch.func"), of=torch._C._functorch, is_of_keys=True),
    _Mode(vars(forward_ad).__getitem__, ("_current_level",), _Cpp("has_forward_level", ""),
          (-1, "derivatives in forward mode")),
    _Mode(torch.is_anomaly_enabled, (), _Cpp("searches_anomalies", "", how=_THERE),
          (False, "a search for anomalies")),
    _Mode(_others_than_a_device, nobody=(0, "a mode that sees functions"), without=(0,)),
    _Mode(torch._C._get_torch_function_state, (), _Cpp("disabled_functions", ""),
          (torch._C._TorchFunctionState.ENABLED, "a ban on functions of tensors' classes")),
    *_c("_top_saved_tensors_default_hooks",
        _Cpp("saved_tensors_hooks", "", mask=_WORD, how=_BETWEEN, at=6 << 8 | 2), True,
        nobody=(None, "hooks on saved tensors"), of=torch._C._autograd),
    *_c("_saved_tensors_hooks_get_disabled_error_message",
        _Cpp("saved_tensors_hooks", "", how=_BEHIND, at=14 * 64),
        nobody=(None, "a ban on hooks on saved tensors"), of=torch._C._autograd),
    *_hooks_on_new_nodes(),
    *_c("_get_tracing_state", _Cpp("tracing_state", "", mask=_WORD, how=_BEHIND),
        nobody=(None, "a tracer")),
    *_c("_get_graph_exec_group", _Cpp("autograd_state", "", how=_BEHIND, at=128),
        nobody=(None, "a group of checkpoints"))]

# Switches that torch's Python keeps in variables of its modules: these, a name, and the values that
# there have been, by whose numbers they are told.
SWITCHES: tuple[tuple[dict[str, Any], str, list[Any]], ...] = tuple(
    (variables, name, []) for variables, names in (
        (vars(torch._dynamo.eval_frame), ("_stance",)),
        (vars(torch._dynamo.compiled_autograd), ("compiled_autograd_enabled",)),
        (torch.nn.attention.current_flash_attention_impl.__globals__, (
            "_FLASH_ATTENTION_ACTIVE",)),
        (vars(torch.nn.utils.parametrize), ("_cache_enabled",)),
        (vars(torch.utils.checkpoint), ("_enable_checkpoint_early_stop",
                                        "_checkpoint_debug_enabled")),
        (vars(torch.__future__), ("_overwrite_module_params_on_conversion",
                                  "_swap_module_params_on_conversion")),
        (vars(torch.backends.mha), ("_is_fastpath_enabled",)),
        (torch.backends.opt_einsum._get_enabled.__globals__, ("enabled", "strategy")))
    for name in names)
_OF_ALL_MODULES = (
    (vars(torch.nn.modules.module), "_global_"), (vars(optimizers), "_global_optimizer_"))


def global_hooks() -> list[tuple[str, dict[int, Any]]]:
    """The hooks on all modules and optimizers, and on what modules register, by kind."""
    return [(name, hooks) for variables, prefix in _OF_ALL_MODULES
            for name, hooks in variables.items()
            if name.startswith(prefix) and isinstance(hooks, dict)]


# Older ones have one function, which says so of an export, too.
is_fx_tracing: Callable[[], bool] = getattr(
    _symbolic_trace, "is_fx_symbolic_tracing", None) or _symbolic_trace.is_fx_tracing


def modes() -> tuple[Any, ...]:
    """All of it, as torch's Python tells it, to be compared and hashed."""
    return *[mode.ask(*mode.arguments) for mode in _MODES], \
        *[_number_of_value(variables.get(name), values) for variables, name, values in SWITCHES]


def _number_of_value(value: Any, values: list[Any]) -> int:
    if value not in values:
        values.append(value)
    return values.index(value)


_CAST_WEIGHTS: dict[str, torch.nn.Parameter] = {}


def kept_cast() -> Any:
    """What stands for the casts of weights that autocast keeps until its outermost block ends: the
    same object as long as it has not. None where none are kept."""
    kinds = ("cuda", "cpu") if torch.cuda.is_initialized() else ("cpu",)
    device = next((kind for kind in kinds if torch.is_autocast_enabled(kind)), None)
    if device is None or not torch.is_autocast_cache_enabled() or not torch.is_grad_enabled():
        return None
    if device not in _CAST_WEIGHTS:
        _CAST_WEIGHTS[device] = torch.nn.Parameter(torch.ones(1, 1, device=device))
    weight = _CAST_WEIGHTS[device]
    product = (weight @ weight).grad_fn
    return product.next_functions[0][0] if product is not None else None


def is_intercepted() -> bool:
    """Whether somebody sees each operator that this thread runs, or derives it; or nobody does that
    otherwise would."""
    return any(_sees(mode) for mode in _MODES if mode.nobody)


def who_intercepts() -> str:
    """The first of these, in words; empty where there is none."""
    return next((mode.nobody[1] for mode in _MODES if mode.nobody and _sees(mode)), "")


def _sees(mode: _Mode) -> bool:
    return bool(mode.ask(*mode.arguments) != mode.nobody[0])


@contextlib.contextmanager
def _transform() -> Iterator[None]:
    torch._C._functorch._grad_increment_nesting()
    try:
        yield
    finally:
        torch._C._functorch._grad_decrement_nesting()


def trials_of_modes() -> list[Callable[[], AbstractContextManager[Any]]]:
    """Contexts in which some of it is different, in this thread alone."""
    trials: list[Callable[[], AbstractContextManager[Any]]] = [
        contextlib.nullcontext, torch.no_grad, torch.inference_mode, _transform,
        functools.partial(grad_mode.set_multithreading_enabled, False),
        functools.partial(grad_mode._force_original_view_tracking, True),
        functools.partial(forward_ad._set_fwd_grad_enabled, False),
        functools.partial(torch.autograd.graph.saved_tensors_hooks, torch.clone, torch.clone),
        functools.partial(torch.autograd.graph.disable_saved_tensors_hooks, "a trial"),
        torch.utils.checkpoint.GraphExecGroup, torch._C.DisableTorchFunctionSubclass]
    if hasattr(grad_mode, "enforce_grad_layout_policy"):  # 2.15
        trials.append(functools.partial(grad_mode.enforce_grad_layout_policy, False))
    return trials


def modes_in_cpp() -> dict[int, list[int]]:
    """By the number of a mode, how C++ is asked for the same where this torch is known: an address,
    three arguments of which a function may take fewer, how its answer tells a number, and where, a
    mask, and the number where nobody sees operators."""
    made = {mode.cpp.of: _object_of(mode.cpp.of) for mode in _MODES if mode.cpp and mode.cpp.of}
    return {i: _row(mode, mode.cpp, made.get(mode.cpp.of)) for i, mode in enumerate(_MODES)
            if mode.cpp and library_function(mode.cpp.function) and made.get(mode.cpp.of, True)}


def told_by_keys(rows: Mapping[int, Any]) -> list[int]:
    """Of these modes those that need not be compared, since keys are that change where they do."""
    keys = [i for i, mode in enumerate(_MODES) if mode.cpp and mode.cpp.how == _OF_THREAD]
    return [i for i in rows if _MODES[i].is_of_keys] if rows.keys() >= set(keys) else []


def _object_of(function: str) -> int | None:
    make = library_function(function)
    return ctypes.CFUNCTYPE(ctypes.c_void_p)(make)() if make else None


def _row(mode: _Mode, cpp: _Cpp, of: int | None) -> list[int]:
    given = (*([of] if of else []), *cpp.given, 0, 0, 0)
    return [library_function(cpp.function), *given[:3], cpp.how, cpp.at, cpp.mask,
            _number_of_nobody(mode) if mode.nobody else _BY_VALUE]


def are_told(rows: Mapping[int, Any], words: Sequence[int]) -> list[int]:
    """Of these modes those of which Python says now what C++ has said, ``words``."""
    return [i for i, word in zip(rows, words, strict=False) if _is_told(_MODES[i], word)]


def _is_told(mode: _Mode, word: int) -> bool:
    if mode.nobody:
        return _sees(mode) == (word != _number_of_nobody(mode))
    assert mode.cpp is not None
    try:
        return mode.cpp.number(mode.ask(*mode.arguments)) == word
    except (TypeError, ValueError, LookupError):  # it has no number here
        return False


def _number_of_nobody(mode: _Mode) -> int:
    return int(mode.nobody[0] is True)


def asked_modes(rows: Mapping[int, Any]) -> list[tuple[Any, ...]]:
    """The others, for which Python is asked: a function, its arguments, what it answers where
    nobody sees operators, which of the rows may answer 0, and what this function answers then."""
    count, by_keys = _MODES.index(_COUNT_OF_FUNCTION_MODES), told_by_keys(rows)
    at = [i for i in rows if i not in by_keys].index(count) if count in rows else -1
    return [(mode.ask, mode.arguments, mode.nobody, at if mode.without else -1,
             *(mode.without or (None,))) for i, mode in enumerate(_MODES) if i not in rows]
