# SPDX-License-Identifier: Apache-2.0
"""How the words of a recording follow the numbers of its step: the core's NumberProgram, of what
two captures have noted.

An explanation by two values may be wrong, so nothing is launched by it before a launch with a third
value has been compared with a plain run (the recorder). Threads: immutable. Failure: Unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anabranch._core.abi import NumberEntry
from anabranch._core.capture import Number
from anabranch._core.library import NativeError
from anabranch._core.number_program import OPERATORS, Entries, NumberProgram, Outcome
from anabranch._core.number_program import numbers_apart as _numbers_apart
from anabranch._record.numbers.noted import ConstantOperand, Entry, NumberTrace
from anabranch._record.refusals import Cause, NotRecordable, reason_for


class Unexplained(NotRecordable):
    """Why numbers of a step cannot be followed, for people."""

    cause = Cause.CHANGING_VALUE


class OtherWay(Exception):
    """With these numbers the step goes another way than when it was captured."""


class OtherRounding(OtherWay):
    """A number is rounded otherwise now, and was rounded alike in both captures."""


class Formulas:
    """Of the words of a recording, by the traces of a capture and of one with other numbers.
    Raises Unexplained for the first word that may follow in an unknown way."""

    def __init__(self, first: NumberTrace, other: NumberTrace, words: Sequence[Number]) -> None:
        if len(first.entries) != len(other.entries):
            raise Unexplained("with another value the step computes something else")
        try:
            self._program = NumberProgram(_entries_of(first), _entries_of(other), words)
        except NativeError as error:
            raise Unexplained(reason_for(error).text) from None
        self._count = len(words)

    def __len__(self) -> int:
        """How many words there are."""
        return self._count

    def words(self, values: Sequence[float]) -> list[int]:
        """Where the step's numbers have these values. ArithmeticError where their arithmetic
        raises, or where it is not known which word is right: then the step is to be run. OtherWay
        where it is to be captured again."""
        outcome, words = self._program.run(values)
        if outcome is Outcome.DONE:
            return words
        if outcome is Outcome.UNKNOWN:
            raise ArithmeticError("it raises, or two ways to make a word part")
        raise OtherWay if outcome is Outcome.OTHER_WAY else OtherRounding


def numbers_apart(trace: NumberTrace, now: Sequence[float],
                  before: Sequence[float]) -> tuple[float, ...]:
    """Numbers for a third capture that tells which words follow them, and how. ``trace`` is of a
    capture with those of now; ``before``: what they were in an earlier call. Raises Unexplained."""
    try:
        return _numbers_apart(_entries_of(trace), now, before)
    except NativeError as error:
        raise Unexplained(reason_for(error).text) from None


def _entries_of(trace: NumberTrace) -> Entries:
    made = (NumberEntry * len(trace.entries))()
    for i, entry in enumerate(trace.entries):
        made[i] = _entry_of(entry, i in trace.looked_at)
    return made


def _entry_of(entry: Entry, is_looked_at: bool) -> Any:
    made = NumberEntry(OPERATORS[entry.operator], is_looked_at, (-1, -1), (0, 0), entry.value)
    for i, operand in enumerate(entry.operands):
        if not isinstance(operand, ConstantOperand):
            made.entries[i] = operand
        elif type(entry.value) is bool and not _is_float(operand.value):
            raise Unexplained("the step compares it with an integer that is no float")
        else:
            made.constants[i] = operand.value
    return made


def _is_float(value: float) -> bool:
    """Whether some float is this very number, with which Python compares exactly."""
    try:
        return not isinstance(value, int) or float(value) == value
    except OverflowError:
        return False
