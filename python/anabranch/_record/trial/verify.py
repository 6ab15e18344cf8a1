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
one another, or from plain runs by what rounding makes, these go on, too, with a plain run each: few
runs tell little of a tensor that hardly ever varies. A tensor that is within bounds once is not
looked at again: more runs bring it nearer to one of them, and those in captured order no nearer to
one another.
Failure: Untrusted, with the tensor that is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
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


class Seen(NamedTuple):
    """Of launches in captured order that are right: the first of them by value, by the names that
    differ between runs, and how far others were from it."""

    first: Values
    spread: Mapping[str, float]


class Trusted(NamedTuple):
    """That a recording may be trusted. ``standing`` is the last run, a right one, whose state is
    there. ``seen``: what the verdict is by, where runs differ."""

    is_bitwise: bool
    standing: Run
    seen: Seen | None = None


def verify(trial: Trial, plain: Run, recorded: StepRecording, agree: Callable[[bool], bool],
           ordered: StepRecording | None = None, seen: Seen | None = None) -> Trusted:
    """Whether all launches were right bit for bit. ``plain`` is a run from the same state, which
    the trial has rewound since; ``ordered`` the recording in captured order, which has been
    verified, where ``recorded`` is another, and ``seen`` what that verdict was by."""
    verdict = _verify(trial, plain, recorded, agree, ordered, seen)
    if agree(recorded.exchange()):
        verdict.standing.let_go()
        trial.rewind()
        other = _verify(trial, plain, recorded, agree, ordered, verdict.seen)
        verdict = Trusted(verdict.is_bitwise and other.is_bitwise, other.standing, other.seen)
        recorded.exchange()
    return verdict


def _verify(trial: Trial, plain: Run, recorded: StepRecording, agree: Callable[[bool], bool],
            ordered: StepRecording | None, seen: Seen | None) -> Trusted:
    launched = _in_all(agree, lambda: trial.launched(recorded))
    names = trial.differing(plain, launched) - recorded.undefined
    if not agree(bool(names)):
        return Trusted(True, launched, seen)
    rounds = _Rounds(trial, recorded, ordered, names)
    if seen is not None:
        _in_all(agree, functools.partial(rounds.compare_with, seen, launched))
        if not agree(bool(rounds.beyond)):
            return Trusted(False, launched, seen)
    _in_all(agree, lambda: rounds.keep(launched))
    launched.let_go()
    for number in range(1, _ROUNDS + _MORE_ROUNDS + 1):
        standing = _in_all(agree, rounds.run)
        if not agree(bool(rounds.beyond)):
            return Trusted(False, standing, seen or rounds.seen)
        standing.let_go()
        if number >= _ROUNDS and agree(ordered is None and not rounds.may_vary):
            break
    name, distance = next(iter(rounds.beyond.items()), ("another process", Distance(0.0)))
    raise Untrusted(f"its first launch differs from {rounds.plain_runs + 1} plain runs in {name} "
                    f"by {distance.norm:.3g} or more, launches in captured order by "
                    f"{rounds.spread.get(name, 0.0):.3g}")


class _Rounds:
    """More runs, where the first launch was not what the plain run was. ``beyond`` is what it had
    by the names that differ, how far from the nearest right run, without what is no farther from
    that than right runs may be from one another. A NaN that none of them has is never within these
    bounds: what launches fill fresh memory with is one."""

    def __init__(self, trial: Trial, recorded: StepRecording, ordered: StepRecording | None,
                 names: Collection[str]) -> None:
        self._trial, self._recorded, self._ordered = trial, recorded, ordered
        self._judged: Values | None = None  # the first launch
        self._in_order: Values | None = None  # the first one in captured order
        self.plain_runs = 0
        self.beyond = dict.fromkeys(sorted(names), FAR)
        self.spread: dict[str, float] = {}  # of launches in captured order

    def compare_with(self, seen: Seen, launched: Run) -> None:
        """The first launch, with what has been seen of others."""
        self.spread.update(seen.spread)
        known = seen.first.names.intersection(self.beyond)
        self._look(seen.first.distances(launched, known), known)

    def keep(self, launched: Run) -> None:
        """The first launch, by what is to be looked at."""
        self._judged = self._trial.values(launched, self.beyond)
        if self._ordered is None:
            self._in_order = self._judged

    @property
    def seen(self) -> Seen | None:
        return Seen(self._in_order, self.spread) if self._in_order is not None else None

    def run(self) -> Run:
        """A launch in captured order and a plain run, of which launches side by side need few: the
        last of them."""
        self._trial.rewind()
        standing = self._trial.launched(self._ordered or self._recorded)
        if self._in_order is None:
            self._in_order = self._trial.values(standing, self.beyond)
        else:
            for name, distance in self._in_order.distances(standing, self.beyond).items():
                self.spread[name] = max(distance.norm, self.spread.get(name, 0.0))
        if self._ordered is not None:
            self._compare(standing)
        if self._ordered is None or self.plain_runs < _ROUNDS:
            self.plain_runs += 1
            standing.let_go()
            self._trial.rewind()
            standing = self._trial.plain()
            self._compare(standing)
        self._look({}, ())
        return standing

    def _compare(self, right: Run) -> None:
        assert self._judged is not None
        self._look(self._judged.distances(right, self.beyond), self.beyond)

    def _look(self, distances: Mapping[str, Distance], names: Collection[str]) -> None:
        """At how far the first launch is from a right run by these names; what is not told of is
        the same."""
        nearest = {name: so_far.nearer(distances[name]) if name in distances else so_far
                   for name, so_far in self.beyond.items()
                   if name in distances or name not in names}
        self.beyond = {name: distance for name, distance in nearest.items()
                       if not self._is_within(distance, self.spread.get(name, 0.0))}

    @property
    def may_vary(self) -> bool:
        """Whether each of those beyond varies from one launch in captured order to the next, or is
        so near to a plain run that it may."""
        return all(distance.norm != FAR.norm and (distance.is_rounding
                                                  or self.spread.get(name, 0.0) > 0)
                   for name, distance in self.beyond.items())

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
