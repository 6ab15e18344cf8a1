# SPDX-License-Identifier: Apache-2.0
"""A Python object that owns a handle of the core, and arguments as C takes them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int64, c_uint64, c_void_p
from typing import Any

from anabranch._core.library import core, last_error


class Handle:
    """Owns one handle; ``_free`` names the function that gives it back."""

    _free = ""

    def __init__(self, handle: int | None, *needs: Any) -> None:
        if not handle:
            raise last_error()
        self.handle = c_void_p(handle)
        self._give_back = getattr(core, self._free)  # still there when the module is not
        self._needs = needs

    def close(self) -> None:
        """Gives the handle back now; the object cannot be used any more."""
        handle = self.__dict__.pop("handle", None)
        if handle is not None:
            self._give_back(handle)

    __del__ = close


def encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def i64s(values: Sequence[int]) -> Any:
    return (c_int64 * max(len(values), 1))(*values)


def u64s(values: Sequence[int]) -> Any:
    return (c_uint64 * max(len(values), 1))(*values)
