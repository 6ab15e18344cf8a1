# SPDX-License-Identifier: Apache-2.0
"""What is captured, and what its results are: plain data that later stages read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch._record.memory.lasting import PinnedBlocks
from anabranch._record.numbers.step_numbers import StepNumbers
from anabranch._record.tensors import MemoryOf, Unit, units_of


@dataclasses.dataclass(frozen=True)
class Fresh:
    """A tensor in memory that the step allocated: which allocation, and the view of it."""

    allocation: int
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclasses.dataclass(frozen=True)
class Alias:
    """A tensor in memory that the step was given; ``view`` is None for the tensor itself."""

    tensor: int
    view: tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype] | None


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """A tensor of a wrapping class, by the plain ones inside it."""

    kind: type
    names: tuple[str, ...]
    parts: tuple[Any, ...]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Lazy:
    """A tensor whose elements torch reads conjugated, negated or both; the part is the same
    without."""

    parts: tuple[Any]
    is_conj: bool
    is_neg: bool


@dataclasses.dataclass(frozen=True)
class StepObject:
    """One of the step's objects."""

    index: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """Anything else: the same value every time."""

    value: Any


def plain_parts(parts: Iterable[Any]) -> Iterator[Any]:
    """Those that wrap nothing: also of what does."""
    for part in parts:
        if isinstance(part, (Wrapped, Lazy)):
            yield from plain_parts(part.parts)
        else:
            yield part


@dataclasses.dataclass
class Step:
    """What is captured: a call over leaves, and the tensors it is given.

    ``tensors`` are the plain tensors of ``leaves`` (by ``places``) and then those of the state. An
    argument that is a tensor of the state as well, one layer's weights where the state has all
    layers, is a unit of its own: mostly it is used as an argument alone, and may then be another.
    Where it is not, ``joined()`` is what to capture.
    """

    call: Callable[[list[Any]], Any]
    leaves: list[Any]
    places: list[int]
    tensors: list[Tensor]
    units: list[Unit]
    gradients: int  # how many at the end of `tensors` are gradients
    parameters: list[Tensor]  # that may get a gradient, those among the leaves first
    device: int
    stream: torch.cuda.Stream
    is_noted: bool = False  # captures note what each kernel reads and writes
    is_timed: bool = False  # and from which line of eager code it comes
    is_compiled: bool = False  # `call` is what Inductor has made
    is_backward: bool = False  # a graph whose results are gradients
    tangents: Collection[int] = ()  # of its leaves, those that autograd holds until it has ended
    optimizers: Sequence[torch.optim.Optimizer] = ()  # that it may step
    is_told: bool = False  # code outside torch may see that it is captured
    # What it uses besides, and may not move: insides of wrapping classes.
    fixed: Sequence[Tensor] = ()
    objects: Sequence[Any] = ()  # that were there before it ran: it may answer one
    on_cpu: Sequence[Tensor] = ()  # guarded tensors on the CPU
    pinned: Sequence[Tensor] = ()  # of its state, those that launches copy from and to
    has_constants: bool = False  # constants are made on the CPU and copied to the GPU
    numbers: StepNumbers | None = None  # that launches follow
    # Where torch's generator on the CPU is after the step, if that draws from it.
    drawn_to: Tensor | None = None
    # Of the tensors, those that are copies of arguments on the CPU, and which of these the step
    # copies and waits for, as its captures have told.
    on_host: Sequence[int] = ()
    waited: set[int] = dataclasses.field(default_factory=set)
    lasting: PinnedBlocks = dataclasses.field(default_factory=PinnedBlocks)  # of all its captures
    ahead: Sequence[int] = ()  # sizes of free blocks that captures are to find

    def joined(self) -> Step:
        """With tensors that share memory in one unit, whoever has them."""
        return dataclasses.replace(self, units=units_of(self.tensors))

    @property
    def arguments(self) -> int:
        return len(self.places)

    def memory(self) -> MemoryOf:
        """That all its arguments and the tensors of its state have now."""
        arguments = [self.leaves[place] for place in self.places]
        return MemoryOf([*arguments, *self.tensors[self.arguments:self.own], *self.beside])

    @property
    def beside(self) -> list[Tensor]:
        """The tensors of its state that may not be given other memory between launches."""
        return [*self.fixed, *self.on_cpu, *self.pinned]

    @property
    def own(self) -> int:
        """How many of the tensors are arguments or state; those behind are gradients."""
        return len(self.tensors) - self.gradients

    @functools.cached_property
    def object_numbers(self) -> dict[int, int]:
        """Of the objects, by their ids."""
        return {id(thing): i for i, thing in enumerate(self.objects)}
