# SPDX-License-Identifier: Apache-2.0
"""How far a tensor's elements reach in memory: from the first one to behind the last.

Sizes and strides are in elements, and no stride is negative. Threads: any. Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """In elements; 0 where there are none."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def extent_bytes(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> int:
    return extent(sizes, strides) * dtype.itemsize
