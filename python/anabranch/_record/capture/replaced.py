# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that others stand in for while a step is captured.

Threads: one capture at a time. Failure: none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_NOTHING = object()
StandIn = tuple[Any, str, Callable[..., Any]]  # in whose place, under which name


@contextlib.contextmanager
def replaced(stand_ins: Sequence[StandIn]) -> Iterator[None]:
    """Around the step."""
    before = [(owner, name, vars(owner).get(name, _NOTHING)) for owner, name, _ in stand_ins]
    try:
        for stand_in in stand_ins:
            setattr(*stand_in)
        yield
    finally:
        for owner, name, value in before:
            if value is _NOTHING:
                delattr(owner, name)  # it inherits it
            else:
                setattr(owner, name, value)
