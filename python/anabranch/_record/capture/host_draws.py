# SPDX-License-Identifier: Apache-2.0
"""Random numbers that a step draws on the CPU, and what it decides by them.

Layers that are skipped now and then (LayerDrop) draw a number each with ``torch.rand([])`` and
compare it. A capture notes what is drawn, what is computed of it and each answer that Python gets.
Before a launch the same is done again with torch's generator as it is then. Where all answers are
those of the capture, the launch goes the way that the step would go, and the generator has moved as
the step would move it. Otherwise the generator is put back, and the step runs plainly.

Only what is drawn by eager code from torch's own generator is noted: what compiled code does with
memory of the CPU cannot be seen. Numbers that Python itself gets (``item()``), that are copied to
the GPU or meet other tensors are refused. No mode is around the step, since Dynamo would run what
it has compiled as if it had not: the operators that draw answer tensors of a class of ours.

Threads: one capture at a time; other threads draw as ever. ``Draws`` is immutable. Failure:
NotRecordable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.refusals import RANDOM_ON_CPU, Cause, NotRecordable

# Of those that make a tensor and fill it: how they fill it.
_FILLS: dict[str, Callable[..., Tensor]] = {
    "rand": lambda made: made.uniform_(0, 1), "randn": lambda made: made.normal_(0, 1),
    "randint": lambda made, high: made.random_(0, high),
    "randint.low": lambda made, low, high: made.random_(low, high)}
_ASKS = ("__bool__", "is_nonzero", "equal", "allclose")
_CONSTANTS = (int, float, bool, str, torch.dtype, torch.device, type(None))
_LOOKS = ("__get__", "size", "stride", "dim", "numel", "__len__", "__repr__")  # at its form


class DrawnOtherwise(NotRecordable):
    """What is drawn now sends the step another way than that which was captured."""

    cause = Cause.RANDOM_ON_CPU


@dataclasses.dataclass(frozen=True)
class _Made:
    """In an argument's place: what the step of this number has made."""

    by: int


@dataclasses.dataclass(frozen=True)
class _Done:
    """``answer`` is what Python got; None where a tensor was made."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    answer: bool | None


@dataclasses.dataclass(frozen=True)
class Draws:
    """What a step draws on the CPU and asks of it, in order."""

    done: tuple[_Done, ...]

    @contextlib.contextmanager
    def repeated(self) -> Iterator[None]:
        """Draws anew. DrawnOtherwise where another answer is found; the generator is then, and
        where anything else is raised inside, as it was before."""
        before = torch.get_rng_state()
        try:
            self._repeat()
            yield
        except BaseException:
            torch.set_rng_state(before)
            raise

    def _repeat(self) -> None:
        made: list[Any] = []
        for one in self.done:
            made.append(one.function(*_opened(one.args, made), **_opened(one.kwargs, made)))
            if one.answer is not None and made[-1] != one.answer:
                raise DrawnOtherwise(f"{RANDOM_ON_CPU}: from one state it went two ways")

    def leads_to(self, before: Tensor, after: Tensor) -> bool:
        """Whether the step moves the generator from one state to the other as these do."""
        torch.set_rng_state(before)
        with contextlib.suppress(DrawnOtherwise), self.repeated():
            return torch.equal(torch.get_rng_state(), after)
        return False


class HostDraws:
    """Those of one capture, noted while it is ``captured()``."""

    def __init__(self) -> None:
        self._done: list[_Done] = []
        self._thread = threading.get_ident()
        self._is_on = self._is_compiled = False
        self._why_not: NotRecordable | None = None

    def draws(self) -> Draws:
        if self._why_not is not None:  # somebody has caught it
            raise self._why_not
        return Draws(tuple(self._done))

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Around the step."""
        operators = {name: self._drawing(name, fill) for name, fill in _FILLS.items()}
        self._is_on = True
        try:
            with _compat.operators_on_cpu(operators), \
                    _compat.calls_of_compiled_graphs(self._compiled):
                yield
        finally:
            self._is_on = False

    def _compiled(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, self._is_compiled = self._is_compiled, True
        try:
            return original(*args, **kwargs)
        finally:
            self._is_compiled = before

    def _drawing(self, name: str, fill: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """In the operator's place."""
        packet, _, overload = name.partition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload or "default")
        defaults = {"dtype": torch.int64} if packet == "randint" else {}

        @torch.compiler.disable
        def draw(*args: Any, **kwargs: Any) -> Tensor:
            *limits, size = args
            made = fill(torch.empty(size, **defaults | kwargs | {"device": "cpu"}), *limits)
            if threading.get_ident() != self._thread or not self._is_on:
                return made
            if self._is_compiled:
                self._refuse("compiled code draws them")
            return self._noted(function, args, kwargs, made)

        drawing: Callable[..., Tensor] = draw
        return drawing

    def operator(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What is called with a tensor that was drawn, or made of such."""
        name = getattr(function, "__name__", "")
        try:
            with _compat.DisableTorchFunctionSubclass():
                found = function(*args, **kwargs)
        except RuntimeError:  # of the capture: a copy to the GPU
            self._refuse(f"it uses them in {name}")
        if not self._is_on or (name in _LOOKS and not isinstance(found, Tensor)):
            return found
        if isinstance(found, bool) and name in _ASKS:
            self._done.append(_Done(function, _closed(args), _closed(kwargs), found))
        elif isinstance(found, Tensor) and found.device.type == "cpu" \
                and not _writes(name) and _are_ours(args, kwargs):
            return self._noted(function, args, kwargs, found)
        else:
            self._refuse(f"it uses them in {name}")
        return found

    def _noted(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
               found: Tensor) -> Tensor:
        self._done.append(_Done(function, _closed(args), _closed(kwargs), None))
        made = found.as_subclass(DrawnTensor)
        made.noted_by, made.number = self, len(self._done) - 1
        return made

    def _refuse(self, why: str) -> NoReturn:
        self._why_not = NotRecordable(
            f"{RANDOM_ON_CPU}: {why}", Cause.RANDOM_ON_CPU,
            "Draw on the GPU, or decide by a comparison: if torch.rand([]) < share.")
        raise self._why_not


class DrawnTensor(Tensor):
    """A tensor that was drawn in a capture, or made of such. Behind it, it is like any other."""

    noted_by: HostDraws
    number: int

    @classmethod
    @torch.compiler.disable  # Dynamo looks at all that a compiled module calls
    def __torch_function__(cls, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        [first, *_] = _drawn_in((args, kwargs))
        return first.noted_by.operator(function, args, kwargs or {})


def _writes(name: str) -> bool:
    """Whether it writes in place, by torch's way to name such."""
    return (name.endswith("_") and not name.endswith("__")) or (
        name.startswith("__i") and name != "__invert__") or name in ("__setitem__", "__set__")


def _drawn_in(value: Any) -> list[DrawnTensor]:
    if isinstance(value, DrawnTensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for part in value for found in _drawn_in(part)]
    return _drawn_in(list(value.values())) if isinstance(value, dict) else []


def _are_ours(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether nothing else that may change is among the arguments: another tensor, or a float that
    is followed."""
    leaves, _ = _compat.tree_flatten((list(args), dict(kwargs)))
    return all(type(leaf) in (DrawnTensor, *_CONSTANTS) for leaf in leaves)


def _closed(value: Any) -> Any:
    """With the numbers of tensors in their places."""
    if isinstance(value, DrawnTensor):
        return _Made(value.number)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_closed, value))
    return {name: _closed(one) for name, one in value.items()} if isinstance(value, dict) else value


def _opened(value: Any, made: Sequence[Any]) -> Any:
    if isinstance(value, _Made):
        return made[value.by]
    if isinstance(value, (list, tuple)):
        return type(value)(_opened(part, made) for part in value)
    return {name: _opened(one, made) for name, one in value.items()} \
        if isinstance(value, dict) else value
