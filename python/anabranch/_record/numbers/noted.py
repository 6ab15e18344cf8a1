# SPDX-License-Identifier: Apache-2.0
"""Floats that note what is computed from them, so that a launch can compute it for other values.

A number that a step uses reaches its kernels through arithmetic in Python: ``1 - lr * decay``,
``-lr / (1 - beta ** t)``. While a step is captured, its numbers are Noted floats: each operator
answers the value that a float would, and adds to a trace how it was made. The core does the same
with other values, and so gives the same bits (``formulas``).

A comparison, which may lead another way, is noted with what it came to. What cannot be followed
shows in two ways. Functions of C (``math.sqrt``) answer plain floats, so that what is made of these
is in no trace. And any other look at a value, ``int()`` or a text, is noted: ``Trace.looked_at``.

Threads: a trace belongs to one capture. Failure: those of float's own operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """How a value was made: by an operator ("add") of ``operands``, which are numbers of entries
    and Constants; a number of the step by none. A comparison has a bool for its value."""

    operator: str
    operands: tuple[Any, ...]
    value: float | bool


class ConstantOperand(NamedTuple):
    """An operand that is no entry of the trace."""

    value: float | int


class NumberTrace:
    """``entries`` begin with the numbers of the step, in their order. Once it is closed, numbers
    that somebody has kept are floats like any other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.looked_at: set[int] = set()  # entries on whose value something may depend
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def number(self, value: float) -> NotedFloat:
        """The next number of the step. To be called before the step runs."""
        return self._add(Entry("", (), value))

    def _add(self, entry: Entry) -> NotedFloat:
        self.entries.append(entry)
        return NotedFloat(entry.value, self, len(self.entries) - 1)

    def add(self, made_by: str, operands: Sequence[Any], value: float) -> NotedFloat:
        return self._add(Entry(made_by, self._found(operands), value))

    def decide(self, made_by: str, operands: Sequence[Any], value: bool) -> None:
        """Notes what a comparison came to."""
        self.entries.append(Entry(made_by, self._found(operands), value))

    def _found(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(operand.index if isinstance(operand, NotedFloat) and operand.trace is self
                     else ConstantOperand(operand) for operand in operands)


class NotedFloat(float):
    """Entry ``index`` of a trace. Copies and pickles are plain floats."""

    __slots__ = ("index", "trace")

    def __new__(cls, value: float, trace: NumberTrace, index: int) -> NotedFloat:
        made = super().__new__(cls, value)
        made.trace, made.index = trace, index
        return made

    trace: NumberTrace
    index: int

    def __reduce__(self) -> Any:
        return float, (float.__float__(self),)

    def __copy__(self) -> float:
        return float.__float__(self)

    def __deepcopy__(self, memo: Any) -> float:
        return float.__float__(self)

    __hash__ = float.__hash__  # __eq__ is asked when a set or a dictionary finds one alike


def _lifted(name: str) -> Callable[..., Any]:
    """float's operator of this name, which notes what it has made."""
    plain = getattr(float, name)
    is_swapped = name.startswith("__r")
    made_by = name.replace("__r", "__").strip("_")

    def method(self: NotedFloat, *others: Any) -> Any:
        value = plain(self, *others)
        if type(value) is not float or self.trace.is_closed:
            return value  # also NotImplemented, or complex
        return self.trace.add(made_by, (*others, self) if is_swapped else (self, *others), value)

    return method


def _deciding(name: str) -> Callable[..., Any]:
    """float's comparison of this name, which notes what it came to."""
    plain = getattr(float, name)
    made_by = name.strip("_")

    def method(self: NotedFloat, *others: Any) -> Any:
        value = plain(self, *others)
        if type(value) is bool and not self.trace.is_closed:
            self.trace.decide(made_by, (self, *others), value)
        return value

    return method


def _looking(name: str) -> Callable[..., Any]:
    """float's method of this name, which notes that somebody has looked."""
    plain = getattr(float, name)

    def method(self: NotedFloat, *others: Any) -> Any:
        if not self.trace.is_closed:
            self.trace.looked_at.add(self.index)
        return plain(self, *others)

    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(NotedFloat, f"__{_name}__", _lifted(f"__{_name}__"))
    setattr(NotedFloat, f"__r{_name}__", _lifted(f"__r{_name}__"))
for _name in ("__neg__", "__pos__", "__abs__"):
    setattr(NotedFloat, _name, _lifted(_name))
for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"):
    setattr(NotedFloat, _name, _deciding(_name))
for _name in ("__int__", "__trunc__", "__round__", "__floor__", "__ceil__", "__floordiv__",
              "__rfloordiv__", "__mod__", "__rmod__", "__divmod__", "__rdivmod__", "is_integer",
              "hex", "as_integer_ratio", "__str__", "__repr__", "__format__"):
    setattr(NotedFloat, _name, _looking(_name))
