# SPDX-License-Identifier: Apache-2.0
"""Blocks that a capture finds free as it begins, so that what torch gives out one behind the other
at one address is all of one size.

Kernels name addresses and not whose they are: all that has been at one address is one unit of a
recording, as large as the largest, and a gradient that lies where logits were takes as much as
these in each launch. Torch gives a request the smallest free block that is large enough. So there
shall be as many of each size as are in use at once, which the plain run before tells, and some
more: notes of a capture hold what an operator was given until the next one has its memory.

Threads: any. Failure: none, but torch's own errors.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from anabranch import _compat

log = logging.getLogger("anabranch.record")
# Torch tells no sizes apart up to the first, and has a granule beyond the second; blocks of a pool
# that are not split are of 20 MiB for what lies between these, and exact from there on.
_SMALL, _EXACT, _GRANULE = 1 << 20, 10 << 20, 2 << 20
_MORE = 2  # of each size


def sizes_in_use(events: Iterable[_compat.Event]) -> list[int]:
    """Bytes of each block that is wanted at the beginning of a run that allocates and frees as
    these events of another one say; those that the run has not allocated itself are left out."""
    size_of: dict[int, int] = {}  # by address
    now: collections.Counter[int] = collections.Counter()
    most: collections.Counter[int] = collections.Counter()
    for event in events:
        if event.is_freed:
            now[size_of.pop(event.address, 0)] -= 1
        elif event.bytes > _SMALL:
            size = max(_EXACT, -(-event.bytes // _GRANULE) * _GRANULE)
            size_of[event.address] = size
            now[size] += 1
            most[size] = max(most[size], now[size])
    return sorted([size for size, count in most.items() for _ in range(count + _MORE)])


@contextlib.contextmanager
def noted_sizes(device: int) -> Iterator[Callable[[], list[int]]]:
    """Around a run: a function that tells the same of what it has allocated so far. Whatever keeps
    the history from being told, the run goes on: nothing is told then."""
    with contextlib.ExitStack() as stack:
        try:
            history = stack.enter_context(_compat.memory_history(device))
        except Exception as error:
            why = error

            def history() -> _compat.PoolHistory:
                raise why

        yield functools.partial(_told, history)


def _told(history: Callable[[], _compat.PoolHistory]) -> list[int]:
    try:
        return sizes_in_use(history().events)
    except Exception as error:
        log.debug("no blocks are allocated ahead of captures: %s", error)
        return []


def allocate_ahead(sizes: Sequence[int]) -> None:
    """On the current stream and device, all at once, and frees them again."""
    held = [_compat.empty_strided_cuda((size,), (1,), torch.uint8) for size in sizes]
    del held
