# SPDX-License-Identifier: Apache-2.0
"""A launch with numbers of the step that no capture has had, compared with a plain run.

Threads: one try to record. Failure: Unexplained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from anabranch._record.capture.step import Step
from anabranch._record.launch.recording import StepRecording
from anabranch._record.numbers.formulas import OtherWay, Unexplained
from anabranch._record.numbers.step_numbers import StepNumbers
from anabranch._record.trial.trial import Trial
from anabranch._record.trial.verify import Untrusted, verify


def prove_numbers(trial: Trial, recorded: StepRecording, step: Step,
                  agree: Callable[[bool], bool],
                  make: Callable[[Callable[[], Sequence[int]]], Sequence[int]],
                  ) -> Sequence[int] | None:
    """What kernels were given then; None where the step follows no numbers. ``make`` makes
    something in all processes of the step, or in none; ``agree`` as in verify()."""
    follows = step.numbers is not None
    others_follow, others_do_not = agree(follows), agree(not follows)
    if others_follow and others_do_not:
        raise Unexplained("another process of the step does not follow its numbers")
    if step.numbers is None:
        return None
    tried = step.numbers.between()
    leaves = list(step.leaves)
    with tried.standing(leaves):
        trial.use(dataclasses.replace(step, leaves=leaves, numbers=tried))
        try:
            words = make(lambda: _words_of(recorded, tried))
            plain = trial.plain()
            plain.let_go()
            trial.rewind()
            verify(trial, plain, recorded, agree).standing.let_go()
        except Untrusted as error:
            raise Unexplained(f"with another value {error}") from error
        finally:
            trial.use(step)
            trial.rewind()
    return words


def _words_of(recorded: StepRecording, numbers: StepNumbers) -> Sequence[int]:
    try:
        return recorded.words(numbers.now)
    except (ArithmeticError, OtherWay):
        raise Unexplained("with a value between two others the step goes another way") from None
