# SPDX-License-Identifier: Apache-2.0
"""Where the numbers stand that a recording follows: arguments, optimizers' hyperparameters, and
values that the step's code names.

Threads: immutable. Failure: none.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from anabranch._record.picker import picker
from anabranch._record.state.paths import Path

# Which optimizer, which of its groups, the name, and the index where the value is a tuple.
Hyperparameter = tuple[int, int, str, int | None]
FOLLOWED = "a number that is followed"  # in its place in a signature
_T = TypeVar("_T")
_Pick = Callable[[Sequence[Any]], Sequence[Any]]


@dataclasses.dataclass(frozen=True)
class NumberPlaces:
    """All are sorted, so that equal ones name numbers in one order."""

    arguments: tuple[int, ...] = ()  # leaves
    hyperparameters: tuple[Hyperparameter, ...] = ()
    paths: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.arguments or self.hyperparameters or self.paths)

    @functools.cached_property
    def pick_arguments(self) -> _Pick:
        """These of a call's leaves; IndexError where there are fewer."""
        return picker(self.arguments)

    def each(self) -> list[NumberPlaces]:
        """One place each, in the order of the numbers."""
        return [*(NumberPlaces(arguments=(i,)) for i in self.arguments),
                *(NumberPlaces(hyperparameters=(name,)) for name in self.hyperparameters),
                *(NumberPlaces(paths=(path,)) for path in self.paths)]

    def joined(self, other: NumberPlaces) -> NumberPlaces:
        return NumberPlaces(_sorted((*self.arguments, *other.arguments)),
                            _sorted((*self.hyperparameters, *other.hyperparameters)),
                            _sorted((*self.paths, *other.paths)))

    def without(self, other: NumberPlaces) -> NumberPlaces:
        return NumberPlaces(tuple(one for one in self.arguments if one not in other.arguments),
                            tuple(one for one in self.hyperparameters
                                  if one not in other.hyperparameters),
                            tuple(one for one in self.paths if one not in other.paths))

    def meets(self, other: NumberPlaces) -> bool:
        """Whether some place is one of the other's."""
        return any(not set(mine).isdisjoint(theirs) for mine, theirs in (
            (self.arguments, other.arguments), (self.paths, other.paths),
            (self.hyperparameters, other.hyperparameters)))

    def __str__(self) -> str:
        """For people."""
        return ", ".join([*(f"argument {i}" for i in self.arguments),
                          *(f"an optimizer's {name}" if index is None else
                            f"an optimizer's {name}[{index}]"
                            for _, _, name, index in self.hyperparameters),
                          *(".".join(str(part) for part in path[1:] if part != "")
                            for path in self.paths)])


NO_NUMBERS = NumberPlaces()


class TupleItems:
    """The items of a tuple that stands in a hyperparameter, as a holder whose items can be set.
    Where all are put back, the tuple is the one that stood there."""

    def __init__(self, group: dict[str, Any], name: str) -> None:
        self._group, self._name = group, name
        self._before: tuple[Any, ...] | None = None

    def __getitem__(self, index: int) -> Any:
        found = self._group[self._name]
        if type(found) is not tuple:
            raise KeyError(self._name)
        return found[index]

    def __setitem__(self, index: int, value: Any) -> None:
        found = self._group[self._name]
        before = self._before = found if self._before is None else self._before
        made = (*found[:index], value, *found[index + 1:])
        is_back = len(made) == len(before) and all(map(operator.is_, made, before))
        self._group[self._name] = before if is_back else made


def hyperparameter_items(name: Hyperparameter, value: Any) -> list[tuple[Hyperparameter, Any]]:
    """A value by its name; a tuple's items, each by its own."""
    if type(value) is not tuple:
        return [(name, value)]
    return [((*name[:3], index), item) for index, item in enumerate(value)]


def _sorted(places: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(sorted(set(places), key=repr))


def hyperparameters_of(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
    """Those that are no tensors; kernels read the value of a tensor themselves."""
    return tuple([
        tuple([value if not isinstance(value, Tensor) else None
               for key, value in group.items() if key != "params"])
        for group in optimizer.param_groups
    ])


def told_of_hyperparameter(name: Hyperparameter, value: Any,
                           followed: Collection[Hyperparameter]) -> Any:
    """What a guard has for a hyperparameter, some of which are followed."""
    told = tuple([FOLLOWED if type(item) is float and one in followed else item
                  for one, item in hyperparameter_items(name, value)])
    return told if type(value) is tuple else told[0]
