# SPDX-License-Identifier: Apache-2.0
"""What is known of a callable's steps that have been captured twice, so that once is enough for a
step of other sizes: where its kernels have addresses, and what it answers.

Ownership: keeps no tensor. Threads: one at a time. Failure: none; what is not known is captured
twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from anabranch._core.capture import CaptureDevice, CaptureLayouts
from anabranch._core.library import NativeError
from anabranch._record.capture.captured import Capture, Captured
from anabranch._record.capture.pytree import Shape
from anabranch._record.capture.step import Alias, Constant, Fresh, Lazy, Step, Wrapped, plain_parts
from anabranch._record.launch.discovered import DiscoveredStep

CAPTURES_DIFFER = 309
_PLAIN = (type(None), bool, int, float, str)
_MOST = 8  # answers


class KnownSteps:
    """Nothing is known to begin with."""

    def __init__(self) -> None:
        self._layouts: CaptureLayouts | None = None
        self._answers: list[_Answer] = []

    @property
    def has_any(self) -> bool:
        return bool(self._answers)

    def add(self, discovered: DiscoveredStep) -> None:
        """Of a step that was captured twice."""
        answer = _Answer.of(discovered.first)
        if any(answer.is_like(known) for known in self._answers):
            pass
        elif answer.is_plain and len(self._answers) < _MOST:
            self._answers.append(answer)
        else:
            return
        if self._layouts is None:
            self._layouts = CaptureLayouts()
        discovered.teach(self._layouts)

    def discover(self, step: Step, capture: Capture, device: CaptureDevice,
                 saved_from: int | None) -> DiscoveredStep | None:
        """What one capture tells; None where that is not enough."""
        answer = _Answer.of(capture.first)
        if not any(answer.is_like(known) for known in self._answers):
            return None
        try:
            return DiscoveredStep(step, capture, device, saved_from, self._layouts)
        except NativeError as error:
            if error.code == CAPTURES_DIFFER:
                return None
            raise


class _Answer(NamedTuple):
    """What a step answers and changes, described. Two captures tell that it repeats."""

    result: Sequence[Any]
    shape: Shape | None
    gradients: dict[int, Any]
    mutated: list[int]

    @classmethod
    def of(cls, captured: Captured) -> _Answer:
        return cls(captured.result, captured.shape, captured.gradients, captured.mutated)

    @property
    def is_plain(self) -> bool:
        """Whether it keeps no object of the user's alive."""
        return all(type(part.value) in _PLAIN
                   for part in plain_parts([*self.result, *self.gradients.values()])
                   if isinstance(part, Constant))

    def is_like(self, other: _Answer) -> bool:
        """The same but for sizes."""
        return (self.shape == other.shape and self.mutated == other.mutated
                and list(self.gradients) == list(other.gradients)
                and _are_alike(self.result, other.result)
                and _are_alike([*self.gradients.values()], [*other.gradients.values()]))


def _are_alike(parts: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(parts) == len(others) and all(map(_is_alike, parts, others))


def _is_alike(part: Any, other: Any) -> bool:
    if type(part) is not type(other):
        return False
    if isinstance(part, Fresh):
        return (part.dtype, len(part.shape)) == (other.dtype, len(other.shape))
    if isinstance(part, Alias):
        return part.tensor == other.tensor and (part.view is None) == (other.view is None)
    if isinstance(part, Lazy):
        return (part.is_conj, part.is_neg) == (other.is_conj, other.is_neg) \
            and _are_alike(part.parts, other.parts)
    if isinstance(part, Wrapped):
        return (part.kind, part.names) == (other.kind, other.names) \
            and _are_alike(part.parts, other.parts)
    if isinstance(part, Constant):
        return type(part.value) is type(other.value) and bool(part.value == other.value)
    return bool(part == other)
