# SPDX-License-Identifier: Apache-2.0
"""What takes batches from a DataLoader."""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

LOADERS_NEXT = _BaseDataLoaderIter.__next__


def is_of_other_processes(iterator: Any) -> bool:
    """Whether it gives batches that other processes make."""
    return isinstance(iterator, _MultiProcessingDataLoaderIter)
