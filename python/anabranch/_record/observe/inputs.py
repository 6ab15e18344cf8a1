# SPDX-License-Identifier: Apache-2.0
"""What a step takes in that no guard can hold: clocks, random numbers, files, queues. And context
variables and the environment, which guards can.

They are told by the function of C that code calls. What counts is who calls it, by the nearest
frame that is not Python's own: a clock is an input where the user's code reads it, since libraries
read clocks to say how long something took. Torch, Triton and Anabranch read files when something is
loaded or compiled for the first time, and importlib reads them to find modules and packages, which
is no input.

Threads: one run at a time. Failure: none.
"""

from __future__ import annotations

import _queue
import contextvars
import datetime
import io
import os
import queue
import random
import socket
import sys
import time
import types
from typing import Any, NamedTuple

from anabranch import _compat
from anabranch._record.refusals import line_of
from anabranch._record.state.dotted import is_users

_CLOCK, _RANDOM, _FILE, _QUEUE = "a clock", "random numbers", "a file", "a queue"
_LOADERS = ("torch", "triton", "anabranch")
_FINDERS = frozenset(("importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport",
                      "pkgutil"))
_BUILTIN, _METHOD = types.BuiltinFunctionType, types.MethodDescriptorType
_MADE_BY_PYTHON = 1 << 9  # in a class's flags: it is none of C's own, and may go
# By functions, also with the class of what they are called of, and by classes and names of methods.
_KNOWN: dict[Any, str | None] = {}


def _named(module: types.ModuleType, *names: str) -> list[Any]:
    return [function for name in names if (function := getattr(module, name, None)) is not None]


_KINDS: dict[Any, str] = {
    **dict.fromkeys(_named(time, "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic",
                           "monotonic_ns", "process_time", "process_time_ns", "thread_time",
                           "localtime", "gmtime", "ctime"), _CLOCK),
    **dict.fromkeys(_named(os, "urandom", "getrandom"), _RANDOM),
    **dict.fromkeys(_named(io, "open", "FileIO"), _FILE),
    **dict.fromkeys(_named(os, "open", "read", "write", "stat", "listdir", "scandir", "remove",
                           "rename", "replace", "mkdir", "rmdir"), _FILE),
    input: _FILE}
_KINDS_OF: tuple[tuple[type, frozenset[str], str], ...] = (
    (random.Random, frozenset(("random", "getrandbits", "seed")), _RANDOM),
    (_queue.SimpleQueue, frozenset(("get", "get_nowait", "put")), _QUEUE),
    (socket.socket, frozenset(("recv", "recv_into", "send", "sendall", "accept")), "a socket"))
_METHODS = {getattr(kind, name): found for kind, names, found in _KINDS_OF for name in names
            if hasattr(kind, name)}
_DATES = frozenset(("now", "today", "utcnow"))
_NUMPY = frozenset(("RandomState", "Generator", "BitGenerator"))
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)
_BASES = frozenset(base for kind in (*_FILES, datetime.date, *(kind for kind, _, _ in _KINDS_OF))
                   for base in kind.__mro__)
_ENVIRONMENT = type(os.environ).__getitem__.__code__
_QUEUES = (queue.Queue.get.__code__, queue.Queue.put.__code__)
_LOADERS_NEXT = _compat.LOADERS_NEXT.__code__


class Taken(NamedTuple):
    """``what`` a step takes in, and the line where it does: "train.py:88 in step"."""

    what: str
    place: str


class Inputs:
    """What is called while a step runs. ``called`` is told each call of a function of C, and
    ``started`` each run of code that is in ``codes``."""

    codes = frozenset((_ENVIRONMENT, _LOADERS_NEXT, *_QUEUES))

    def __init__(self) -> None:
        self.variables: dict[contextvars.ContextVar[Any], None] = {}  # that it reads
        self.environment: dict[str, None] = {}
        self.taken: dict[Taken, None] = {}

    def started(self, frame: types.FrameType) -> None:
        if frame.f_code is _ENVIRONMENT:
            key = frame.f_locals["key"]
            if isinstance(key, str) and self._counts(_FILE, frame.f_back):
                self.environment[key] = None
        else:
            self._take("a DataLoader" if frame.f_code is _LOADERS_NEXT else _QUEUE, frame.f_back)

    def called(self, function: Any, first: Any, frame: types.FrameType) -> None:
        if type(first) is contextvars.ContextVar:
            if function.__name__ == "get" and first not in self.variables \
                    and not is_compilers(frame):
                self.variables[first] = None
            return
        what = _kind_of(function, first)
        if what is not None:
            self._take(what, frame)

    def _take(self, what: str, frame: types.FrameType | None) -> None:
        by = _caller_of(frame)
        if by is not None and self._counts(what, by) and not _finds_modules(frame) \
                and not is_compilers(by):
            self.taken[Taken(what, line_of(by, by.f_lineno))] = None

    @staticmethod
    def _counts(what: str, frame: types.FrameType | None) -> bool:
        by = _caller_of(frame)
        module = str(by.f_globals.get("__name__", "")) if by is not None else ""
        return is_users(module) if what == _CLOCK \
            else module.partition(".")[0] not in ("", *_LOADERS)


def _kind_of(function: Any, first: Any) -> str | None:
    """Of what is called with that first argument. Nothing is asked of it that may be code of
    Python's: its hash, or whether it is like another."""
    kind = type(function)
    if kind is _METHOD:
        of, key = function.__objclass__, function
        if of in _BASES and first is not None:  # a file's, it may be, that has it from a base
            of = type(first)
            key = function, of
    elif kind is _BUILTIN:
        first = function.__self__
        of = first if issubclass(type(first), type) else type(first)
        key = function if of is types.ModuleType else (of, function.__name__)
    else:
        return _FILE if function is io.FileIO else None
    if not of.__flags__ & _MADE_BY_PYTHON:
        if key not in _KNOWN:
            _KNOWN[key] = _kind_in(of, function)
        what = _KNOWN[key]
    else:
        what = _kind_in(of, function)
    return None if what is _FILE and any(first is one for one in _standard_files()) else what


def _kind_in(of: type, function: Any) -> str | None:
    """``of``: the class whose method it is; that of modules."""
    if (what := _KINDS.get(function) or _METHODS.get(function)) is not None:
        return what
    name = function.__name__
    if issubclass(of, datetime.date):
        return _CLOCK if name in _DATES else None
    for kind, names, what in _KINDS_OF:
        if issubclass(of, kind) and name in names:
            return what
    if issubclass(of, _FILES):
        return _FILE
    return _RANDOM if of.__name__ in _NUMPY and of.__module__.startswith("numpy.") else None


def _standard_files() -> tuple[Any, ...]:
    return sys.stdout, sys.stderr, sys.stdin


def _caller_of(frame: types.FrameType | None) -> types.FrameType | None:
    """The nearest frame whose code is not in Python's own library."""
    while frame is not None and _top(frame) in sys.stdlib_module_names:
        frame = frame.f_back
    return frame


def _finds_modules(frame: types.FrameType | None) -> bool:
    """Whether that is what Python's own library does here."""
    while frame is not None and (top := _top(frame)) in sys.stdlib_module_names:
        if top in _FINDERS:
            return True
        frame = frame.f_back
    return False


def users_line(frame: types.FrameType | None) -> str:
    """The nearest one that is not ours; empty where there is none."""
    while frame is not None and _top(frame) == "anabranch":
        frame = _caller_of(frame.f_back)
    return line_of(frame, frame.f_lineno) if frame is not None else ""


def _top(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def is_compilers(frame: types.FrameType) -> bool:
    """Ours, or that of a compiler, which counts what it compiles; or whatever runs while Dynamo
    compiles, also before it tells of that."""
    if _compat.is_compilers(module_of(frame)):
        return True
    by = frame.f_back
    while by is not None and module_of(by) != _compat.COMPILES:
        by = by.f_back
    return by is not None


def module_of(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
