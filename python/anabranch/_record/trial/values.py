# SPDX-License-Identifier: Apache-2.0
"""What a run has left, by value: how far another run is from it. Only for what checksums tell
apart."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch._record.tensors import size_of
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
        self.copies = Copies([run.tensors[name] for name in self._names],
                             grantable_bytes(device, size_of([*run.tensors.values()])))

    def distances(self, run: Run, names: Collection[str]) -> dict[str, Distance]:
        """How far another run is from this by some of these names, but for what is the same bit for
        bit."""
        wanted = self.names.intersection(names)
        found = dict.fromkeys([name for name in wanted if not self._has_form_of(run, name)], FAR)
        tensors = {i: run.tensors[name] for i, name in enumerate(self._names)
                   if name in wanted and name not in found and run.sums[name] != self._sums[name]}
        squares, are_rounding = self._apart(tensors, _apart)
        # What has a NaN, or an infinity, is looked at once more: that takes twice as many kernels.
        strange = {i: tensor for i, tensor in tensors.items()
                   if not math.isfinite(squares.get(self._names[i], 0.0))}
        if strange:
            exactly, rounding_exactly = self._apart(strange, _apart_exactly)
            squares |= exactly
            are_rounding |= rounding_exactly
        # Zeros of other signs, NaNs of other bits: no distance, and not the same.
        return found | {name: Distance(max(square, sys.float_info.min) ** 0.5, are_rounding[name])
                        for name, square in squares.items()}

    def _apart(self, tensors: Mapping[int, Tensor],
               of_pieces: Callable[[Tensor, Tensor, torch.dtype], Tensor]
               ) -> tuple[dict[str, float], dict[str, bool]]:
        """The squares of distances, and whether these are rounding. All is told at once: hundreds
        of pieces would each wait for the GPU."""
        names, found = [], []
        for i, now, then in self.copies.pieces(tensors):
            names.append(self._names[i])
            found.append(of_pieces(now, then, self._kinds[i]))
        told = torch.stack([one.to(found[0].device) for one in found]).tolist() if found else []
        squares: dict[str, float] = {}
        are_rounding: dict[str, bool] = {}
        for name, (norm, is_rounding) in zip(names, told, strict=True):
            squares[name] = squares.get(name, 0.0) + norm * norm
            are_rounding[name] = are_rounding.get(name, True) and bool(is_rounding)
        return squares, are_rounding

    def _has_form_of(self, run: Run, name: str) -> bool:
        """Whether both have it in the same form, or neither has it."""
        one, other = self._sums.get(name), run.sums.get(name)
        return one is other or (one is not None and other is not None and one[0] == other[0])


def form_of(tensor: Tensor) -> Any:
    """What has to be alike for the bytes to be compared."""
    stride = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    return tensor.shape, tuple(stride), tensor.dtype


def _apart(now: Tensor, then: Tensor, kind: torch.dtype) -> Tensor:
    """Of two pieces of bytes: the norm of their difference, and whether that is rounding; two
    doubles, where the pieces are. Not finite where one has a NaN or an infinity. Of few kernels: a
    driver takes ten milliseconds to load one."""
    x, y = now.view(kind), then.view(kind)
    if not (kind.is_floating_point or kind.is_complex):
        count = (x != y).sum().double()
        return torch.stack([count, torch.zeros_like(count)])
    wide = torch.complex128 if kind.is_complex else torch.float64
    a, b = x.to(wide), y.to(wide)
    apart = (a - b).abs()
    units = _units(torch.maximum(a.abs(), b.abs()), kind)
    return torch.stack([torch.linalg.vector_norm(apart), (apart <= units).all().double()])


def _apart_exactly(now: Tensor, then: Tensor, kind: torch.dtype) -> Tensor:
    """The same, with what is alike in both left out, NaNs and infinities too; infinite where one
    has a NaN that the other has not."""
    wide = torch.complex128 if kind.is_complex else torch.float64
    a, b = now.view(kind).to(wide), then.view(kind).to(wide)
    has_other_nans = (a.isnan() != b.isnan()).any()
    apart = (a - b).nan_to_num().abs()
    units = _units(torch.maximum(a.abs(), b.abs()).nan_to_num(), kind)
    return torch.stack([torch.linalg.vector_norm(apart).masked_fill(has_other_nans, math.inf),
                        ((apart <= units).all() & ~has_other_nans).double()])


def _units(size: Tensor, kind: torch.dtype) -> Tensor:
    """That rounding may make, of elements of such sizes."""
    least = torch.finfo(kind)
    return size.clamp(min=least.tiny) * (_ROUNDING * least.eps)
