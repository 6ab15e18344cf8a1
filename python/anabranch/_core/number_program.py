# SPDX-License-Identifier: Apache-2.0
"""experimental/number_program.h from Python: words of kernels that follow numbers."""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from ctypes import Array, c_double, c_uint64
from typing import Any

from anabranch._core.abi import CaptureNumber, NumberEntry
from anabranch._core.capture import Number
from anabranch._core.handle import Handle
from anabranch._core.library import core, last_error

# numbers::Operator, by the names of float's methods; none: a number of the step.
OPERATORS = {name: i for i, name in enumerate((
    "", "add", "sub", "mul", "truediv", "pow", "neg", "pos", "abs", "eq", "ne", "lt", "le", "gt",
    "ge", "bool"))}
Entries = Array[NumberEntry]


class Outcome(enum.IntEnum):
    """numbers::Outcome"""

    DONE = 0
    OTHER_WAY = 1
    OTHER_ROUNDING = 2
    UNKNOWN = 3


class NumberProgram(Handle):
    """Of the traces of two captures, as many entries each, and the words of a recording. Raises
    NativeError, whose message is a clause."""

    _free = "number_program_free"

    def __init__(self, first: Entries, other: Entries, words: Sequence[Number]) -> None:
        self._given = sum(entry.made_by == OPERATORS[""] for entry in first)
        self._count = len(words)
        all_words: Any = (CaptureNumber * len(words))(*map(_word_of, words))
        super().__init__(core.number_program_make(
            first, other, len(first), all_words, len(words)))

    def run(self, numbers: Sequence[float]) -> tuple[Outcome, list[int]]:
        """What came of it, and the words. As many numbers as traces have that are given."""
        words = (c_uint64 * self._count)()
        outcome = core.number_program_run(
            self.handle, struct.pack(f"{self._given}d", *numbers), words)
        return Outcome(outcome), memoryview(words).cast("B").cast("Q").tolist()


def numbers_apart(entries: Entries, now: Sequence[float],
                  before: Sequence[float]) -> tuple[float, ...]:
    """Numbers for the other capture; see find_numbers_apart(). Raises NativeError, whose message is
    a clause."""
    found = (c_double * len(now))()
    if core.numbers_apart(entries, len(entries), _doubles(now), _doubles(before), len(now), found):
        raise last_error()
    return tuple(found)


def _word_of(word: Number) -> CaptureNumber:
    return CaptureNumber(*word)


def _doubles(values: Sequence[float]) -> Any:
    return (c_double * len(values))(*values)
