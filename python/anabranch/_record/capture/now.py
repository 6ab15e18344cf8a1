# SPDX-License-Identifier: Apache-2.0
"""Whether a step is being captured, for code in it that asks.

Threads: any. Failure: none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from anabranch import _compat

_truth = torch.cuda.is_current_stream_capturing  # that nobody has exchanged
_captures = 0  # at most one, except where a step records another


@_compat.constant_when_compiled
def is_recording() -> bool:
    """Whether the code that asks is being captured for a recording: what it queues on the GPU is
    not run now, and launches will repeat it without this code. For what is to happen in plain runs
    alone, such as printing a loss. False in plain runs, in compiled code and in anybody else's
    capture; launches run no code.

    On the GPU a capture does what plain runs do, or the recording is refused: it is not for that.
    """
    return _captures > 0 and _truth()


@contextlib.contextmanager
def captured_now() -> Iterator[None]:
    """Around the step while it is captured."""
    global _captures
    _captures += 1
    try:
        yield
    finally:
        _captures -= 1
