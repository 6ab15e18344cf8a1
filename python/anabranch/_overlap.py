# SPDX-License-Identifier: Apache-2.0
"""Whether a recording whose kernels may run side by side is worth having.

It is kept where it does what the step does, is faster than the one in captured order, and takes
little more memory beside what copies from the host's memory may take that are ahead. Threads and
failure as in ``_verify``.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from . import _compat
from ._recorded import Recorded
from ._verify import Run, Trial, Untrusted, verify

log = logging.getLogger("anabranch.record")

_LEAST_GAIN = 1.02
# More memory than that is not worth the time that it may save.
_MOST_GROWTH = 1.125
_SMALL_BYTES = 256 << 20  # growth that is never too much: a product's scratch on a few lanes
_SAMPLES = 9
_AHEAD_CYCLES = 4_000_000  # of the GPU, some two milliseconds: longer than a launch takes the CPU
_MOST_SECONDS = 1.0


def choose(trial: Trial, plain: Run, ordered: Recorded, overlapped: Recorded,
           agree: Callable[[bool], bool]) -> tuple[Recorded, float, str]:
    """One of the two, how many times as fast the second is, and if that was not measured (0), why.
    The state is that of before the step, before and afterwards."""
    gain, why = 0.0, ""
    grown = overlapped.counts.arena_bytes - ordered.counts.arena_bytes
    ahead = overlapped.ahead_bytes if overlapped.counts.host_copies else 0
    is_large = grown > ahead + max(_SMALL_BYTES,
                                   (_MOST_GROWTH - 1) * ordered.counts.arena_bytes)
    if agree(is_large):
        return ordered, gain, f"side by side they would take {grown} bytes more"
    try:
        verify(trial, plain, overlapped, agree, ordered)
    except Untrusted as error:
        why = str(error)
        log.warning("anabranch: kernels stay in their captured order: %s [E0308]", why)
    else:
        one, other = _seconds(trial, (ordered, overlapped), agree)
        gain = one / other
    trial.rewind()
    is_kept = not agree(gain < _LEAST_GAIN)
    return (overlapped if is_kept else ordered), gain, why


def _seconds(trial: Trial, recordings: Sequence[Recorded],
             agree: Callable[[bool], bool]) -> list[float]:
    """Medians of samples taken in turn. Processes that run a step together take as many."""
    samples: list[list[float]] = [[] for _ in recordings]
    for recorded in recordings:
        _sample(trial, recorded)
    start = time.perf_counter()
    for _ in range(_SAMPLES):
        for recorded, of_it in zip(recordings, samples, strict=True):
            of_it.append(_sample(trial, recorded))
        if agree(time.perf_counter() - start > _MOST_SECONDS):
            break
    return [statistics.median(of_it) for of_it in samples]


def _sample(trial: Trial, recorded: Recorded) -> float:
    """Of one launch from the state that the step has met: what it counts may be an index, and a few
    steps on be behind the end of something. What the GPU takes, as in a row of launches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    trial.rewind()
    _compat.keep_gpu_busy(_AHEAD_CYCLES)
    begin.record()
    trial.launch(recorded)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000
