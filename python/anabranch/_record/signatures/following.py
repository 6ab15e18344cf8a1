# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a callable's step its recordings follow.

A float that tells a new signature from a known one, and nothing else does, is followed from then
on: it is no part of signatures any more, and the recording that serves all its values is made with
floats that note what is computed from them (``numbers``). Where that fails, the number tells
signatures apart again, for good.

Threads: under the recorder's lock, but for reading. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from anabranch._record.numbers.formulas import OtherRounding, OtherWay
from anabranch._record.numbers.step_numbers import StepNumbers
from anabranch._record.refusals import Reason
from anabranch._record.signatures.lists import FollowedLists
from anabranch._record.signatures.signature import floats_apart
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.cache import StateCache
from anabranch._record.state.number_places import NO_NUMBERS, NumberPlaces
from anabranch._record.state.state import State

_MOST_WAYS = 8  # of one callable's step
_FLOATS = {float}


class Following:
    """Of one callable."""

    def __init__(self, states: StateCache) -> None:
        self._states = states
        self._refused = self._trusted = NO_NUMBERS
        self._before: dict[NumberPlaces, float] = {}  # in an earlier call, by place
        self._ways = 0
        self.lists = FollowedLists()
        self.why_not = ""  # of what was refused last, as the end of a message
        self._refusal: Reason | None = None  # and what it said

    def begin(self, key: Any, known: Iterable[Any], state: State) -> bool:
        """Whether numbers are followed from now on that tell this signature from a known one."""
        names = state.hyperparameter_names()
        for other in known:
            apart = floats_apart(key, other, names)
            if not apart or any(place.meets(self._refused) for place in apart):
                continue
            self._before |= apart
            followed = self._states.followed
            for place in apart:
                followed = followed.joined(place)
            self._states.follow(followed)
            return True
        return False

    def with_why_not(self, changing: Reason) -> Reason:
        """What is told of a value that changes, with why what was refused last is not followed."""
        why = self._refusal
        told = why if why is not None and why.code != changing.code else changing
        return changing._replace(text=changing.text + self.why_not, remedy=told.remedy)

    def refuse_lists(self, why: Reason) -> None:
        """Each list of integers tells signatures apart again."""
        self._refusal = why
        self.lists.refuse()
        self.why_not = f". Lists of integers are not followed: {why}"

    def trust(self, places: NumberPlaces) -> None:
        """A recording follows them."""
        self._trusted = places

    def refuse(self, places: NumberPlaces, why: Reason) -> None:
        """Those of them that no recording has followed yet tell signatures apart again; all of
        them, where there are none such."""
        self._refusal = why
        refused = places.without(self._trusted) or places
        self._refused = self._refused.joined(refused)
        self._trusted = places.without(refused)
        self._states.follow(self._trusted or NO_NUMBERS)
        self.why_not = f". {refused} is not followed: {why}"

    def words(self, spec: Specialization, leaves: Sequence[Any],
              state: State) -> list[int] | None:
        """What kernels of a recording are given for the numbers of now; None where one of these is
        no float, or where their arithmetic raises what the step will raise. Raises OtherWay."""
        values = self._values(leaves, state, spec.follows)
        if values is None or spec.recording is None:
            return None
        try:
            return spec.recording.words(values)
        except ArithmeticError:
            return None

    @staticmethod
    def _values(leaves: Sequence[Any], state: State,
               places: NumberPlaces) -> tuple[float, ...] | None:
        """These numbers as they are now; None where one is no float, or has gone."""
        holders = state.number_holders(places)
        if holders is None:
            return None
        try:
            found = tuple(places.pick_arguments(leaves))
            if holders:
                found = (*found, *(holder[key] for holder, key in holders))
        except (KeyError, IndexError, ValueError):
            return None
        return found if set(map(type, found)) <= _FLOATS else None

    def places_in(self, leaves: Sequence[Any], state: State) -> NumberPlaces:
        """Of the followed numbers those that are floats now; others tell signatures apart."""
        found = NO_NUMBERS
        for place in state.followed.each():
            if self._values(leaves, state, place) is not None:
                found = found.joined(place)
        return found

    def of_step(self, leaves: Sequence[Any], state: State,
                places: NumberPlaces) -> StepNumbers | None:
        """What a capture has to note."""
        values, holders = self._values(leaves, state, places), state.number_holders(places)
        if not places or values is None or holders is None:
            return None
        before = [self._before.get(place, value)
                  for place, value in zip(places.each(), values, strict=True)]
        return StepNumbers(places.arguments, tuple(holders), values, tuple(before))

    def go_another_way(self, spec: Specialization, why: OtherWay) -> bool:
        """Before a recording is made again that goes the way of the numbers of now; False where one
        has gone other ways too often. Its third capture has numbers near these, or those of the
        last recording where it is these that rounding tells apart."""
        for place, value in zip(spec.follows.each(), spec.followed_values, strict=True):
            if isinstance(why, OtherRounding):
                self._before[place] = value
            else:
                self._before.pop(place, None)
        self._ways += 1
        return self._ways <= _MOST_WAYS
