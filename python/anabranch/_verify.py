# SPDX-License-Identifier: Apache-2.0
"""Whether a recording does what the step does: both run from the same state, and are compared.

The first launch goes to fresh memory filled with 0xFF. Everything the step was given and everything
it answers must be the same bit for bit, by checksums. A step whose runs differ, by the order in which
atomics add, is run and launched some times more: each tensor must then be that of some plain run bit
for bit, or as near to one as launches in captured order are to one another, ten times over. How far
plain runs are apart is no bound: a number that Python counts up makes them differ, and is frozen in a
recording. Nor is how far launches side by side are: a race makes those differ. They have some launches
more in captured order instead. Failure: Untrusted, with the tensor that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ._recorded import Recorded
from ._trial import Run, Trial

_MARGIN = 10.0
_ROUNDS = 3  # of more runs
# Of launches in captured order alone: of hundreds of tensors some hardly ever vary, and one of them
# may have where kernels ran side by side.
_ROUNDS_IN_ORDER = 8
_UNKNOWN = float("inf")  # how far what is only known by checksums is apart


class Untrusted(Exception):
    """A recording that answers something else than the step."""


class Verdict(NamedTuple):
    """That a recording may be trusted. ``standing`` is the last run, a right one, whose state is there."""

    is_bitwise: bool
    standing: Run


def verify(trial: Trial, plain: Run, recorded: Recorded, agree: Callable[[bool], bool],
           ordered: Recorded | None = None) -> Verdict:
    """Whether all launches were right bit for bit. ``plain`` is a run from the same state, which the
    trial has rewound since; ``ordered`` the recording in captured order, which has been verified,
    where ``recorded`` is another."""
    verdict = _verify(trial, plain, recorded, agree, ordered)
    if agree(recorded.exchange()):
        verdict.standing.let_go()
        trial.rewind()
        other = _verify(trial, plain, recorded, agree, ordered)
        verdict = Verdict(verdict.is_bitwise and other.is_bitwise, other.standing)
        recorded.exchange()
    return verdict


def _verify(trial: Trial, plain: Run, recorded: Recorded, agree: Callable[[bool], bool],
            ordered: Recorded | None) -> Verdict:
    launched = trial.launched(recorded)
    names = trial.differing(plain, launched) - recorded.undefined
    if not agree(bool(names)):
        return Verdict(True, launched)
    judged = trial.values(launched, names)
    launched.let_go()
    apart = dict.fromkeys(names, _UNKNOWN)  # from the nearest right run
    spread: dict[str, float] = {}
    in_order = judged if ordered is None else None
    for again in range(_ROUNDS if ordered is None else _ROUNDS + _ROUNDS_IN_ORDER):
        trial.rewind()
        standing = trial.launched(ordered or recorded)
        if in_order is None:
            in_order = trial.values(standing, names)
        else:
            for name, distance in in_order.distances(standing).items():
                spread[name] = max(distance, spread.get(name, 0.0))
        if ordered is not None:
            apart = _nearer(apart, judged.distances(standing))
        if again < _ROUNDS:
            standing.let_go()
            trial.rewind()
            standing = trial.plain()
            apart = _nearer(apart, judged.distances(standing))
        beyond = {name: distance for name, distance in apart.items()
                  if not distance <= _MARGIN * spread.get(name, 0.0)}
        if not agree(bool(beyond)):
            return Verdict(False, standing)
        standing.let_go()
    name, distance = next(iter(beyond.items()), ("another process", 0.0))
    raise Untrusted(f"its first launch differs from {_ROUNDS + 1} plain runs in {name} by "
                    f"{distance:.3g} or more, launches in captured order by "
                    f"{spread.get(name, 0.0):.3g}")


def _nearer(apart: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """What is apart from both of two runs, and how far from the nearer."""
    return {name: min(distance, other[name]) for name, distance in apart.items() if name in other}
