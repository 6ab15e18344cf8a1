# SPDX-License-Identifier: Apache-2.0
"""Two captures held against each other: which allocation of one is which of the other, and whether
both answer the same. Failure: NotRecordable with the first difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import Block
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import Unlike, flatten
from anabranch._record.capture.step import Alias, Constant, Fresh, Lazy, Step, StepObject, Wrapped
from anabranch._record.numbers.noted import NotedFloat
from anabranch._record.refusals import (
    ANOTHER_ANSWER,
    ON_CPU,
    Cause,
    NotRecordable,
    OtherGraph,
)
from anabranch._record.tensors import is_wrapper


def open_answers(step: Step, made: Sequence[Captured]) -> None:
    """Into leaves, and the one shape of both: what is the same object in both was there before."""
    answers = [captured.answer for captured in made]
    try:
        leaves, shape = flatten(answers, step.object_numbers)
    except Unlike:
        raise NotRecordable(ANOTHER_ANSWER, Cause.OTHER_ANSWER) from None
    for captured, of_it in zip(made, leaves, strict=True):
        captured.result, captured.shape, captured.answer = of_it, shape, None


def trace_of(step: Step, captured: Captured,
             history: _compat.PoolHistory) -> list[tuple[int, int]]:
    """What a capture has allocated, (address, bytes), in order of time. What is ahead of the step
    has its addresses, and not its sizes."""
    found = [(event.address, event.bytes) for event in history.events_in(captured.pool_id)
             if not event.is_freed]
    ahead = len(step.ahead)
    return [*((address, 1) for address, _ in found[:ahead]), *found[ahead:]]


def match_allocations(step: Step, made: Sequence[Captured],
                      history: _compat.PoolHistory) -> list[Block]:
    """The blocks of both captures, where they allocated alike."""
    return match(step, [captured.given_at for captured in made],
                 [trace_of(step, captured, history) for captured in made])


def match(step: Step, given_at: Sequence[Sequence[int]],
          traces: Sequence[Sequence[tuple[int, int]]]) -> list[Block]:
    """The same, by where the units of the step lie in both, and what both have allocated."""
    first, second = traces
    if len(first) != len(second):
        raise OtherGraph(f"two captures of it allocate {len(first)} times and {len(second)}")
    for i, ((_, size), (_, other_size)) in enumerate(zip(first, second, strict=True)):
        if size != other_size:
            raise OtherGraph(
                f"allocation {i} has {size} bytes in one capture and {other_size} in another")
    given = [Block(a, b, unit.size_bytes, True)
             for a, b, unit in zip(*given_at, step.units, strict=True)]
    return [*given, *(Block(address, other, size, False)
                      for (address, size), (other, _) in zip(first, second, strict=True))]


def describe(step: Step, captured: Captured, blocks: Sequence[Block], *, second: bool) -> None:
    """Turns tensors into what they are, so that nothing of the capture is held."""
    describer = _Describer(step, blocks, captured.owners, second)
    captured.result = [describer.describe(leaf) for leaf in captured.result]
    captured.gradients = {i: describer.describe(grad) for i, grad in captured.gradients.items()}


class _Describer:
    def __init__(self, step: Step, blocks: Sequence[Block], owners: Mapping[int, int],
                 second: bool) -> None:
        self._step = step
        self._owners = owners
        given = len(step.units)
        self._given = [block[1 if second else 0] for block in blocks[:given]]
        # Of those at one address the last, which is what there is now.
        self._allocated = {block[1 if second else 0]: i for i, block in enumerate(blocks[given:])}

    def describe(self, leaf: Any) -> Any:
        if isinstance(leaf, NotedFloat):
            raise NotRecordable("it answers a number that follows one which changes",
                                Cause.OTHER_ANSWER)
        if not isinstance(leaf, Tensor):
            held = self._step.object_numbers.get(id(leaf))
            return Constant(leaf) if held is None else StepObject(held)
        if id(leaf) in self._owners:
            return Alias(self._owners[id(leaf)], None)
        if is_wrapper(leaf):
            names, context = leaf.__tensor_flatten__()  # type: ignore[attr-defined]
            parts = tuple(self.describe(getattr(leaf, name)) for name in names)
            return Wrapped(type(leaf), tuple(names), parts, context, tuple(leaf.shape),
                           tuple(leaf.stride()))
        if not leaf.is_cuda:
            raise NotRecordable(ON_CPU, Cause.ANSWER_ON_CPU)
        if leaf.is_conj() or leaf.is_neg():
            plain = _compat.read_otherwise(leaf, leaf.is_conj(), leaf.is_neg())
            return Lazy((self._memory_of(plain),), leaf.is_conj(), leaf.is_neg())
        return self._memory_of(leaf)

    def _memory_of(self, leaf: Tensor) -> Any:
        """By its address alone: a tensor that was made just now may have the id that one of the
        owners had, which are gone."""
        view = (tuple(leaf.shape), tuple(leaf.stride()))
        storage = leaf.untyped_storage().data_ptr()
        if storage in self._allocated:
            offset = int(leaf.storage_offset()) * leaf.element_size()
            return Fresh(self._allocated[storage], offset, *view, leaf.dtype)
        alias = self._alias(leaf, view)
        if alias is not None:
            return alias
        if leaf.numel() == 0:
            return Fresh(-1, 0, *view, leaf.dtype)
        return Constant(leaf)  # of before the capture: the object itself

    def _alias(self, leaf: Tensor, view: tuple[Any, ...]) -> Alias | None:
        address = leaf.data_ptr()
        for unit, at in zip(self._step.units, self._given, strict=True):
            if at <= address < at + unit.size_bytes:
                tensor, _ = unit.members[0]
                return Alias(tensor, (*view, address - at, leaf.dtype))
        return None


def compare(first: Captured, second: Captured) -> None:
    same = (first.mutated == second.mutated
            and all(map(_same, first.result, second.result))
            and first.gradients.keys() == second.gradients.keys()
            and all(_same(grad, second.gradients[i]) for i, grad in first.gradients.items()))
    if not same:
        made_anew = _object_made_anew(first.result, second.result)
        raise NotRecordable(f"it answers a {made_anew}, another one in each call"
                            if made_anew else ANOTHER_ANSWER, Cause.OTHER_ANSWER)


def _object_made_anew(first: Sequence[Any], second: Sequence[Any]) -> str:
    """Of which class an object is that both captures answer, each one of its own."""
    for a, b in zip(first, second, strict=False):
        if isinstance(a, Constant) and isinstance(b, Constant) and not _same(a, b) \
                and type(a.value) is type(b.value) and hasattr(a.value, "__dict__"):
            return type(a.value).__name__
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Constant) and isinstance(b, Constant):
        if a.value is b.value:
            return True
        return type(a.value) is type(b.value) and not isinstance(a.value, Tensor) \
            and bool(a.value == b.value)
    return bool(a == b)
