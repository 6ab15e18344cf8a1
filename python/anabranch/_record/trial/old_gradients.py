# SPDX-License-Identifier: Apache-2.0
"""Gradients that a step finds, and that are held by their parameters alone.

A step that clears them has their memory for itself. If the trial held them, they would be there
beside the new ones. Threads: one at a time. Failure: none.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.capture.step import Step
from anabranch._record.tensors import is_wrapper, whole_bytes
from anabranch._record.trial.checksums import checksums


class OldGradients:
    """Gradients that a step finds, and that are held by their parameters alone, so that a step that
    clears them has their memory for itself. Held here, they would be there beside the new ones."""

    def __init__(self, step: Step | None) -> None:
        self.owners: dict[int, int] = {}  # by parameter, the number among the step's tensors
        self._sums: dict[int, tuple[int, int]] = {}
        self._alive: dict[int, weakref.ref[Tensor]] = {}
        if step is None:
            return
        self._step = step
        shared = {i for unit in step.units if len(unit.members) > 1 for i, _ in unit.members}
        number = step.own
        for i, parameter in enumerate(step.parameters):
            if parameter.grad is None or is_wrapper(parameter.grad):
                continue
            if number not in shared and is_held_by_its_owner(step.tensors, number):
                self.owners[i] = number
            number += 1

    @property
    def numbers(self) -> set[int]:
        return set(self.owners.values())

    def let_go(self) -> None:
        """From here on nothing but the parameters holds them."""
        if not self.owners:
            return
        tensors = self._step.tensors
        sums = checksums([whole_bytes(tensors[number]) for number in self.owners.values()])
        self._sums = dict(zip(self.owners, sums, strict=True))
        address = _NOWHERE
        for i, number in self.owners.items():
            self._alive[i] = weakref.ref(tensors[number])
            tensors[number] = _without_memory(tensors[number], address)
            address += -(-tensors[number].untyped_storage().nbytes() // _NOWHERE) * _NOWHERE

    def take_back(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Those that a run has not let go of, which are the step's again: parameter, number, and
        the checksum of before the run."""
        for i, reference in list(self._alive.items()):
            grad = reference()
            if grad is not None and i in self.owners:
                number = self.owners.pop(i)
                self._step.tensors[number] = grad
                yield i, number, self._sums[i]

    def stand_ins(self) -> set[int]:
        """The ids of what stands in their place."""
        return {id(self._step.tensors[number]) for number in self.owners.values()}

    def stand_in(self) -> None:
        for i, number in self.owners.items():
            self._step.parameters[i].grad = self._step.tensors[number]

    def fill(self) -> None:
        """With zeros: what reads them would have named them when it was captured."""
        for i, number in self.owners.items():
            grad = self._step.tensors[number]
            try:
                self._step.parameters[i].grad = torch.zeros_like(grad)
            except torch.OutOfMemoryError:
                self._step.parameters[i].grad = None


def _without_memory(tensor: Tensor, address: int) -> Tensor:
    """One like it, at an address where nothing is."""
    size = tensor.untyped_storage().nbytes()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(_compat.storage_at(address, size, tensor.device), tensor.storage_offset(),
                     tensor.shape, tensor.stride())


_NOWHERE = 512  # the first such address, and what they are multiples of, as torch's allocations are


def is_held_by_its_owner(tensors: Sequence[Tensor], number: int) -> bool:
    """Whether a gradient is held by its parameter and by this list, and by nobody else."""
    return all(map(operator.le, _holders(tensors, number), _fewest_holders()))


def _holders(tensors: Sequence[Tensor], number: int) -> tuple[int, int, int]:
    tensor = tensors[number]
    return sys.getrefcount(tensor), *_compat.use_counts(tensor)


def _fewest_holders() -> tuple[int, int, int]:
    """How many that is: versions of torch count differently."""
    parameter = torch.zeros(1, device="cpu", requires_grad=True)
    parameter.grad = torch.zeros(1, device="cpu")
    return _holders([parameter.grad], 0)
