# SPDX-License-Identifier: Apache-2.0
"""Whether all is as it was in the last call, asked at once, so that a call is launched like that.

Threads: any; immutable once made. Failure: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from anabranch import _compat
from anabranch._record.launch.recording import StepRecording
from anabranch._record.quick import Question, standing

# Functions, their arguments, and what they answer, for answers_are().
Asked = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]


class AsLast(NamedTuple):
    """What is asked, and the state's tensors where it is so; and what is asked where that is
    launched by quick.launch_if(), None where it is not."""

    questions: Asked
    tensors: list[Tensor]
    of_launch: Asked | None


def as_last(questions: Sequence[Question], tensors: list[Tensor],
            recording: StepRecording | None) -> AsLast:
    """``recording``: of these tensors and a call's arguments; None where its launches take more,
    or change something in Python."""
    launched: Asked | None = None
    if recording is not None:
        recording.tell_launch()
        if recording.launch_of is not None:
            launched = _asked([(_compat.current_device, (), recording.device),
                               *standing(*_compat.NO_PROFILE), *questions])
    return AsLast(_asked(questions), tensors, launched)


def _asked(questions: Sequence[Question]) -> Asked:
    functions, arguments, answers = zip(*questions, strict=True) if questions else ((), (), ())
    return functions, arguments, answers
