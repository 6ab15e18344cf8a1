# SPDX-License-Identifier: Apache-2.0
"""The call before a signature is recorded, where the step's Python is to run once a call: its
capture is launched as the call, and kept for the next one.

Threads: the recorder's, one at a time. Failure: the error of the capture; all that the step's
Python has done is put back then, and nothing has run on the GPU, so that a plain run may follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

from anabranch import _compat
from anabranch._core.capture import capture_device
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Step
from anabranch._record.effects.mutations import Mutation
from anabranch._record.effects.side_effects import ReadAt, SideEffects
from anabranch._record.effects.stepped_by_hand import SteppedByHand
from anabranch._record.memory.garbage import no_collection
from anabranch._record.refusals import (
    ANSWER_MISSED,
    Again,
    BrokeWhileNoted,
    Cause,
    CopiedFromTheCpu,
    NotRecordable,
)
from anabranch._record.state.state import State
from anabranch._record.trial.histories import Histories, is_behind_backward
from anabranch._record.trial.kept_capture import KeptCapture, capture_call
from anabranch._record.trial.retries import captured_differently
from anabranch._record.trial.trial import generators_of_the_cpu, moment_of, put_back


@dataclasses.dataclass
class KeptCall:
    """``mutations``: what its Python has changed. ``refusal``: why no launch can do what it has
    done; it has been done all the same. ``is_of_use``: whether the next call can be compared with
    it."""

    capture: KeptCapture
    mutations: list[Mutation]
    refusal: NotRecordable | None = None
    is_of_use: bool = True


def run_kept(step: Step, state: State, allow: Collection[int], read_at: ReadAt,
             check_inputs: Callable[[], None]) -> tuple[Any, KeptCall]:
    """The call's answer, with the history that Python has given it, and what is kept of it.
    ``read_at`` as in SideEffects; ``check_inputs`` raises NotRecordable where the run has taken in
    what no guard can hold. A capture that copies from the CPU, or cannot be noted, is taken once
    more: that call runs the Python twice. None is that lets code outside torch see the capture: it
    may compute something else then, and nothing is there to compare it with."""
    tried: set[type[Exception]] = set()
    while True:
        try:
            return _run_kept(step, state, allow, read_at, check_inputs)
        except (CopiedFromTheCpu, BrokeWhileNoted) as error:
            step = captured_differently(step, error, tried)


def _run_kept(step: Step, state: State, allow: Collection[int], read_at: ReadAt,
              check_inputs: Callable[[], None]) -> tuple[Any, KeptCall]:
    before, random = moment_of(step, state), generators_of_the_cpu()
    groups, histories = _compat.collectives_so_far(), Histories(step.tensors)
    stepped = SteppedByHand(step.optimizers, step.objects)
    effects = SideEffects(step.call, state, is_first_plain=True, read_at=read_at,
                          are_left_out=Cause.PYTHON_CHANGES in allow, check=stepped.check)
    step = dataclasses.replace(step, call=effects)
    try:
        with no_collection():
            (answer, _), capture = capture_call(
                step, capture_device(step.device),
                lambda answer: answer if effects.mutations else answer[0])
    except BaseException:
        put_back(step, before)
        raise
    effects.leave_first()
    kept = KeptCall(capture, effects.mutations or [])
    kept.is_of_use = generators_of_the_cpu() == random and not effects.leaves_out \
        and _compat.collectives_so_far() == groups
    try:
        effects.check()
        _check_answer(answer, step, capture, histories)
        if Cause.HIDDEN_INPUT not in allow:
            check_inputs()
    except Again:
        kept.is_of_use = False
    except NotRecordable as error:
        kept.refusal = error
    return answer, kept


def _check_answer(answer: Any, step: Step, capture: KeptCapture, histories: Histories) -> None:
    """Refuses one through whose history a backward may follow outside of the step."""
    [flat], _ = flatten([answer], step.object_numbers)
    for leaf in filter(histories.is_new, flat):
        is_behind = is_behind_backward(leaf)
        if not (capture.sets_gradients if is_behind is None else is_behind):
            raise NotRecordable(ANSWER_MISSED, Cause.ANSWER_WANTS_GRADIENT)
