# SPDX-License-Identifier: Apache-2.0
"""What recordings of one callable have found out for the next one: a signature of other sizes.

Threads: under the recorder's lock. Failure: none.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch._core.abi import CaptureCounts

# Of arenas, up to which a recording of as many nodes does about the same work.
_MOST_APART = 2.0


class _Timed(NamedTuple):
    nodes: int
    arena_bytes: int
    is_faster: bool  # side by side


class Earlier:
    """``has_any``: whether something of this callable has been recorded."""

    def __init__(self) -> None:
        self.has_any = False
        self._timed: list[_Timed] = []

    def note(self, ordered: CaptureCounts, is_faster: bool) -> None:
        """A recording that has been timed in captured order and side by side."""
        self._timed.append(_Timed(ordered.nodes, ordered.arena_bytes, is_faster))

    def is_faster(self, ordered: CaptureCounts) -> bool | None:
        """Whether the recording nearest to this one in size is faster side by side; None where none
        of as many nodes, and of about the same size, has been timed."""
        def apart(timed: _Timed) -> float:
            sizes = sorted((max(timed.arena_bytes, 1), max(ordered.arena_bytes, 1)))
            return sizes[1] / sizes[0]

        near = [timed for timed in self._timed
                if timed.nodes == ordered.nodes and apart(timed) <= _MOST_APART]
        return min(near, key=apart).is_faster if near else None
