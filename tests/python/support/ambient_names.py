# SPDX-License-Identifier: Apache-2.0
"""What torch has of ambient state, by the names that reach it: what guards each, or why nothing
need. Names may be patterns. Those of torch's C module and its two submodules come without it."""

from __future__ import annotations

# By what `_compat/torch_modes.py` asks: other names for it, and what sets it.
GUARDED: dict[str, str] = {
    "is_grad_enabled": "_set_grad_enabled",
    "is_inference_mode_enabled": "_InferenceMode",
    "_is_fwd_grad_enabled": "_set_fwd_grad_enabled",
    "_is_multithreading_enabled": "_set_multithreading_enabled",
    "_is_view_replay_enabled": "_set_view_replay_enabled",
    "_is_grad_layout_enforcement_enabled": "_set_grad_layout_enforcement_enabled",
    "is_autocast_enabled": "set_autocast_enabled set_autocast_cpu_enabled is_autocast_cpu_enabled "
                           "_is_any_autocast_enabled",
    "get_autocast_dtype": "set_autocast_dtype set_autocast_cpu_dtype set_autocast_gpu_dtype "
                          "get_autocast_cpu_dtype get_autocast_gpu_dtype",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
    "get_default_dtype": "_set_default_dtype",
    "_get_default_device": "_set_default_tensor_type",
    "_len_torch_function_stack": "_push_on_torch_function_stack _pop_torch_function_stack "
                                 "_is_torch_function_mode_enabled",
    "_get_function_stack_at": "",
    "_dispatch_tls_local_include_set":
        "_dispatch_tls_is_dispatch_key_included _dispatch_tls_set_dispatch_key_included "
        "_EnablePreDispatch _EnablePythonDispatcher _IncludeDispatchKeyGuard "
        "_PreserveDispatchKeyGuard _RestorePythonTLSSnapshot _set_meta_in_tls_dispatch_include "
        "_dump_local_tls_set _dynamo_*_local_dispatch_key_set _ForceDispatchKeyGuard "
        "_vmapmode_*crement_nesting",
    "_dispatch_tls_local_exclude_set":
        "_dispatch_tls_is_dispatch_key_excluded _dispatch_tls_set_dispatch_key_excluded "
        "*ExcludeDispatchKeyGuard _AutoDispatchBelow* _DisableAutocast _DisableFuncTorch "
        "_DisablePythonDispatcher _DisableTorchDispatch",
    "_functionalization_reapply_views_tls": "",
    "_get_dtensor_allow_implicit_replication": "_set_dtensor_allow_implicit_replication",
    "_get_deterministic_algorithms": "_set_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only": "",
    "_get_deterministic_fill_uninitialized_memory": "_set_deterministic_fill_uninitialized_memory",
    "_get_cudnn_enabled": "_set_cudnn_enabled",
    "_get_cudnn_deterministic": "_set_cudnn_deterministic",
    "_get_cudnn_benchmark": "_set_cudnn_benchmark",
    "_cuda_get_cudnn_benchmark_limit": "_cuda_set_cudnn_benchmark_limit",
    "_get_cudnn_depthwise_kernel": "_set_cudnn_depthwise_kernel",
    "_get_fp32_precision_getter":
        "_set_fp32_precision_setter _?et_cublas_allow_tf32 _?et_cudnn_allow_tf32 "
        "_?et_float32_matmul_precision",
    "_get_cublas_allow_fp16_accumulation": "_set_cublas_allow_fp16_accumulation",
    "_get_cublas_allow_fp16_reduced_precision_reduction":
        "_set_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_bf16_reduced_precision_reduction":
        "_set_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublaslt_prefer_grouped_gemm": "_set_cublaslt_prefer_grouped_gemm",
    "_get_blas_preferred_backend": "_set_blas_preferred_backend _get_blas_default_backend",
    "_get_linalg_preferred_backend": "_set_linalg_preferred_backend",
    "_get_sm_carveout_experimental": "_set_sm_carveout_experimental",
    "_cuda_getCublasLtWorkspaceSize": "_cuda_setCublasLtWorkspaceSize",
    "_cuda_tunableop_is_enabled": "_cuda_tunableop_enable",
    "_cuda_tunableop_tuning_is_enabled": "_cuda_tunableop_tuning_enable",
    "_get_native_aot_enabled": "_set_native_aot_enabled",
    "_get_native_aot_unconditional_masked": "_set_native_aot_unconditional_masked",
    "_get_flash_sdp_enabled": "_set_sdp_use_flash",
    "_get_mem_efficient_sdp_enabled": "_set_sdp_use_mem_efficient",
    "_get_math_sdp_enabled": "_set_sdp_use_math",
    "_get_cudnn_sdp_enabled": "_set_sdp_use_cudnn",
    "_get_overrideable_sdp_enabled": "_set_sdp_use_overrideable",
    "_get_fa3_sdp_enabled": "_set_sdp_use_fa3",
    "_get_fa4_sdp_enabled": "_set_sdp_use_fa4",
    "_get_math_sdp_allow_fp16_bf16_reduction": "_set_math_sdp_allow_fp16_bf16_reduction",
    "_get_sdp_priority_order": "_set_sdp_priority_order",
    "_len_torch_dispatch_stack":
        "_get_dispatch_mode _set_dispatch_mode _get_dispatch_stack_at _p*_torch_dispatch_stack",
    "peek_interpreter_stack":
        "get_interpreter_stack get_dynamic_layer_stack_depth p*_dynamic_layer_stack* "
        "_func_*crement_nesting _grad_*crement_nesting _jvp_*crement_nesting "
        "_vmap_*crement_nesting _set_dynamic_layer_keys_included tls_set_vmap_excluded "
        "dump_local_tls",
    "_current_level": "_enter_dual_level _exit_dual_level",
    "is_anomaly_enabled": "is_anomaly_check_nan_enabled set_anomaly_enabled",
    "_get_torch_function_state":
        "_set_torch_function_state DisableTorchFunction* _EnableTorchFunction "
        "_is_torch_function_enabled _is_torch_function_all_disabled",
    "_top_saved_tensors_default_hooks": "_p*_saved_tensors_default_hooks",
    "_saved_tensors_hooks_get_disabled_error_message":
        "_saved_tensors_hooks_enable _saved_tensors_hooks_disable _saved_tensors_hooks_is_enabled",
    "has_no_node_hooks": "_p*_node_creation_hook",
    "_get_tracing_state": "_set_tracing_state _is_tracing _get_value_trace _set_value_trace",
    "_get_graph_exec_group": "_set_graph_exec_group",
}
UNGUARDED: dict[str, str] = {
    "TorchScript's compiler, and models for it":
        "_jit_* _debug_* _*graph_executor_optimize _tracer_set_* _get_caught_jit_* _llvm_enabled "
        "_get_*mobile* _set_*mobile* _is_*mobile* _enable_mobile_* _get_model_* _get_upgrader* "
        "_get_operator_version_map _get_max_operator_version _get_version_calculator_flag "
        "_get_file_format _set_should_use_format_* _get_module_info_from_flatbuffer",
    "tells of a tensor, a type or an operator, and is no state":
        "_any_output_is_alias* _dispatch_get_* _dispatch_is* _dispatch_kernel_* _dispatch_key_set "
        "_get_schema _get_operation_overload _get_nested_int _get_constant_bool_symnode "
        "_get_tensor_metadata _set_tensor_metadata _get_fake_constant _set_fake_constant "
        "_is_alias_of _is_cow_tensor _is_fake_tensor _is_opaque_type_registered _is_pybind11_type "
        "_set_conj _set_neg _increment_version _get_all_dtypes _get_cudnn_batch_norm_reserve_* "
        "_get_custom_class_python_wrapper _set_storage_*access_error_msg "
        "_set_*_on_mutable_data_ptr _set_generator_metaclass _get_data_attr _*et_creation_meta "
        "_unsafe_set_version_counter get_unwrapped is_*tensor is_dead_tensor_wrapper "
        "_maybe_unsafe_set_level maybe_get_*",
    "what the machine and this torch have":
        "_get_accelerator _get_cpu_capability _cuda_getArchFlags _cuda_getCompiledVersion "
        "_cuda_getDeviceCount _cuda_getHipblasltVersion _cuda_isInBadFork _is_ck_sdpa_available "
        "_is_flash_attention_available _is_cudnn_attention_decode_disabled "
        "_is_autocast_available _get_privateuse1_backend_name",
    "another kind of device":
        "_mps_* _mtia_* _xpu_* *_autocast_ipu_* *_autocast_xla_* _rocm_* *miopen* "
        "*_rocm_fa_preferred_backend",
    "device and stream, by which a launch goes":
        "_accelerator_* _cuda_getDevice _cuda_setDevice _cuda_*Stream _cuda_getStreamFromExternal "
        "_cuda_getCurrentBlasHandle _cuda_getCurrentSolverHandle _cuda_isCurrentStreamCapturing",
    "memory, where it is had and who notes it":
        "_cuda_cudaCachingAllocator_* _cuda_getAllocator* _cuda_*CheckpointState "
        "_cuda_setCheckpointPoolState _cuda_*MemoryFraction _cuda_*MemoryMetadata "
        "_cuda_isHistoryEnabled *_conv_benchmark_empty_cache *_cached_tensor*",
    "kernels of the CPU, which a launch does not run":
        "*mkldnn* *onednn* *nnpack* *xnnpack* _*et_qengine *et_cpu_allow_fp16_* "
        "*et_num_threads *et_num_interop_threads set_flush_denormal",
    "says, warns or checks something, and changes no result":
        "_*et_warnAlways _*et_backcompat_* _*et_autograd_fallback_mode "
        "_set_check_sparse_tensor_invariants _cuda_*et_sync_debug_mode _get_cpp_backtrace "
        "_get_symbolize_mode _logging_set_logger _set_print_stack_traces_* "
        "_set_warn_on_accumulate_grad_stream_mismatch _*vmap_fallback_* set_vital vitals_enabled "
        "_dispatch_set_report_error_callback _get_DTensor_sharding_propagator_cache_stats "
        "_set_worker_* _*et_thread_name",
    "profilers, which see launches":
        "_activate_gpu_trace _*profiler* _enable_record_function "
        "_record_function_with_args_* _is_kineto_stopped _set_empty_test_observer "
        "_get_sequence_nr",
    "how TunableOp tunes, once it does":
        "_cuda_tunableop_get_* _cuda_tunableop_set_* _cuda_tunableop_p*_dynamic_dims_mask "
        "_cuda_tunableop_wildcard_fallback_* _cuda_record_untuned_*",
    "set by a transform or a mode, which is guarded":
        "*et_inplace_requires_grad_allowed *et_single_level_autograd_function_allowed "
        "_*skip*_torch_function _set_only_lift_cpu_tensors _saved_tensors_hooks_set_tracing",
    "of the backward that runs": "_get_current_graph_task_keep_graph",
    "memory for products: it cannot be asked for before there is a GPU":
        "_cuda_*etCublasWorkspaceSize",
    "of a capture": "_set_override_stale_capture_stream",
    "frees the cache of casts": "autocast_*crement_nesting",
    "objects that no operator reads": "*_obj_in_tls *_obj_from_tls _is_key_in_tls",
}
# What at::ThreadLocalState carries from thread to thread, as its header has it.
OF_THREADS: dict[str, str] = {
    "dispatch_key_": "_dispatch_tls_local_include_set",
    "functorch_tls_": "peek_interpreter_stack",
    "autograd_tls_": "_is_multithreading_enabled",
    "torch_dispatch_mode_state_": "_len_torch_dispatch_stack",
    "python_dispatcher_state_": "_dispatch_tls_local_include_set",
    "python_torch_function_state_": "_get_torch_function_state",
    "saved_tensors_default_hooks_state_": "_top_saved_tensors_default_hooks",
    "node_creation_hooks_state_": "has_no_node_hooks",
    "functionalization_reapply_views_state_": "_functionalization_reapply_views_tls",
    "dtensor_allow_implicit_replication_": "_get_dtensor_allow_implicit_replication",
    "autocast_dtypes_": "get_autocast_dtype",
    "debug_info_": "profilers, which see launches",
    "rf_tls_": "profilers, which see launches",
    "saved_objects_": "objects that no operator reads",
}
# Properties and functions of torch.backends and its modules that set something.
OF_BACKENDS: dict[str, str] = {
    "cuda.preferred_linalg_library": "_get_linalg_preferred_backend",
    "cuda.preferred_blas_library": "_get_blas_preferred_backend",
    "cuda.cublas_workspace_size":
        "memory for products: it cannot be asked for before there is a GPU",
    "cuda.cublaslt_workspace_size": "_cuda_getCublasLtWorkspaceSize",
    "cuda.enable_flash_sdp": "_get_flash_sdp_enabled",
    "cuda.enable_mem_efficient_sdp": "_get_mem_efficient_sdp_enabled",
    "cuda.enable_math_sdp": "_get_math_sdp_enabled",
    "cuda.enable_cudnn_sdp": "_get_cudnn_sdp_enabled",
    "cuda.allow_fp16_bf16_reduction_math_sdp": "_get_math_sdp_allow_fp16_bf16_reduction",
    "cudnn.enabled": "_get_cudnn_enabled",
    "cudnn.deterministic": "_get_cudnn_deterministic",
    "cudnn.benchmark": "_get_cudnn_benchmark",
    "cudnn.benchmark_limit": "_cuda_get_cudnn_benchmark_limit",
    "cudnn.allow_tf32": "_get_fp32_precision_getter",
    "cudnn.fp32_precision": "_get_fp32_precision_getter",
    "cudnn.depthwise_kernel": "_get_cudnn_depthwise_kernel",
    "cudnn.set_flags": "_get_cudnn_enabled",
    "mha.set_fastpath_enabled": "_is_fastpath_enabled",
    "opt_einsum._set_enabled": "_get_enabled",
    "opt_einsum._set_strategy": "_get_enabled",
    "opt_einsum.set_flags": "_get_enabled",
    "cuda.preferred_rocm_fa_library": "another kind of device",
    "miopen.*": "another kind of device",
    "mkldnn.*": "kernels of the CPU, which a launch does not run",
    "nnpack.*": "kernels of the CPU, which a launch does not run",
}
# Contexts of torch.autograd.
OF_AUTOGRAD: dict[str, str] = {
    "no_grad": "is_grad_enabled", "enable_grad": "is_grad_enabled",
    "set_grad_enabled": "is_grad_enabled", "inference_mode": "is_inference_mode_enabled",
    "set_multithreading_enabled": "_is_multithreading_enabled",
    "enforce_grad_layout_policy": "_is_grad_layout_enforcement_enabled",
    "_unsafe_preserve_version_counter": "tells of a tensor, a type or an operator, and is no state",
    "_force_original_view_tracking": "_is_view_replay_enabled",
    "detect_anomaly": "is_anomaly_enabled", "set_detect_anomaly": "is_anomaly_enabled",
    "saved_tensors_hooks": "_top_saved_tensors_default_hooks",
    "save_on_cpu": "_top_saved_tensors_default_hooks",
    "node_creation_hook": "has_no_node_hooks",
    "_swap_with_cloned": "_top_saved_tensors_default_hooks",
    "_CloneArgBeforeMutateMode": "_len_torch_dispatch_stack",
    "_MultiHandle": "tells of a tensor, a type or an operator, and is no state",
    "dual_level": "_current_level", "_set_fwd_grad_enabled": "_is_fwd_grad_enabled",
}
ONLY_IN_OLDER = {"set_vital", "vitals_enabled"}
