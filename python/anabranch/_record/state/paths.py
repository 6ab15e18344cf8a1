# SPDX-License-Identifier: Apache-2.0
"""Names for what a step uses. A *path* is the keys that lead to a thing from the step. A *place* is
the holder and the key where it stands now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

ARGUMENT = "argument"  # begins the paths of what arguments lead to
Path = tuple[Any, ...]


def name_of(path: Path) -> str:
    """For messages: "net.calls"."""
    return ".".join([name_of_key(key) for key in path[1:] if not isinstance(key, str) or key])


def name_of_key(key: Any) -> str:
    """Of anything but a number or a text its type: to say what a tensor is would wait for the
    GPU."""
    return str(key) if isinstance(key, (str, int, float, bytes)) else type(key).__name__


def bare(path: Path) -> Path:
    """Without the parts that name nothing: by which guards and holders name the same place."""
    return tuple([part for part in path if part != ""])


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
    """A tensor, and the place where the walk met it first. ``counts``: it is a counter of an
    optimizer, which every step changes."""

    place: Place
    tensor: Tensor
    counts: bool


class Everywhere:
    """Has every path, until ``most`` of them have been asked for."""

    def __init__(self, most: int = 100_000) -> None:
        self._left = most

    def __contains__(self, path: object) -> bool:
        self._left -= 1
        return self._left >= 0


class AllPaths:
    """Has every path."""

    def __contains__(self, path: object) -> bool:
        return True

    def union(self, paths: Iterable[Path]) -> AllPaths:
        return self


Ignored = frozenset[Path] | AllPaths
