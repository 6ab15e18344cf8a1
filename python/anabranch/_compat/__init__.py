# SPDX-License-Identifier: Apache-2.0
"""Every private name of torch that Anabranch touches, and every branch on its version.

Nothing else in the package names ``torch._`` (a test holds that), so a new torch release is met
here. Imported only after torch is known to be there and new enough.
"""

from __future__ import annotations

from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch._logging import trace_structured
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from functorch.compile import min_cut_rematerialization_partition

from .compiling import (
    annotation,
    example_of,
    gather_together,
    in_parts,
    is_inductors_graph,
    is_missing_compiler,
    is_unsafe_in_captures,
    keep_saved_tensors,
    kernels_at_the_end,
    kinds_of_results,
    must_save,
    OWN_BUFFERS,
    own_buffers,
    own_compile_context,
    parts_of,
    region_compile_context,
    replace_parts,
    results_of_forward,
    saves_unseen,
    wrapper_function,
)
from .cuda import (
    allocated_in_pools,
    allocations_so_far,
    backend_of_group,
    clear_workspaces,
    collectives_so_far,
    constants_of_generated_code,
    current_device,
    current_stream,
    empty_strided_cpu,
    empty_strided_cuda,
    end_pool,
    hooks_so_far,
    is_intercepted,
    keep_generated_tensors,
    keep_gpu_busy,
    memory_history,
    numeric_modes,
    PoolHistory,
    reinterpret_tensor,
    storage_at,
    store_of,
    tensors_alive,
)
from .library import (
    dtype_code,
    kernel_address,
    library_function,
    library_version,
    openmp_function,
    version,
)
from .noting import (
    arguments_of_generated_kernel,
    calls_of_compiled_graphs,
    runs_of_generated_kernels,
    steps_of_optimizers,
)
from .streams import (
    breaks_around,
    is_made_by_graph,
    is_object_of_graph,
    object_of_graph,
    stream_operation,
    take_events_behind_writes,
)

__all__ = [
    "allocated_in_pools",
    "allocations_so_far",
    "annotation",
    "arguments_of_generated_kernel",
    "backend_of_group",
    "breaks_around",
    "calls_of_compiled_graphs",
    "clear_workspaces",
    "collectives_so_far",
    "compile_fx",
    "compile_fx_inner",
    "constants_of_generated_code",
    "current_device",
    "current_stream",
    "CustomPartitionerFn",
    "dtype_code",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "end_pool",
    "example_of",
    "FakeTensorMode",
    "free_unbacked_symbols",
    "gather_together",
    "get_hash_for_files",
    "HigherOrderOperator",
    "hooks_so_far",
    "in_parts",
    "is_inductors_graph",
    "is_intercepted",
    "is_made_by_graph",
    "is_missing_compiler",
    "is_object_of_graph",
    "is_unsafe_in_captures",
    "keep_generated_tensors",
    "keep_gpu_busy",
    "keep_saved_tensors",
    "kernel_address",
    "kernels_at_the_end",
    "kinds_of_results",
    "library_function",
    "library_version",
    "memory_history",
    "min_cut_rematerialization_partition",
    "must_save",
    "numeric_modes",
    "object_of_graph",
    "openmp_function",
    "OpOverload",
    "OWN_BUFFERS",
    "own_buffers",
    "own_compile_context",
    "parts_of",
    "PoolHistory",
    "region_compile_context",
    "reinterpret_tensor",
    "replace_parts",
    "results_of_forward",
    "runs_of_generated_kernels",
    "saves_unseen",
    "steps_of_optimizers",
    "storage_at",
    "store_of",
    "stream_operation",
    "take_events_behind_writes",
    "tensors_alive",
    "TorchDispatchMode",
    "trace_structured",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "version",
    "wrapper_function",
]
