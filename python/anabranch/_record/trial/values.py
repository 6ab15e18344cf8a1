# SPDX-License-Identifier: Apache-2.0
"""What a run has left, by value: how far another run is from it. Only for what checksums tell
apart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch._record.trial.copies import Copies, grantable_bytes
from anabranch._record.trial.run import Run


class Values:
    """What a run has left by some names."""

    def __init__(self, run: Run, names: Sequence[str],
                 kind_of: Callable[[str, Tensor], torch.dtype], device: int) -> None:
        self._names = [name for name in names if name in run.tensors]
        self._absent = set(names).difference(self._names)
        tensors = [run.tensors[name] for name in self._names]
        self._forms = [run.sums[name][0] for name in self._names]
        self._kinds = [kind_of(name, run.tensors[name]) for name in self._names]
        self._copies = Copies(tensors, grantable_bytes(device))

    def distances(self, run: Run) -> dict[str, float]:
        """How far another run is from this by these names, but for what is the same bit for bit:
        the norm of the difference, the number of elements that differ where they are no floats, and
        infinite where one has a NaN that the other has not, or another form."""
        alike = [i for i, name in enumerate(self._names)
                 if name in run.sums and run.sums[name][0] == self._forms[i]]
        found = dict.fromkeys([name for i, name in enumerate(self._names) if i not in set(alike)],
                              float("inf"))
        found |= dict.fromkeys(self._absent.intersection(run.sums), float("inf"))
        if len(alike) != len(self._names):
            return found | dict.fromkeys(self._names, float("inf"))
        tensors = [run.tensors[name] for name in self._names]
        squares: dict[str, float] = {}
        for i, now, then in self._copies.pieces(tensors):
            if not torch.equal(now, then):
                name = self._names[i]
                squares[name] = squares.get(name, 0.0) + _square(now, then, self._kinds[i])
        return found | {name: square ** 0.5 for name, square in squares.items()}


def form_of(tensor: Tensor) -> Any:
    """What has to be alike for the bytes to be compared."""
    stride = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    return tensor.shape, tuple(stride), tensor.dtype


def _square(now: Tensor, then: Tensor, kind: torch.dtype) -> float:
    """Of the distance between two pieces of bytes."""
    x, y = now.view(kind), then.view(kind)
    if not (kind.is_floating_point or kind.is_complex):
        return float((x != y).sum()) ** 2
    wide = torch.complex128 if kind.is_complex else torch.float64
    a, b = x.to(wide), y.to(wide)
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    apart = (a - b).nan_to_num()
    # Zeros of other signs, NaNs of other bits: no distance, and not the same.
    return max(float(apart.abs().square().sum()), sys.float_info.min)
