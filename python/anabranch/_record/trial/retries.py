# SPDX-License-Identifier: Apache-2.0
"""What comes of an error while a step is recorded: it is captured once more, in a simpler way, or
there is a reason not to record it.

Threads: pure. Failure: the error itself, where nothing is left to try.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from anabranch._core.library import NativeError
from anabranch._record.capture.step import Step
from anabranch._record.memory.shortage import phase
from anabranch._record.numbers.formulas import Unexplained
from anabranch._record.refusals import (
    Aliased,
    BrokeUntold,
    BrokeWhileNoted,
    CopiedFromTheCpu,
    CountsFound,
    NotRecordable,
    OtherGraph,
    reason_of_fault,
)
from anabranch._record.trial.verify import Untrusted

# How a step is captured differently after each error, each at most once; None where it is not. Two
# captures that differ are worth another try as they are: torch gives out its streams in turn, so a
# stream that the call made may happen to be the one of the captures. So are words that may follow a
# number in an unknown way: what compilers leave between words may look like that. What is no
# backward is launched as one graph.
_RETRIES: dict[type[Exception], Callable[[Step], Step | None]] = {
    Aliased: Step.joined,
    OtherGraph: lambda step: step,
    CountsFound: lambda step: step,
    Unexplained: lambda step: step,
    BrokeWhileNoted: lambda step: dataclasses.replace(step, is_noted=False),
    Untrusted: lambda step: (dataclasses.replace(step, is_noted=False, is_backward=False)
                             if step.is_noted or step.is_backward else None),
    NativeError: lambda step: (dataclasses.replace(step, is_backward=False)
                               if step.is_backward else None),
    CopiedFromTheCpu: lambda step: (None if step.is_compiled
                                    else dataclasses.replace(step, has_constants=True)),
    BrokeUntold: lambda step: dataclasses.replace(step, is_told=True),
}


def captured_differently(step: Step, why: Exception, tried: set[type[Exception]]) -> Step:
    """The step as it is captured next. Raises the error where nothing is left to try. ``tried`` has
    the errors so far."""
    ways = (way for kind, way in _RETRIES.items() if isinstance(why, kind))
    retry = None if type(why) in tried else next(ways, None)
    changed = retry(step) if retry is not None else None
    if changed is None:
        raise why
    tried.add(type(why))
    return changed


@contextlib.contextmanager
def faults_told(device: int) -> Iterator[None]:
    """An error in here becomes a reason not to record: the step itself has run without one."""
    try:
        with phase("recording it", device):
            yield
    except (NotRecordable, Untrusted, NativeError):
        raise
    except Exception as error:
        raise NotRecordable(reason_of_fault(error)) from error
