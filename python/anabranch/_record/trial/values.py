# SPDX-License-Identifier: Apache-2.0
"""What a run has left, by value: how far another run is from it. Only for what checksums tell
apart."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch._record.trial.copies import Copies, grantable_bytes
from anabranch._record.trial.run import Run

_ROUNDING = 2.0  # units in the last place of an element


class Distance(NamedTuple):
    """Between two runs of a tensor that are not the same bit for bit. ``norm`` is that of the
    difference, the number of elements that differ where they are no floats, and infinite where one
    has a NaN that the other has not, or another form. ``is_rounding``: no element differs by more
    than two units in its last place."""

    norm: float
    is_rounding: bool = False

    def nearer(self, other: Distance) -> Distance:
        return Distance(min(self.norm, other.norm), self.is_rounding or other.is_rounding)


FAR = Distance(float("inf"))


class Values:
    """What a run has left by some names."""

    def __init__(self, run: Run, names: Sequence[str],
                 kind_of: Callable[[str, Tensor], torch.dtype], device: int) -> None:
        self.names = frozenset(names)
        self._names = [name for name in names if name in run.tensors]  # those that it has
        self._sums = {name: run.sums[name] for name in self._names}
        self._kinds = [kind_of(name, run.tensors[name]) for name in self._names]
        self._copies = Copies([run.tensors[name] for name in self._names], grantable_bytes(device))

    def distances(self, run: Run, names: Collection[str]) -> dict[str, Distance]:
        """How far another run is from this by some of these names, but for what is the same bit for
        bit."""
        wanted = self.names.intersection(names)
        found = dict.fromkeys([name for name in wanted if not self._has_form_of(run, name)], FAR)
        tensors = {i: run.tensors[name] for i, name in enumerate(self._names)
                   if name in wanted and name not in found and run.sums[name] != self._sums[name]}
        pieces, names = [], []
        for i, now, then in self._copies.pieces(tensors):
            pieces.append(_apart(now, then, self._kinds[i]))
            names.append(self._names[i])
        # All told at once: hundreds of pieces would each wait for the GPU.
        told = torch.stack([one.to(pieces[0].device) for one in pieces]).tolist() if pieces else []
        squares: dict[str, tuple[float, bool]] = {}
        for name, (differs, square, is_rounding) in zip(names, told, strict=True):
            if differs:
                so_far, were_rounding = squares.get(name, (0.0, True))
                squares[name] = so_far + square, were_rounding and bool(is_rounding)
        return found | {name: Distance(square ** 0.5, is_rounding)
                        for name, (square, is_rounding) in squares.items()}

    def _has_form_of(self, run: Run, name: str) -> bool:
        """Whether both have it in the same form, or neither has it."""
        one, other = self._sums.get(name), run.sums.get(name)
        return one is other or (one is not None and other is not None and one[0] == other[0])


def form_of(tensor: Tensor) -> Any:
    """What has to be alike for the bytes to be compared."""
    stride = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    return tensor.shape, tuple(stride), tensor.dtype


def _apart(now: Tensor, then: Tensor, kind: torch.dtype) -> Tensor:
    """Of two pieces of bytes: whether they differ, the square of their distance, and whether that
    is rounding; three doubles, where the pieces are."""
    x, y = now.view(kind), then.view(kind)
    differ = (now != then).any()
    if not (kind.is_floating_point or kind.is_complex):
        return torch.stack([differ.double(), (x != y).sum().double() ** 2,
                            torch.zeros_like(differ, dtype=torch.float64)])
    wide = torch.complex128 if kind.is_complex else torch.float64
    a, b = x.to(wide), y.to(wide)
    has_other_nans = (a.isnan() != b.isnan()).any()
    apart = (a - b).nan_to_num().abs()
    least = torch.finfo(kind)
    units = torch.maximum(a.abs(), b.abs()).nan_to_num().clamp(min=least.tiny) * least.eps
    # Zeros of other signs, NaNs of other bits: no distance, and not the same.
    square = apart.square().sum().clamp(min=sys.float_info.min)
    return torch.stack([
        differ.double(), square.masked_fill(has_other_nans, math.inf),
        ((apart <= _ROUNDING * units).all() & ~has_other_nans).double()])
