# SPDX-License-Identifier: Apache-2.0
"""How Inductor will lay out what is moved, where that is foreseen.

In graphs with convolutions it may have the tensors around them "channels last", whatever was
traced. A tensor that is moved in another layout than it has is laid out anew on its way out, and
once more behind its way back: right, and slow. A wrong guess costs the same.

Threads: any. Failure: none.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from anabranch import _compat
from anabranch._offload.saved import Pair, Saved, users_of

_CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default)


def foresee(pair: Pair) -> None:
    """Gives tensors the strides that they will have."""
    if not _compat.lays_channels_last(pair.forward):
        return
    for saved in pair.saved:
        value = saved.tensor.meta["val"]
        if not saved.why_kept and value.dim() == 4 and saved.answers == [saved.tensor] \
                and _is_beside_convolution(saved):
            _, channels, height, width = value.shape
            saved.stride = [height * width * channels, 1, width * channels, channels]


def _is_beside_convolution(saved: Saved) -> bool:
    """Whether one makes it or reads it, in the forward or in the backward."""
    beside: list[Node] = [saved.tensor, *users_of(saved.tensor)]
    beside += [user for given in saved.inputs for user in users_of(given)]
    return any(node.target in _CONVOLUTIONS for node in beside)
