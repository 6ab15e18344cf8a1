# SPDX-License-Identifier: Apache-2.0
"""How kernels are given a number: in which bits, and changed how by torch's own C++.

Threads: pure. Failure: ZeroDivisionError of a change.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence


def double(value: float) -> int:
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


def _doubles(values: Sequence[float]) -> Sequence[int]:
    """double of each."""
    return memoryview(array("d", values)).cast("B").cast("Q")


def _floats(values: Sequence[float]) -> Sequence[int]:
    """_float of each."""
    return memoryview(array("f", values)).cast("B").cast("I")


def _inverse(value: float) -> float:
    """As a kernel that multiplies in place of dividing is given it."""
    return 1.0 / value


def _inverse_float(value: float) -> float:
    return 1.0 / ctypes.c_float(value).value


def _complement(value: float) -> float:
    """As dropout is given it."""
    return 1.0 - value


def _complement_float(value: float) -> float:
    return 1.0 - ctypes.c_float(value).value


Encoding = Callable[[float], int]
Change = Callable[[float], float]
ENCODINGS_OF_MANY = {double: _doubles, _float: _floats}
ENCODINGS: dict[int, tuple[Encoding, ...]] = {8: (double,), 4: (_float,), 2: (_bfloat16, _half)}
_OF_DOUBLES: tuple[Change, ...] = (float, float.__neg__, _inverse, _complement)
CHANGES: dict[int, tuple[Change, ...]] = {
    8: _OF_DOUBLES, 4: (*_OF_DOUBLES, _inverse_float, _complement_float),
    2: (float, float.__neg__)}


def encoded(value: float, change: Change, encode: Encoding) -> int | None:
    try:
        return encode(change(value))
    except ZeroDivisionError:
        return None


def decoded(word: int, size: int) -> list[float]:
    """What a word of this size may mean as a number."""
    if size == 2:
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0],
                struct.unpack("<e", struct.pack("<H", word))[0]]
    return [struct.unpack(*(("<d", struct.pack("<Q", word)) if size == 8 else
                            ("<f", struct.pack("<I", word))))[0]]
