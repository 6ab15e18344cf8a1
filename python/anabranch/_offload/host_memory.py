# SPDX-License-Identifier: Apache-2.0
"""Where saved tensors lie between a forward and its backward, one block a call of the forward, and
an optimizer's state between its steps, each tensor by itself.

The block is a saved tensor itself, so it lives as long as the backward can want it, and a second
backward finds it. On a GPU it is pinned memory, which serves the next call when no backward can
want it any more; in a capture for a recording it is that recording's own. On the CPU it is another
block of the same memory, so that all of this is tested without a GPU.

Where no pinned memory is to be had, and where other code sees what is saved (hooks on saved
tensors, compiled autograd) and may read it at once, the block lies on the GPU: the tensors are
kept. Where the GPU has no room either, it is pageable memory, with which copies take longer and
are waited for.

Threads: any. Failure: torch's, where there is no memory of any kind.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.memory.host import host_free_bytes
from anabranch._record.memory.lasting import (
    PinnedBlocks,
    block_in_call,
    blocks_of_capture,
    pinned_bytes,
)
from anabranch._record.memory.shortage import is_out_of_memory
from anabranch._record.refusals import Cause, Reason
from anabranch._record.warn import tell

_HOST = torch.device("cpu")
_blocks: dict[torch.device, PinnedBlocks] = {}  # by GPU
ALIGNMENT = 256  # bytes at whose multiples tensors lie in a block


def take(device: torch.device, size_bytes: int, is_allowed: bool) -> Tensor:
    """A block of bytes for tensors of ``device``. ``is_allowed``: nobody wants to be told where it
    is not in the host's memory."""
    if (given := block_in_call()) is not None:
        return given
    if device == _HOST:
        return _bytes(size_bytes, _HOST)
    if not _compat.saves_unseen():
        _tell(Cause.NOT_OFFLOADED.because(
            "hooks on saved tensors or compiled autograd see what is saved"), is_allowed)
        return _bytes(size_bytes, device)
    try:
        return pinned(device, size_bytes)
    except RuntimeError as error:
        _tell(Cause.NOT_OFFLOADED.because(
            f"no {size_bytes} bytes of pinned memory are to be had "
            f"({str(error).strip().splitlines()[0]})"), is_allowed)
    try:
        return _bytes(size_bytes, device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return _bytes(size_bytes, _HOST)


def pinned(device: torch.device, size_bytes: int) -> Tensor:
    blocks = blocks_of_capture() or _blocks.setdefault(device, PinnedBlocks())
    return blocks.take(size_bytes)


def may_leave(device: torch.device) -> bool:
    """Whether an optimizer's state can be moved from a device to the host's memory."""
    return device.type == "cuda"


def is_home(value: Tensor) -> bool:
    """Whether a tensor of an optimizer's state is in the host's memory."""
    return value.device == _HOST


def is_pinned(value: Tensor) -> bool:
    return is_home(value) and value.is_pinned()


def pinned_like(value: Tensor, dtype: torch.dtype, least_free: int) -> Tensor:
    """A tensor of pinned memory of its own, which holds anything. RuntimeError where there is
    none, or the host has less than ``least_free`` bytes left then: systems give the last of it
    away and stop processes."""
    size_bytes, free = value.numel() * dtype.itemsize, host_free_bytes()
    if size_bytes > free - least_free:
        raise RuntimeError(f"the host has {free} bytes left")
    memory = pinned_bytes(size_bytes).untyped_storage()
    stride = torch.empty_like(value, device="meta").stride()
    return torch.empty(0, dtype=dtype, device="cpu").set_(memory, 0, value.shape, stride)


def _bytes(size_bytes: int, device: torch.device) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def _tell(why: Reason, is_allowed: bool) -> None:
    tell("anabranch: saved tensors stay on the GPU", why, is_allowed=is_allowed)
