# SPDX-License-Identifier: Apache-2.0
"""Arguments of a step that lie on the CPU. A launch is given a copy of each on the GPU.

Small ones are copied by way of pinned memory, so that the caller may write them as soon as the call
returns. What a launch does with them is compared with a plain run once with other bytes than those
that were captured: Python may have looked at them in a way that the capture did not see.

Threads: as its recorder's. Failure: NotRecordable; torch's errors where memory cannot be had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.tensors import is_wrapper, size_of

_STAGED_BYTES = 1 << 20  # of one argument; also how much of it is looked at for other bytes


class HostArguments:
    """Those of ``leaves`` at the places of arguments, which have numbers in this order. Raises
    NotRecordable for one that no launch can be given.

    ``waited`` are those that the step copies and waits for: all, until a capture has told.
    """

    def __init__(self, leaves: Sequence[Tensor], arguments: Sequence[int], device: int) -> None:
        self._device = torch.device("cuda", device)
        self.numbers = [number for number, i in enumerate(arguments) if not leaves[i].is_cuda]
        for number in self.numbers:
            _check(arguments[number], leaves[arguments[number]])
        # What each was when it was captured, until a launch was compared with something else.
        self._captured = {number: _head(leaves[arguments[number]]).clone()
                          for number in self.numbers}
        self.waited: Collection[int] = self.numbers

    def sent(self, given: Sequence[Tensor]) -> list[Tensor]:
        """The same, with copies on the GPU, made on its current stream, in the arguments'
        places."""
        found = list(given)
        for number in self.numbers:
            found[number] = self._sent(found[number], number in self.waited)
        return found

    def trust(self) -> None:
        """Whatever they are from now on."""
        self._captured.clear()

    def _sent(self, tensor: Tensor, is_waited_for: bool) -> Tensor:
        tensor = tensor.detach()
        if size_of([tensor]) <= _STAGED_BYTES:
            with contextlib.suppress(RuntimeError):  # where the system pins no memory
                staged = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu",
                                     pin_memory=True)
                return staged.copy_(tensor).to(self._device, non_blocking=True)
        # Of pageable memory the driver has taken the bytes when the call returns.
        return tensor.to(self._device, non_blocking=not (is_waited_for and tensor.is_pinned()))

    def are_as_compared(self, given: Sequence[Tensor]) -> bool:
        """Whether a launch with these may be trusted: each is what was captured, or was something
        else in a launch that was compared."""
        return all(_is_same(given[number], head) for number, head in self._captured.items())

    def note_compared(self, given: Sequence[Tensor]) -> None:
        """A launch with these left what a plain run leaves."""
        self._captured = {number: head for number, head in self._captured.items()
                          if _is_same(given[number], head)}


def _head(tensor: Tensor) -> Tensor:
    return tensor.detach().view(-1)[:_STAGED_BYTES // tensor.element_size()]


def _is_same(tensor: Tensor, head: Tensor) -> bool:
    """By their bits: a NaN is itself, and -0.0 is not 0.0."""
    return torch.equal(_head(tensor).view(torch.uint8), head.view(torch.uint8))


def _check(place: int, leaf: Tensor) -> None:
    why = ("wants a gradient" if leaf.requires_grad else
           "is not contiguous" if is_wrapper(leaf) or leaf.layout != torch.strided
           or not leaf.is_contiguous() or leaf.is_conj() or leaf.is_neg() else
           "" if leaf.device.type == "cpu" else "is on another device")
    if why:
        raise NotRecordable(f"argument {place} is a tensor on the {leaf.device.type} that {why}",
                            Cause.ARGUMENT_REFUSED)
