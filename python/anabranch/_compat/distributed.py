# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel, as far as captures see it.

Its reducer, in C++, takes the times of some iterations by events: of the first ten, and of each
hundredth. It waits for these events at the beginning of the next forward. Neither that wait nor an
event that a capture has recorded can be in a capture.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

# The method of a module by which DataParallel makes replicas of it.
REPLICATE = "_replicate_for_data_parallel"

# Attributes in which a model notes what it has done, and decides by it.
NOTED_OF_BUCKETS = "_has_rebuilt_buckets"
NOTED_OF_EXCHANGES = "require_forward_param_sync"

_FIRST = 10  # iterations that are all timed
_MOST = 1000  # that are counted to find the next one


def distributed_models(modules: Iterable[nn.Module]) -> list[DistributedDataParallel]:
    """Those whose gradients a reducer averages."""
    return [module for module in modules if isinstance(module, DistributedDataParallel)
            and hasattr(module, "reducer") and getattr(module, "logger", None) is not None]


def exchanges(models: Iterable[DistributedDataParallel]) -> list[bool]:
    """Of models with buffers, whether the next forward brings those of the first process to all. It
    does not behind a forward under no_sync()."""
    return [getattr(model, NOTED_OF_EXCHANGES) for model in models
            if model.broadcast_buffers and model.modules_buffers]


def has_hook_with_state(model: DistributedDataParallel) -> bool:
    """Whether one of its communication hooks keeps something besides a process group, as PowerSGD's
    does, which counts iterations there."""
    return any(state is not None and not isinstance(state, dist.ProcessGroup)
               for _, state in model._comm_hooks)


def count_past_timed(model: DistributedDataParallel) -> bool:
    """Counts iterations of a model that has run before, until the next that is timed is far.
    Nothing depends on their number but what torch logs. False where every one is timed."""
    last = _last_timed(model)
    for _ in range(_MOST):
        count_iteration(model)
        before, last = last, _last_timed(model)
        if last != before and last >= _FIRST:
            break
    count_iteration(model)
    return _last_timed(model) == last


def count_iteration(model: DistributedDataParallel) -> None:
    """One more. If it is timed, its number is noted, and the times of the one before are taken."""
    model.reducer.prepare_for_forward()
    model.logger.set_runtime_stats_and_log()  # type: ignore[union-attr]


def end_reduction(model: DistributedDataParallel) -> None:
    """After a backward that broke: the next forward begins anew, and does not ask for its end."""
    try:
        model.reducer._check_reducer_finalized()
    except RuntimeError:
        model.reducer._reset_state()


def _last_timed(model: DistributedDataParallel) -> int:
    data: Any = model._get_ddp_logging_data()
    return int(data.get("iteration", 0))


def of_cpp_alone(tensors: list[Tensor]) -> list[Tensor]:
    """Those to which nothing in Python refers but this list: a reducer's buckets, of which a
    dispatch mode has been told."""
    end = object()  # by it the tuple of these arguments is known, which Python 3.13 shows
    others = [other for other in gc.get_referrers(*tensors, end) if other is not tensors
              and not (type(other) is tuple and any(part is end for part in other[-1:]))]
    held = set(map(id, gc.get_referents(*others)))
    return [tensor for tensor in tensors if id(tensor) not in held]
