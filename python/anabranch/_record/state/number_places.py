# SPDX-License-Identifier: Apache-2.0
"""Where the numbers stand that a recording follows: arguments, optimizers' hyperparameters, and
values that the step's code names.

Threads: immutable. Failure: none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from anabranch._record.state.paths import Path

Hyperparameter = tuple[int, int, str]  # which optimizer, which of its groups, and the name
FOLLOWED = "a number that is followed"  # in its place in a signature


@dataclasses.dataclass(frozen=True)
class NumberPlaces:
    """All are sorted, so that equal ones name numbers in one order."""

    arguments: tuple[int, ...] = ()  # leaves
    hyperparameters: tuple[Hyperparameter, ...] = ()
    paths: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.arguments or self.hyperparameters or self.paths)

    def each(self) -> list[NumberPlaces]:
        """One place each, in the order of the numbers."""
        return [*(NumberPlaces(arguments=(i,)) for i in self.arguments),
                *(NumberPlaces(hyperparameters=(name,)) for name in self.hyperparameters),
                *(NumberPlaces(paths=(path,)) for path in self.paths)]

    def joined(self, other: NumberPlaces) -> NumberPlaces:
        return NumberPlaces(_sorted((*self.arguments, *other.arguments)),
                            _sorted((*self.hyperparameters, *other.hyperparameters)),
                            _sorted((*self.paths, *other.paths)))

    def meets(self, other: NumberPlaces) -> bool:
        """Whether some place is one of the other's."""
        return any(not set(mine).isdisjoint(theirs) for mine, theirs in (
            (self.arguments, other.arguments), (self.paths, other.paths),
            (self.hyperparameters, other.hyperparameters)))

    def __str__(self) -> str:
        """For people."""
        return ", ".join([*(f"argument {i}" for i in self.arguments),
                          *(f"an optimizer's {name}" for _, _, name in self.hyperparameters),
                          *(".".join(str(part) for part in path[1:] if part != "")
                            for path in self.paths)])


NO_NUMBERS = NumberPlaces()
_T = TypeVar("_T")


def _sorted(places: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(sorted(set(places), key=repr))


def floats_apart(key: Any, other: Any,
                 names: list[Hyperparameter]) -> dict[NumberPlaces, float] | None:
    """Where two signatures have different floats, one place each, with the other's value; None
    where they differ in something else, or in nothing. ``names`` are the optimizers'
    hyperparameters in the order of the guards."""
    modes, guarded, told, number, guards = key
    if (modes, guarded, number) != (*other[:2], other[3]) or len(told) != len(other[2]):
        return None
    found: dict[NumberPlaces, float] = {}
    for i, (a, b) in enumerate(zip(told, other[2], strict=True)):
        if a != b:
            if not _are_floats(a, b):
                return None
            found[NumberPlaces(arguments=(i,))] = b[1]
    mine, theirs = guards.values, other[4].values
    if mine[:2] != theirs[:2] or mine[3:-1] != theirs[3:-1] \
            or len(mine[2]) != len(theirs[2]) or mine[2][len(names):] != theirs[2][len(names):]:
        return None
    for name, a, b in zip(names, mine[2], theirs[2], strict=False):
        if a != b:
            if not type(a) is float is type(b):
                return None
            found[NumberPlaces(hyperparameters=(name,))] = b
    paths = _paths_apart(mine[-1], theirs[-1])
    if paths is None:
        return None
    found |= {NumberPlaces(paths=(path,)): value for path, value in paths}
    return found or None


def _are_floats(a: Any, b: Any) -> bool:
    return isinstance(a, tuple) and isinstance(b, tuple) \
        and len(a) == len(b) == 2 and a[0] is float is b[0]


def _paths_apart(mine: Any, theirs: Any) -> list[tuple[Path, float]] | None:
    """Of Python's values, with the other's; None where something else differs."""
    if mine is None or theirs is None:
        return [] if mine is theirs else None
    if mine.of.paths != theirs.of.paths:
        return None
    apart = [(path, a, b) for path, a, b in zip(mine.of.paths, mine, theirs, strict=True) if a != b]
    return [(path, b[1]) for path, _, b in apart] \
        if all(_are_floats(a, b) for _, a, b in apart) else None
