# SPDX-License-Identifier: Apache-2.0
"""What the nodes of a capture are: by their marks, the operator or the generated kernel that queued
them, and the user's line behind it. Reports that tell of times show them.

Threads: as the notes that are taken. Failure: none; what is not known is None.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from types import FrameType
from typing import Any, NamedTuple

import torch

from anabranch import _compat
from anabranch._fx.source import SourceLine

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_INSIDE = (os.path.dirname(torch.__file__) + os.sep, _OURS, "<")
_PYTHONS = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (f"site-packages{os.sep}", f"dist-packages{os.sep}")  # which may lie in it
_MOST_FRAMES = 200


class Label(NamedTuple):
    """``operator`` is "aten::mm", or the name of a generated kernel; empty in eager code."""

    operator: str
    line: SourceLine | None


class Labels:
    """Of one capture. A piece of work has the nodes of the mark behind it, or of the next one that
    comes."""

    def __init__(self) -> None:
        self._by_mark: dict[int, Label] = {}

    def note(self, mark: int, operator: str, waiting: SourceLine | None = None) -> None:
        """Called while the frames of who queues the work stand. ``waiting``: the line that waits
        for this thread, for work behind which no frame of the user's stands."""
        self._by_mark[mark] = Label(operator, _line_now() or waiting)

    def put(self, mark: int, line: SourceLine) -> None:
        """Of nodes that a line of eager code has queued."""
        self._by_mark[mark] = Label("", line)

    def of(self, mark: int) -> Label | None:
        return self._by_mark.get(mark)


@functools.lru_cache(4096)
def is_users(file: str) -> bool:
    """Whether a frame of this file is neither torch's nor Python's nor ours."""
    return not file.startswith(_INSIDE) and not (
        file.startswith(_PYTHONS) and not any(folder in file for folder in _PACKAGES))


def line_of(frame: FrameType, line: int) -> SourceLine:
    return _line_at(frame.f_code.co_filename, line, frame.f_code.co_name)


def operator_of(function: Any) -> str:
    schema = getattr(function, "_schema", None)
    return str(schema.name if schema is not None else getattr(function, "__name__", function))


def generated_kernel_of(tuner: Any) -> str:
    """Its name as the GPU has it."""
    meta = getattr(tuner, "inductor_meta", None)
    name = meta.get("kernel_name") if isinstance(meta, dict) else None
    return str(name or getattr(getattr(tuner, "fn", None), "__name__", "triton kernel"))


def _line_now() -> SourceLine | None:
    """Of the innermost frame of this thread that is neither torch's nor ours. Behind a wrapper that
    Inductor has generated stands the line of the model that it was generated for."""
    frame: Any = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_users(file):  # or generated, which lies in neither torch nor here
            behind = _compat.lines_behind_generated_code(file, line)
            if behind is None:
                return line_of(frame, line)
            for user_file, number, function in behind:
                if is_users(user_file):
                    return _line_at(user_file, number, function)
        frame = frame.f_back
    return None


def _line_at(file: str, line: int, function: str) -> SourceLine:
    return SourceLine(file, line, function, linecache.getline(file, line).strip())
