# SPDX-License-Identifier: Apache-2.0
"""What kind of callable a recorder is for: one of Python's, or a compiled graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from anabranch._record.launch.saved_blocks import SavedBlocks


@dataclasses.dataclass(frozen=True)
class CallableKind:
    """
    Args:
        takes_gradients: a callable of Python's, which may set ``.grad``. What is not is compiled.
        saved_from: index of the first result that is saved for backward; all of those are freed
            together.
        is_backward: plain calls free leaves that require no gradient as they go.
        tangents: of a backward, the leaves that autograd holds until it has ended.
        pair: what a forward graph and its backward share.
        may_pass_blocks: whether saved results may be answered in blocks.
    """

    takes_gradients: bool = False
    saved_from: int | None = None
    is_backward: bool = False
    tangents: Collection[int] = ()
    pair: SavedBlocks | None = None
    may_pass_blocks: bool = False

    @property
    def saved(self) -> SavedBlocks | None:
        """Where saved results may be answered in blocks."""
        return self.pair if self.may_pass_blocks else None
