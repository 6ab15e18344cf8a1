# SPDX-License-Identifier: Apache-2.0
"""What searches of one callable for its state go by."""

from __future__ import annotations

from typing import NamedTuple

from anabranch._record.state.number_places import NO_NUMBERS, NumberPlaces
from anabranch._record.state.paths import Ignored, Path
from anabranch._record.state.read_set import NOTHING_READ, ReadSet


class SearchRules(NamedTuple):
    """What searches of one callable go by, as far as earlier calls have shown it."""

    farther: frozenset[Path] = frozenset()  # paths that the walk follows besides its own, see Walk
    ignored: Ignored = frozenset()  # paths of values that the step changes: no guards
    followed: NumberPlaces = NO_NUMBERS  # numbers that recordings follow: no guards either
    often_new: frozenset[Path] = frozenset()  # where new lists are put, which are looked into
    seen: ReadSet = NOTHING_READ  # what code was seen to read besides


NO_RULES = SearchRules()
