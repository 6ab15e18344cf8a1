# SPDX-License-Identifier: Apache-2.0
"""How the words of a recording follow the numbers of its step.

Two captures have run the same Python with other numbers, so that their traces have entry for entry
in common how it was made, and differ in values. A word of a kernel's parameters is explained by an
entry if it is that entry's value in both captures, as the kernel has it: a double, a float, a
bfloat16 or a half, or two of these in one word; negative or inverted where torch does that in C++.

An explanation by two values may be wrong, so nothing is launched by it before a launch with a third
value has been compared with a plain run (the recorder). Threads: immutable. Failure: Unexplained.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

from anabranch._core.capture import Number
from anabranch._record.numbers.noted import Constant, Entry, Trace, evaluate
from anabranch._record.refusals import NotRecordable


class Unexplained(NotRecordable):
    """Why numbers of a step cannot be followed, for people."""


def _double(value: float) -> int:
    found: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return found


def _float(value: float) -> int:
    """Rounded as C does it: what is too large is infinite."""
    found: int = struct.unpack("<I", bytes(ctypes.c_float(value)))[0]
    return found


def _bfloat16(value: float) -> int:
    """By way of a float, to the nearest and of two such to the even one."""
    word = _float(value)
    if word & 0x7FFFFFFF > 0x7F800000:
        return 0x7FC0  # a NaN
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16


def _half(value: float) -> int:
    """By way of a float."""
    try:
        found: int = struct.unpack("<H", struct.pack("<e", ctypes.c_float(value).value))[0]
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00
    return found


def _inverse(value: float) -> float:
    return 1.0 / value


def _inverse_float(value: float) -> float:
    """Of a float, as a kernel that multiplies in place of dividing is given it."""
    return 1.0 / ctypes.c_float(value).value


Encoding = Callable[[float], int]
Change = Callable[[float], float]
_ENCODINGS: dict[int, tuple[Encoding, ...]] = {8: (_double,), 4: (_float,), 2: (_bfloat16, _half)}
_CHANGES: dict[int, tuple[Change, ...]] = {8: (float, float.__neg__, _inverse),
                                           4: (float, float.__neg__, _inverse_float),
                                           2: (float, float.__neg__)}
_PROBES = 16  # values at which two explanations of one word have to agree


class _Explained(NamedTuple):
    """So many bits of a word from ``shift`` on."""

    shift: int
    entry: int
    change: Change
    encode: Encoding


class _Formula(NamedTuple):
    constant: int  # the bits of the word that follow nothing
    parts: tuple[_Explained, ...]


class Formulas:
    """Of the words of a recording, by the traces of a capture and of one with other numbers.
    Raises Unexplained for the first word that follows in no known way."""

    def __init__(self, first: Trace, other: Trace, words: Sequence[Number]) -> None:
        _check_alike(first, other)
        kept, self._entries = _distinct(first.entries)
        self._pairs = [(first.entries[i].value, other.entries[i].value) for i in kept]
        self._formulas = [self._formula(number, word) for number, word in enumerate(words)]

    def __len__(self) -> int:
        """How many words there are."""
        return len(self._formulas)

    def words(self, values: Sequence[float]) -> list[int]:
        """Where the step's numbers have these values. ArithmeticError where their arithmetic
        raises: then the step is to be run."""
        found = evaluate(self._entries, values)
        return [formula.constant | self._bits(formula.parts, found) for formula in self._formulas]

    @staticmethod
    def _bits(parts: Sequence[_Explained], values: Sequence[float]) -> int:
        bits = 0
        for shift, entry, change, encode in parts:
            bits |= encode(change(values[entry])) << shift
        return bits

    def _formula(self, number: int, word: Number) -> _Formula:
        for size in (word.size_bytes, word.size_bytes // 2):
            parts = list(self._parts(word, size)) if size in _ENCODINGS else [None]
            known = tuple(part for part in parts if part is not None)
            if len(known) == len(parts):
                mask = sum((1 << 8 * size) - 1 << part.shift for part in known)
                return _Formula(word.first & ~mask, known)
        raise Unexplained(
            f"a kernel is given something that follows it in another way than by Python's "
            f"arithmetic (word {number}: {word.first:#x} and {word.other:#x})")

    def _parts(self, word: Number, size: int) -> Iterator[_Explained | None]:
        """Of each piece of this size that differs; None where nothing explains it."""
        mask = (1 << 8 * size) - 1
        for shift in range(0, 8 * word.size_bytes, 8 * size):
            first, other = word.first >> shift & mask, word.other >> shift & mask
            if first != other:
                yield self._explain(shift, size, first, other)

    def _explain(self, shift: int, size: int, first: int, other: int) -> _Explained | None:
        """Raises Unexplained where there are two explanations that do not always agree."""
        found = [_Explained(shift, entry, change, encode)
                 for change in _CHANGES[size] for encode in _ENCODINGS[size]
                 for entry, (value, other_value) in enumerate(self._pairs)
                 if value != other_value and _encoded(value, change, encode) == first
                 and _encoded(other_value, change, encode) == other]
        for values in self._probes if len(found) > 1 else ():
            if len({_encoded(values[one.entry], one.change, one.encode) for one in found}) > 1:
                raise Unexplained("a kernel is given something that follows it in one of several "
                                  "ways")
        return found[0] if found else None

    @functools.cached_property
    def _probes(self) -> list[list[float]]:
        """What all entries are for some values of the numbers near those that there were."""
        random, found = Random(0), []
        numbers = [entry.value for entry in self._entries if entry.operator is None]
        for _ in range(_PROBES):
            with contextlib.suppress(ArithmeticError):
                found.append(evaluate(self._entries, [
                    value * random.uniform(0.5, 1.0) for value in numbers]))
        return found


def _encoded(value: float, change: Change, encode: Encoding) -> int | None:
    try:
        return encode(change(value))
    except ZeroDivisionError:
        return None


def _check_alike(first: Trace, other: Trace) -> None:
    if len(first.entries) != len(other.entries) or not all(
            mine.is_made_as(theirs) for mine, theirs in
            zip(first.entries, other.entries, strict=True)):
        raise Unexplained("with another value the step computes something else")
    looked_at = first.looked_at | other.looked_at
    changed = [i for i in looked_at if first.entries[i].value != other.entries[i].value]
    if changed:
        raise Unexplained("the step compares it, or looks at its value otherwise, and may go "
                          "another way with another one")


def _distinct(entries: Sequence[Entry]) -> tuple[list[int], list[Entry]]:
    """Without what was made alike more than once: an optimizer does the same for each tensor.
    Answers which are kept, and they themselves, of each other's new numbers."""
    kept: list[int] = []
    made: list[Entry] = []
    new: list[int] = []  # by old number
    known: dict[tuple[object, ...], int] = {}
    for i, entry in enumerate(entries):
        operands = tuple(operand if isinstance(operand, Constant) else new[operand]
                         for operand in entry.operands)
        name = (i,) if entry.operator is None else (
            entry.operator, *(_named(operand) for operand in operands))
        if name not in known:
            known[name] = len(made)
            kept.append(i)
            made.append(entry._replace(operands=operands))
        new.append(known[name])
    return kept, made


def _named(operand: Constant | int) -> tuple[object, ...]:
    """Constants by type and bits: -0.0 is not 0.0, and 1 not 1.0."""
    if not isinstance(operand, Constant):
        return (operand,)
    value = operand.value
    return type(value), value.hex() if isinstance(value, float) else value
