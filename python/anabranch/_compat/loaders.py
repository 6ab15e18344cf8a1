# SPDX-License-Identifier: Apache-2.0
"""What takes a batch from a DataLoader."""

from __future__ import annotations

from torch.utils.data.dataloader import _BaseDataLoaderIter

LOADERS_NEXT = _BaseDataLoaderIter.__next__
