# SPDX-License-Identifier: Apache-2.0
"""How far two results are apart, and how far they may be.

An element may differ by ``atol + rtol * |wanted|``. Without the caller's numbers ``rtol`` is that
of the dtype in the table, and ``atol`` the same share of the tensor's largest element: that is what
sums in another order are off by. Ten times what rounding does to the program is allowed, too: a
first step of Adam has the sign of a gradient that may be nothing but rounding.

Threads: any. Failure: none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

_LEAST_ATOL = 1e-5
_MARGIN = 10.0  # of what runs in eager differ by
_RTOL = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 1e-4, torch.complex64: 1e-4,
         torch.float16: 1e-2, torch.bfloat16: 4e-2}
_RTOL_OF_OTHERS = 0.25  # floats of eight bits and less


class Difference(NamedTuple):
    """``largest`` is infinite where shape, type or NaNs are others."""

    name: str
    largest: float
    bound: float

    def __str__(self) -> str:
        return f"{self.name} by {self.largest:.3g} where {self.bound:.3g} is allowed"


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """By name, ``spread`` is what runs in eager differ by, and ``rounding`` what they differ by
    where their floats are off by the last bit."""

    atol: float | None = None
    rtol: float | None = None
    spread: Mapping[str, float] = dataclasses.field(default_factory=dict)
    rounding: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def compare(self, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Difference | None:
        """What exceeds its bound by most; None where nothing does."""
        worst: Difference | None = None
        for name in {**wanted, **found}:
            difference = self.of(name, found.get(name), wanted.get(name))
            if difference and (worst is None or _excess(difference) > _excess(worst)):
                worst = difference
        return worst

    def of(self, name: str, found: Any, wanted: Any) -> Difference | None:
        """None where it is within the bound."""
        if not isinstance(found, Tensor) or not isinstance(wanted, Tensor):
            return None if type(found) is type(wanted) and _are_equal(found, wanted) \
                else Difference(name, math.inf, 0.0)
        if found.shape != wanted.shape or found.dtype is not wanted.dtype:
            return Difference(name, math.inf, 0.0)
        apart, size = _apart(found, wanted)
        rtol, atol = self._numbers(name, wanted, size)
        if bool((apart <= atol + rtol * size).all()):
            return None
        return Difference(name, _largest(apart), atol + rtol * _largest(size))

    def _numbers(self, name: str, wanted: Tensor, size: Tensor) -> tuple[float, float]:
        spread = _MARGIN * max(self.spread.get(name, 0.0), self.rounding.get(name, 0.0))
        if not (wanted.is_floating_point() or wanted.is_complex()):
            return 0.0, spread
        rtol = _RTOL.get(wanted.dtype, _RTOL_OF_OTHERS) if self.rtol is None else self.rtol
        atol = max(_LEAST_ATOL, rtol * _largest(size)) if self.atol is None else self.atol
        return rtol, max(atol, spread)


def distances(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    """By how much two runs differ, by the names of what does."""
    exact = Tolerance(atol=0.0, rtol=0.0)
    found = [exact.of(name, one.get(name), other.get(name)) for name in {**one, **other}]
    return {difference.name: difference.largest for difference in found if difference}


def _apart(found: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """How far elements are apart and how large the wanted ones are, in double; infinite where one
    is NaN or infinite and the other is not the same. An infinity has no size: it has no margin."""
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    a, b = found.detach().to(wide), wanted.detach().to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    return apart, b.abs().nan_to_num(0.0, posinf=0.0)


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _excess(difference: Difference) -> float:
    return difference.largest / max(difference.bound, 1e-300)


def _are_equal(found: Any, wanted: Any) -> bool:
    """Of leaves that are no tensors: texts and numbers; other objects are as their types are."""
    if isinstance(wanted, float):
        return found == wanted or math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-5)
    return found == wanted if isinstance(wanted, (str, bytes, int, bool, type(None))) else True
