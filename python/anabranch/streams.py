# SPDX-License-Identifier: Apache-2.0
"""Marking parts of a model with streams."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch
import torch.fx.traceback as fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from anabranch.config import MOST_LANES

# The keys under which a stream's name and priority, and the lanes that are asked for, lie in the
# metadata of a graph's nodes.
ANNOTATION = "anabranch.stream"
PRIORITY = "anabranch.priority"
OVERLAP = "anabranch.overlap"
OFFLOAD = "anabranch.offload"

# Keys and values, as constants that Dynamo can write into the code behind a break.
Pair = tuple[str, Any]
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Asked:
    """What blocks ask for by name: ``names`` are those of streams, ``most`` is how many lanes any
    ``overlap`` asks for."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.most = 1

    def add(self, name: str | None, lanes: int | None) -> None:
        if name is not None and name != "ambient":
            self.names.add(name)
        self.most = max(self.most, lanes or 1)

    @property
    def lanes(self) -> int:
        """How many: one a stream and the caller's own. 1 where nothing is asked for."""
        return max(self.most, len(self.names) + 1 if self.names else 1)


# Where what is entered in eager is noted, of who records it.
_noted: contextvars.ContextVar[Asked | None] = contextvars.ContextVar("noted", default=None)


@contextlib.contextmanager
def asked_within() -> Iterator[Asked]:
    """What the code inside asks for, in this thread: its blocks in eager, and compiled graphs that
    it runs, which ask() for what was in them."""
    asked = Asked()
    token = _noted.set(asked)
    try:
        yield asked
    finally:
        _noted.reset(token)


def ask(name: str | None, lanes: int | None) -> None:
    """To whoever notes it."""
    asked = _noted.get()
    if asked is not None:
        asked.add(name, lanes)


# Asked with the frame of each block that is entered in eager, once the backend is there.
entered_in_eager: Callable[[FrameType, tuple[Pair, ...]], None] | None = None

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1  # of a priority


def stream(name: str, *, priority: int = 0) -> StreamBlock:
    """What runs inside belongs to the stream ``name``::

        with anabranch.stream("side"):
            b = self.side(x)

    Steps of one stream run in order, those of different streams may run at the same time. The
    meaning of a program is that of the program without streams: every wait that this needs is
    derived, in the forward and in the backward. Streams nest, the inner name wins. In eager mode
    and under other compilers this does nothing, unless ``anabranch.record`` records the code: a
    lane each is then asked for. Also a decorator of functions. Raises CompileError
    [E0601] unless ``name`` is a string that is not empty, of UTF-8 and without NUL; "ambient" is
    the stream of the caller.

    What it answers may be kept and entered as often as one likes, also within itself and by several
    threads at once: ``self.side = anabranch.stream("side")``, and then ``with self.side:``.

    The lower ``priority`` is, the more urgent the stream, as CUDA counts: on a CPU, where streams
    must share threads, the more urgent ones are given theirs first. On a GPU streams are CUDA's
    where nothing is recorded (``record=False``), or where one has a priority other than 0, and have
    that priority or the nearest that the GPU has; kernels of a recording keep it. Other recordings
    have a lane for each name, and the memory that takes; which kernel runs on which is found in
    them. A name has one priority in a graph: CompileError [E0608].
    """
    if not isinstance(name, str) or not name or "\0" in name \
            or name.encode("utf-8", "replace").decode() != name:
        _refuse(name)
    if type(priority) is not int or not _LEAST <= priority <= _MOST:
        _refuse_priority(priority)
    return annotated((ANNOTATION, name), (PRIORITY, priority))


def overlap(lanes: int = 4) -> StreamBlock:
    """What runs inside may run beside what it does not need, without a stream being named::

        with anabranch.overlap():
            weight = all_gather_tensor(self.shard, 0, group)
            x = x @ weight

    On a GPU the recording of a graph with this in it runs about ``lanes`` kernels side by side,
    even where the option ``max_parallel_kernels`` says fewer, and collectives beside them. So does
    that of a step that ``anabranch.record`` records, unless the option is 1 there. On the CPU
    collectives of such a graph get a stream of their own. As with a stream nothing changes what the
    program means, and in eager mode and under other compilers this does nothing else. Raises
    CompileError [E0601] unless ``lanes`` is an int from 2 to 1024.
    """
    if type(lanes) is not int or not 2 <= lanes <= MOST_LANES:
        _refuse_lanes(lanes)
    return annotated((OVERLAP, lanes))


def offload() -> StreamBlock:
    """What a forward makes inside and saves for its backward is in the host's memory meanwhile::

        with anabranch.offload():
            x = self.large(x)

    That is in addition to what the option ``activation_memory`` moves. What is small, or given or
    answered by the compiled graph, stays. Nothing changes what the program means, and in eager mode
    and under other compilers this does nothing. Also a decorator of functions.
    """
    return annotated((OFFLOAD, True))


class StreamBlock:
    """What ``stream``, ``overlap`` and ``offload`` answer: a context without a state of its own,
    and a decorator. Copied and pickled with what holds it."""

    __slots__ = ("__weakref__", "pairs")

    def __init__(self, *pairs: Pair) -> None:
        self.pairs = pairs

    def __enter__(self) -> None:
        if torch.compiler.is_dynamo_compiling():
            return  # under other compilers: with our backend Dynamo does not look in here
        if entered_in_eager is not None:
            entered_in_eager(sys._getframe(1), self.pairs)
        wishes = dict(self.pairs)
        ask(wishes.get(ANNOTATION), wishes.get(OVERLAP))
        traced = _annotated(self.pairs) if get_proxy_mode() is not None else None
        if traced is not None:
            traced.__enter__()
        _here.blocks.append((self, traced))

    def __exit__(self, *raised: object) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        entered = _here.blocks
        for i in reversed(range(len(entered))):  # generators may leave theirs in any order
            if entered[i][0] is self:
                _, traced = entered.pop(i)
                if traced is not None:
                    traced.__exit__(None, None, None)
                return

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def inside(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return inside

    def __repr__(self) -> str:
        return f"<anabranch block: {dict(self.pairs)}>"


class _Here(threading.local):
    """The blocks that this thread has entered in eager, and what has been entered for who
    traces its operators."""

    def __init__(self) -> None:
        self.blocks: list[tuple[StreamBlock, contextlib.AbstractContextManager[None] | None]] = []


_here = _Here()


def around() -> dict[str, Any]:
    """What the blocks say in which this thread is, in eager. The inner ones win."""
    return dict(pair for block, _ in _here.blocks for pair in block.pairs)


def annotated(*pairs: Pair) -> StreamBlock:
    """The block of a stream. Dynamo calls it anew behind a break (``_compat.resume_streams``)."""
    if torch.compiler.is_dynamo_compiling():  # as under other compilers, and in an export
        return fx.annotate(dict(pairs))  # type: ignore[return-value]
    return StreamBlock(*pairs)


@contextlib.contextmanager
def _annotated(pairs: tuple[Pair, ...]) -> Iterator[None]:
    """For who makes a graph of operators as they run."""
    with _kept_by_export() if torch.compiler.is_exporting() else contextlib.nullcontext(), \
            fx.annotate(dict(pairs)):
        yield


@contextlib.contextmanager
def _kept_by_export() -> Iterator[None]:
    """An export that is not strict forgets annotations, unless it is told not to. Only ours are
    kept: torch has some of its own there, which no node has without us."""
    if fx.has_preserved_node_meta():
        yield
        return
    with fx.preserve_node_meta():
        fx.get_current_meta()["custom"] = {}
        yield


# What runs where a block is entered in eager, with nothing in it for Dynamo.
IN_EAGER = (stream, overlap, offload, annotated, StreamBlock.__init__, StreamBlock.__enter__,
            StreamBlock.__exit__)
# What runs where one decorates: what it is on is compiled inside the block, or by itself.
DECORATED = StreamBlock()(stream).__code__


def _refuse_lanes(lanes: object) -> None:
    from anabranch.errors import CompileError

    raise CompileError(
        601, f"overlap: lanes={lanes!r} is {type(lanes).__name__}, and it must be an int from 2 to "
        f"{MOST_LANES}: with one lane nothing runs side by side.")


def _refuse(name: object) -> None:
    from anabranch.errors import CompileError

    raise CompileError(
        601,
        f"stream: the name {name!r} is {type(name).__name__}, and it must be a string that is not "
        "empty, of UTF-8 and without NUL.",
    )


def _refuse_priority(priority: object) -> None:
    from anabranch.errors import CompileError

    raise CompileError(
        608,
        f"stream: the priority {priority!r} is {type(priority).__name__}, and it must be an int of "
        "32 bits.",
    )
