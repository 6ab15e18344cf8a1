# SPDX-License-Identifier: Apache-2.0
"""What programs begin with: the device, and numbers that are the same in each copy."""

from __future__ import annotations

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def numbers(seed: int, *shape: int) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return made.to(DEVICE)


def batches(*shape: int):
    """args(i) of a step that takes one tensor."""
    return lambda i: (numbers(i % 5, *shape),)
