# SPDX-License-Identifier: Apache-2.0
"""Which signatures of a callable have recordings, where there are more than may have one.

To record costs as much as hundreds of launches save. So a signature that comes when all places are
taken does not get the place of the one that was used least lately: with more signatures in turn
than places each call would record. It runs plainly, and gets the place of one that is not called
while it comes back some times itself. Numbers that never come back, a learning rate under a
schedule, get none.

Threads: under the recorder's lock. Failure: none.
"""

from __future__ import annotations

import collections
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from anabranch._record.specialization import Specialization

_RETURNS = 3  # calls of a newcomer, while a recorded signature has none
_MOST_NEWCOMERS = 64  # of whom it is known how often they have come
_Specializations = Mapping[Hashable, Specialization]


class _Newcomer(NamedTuple):
    came: int
    calls_then: dict[Hashable, int]  # of the recorded ones, when it came first


class Admission:
    """``most_bytes``: what recordings may hold together between launches."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._newcomers: collections.OrderedDict[Hashable, _Newcomer] = collections.OrderedDict()
        self._calls_then: dict[Hashable, int] = {}  # when something was recorded last

    def place_for(self, key: Hashable, known: _Specializations) -> Hashable | None:
        """The signature whose place this one gets; None where it runs plainly once more."""
        seen = self._newcomers.pop(key, None) or _Newcomer(0, _calls_of(known))
        seen = seen._replace(came=seen.came + 1)
        if seen.came >= _RETURNS:
            unused = [other for other, spec in known.items()
                      if seen.calls_then.get(other) == spec.calls]
            if unused:
                return min(unused, key=lambda other: known[other].calls)
            seen = _Newcomer(1, _calls_of(known))  # all are used: it is looked at anew
        self._newcomers[key] = seen
        if len(self._newcomers) > _MOST_NEWCOMERS:
            self._newcomers.popitem(last=False)
        return None

    def too_large(self, new: Hashable, known: _Specializations) -> list[Hashable]:
        """Those that have to go now that ``new`` has been recorded, those first that were called
        least since something was recorded last."""
        before, self._calls_then = self._calls_then, _calls_of(known)
        held = {other: spec.current_report().memory.held for other, spec in known.items()
                if spec.recording is not None}
        excess, going = sum(held.values()) - self._most_bytes, []
        others = [other for other in held if other != new]
        for other in sorted(others, key=lambda other: known[other].calls - before.get(other, 0)):
            if excess <= 0:
                break
            excess -= held[other]
            going.append(other)
        return going


def _calls_of(known: _Specializations) -> dict[Hashable, int]:
    return {key: spec.calls for key, spec in known.items()}
