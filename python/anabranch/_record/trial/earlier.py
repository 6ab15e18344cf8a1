# SPDX-License-Identifier: Apache-2.0
"""What recordings of one callable have found out for the next one: a signature of other sizes.

Threads: under the recorder's lock. Failure: none.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch._core.abi import CaptureCounts
from anabranch._record.launch.known import KnownSteps

# Of recordings that do about the same work: how far arenas may be apart, as a factor, and numbers
# of nodes, as a share. Libraries choose among kernels by the size.
_MOST_APART, _NODES_APART = 2.0, 0.05


class Order(NamedTuple):
    """The better one for a recording with so many nodes and such an arena."""

    is_side_by_side: bool
    nodes: int
    arena_bytes: int

    def is_about(self, counts: CaptureCounts) -> bool:
        """Whether a recording of these does about the same work."""
        return self.apart(counts) <= _MOST_APART \
            and abs(self.nodes - counts.nodes) <= _NODES_APART * max(self.nodes, counts.nodes)

    def apart(self, counts: CaptureCounts) -> float:
        sizes = sorted((max(self.arena_bytes, 1), max(counts.arena_bytes, 1)))
        return float(sizes[1] / sizes[0])


class Earlier:
    """``has_any``: whether something of this callable has been recorded. ``steps``: what is known
    of those that have been captured twice. ``best``: the order of the last recording whose launches
    were right bit for bit, where one of two has been chosen; another one in that order can be
    compared without one in captured order beside it. ``has_slack``: whether launches may take more
    memory than plain steps; not once one has run out of it by that."""

    def __init__(self) -> None:
        self.has_any = False
        self.steps = KnownSteps()
        self.best: Order | None = None
        self.has_slack = True
        self._timed: list[Order] = []  # by what they are in captured order

    def note(self, ordered: CaptureCounts, is_faster: bool) -> None:
        """A recording that has been timed in captured order and side by side."""
        self._timed.append(Order(is_faster, ordered.nodes, ordered.arena_bytes))

    def is_faster(self, ordered: CaptureCounts) -> bool | None:
        """Whether the recording nearest to this one in size is faster side by side; None where none
        that does about the same work has been timed."""
        near = [order for order in self._timed if order.is_about(ordered)]
        return min(near, key=lambda order: order.apart(ordered)).is_side_by_side if near else None
