# SPDX-License-Identifier: Apache-2.0
"""How the words of a recording follow the numbers of its step.

Two captures have run the same Python with other numbers, so that their traces have entry for entry
in common how it was made, and differ in values. A word of a kernel's parameters is explained by an
entry if it is that entry's value in both captures, as the kernel has it: a double, a float, a
bfloat16 or a half, or two of these in one word; negative, inverted or taken from 1 where torch does
that in C++.

Words also hold what compilers leave between the members of a struct, which may differ between any
two captures. What is explained by nothing and can be no number that follows is taken for that, and
stays as it was captured. And a value may be the same in both captures, or be rounded alike, so that
no word tells whether it is used: then it has to be the same in all launches.

An explanation by two values may be wrong, so nothing is launched by it before a launch with a third
value has been compared with a plain run (the recorder). Where there are several, they have to give
the same word in each launch. Threads: immutable. Failure: Unexplained.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from anabranch._core.capture import Number
from anabranch._record.numbers.encodings import (
    CHANGES,
    ENCODINGS,
    ENCODINGS_OF_MANY,
    Change,
    Encoding,
    decoded,
    double,
    encoded,
)
from anabranch._record.numbers.noted import Constant, Entry, OtherWay, Trace, evaluate
from anabranch._record.picker import picker
from anabranch._record.refusals import Cause, NotRecordable


class Unexplained(NotRecordable):
    """Why numbers of a step cannot be followed, for people."""

    cause = Cause.CHANGING_VALUE


# Numbers that follow others are of such a size, differ by such a part at least, and are no more
# than so many times as far from one another as the numbers that they follow.
_SIZES, _FARTHER = (2.0 ** -60, 2.0 ** 60), 4.0
_LEAST_APART = {8: 2.0 ** -32, 4: 2.0 ** -20, 2: 0.0}

_Words = tuple[int, int]  # in both captures


class OtherRounding(OtherWay):
    """A number is rounded otherwise now, and was rounded alike in both captures."""


class Ambiguous(ArithmeticError):
    """Two ways to make a word, which gave the same in both captures, do not do so now."""


class _Way(NamedTuple):
    entry: int
    change: Change
    encode: Encoding

    def bits(self, values: Sequence[float]) -> int:
        return self.encode(self.change(values[self.entry]))


class _Alike(NamedTuple):
    """Words, one behind the other, that are the values of entries themselves, encoded in one
    way."""

    encode: Callable[[Sequence[float]], Sequence[int]]
    words: slice
    pick: Callable[[Sequence[float]], Sequence[float]]


class _Explained(NamedTuple):
    """Bits of a word from ``shift`` on, and all ways to make them."""

    shift: int
    ways: tuple[_Way, ...]

    def bits(self, values: Sequence[float]) -> int:
        found = self.ways[0].bits(values)
        if any(way.bits(values) != found for way in self.ways[1:]):
            raise Ambiguous
        return found << self.shift


class _Formula(NamedTuple):
    constant: int  # the bits of the word that follow nothing
    parts: tuple[_Explained, ...]

    def bits(self, values: Sequence[float]) -> int:
        found = self.constant
        for part in self.parts:
            found |= part.bits(values)
        return found

    def only_way(self) -> _Way | None:
        """Where the word is the value of an entry itself."""
        if self.constant or len(self.parts) != 1 or self.parts[0].shift \
                or len(self.parts[0].ways) != 1 or self.parts[0].ways[0].change is not float:
            return None
        return self.parts[0].ways[0]


class Formulas:
    """Of the words of a recording, by the traces of a capture and of one with other numbers.
    Raises Unexplained for the first word that may follow in an unknown way."""

    def __init__(self, first: Trace, other: Trace, words: Sequence[Number]) -> None:
        _check_alike(first, other)
        kept, self._entries = distinct(first.entries)
        self._pairs = [(first.entries[i].value, other.entries[i].value) for i in kept]
        self._moved = {i for i, (a, b) in enumerate(self._pairs) if double(a) != double(b)}
        # What no word tells of, since it was the same in both captures, and what it was.
        self._rounded = [(i, encode, encode(a)) for i, (a, b) in enumerate(self._pairs)
                         if type(a) is not bool
                         for size in (ENCODINGS if i in self._moved else (8,))
                         for encode in ENCODINGS[size] if encode(a) == encode(b)]
        self._ways_of: dict[int, defaultdict[_Words, list[_Way]]] = {}  # by size
        self._formulas = [self._formula(number, word) for number, word in enumerate(words)]
        self._alike = _alike(self._formulas)
        self._others = sorted({*range(len(words))}.difference(
            *(range(each.words.start, each.words.stop) for each in self._alike)))

    def __len__(self) -> int:
        """How many words there are."""
        return len(self._formulas)

    def words(self, values: Sequence[float]) -> list[int]:
        """Where the step's numbers have these values. ArithmeticError where their arithmetic
        raises, or where it is not known which word is right: then the step is to be run. OtherWay
        where it is to be captured again."""
        found = evaluate(self._entries, values)
        if any(encode(found[i]) != rounded for i, encode, rounded in self._rounded):
            raise OtherRounding
        words = [0] * len(self._formulas)
        for encode, places, pick in self._alike:
            words[places] = encode(pick(found))
        for place in self._others:
            words[place] = self._formulas[place].bits(found)
        return words

    def _formula(self, number: int, word: Number) -> _Formula:
        half = word.size_bytes // 2
        for size in (word.size_bytes, half):
            parts = self._parts(word, size)
            if parts and None not in parts.values():
                return _formula_of(word, size, parts)
        # A number beside what a compiler has left, or that alone.
        parts = {at: part for at, part in self._parts(word, half).items() if part is not None}
        if self._may_follow_beside(word, parts):
            raise Unexplained(
                f"a kernel is given something that follows it in another way than by Python's "
                f"arithmetic (word {number}: {word.first:#x} and {word.other:#x})")
        return _formula_of(word, half, parts)

    def _may_follow_beside(self, word: Number, known: Collection[int]) -> bool:
        """Whether something of a word may be a number that follows, beside the halves that are
        known."""
        half = word.size_bytes // 2
        if not known and half == 4 and _are_addresses(word.first, word.other):
            return False
        doubtful = [] if known else [(0, word.size_bytes)]
        if known or half == 4:
            doubtful += [(at, half) for at in (0, 8 * half) if at not in known]
        return any(size in ENCODINGS and self._may_follow(word, at, size) for at, size in doubtful)

    def _parts(self, word: Number, size: int) -> dict[int, _Explained | None]:
        """Of the pieces of this size that differ, by their first bits; None where nothing explains
        it."""
        pieces = {at: _piece(word, at, size)
                  for at in (range(0, 8 * word.size_bytes, 8 * size) if size else ())}
        return {at: self._explain(at, size, first, other)
                for at, (first, other) in pieces.items() if first != other}

    def _may_follow(self, word: Number, shift: int, size: int) -> bool:
        """Whether a piece may be a number that follows those of the step: one of an ordinary size,
        that is not much farther from the other capture's than they are."""
        first, other = _piece(word, shift, size)
        if first == other or (_is_of_an_address(first, size) and _is_of_an_address(other, size)):
            return False
        return any(self._are_alike(a, b, _LEAST_APART[size]) for a, b in
                   zip(decoded(first, size), decoded(other, size), strict=True))

    def _are_alike(self, a: float, b: float, least: float) -> bool:
        if a == 0.0 or b == 0.0:
            return self._most_apart == math.inf and _is_ordinary(a + b)
        return _is_ordinary(a) and _is_ordinary(b) and (a > 0) == (b > 0) \
            and abs(a - b) >= least * abs(a) \
            and abs(math.log2(a / b)) <= 1.0 + _FARTHER * self._most_apart

    @functools.cached_property
    def _most_apart(self) -> float:
        """By how many powers of two the step's numbers differ; infinite where one is 0."""
        numbers = [pair for entry, pair in zip(self._entries, self._pairs, strict=True)
                   if entry.operator is None]
        return max([abs(math.log2(abs(a / b))) if a and b and math.isfinite(a / b) else math.inf
                    for a, b in numbers])

    def _explain(self, shift: int, size: int, first: int, other: int) -> _Explained | None:
        found = self._ways(size).get((first, other))
        return _Explained(shift, tuple(found)) if found else None

    def _ways(self, size: int) -> Mapping[_Words, list[_Way]]:
        """All to make a piece of this size that differs, by what it is in both captures."""
        if size not in self._ways_of:
            made = self._ways_of[size] = defaultdict(list)
            for change, encode, entry in itertools.product(
                    CHANGES.get(size, ()), ENCODINGS.get(size, ()), sorted(self._moved)):
                first, other = [encoded(value, change, encode) for value in self._pairs[entry]]
                if first is not None and other is not None:
                    made[first, other].append(_Way(entry, change, encode))
        return self._ways_of[size]


def _alike(formulas: Sequence[_Formula]) -> list[_Alike]:
    made = []
    ways = enumerate(formula.only_way() for formula in formulas)
    for encode, run in itertools.groupby(ways, lambda numbered: numbered[1] and numbered[1].encode):
        if encode in ENCODINGS_OF_MANY:
            places, of_run = zip(*run, strict=True)
            pick = picker([way.entry for way in of_run])
            made.append(_Alike(ENCODINGS_OF_MANY[encode], slice(places[0], places[-1] + 1), pick))
    return made


def _formula_of(word: Number, size: int, parts: Mapping[int, _Explained | None]) -> _Formula:
    mask = sum((1 << 8 * size) - 1 << at for at in parts)
    return _Formula(word.first & ~mask, tuple(part for part in parts.values() if part is not None))


def _piece(word: Number, shift: int, size: int) -> tuple[int, int]:
    """Of what it is in both captures."""
    mask = (1 << 8 * size) - 1
    return word.first >> shift & mask, word.other >> shift & mask


def _is_address(word: int) -> bool:
    """Whether it may be one of this process: its programs, heaps and stacks lie there."""
    return 0x55 << 40 <= word < 0x58 << 40 or 0x7E << 40 <= word < 0x80 << 40


def _are_addresses(first: int, other: int) -> bool:
    """Whether both may be, or the lower halves of both are an address's upper half, so that the
    upper ones are the next address's lower half."""
    half = first & 0xFFFFFFFF
    return (_is_address(first) and _is_address(other)) \
        or (half == other & 0xFFFFFFFF and _is_address(half << 32))


def _is_of_an_address(word: int, size: int) -> bool:
    """Whether a word or half may be the lower half of an address, with nothing below: the chance
    that a float has such bits is one in sixteen, that a double has them less than one in 2^32."""
    return size >= 4 and word & ((1 << 8 * size - 28) - 1) == 0


def _is_ordinary(value: float) -> bool:
    return _SIZES[0] <= abs(value) <= _SIZES[1]


def _check_alike(first: Trace, other: Trace) -> None:
    if len(first.entries) != len(other.entries) or not all(
            mine.is_made_as(theirs) for mine, theirs in
            zip(first.entries, other.entries, strict=True)):
        raise Unexplained("with another value the step computes something else")
    if any(mine.operator is None and mine.value == theirs.value
           for mine, theirs in zip(first.entries, other.entries, strict=True)):
        raise Unexplained("it was the same in both captures")
    looked_at = first.looked_at | other.looked_at
    changed = [i for i in looked_at if first.entries[i].value != other.entries[i].value]
    if changed:
        raise Unexplained("the step makes an integer or a text of it")


def distinct(entries: Sequence[Entry]) -> tuple[list[int], list[Entry]]:
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
