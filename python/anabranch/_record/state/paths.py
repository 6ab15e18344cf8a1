# SPDX-License-Identifier: Apache-2.0
"""How things that a step uses are named: a path is the keys that lead to one, a place its holder
and key."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

ARGUMENT = "argument"  # begins their paths
Path = tuple[Any, ...]


class Place(NamedTuple):
    """Where something is found: ``holder[key]``."""

    holder: Any
    key: Any
    path: Path

    def get(self) -> Any:
        try:
            return self.holder[self.key]
        except (KeyError, IndexError):
            return None


class Found(NamedTuple):
    """A tensor where it was met first. ``counts``: an optimizer changes it with every step."""

    place: Place
    tensor: Tensor
    counts: bool


class Everywhere:
    """All paths, until so many have been asked for."""

    def __init__(self, most: int = 100_000) -> None:
        self._left = most

    def __contains__(self, path: object) -> bool:
        self._left -= 1
        return self._left >= 0


class AllPaths:
    """A set that has all paths."""

    def __contains__(self, path: object) -> bool:
        return True

    def union(self, paths: Iterable[Path]) -> AllPaths:
        return self


Ignored = frozenset[Path] | AllPaths
