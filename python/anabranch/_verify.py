# SPDX-License-Identifier: Apache-2.0
"""Whether a recording does what the step does: both run from the same state, and are compared.

The first launch goes to fresh memory filled with 0xFF. Everything the step was given and everything
it answers must be the same bit for bit. A step whose runs differ, by the order in which atomics add,
is run and launched some times more: each tensor must then be that of some plain run bit for bit, or
as near to one as launches in captured order are to one another, ten times over. How far plain runs
are apart is no bound: a number that Python counts up makes them differ, and is frozen in a recording.
Nor is how far launches side by side are: a race makes those differ. They have some launches more in
captured order instead. Failure: Untrusted, with the tensor that is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._answers import flatten
from ._capture import Step
from ._given import bytes_of
from ._recorded import Recorded
from ._state import State, inner_tensors, version_of

_MARGIN = 10.0
_ROUNDS = 3  # of more runs
# Of launches in captured order alone: of hundreds of tensors some hardly ever vary, and one of them
# may have where kernels ran side by side.
_ROUNDS_IN_ORDER = 8
_POISON = 0xFF


class Untrusted(Exception):
    """A recording that answers something else than the step."""


@dataclasses.dataclass
class _Moment:
    """What a step could read or write, as it was then."""

    memory: list[Tensor]  # copies of what was given, unit by unit
    gradients: list[Tensor | None]  # themselves
    random: tuple[Tensor, Tensor]
    generators: list[tuple[torch.Generator, Tensor]]
    on_host: list[tuple[Tensor, int, Tensor]]  # with its version, and a copy


@dataclasses.dataclass
class Run:
    """What one run of a step left behind."""

    answer: Any
    results: list[Any]  # its leaves
    gradients: list[Tensor | None]  # those that are others than before
    after: _Moment
    has_history: bool = False  # a result had a grad_fn
    has_drawn: bool = False  # random numbers on the CPU

    @property
    def memory(self) -> list[Tensor]:
        return self.after.memory

    def tensors(self) -> list[tuple[str, Tensor]]:
        named = [(f"result {i}", leaf) for i, leaf in enumerate(self.results)
                 if isinstance(leaf, Tensor)]
        named += [(f"gradient {i}", grad) for i, grad in enumerate(self.gradients)
                  if grad is not None]
        return [(name, inner) for name, tensor in named for inner in inner_tensors(tensor)]


class Trial:
    """A step as it is before a call, to run it again from there. ``state`` says what it has on the
    CPU, pinned or not."""

    def __init__(self, step: Step, state: State) -> None:
        self._step = step
        self._memory = [*bytes_of(step.tensors, step.units), *step.fixed, *state.written]
        self._state = state
        self._before = self._moment()

    def _moment(self) -> _Moment:
        return _Moment(
            _copies(self._memory), [parameter.grad for parameter in self._step.parameters],
            (torch.cuda.get_rng_state(self._step.device), torch.get_rng_state()),
            [(one, one.get_state()) for one in self._state.generators],
            [(tensor, version_of(tensor), tensor.detach().clone())
             for tensor in self._state.on_host()])

    def plain(self) -> Run:
        """Runs the step as it is. Its results have no history afterwards, as a recording's have
        none: what they belonged to would live on into the capture."""
        step, before = self._step, generators_of_the_cpu()
        with on_stream(step.stream, step.device):
            answer = step.call(list(step.leaves))
        has_drawn = generators_of_the_cpu() != before
        [flat], shape = flatten([answer], step.object_numbers)
        has_history = any(isinstance(leaf, Tensor) and leaf.requires_grad and not leaf.is_leaf
                          for leaf in flat)
        if has_history:
            flat = list(map(_detached, flat))
            answer = shape.unflatten(flat)
        return self._after(answer, flat, has_history, has_drawn)

    def launched(self, recorded: Recorded) -> Run:
        """Launches it, into memory filled with 0xFF."""
        answer = self.launch(recorded, _POISON)
        [flat], _ = flatten([answer], self._step.object_numbers)
        return self._after(answer, flat)

    def launch(self, recorded: Recorded, poison: int | None = None) -> Any:
        return recorded.launch_as_captured(self._step, poison)

    def _after(self, answer: Any, flat: list[Any], has_history: bool = False,
               has_drawn: bool = False) -> Run:
        after = self._moment()
        gradients = [grad if grad is not before else None
                     for grad, before in zip(after.gradients, self._before.gradients, strict=True)]
        return Run(answer, flat, gradients, after, has_history, has_drawn)

    def rewind(self) -> None:
        """Back to before the call."""
        self._put(self._before)

    def settle(self, run: Run) -> None:
        """To where a run has ended, as if it had been the only one."""
        self._put(run.after)

    def _put(self, moment: _Moment) -> None:
        _wait_for_copies(self._memory)
        for to, saved in zip(self._memory, moment.memory, strict=True):
            to.copy_(saved)
        for parameter, grad in zip(self._step.parameters, moment.gradients, strict=True):
            parameter.grad = grad
        torch.cuda.set_rng_state(moment.random[0], self._step.device)
        torch.set_rng_state(moment.random[1])
        for generator, drawn in moment.generators:
            generator.set_state(drawn)
        for tensor, version, value in moment.on_host:
            if version_of(tensor) != version:
                tensor.detach().copy_(value)

    def differing(self, a: Run, b: Run) -> dict[str, float]:
        """What is not the same bit for bit, by name, and how far apart it is."""
        found = {}
        for name, x, y in self._pairs(a, b):
            if x.shape != y.shape or x.dtype != y.dtype:
                found[name] = float("inf")
            elif not torch.equal(_raw(x), _raw(y)):
                found[name] = _distance(x, y)
        return found

    def _pairs(self, a: Run, b: Run) -> Iterator[tuple[str, Tensor, Tensor]]:
        for (name, x), (_, y) in zip(a.tensors(), b.tensors(), strict=True):
            yield name, x.detach(), y.detach()
        for i, (x, y) in enumerate(zip(a.memory, b.memory, strict=True)):
            kind = self._memory[i].dtype
            if i < len(self._step.units):
                kind = self._step.tensors[self._step.units[i].members[0][0]].dtype
            yield f"given memory {i}", _as(x, kind), _as(y, kind)


def generators_of_the_cpu() -> tuple[Any, ...]:
    """The states of torch's, of Python's and of numpy's, to be compared."""
    numpy = sys.modules.get("numpy")
    return (bytes(torch.get_rng_state().tolist()), random.getstate(),
            pickle.dumps(numpy.random.get_state(legacy=False)) if numpy else None)


def verify(trial: Trial, plain: Run, recorded: Recorded, agree: Callable[[bool], bool],
           ordered: Recorded | None = None) -> bool:
    """Whether all launches were right bit for bit. ``plain`` is a run from the same state, which the
    trial has rewound since; ``ordered`` the recording in captured order, which has been verified,
    where ``recorded`` is another. The state is that of after some run."""
    is_same = _verify(trial, plain, recorded, agree, ordered)
    if agree(recorded.exchange()):
        trial.rewind()
        is_same &= _verify(trial, plain, recorded, agree, ordered)
        recorded.exchange()
    return is_same


def _verify(trial: Trial, plain: Run, recorded: Recorded, agree: Callable[[bool], bool],
            ordered: Recorded | None) -> bool:
    launched = trial.launched(recorded)
    apart = {name: distance for name, distance in trial.differing(plain, launched).items()
             if name not in recorded.undefined}  # from the nearest right run
    spread: dict[str, float] = {}
    in_order = launched if ordered is None else None
    rounds = _ROUNDS if ordered is None else _ROUNDS + _ROUNDS_IN_ORDER
    for again in range(rounds + 1):
        beyond = {name: distance for name, distance in apart.items()
                  if not distance <= _MARGIN * spread.get(name, 0.0)}
        if not agree(bool(beyond)):
            return again == 0
        if again == rounds:
            break
        trial.rewind()
        other = trial.launched(ordered or recorded)
        if in_order is None:
            in_order = other
        for name, distance in trial.differing(in_order, other).items():
            spread[name] = max(distance, spread.get(name, 0.0))
        if ordered is not None:
            apart = _nearer(apart, trial.differing(other, launched))
        if again < _ROUNDS:
            trial.rewind()
            apart = _nearer(apart, trial.differing(trial.plain(), launched))
    name, distance = next(iter(beyond.items()), ("another process", 0.0))
    raise Untrusted(f"its first launch differs from {_ROUNDS + 1} plain runs in {name} by "
                    f"{distance:.3g} or more, launches in captured order by "
                    f"{spread.get(name, 0.0):.3g}")


def _nearer(apart: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """What is apart from both of two runs, and how far from the nearer."""
    return {name: min(distance, other[name]) for name, distance in apart.items() if name in other}


@contextlib.contextmanager
def on_stream(stream: torch.cuda.Stream, device: int) -> Iterator[None]:
    """Work inside runs on ``stream``, behind what the current stream has and before what it gets.

    Plain runs take the stream of the captures: gradient accumulators remember the stream they were
    made on, and one that was made elsewhere would break the capture.
    """
    current = torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.grad_fn is not None else leaf


def _copies(memory: Sequence[Tensor]) -> list[Tensor]:
    """On the device, or in host memory where the device's is short."""
    _wait_for_copies(memory)
    on_gpu = [tensor for tensor in memory if tensor.is_cuda]
    if not on_gpu:
        return [tensor.detach().clone() for tensor in memory]
    device = on_gpu[0].device
    size = sum(tensor.numel() * tensor.element_size() for tensor in on_gpu)
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if free + cached > 4 * size:
        return [tensor.detach().clone() for tensor in memory]
    return [tensor.detach().to("cpu", copy=True) for tensor in memory]


def _wait_for_copies(memory: Sequence[Tensor]) -> None:
    """The GPU may still write what of it is the host's, or read it."""
    if not all(tensor.is_cuda for tensor in memory):
        torch.cuda.synchronize()


def _raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype == dtype or tensor.numel() % dtype.itemsize:
        return tensor
    return tensor.view(dtype)


def _distance(x: Tensor, y: Tensor) -> float:
    """The norm of the difference; infinite where one has a NaN that the other has not."""
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return float((x != y).sum())
    a, b = x.double(), y.double()
    if not torch.equal(a.isnan(), b.isnan()):
        return float("inf")
    return float((a - b).nan_to_num().norm())
