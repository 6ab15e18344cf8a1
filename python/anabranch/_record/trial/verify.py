# SPDX-License-Identifier: Apache-2.0
"""Whether a recording does what the step does: both run from the same state, and are compared.

The first launch goes to fresh memory filled with 0xFF. Everything the step was given and everything
it answers must be the same bit for bit, by checksums. A step whose runs differ, by the order in
which atomics add, is run and launched some times more: each tensor must then be that of some plain
run bit for bit, or as near to one as launches in captured order are to one another, ten times over.
Where these differ at all, an element may also be two units in its last place away: one sum may have
been rounded another way that is larger than those in which launches differed.
How far plain runs are apart is no bound: a number that Python counts up makes them differ, and is
frozen in a recording. Nor is how far launches side by side are: a race makes those differ. They
are held to more launches in captured order instead. Where launches in captured order differ from
one another, these go on, too, with a plain run each: few runs tell little of a tensor that hardly
ever varies. Failure: Untrusted, with the tensor that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from anabranch._record.launch.recording import StepRecording
from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.trial.run import Run
from anabranch._record.trial.trial import Trial
from anabranch._record.trial.values import FAR, Distance, Values

_MARGIN = 10.0
_ROUNDS = 3  # of more runs
# Where tensors vary: of hundreds some hardly ever do, and one of them may have in the first launch.
_MORE_ROUNDS = 8
_Made = TypeVar("_Made")


class Untrusted(Exception):
    """A recording that answers something else than the step."""

    code = Cause.LAUNCH_DIFFERS


class Verdict(NamedTuple):
    """That a recording may be trusted. ``standing`` is the last run, a right one, whose state is
    there."""

    is_bitwise: bool
    standing: Run


def verify(trial: Trial, plain: Run, recorded: StepRecording, agree: Callable[[bool], bool],
           ordered: StepRecording | None = None) -> Verdict:
    """Whether all launches were right bit for bit. ``plain`` is a run from the same state, which
    the trial has rewound since; ``ordered`` the recording in captured order, which has been
    verified, where ``recorded`` is another."""
    verdict = _verify(trial, plain, recorded, agree, ordered)
    if agree(recorded.exchange()):
        verdict.standing.let_go()
        trial.rewind()
        other = _verify(trial, plain, recorded, agree, ordered)
        verdict = Verdict(verdict.is_bitwise and other.is_bitwise, other.standing)
        recorded.exchange()
    return verdict


def _verify(trial: Trial, plain: Run, recorded: StepRecording, agree: Callable[[bool], bool],
            ordered: StepRecording | None) -> Verdict:
    launched = _in_all(agree, lambda: trial.launched(recorded))
    names = trial.differing(plain, launched) - recorded.undefined
    if not agree(bool(names)):
        return Verdict(True, launched)
    rounds = _Rounds(trial, recorded, ordered, names, _in_all(
        agree, lambda: trial.values(launched, names)))
    launched.let_go()
    for number in range(1, _ROUNDS + _MORE_ROUNDS + 1):
        standing = _in_all(agree, rounds.run)
        beyond = rounds.beyond()
        if not agree(bool(beyond)):
            return Verdict(False, standing)
        standing.let_go()
        if number >= _ROUNDS and agree(ordered is None and not rounds.all_vary(beyond)):
            break
    name, distance = next(iter(beyond.items()), ("another process", Distance(0.0)))
    raise Untrusted(f"its first launch differs from {rounds.plain_runs + 1} plain runs in {name} "
                    f"by {distance.norm:.3g} or more, launches in captured order by "
                    f"{rounds.spread.get(name, 0.0):.3g}")


class _Rounds:
    """More runs, where the first launch was not what the plain run was. ``judged`` is what it had
    by the names that differ."""

    def __init__(self, trial: Trial, recorded: StepRecording, ordered: StepRecording | None,
                 names: Collection[str], judged: Values) -> None:
        self._trial, self._names, self._judged = trial, names, judged
        self._recorded, self._ordered = recorded, ordered
        self._in_order = judged if ordered is None else None  # the first launch in captured order
        self.plain_runs = 0
        self.apart = dict.fromkeys(names, FAR)  # from the nearest right run
        self.spread: dict[str, float] = {}  # of launches in captured order

    def run(self) -> Run:
        """A launch in captured order and a plain run, of which launches side by side need few: the
        last of them."""
        self._trial.rewind()
        standing = self._trial.launched(self._ordered or self._recorded)
        if self._in_order is None:
            self._in_order = self._trial.values(standing, self._names)
        else:
            for name, distance in self._in_order.distances(standing).items():
                self.spread[name] = max(distance.norm, self.spread.get(name, 0.0))
        if self._ordered is not None:
            self.apart = _nearer(self.apart, self._judged.distances(standing))
        if self._ordered is None or self.plain_runs < _ROUNDS:
            self.plain_runs += 1
            standing.let_go()
            self._trial.rewind()
            standing = self._trial.plain()
            self.apart = _nearer(self.apart, self._judged.distances(standing))
        return standing

    def beyond(self) -> dict[str, Distance]:
        """What is farther from all right runs than these may be from one another. A NaN that none
        of them has is never within bounds: what launches fill fresh memory with is one."""
        return {name: distance for name, distance in self.apart.items()
                if not self._is_within(distance, self.spread.get(name, 0.0))}

    def all_vary(self, beyond: dict[str, Distance]) -> bool:
        """Whether each of them varies from one launch in captured order to the next."""
        return all(distance.norm != FAR.norm and self.spread.get(name, 0.0) > 0
                   for name, distance in beyond.items())

    @staticmethod
    def _is_within(distance: Distance, spread: float) -> bool:
        return distance.norm != FAR.norm and (
            distance.norm <= _MARGIN * spread or (distance.is_rounding and spread > 0))


def _in_all(agree: Callable[[bool], bool], make: Callable[[], _Made]) -> _Made:
    """``make()``, where it succeeds in all processes of a step; the others would wait for one that
    fails."""
    try:
        made = make()
    except Exception:
        agree(True)
        raise
    if agree(False):
        raise NotRecordable("another process could not compare it", Cause.PROCESSES_APART)
    return made


def _nearer(apart: dict[str, Distance], other: dict[str, Distance]) -> dict[str, Distance]:
    """What is apart from both of two runs, and how far from the nearer."""
    return {name: distance.nearer(other[name]) for name, distance in apart.items() if name in other}
