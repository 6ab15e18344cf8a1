# SPDX-License-Identifier: Apache-2.0
"""What a user's own methods read of a trainer while it computes a loss.

A recorded step is not shown its trainer, which leads to data sets, logs and counts. Where a class
of the user's overrides how the loss is computed, its code may read some of the trainer's
attributes: those that it names.

Threads: as the trainer. Failure: none; what cannot be read is left out.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from anabranch._record.state.guards import is_plain
from anabranch._record.state.namespaces import methods_of, names_in
from anabranch._record.state.place_checks import MOST_ITEMS

_DEEPEST = 4  # objects and containers within one another
_CONTAINERS = (list, tuple, dict, set, collections.deque)
_WHOLE = (torch.Tensor, nn.Module)  # not looked into


class OwnCode:
    """Args:
        trainer: the object whose attributes are read.
        library: the package of the client; classes and functions of it are not the user's.
        entries: the methods with which the user's code may begin.
    """

    def __init__(self, trainer: Any, library: str, entries: tuple[str, ...]) -> None:
        self._trainer = trainer
        own = _own_methods(trainer, library)
        names, pending = set[str](), [name for name in entries if name in own]
        reached = dict.fromkeys(pending)
        while pending:
            for function in own[pending.pop()]:
                names |= names_in(function.__code__)
            pending += [name for name in names if name in own and name not in reached]
            reached.update(dict.fromkeys(pending))
        self._names = frozenset(names)
        self.functions = tuple(function for name in reached for function in own[name])

    def __bool__(self) -> bool:
        return bool(self._names)

    def objects(self) -> tuple[Any, ...]:
        """The tensors and modules that the code may reach by the names in it."""
        return tuple(value for value in self._each() if isinstance(value, _WHOLE))

    def values(self) -> tuple[Any, ...]:
        """The numbers and texts that the code may read, and which objects there are, as they are
        now. Hashable."""
        return tuple((type(value), value) if is_plain(value) else _told(value)
                     for value in self._each())

    def _each(self) -> Iterator[Any]:
        return self._of_attributes(vars(self._trainer), 0) if self._names else iter(())

    def _of_attributes(self, attributes: Mapping[str, Any], depth: int) -> Iterator[Any]:
        for name, value in list(attributes.items()):
            if name in self._names:
                yield from self._of(value, depth + 1)

    def _of(self, value: Any, depth: int) -> Iterator[Any]:
        yield value
        if is_plain(value) or isinstance(value, (type, *_WHOLE)) or depth > _DEEPEST:
            return
        if isinstance(value, _CONTAINERS):
            parts = list(value.values() if isinstance(value, dict) else value)
            for part in parts[:MOST_ITEMS]:
                yield from self._of(part, depth + 1)
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            yield from self._of_attributes(attributes, depth)


def _told(value: Any) -> tuple[int, int]:
    return id(value), len(value) if isinstance(value, _CONTAINERS) else 0


def _own_methods(trainer: Any, library: str) -> dict[str, list[types.FunctionType]]:
    """By their names, those of the user's classes and those put on the trainer itself."""
    found: dict[str, list[types.FunctionType]] = {}
    kind: type = type(trainer)
    for name, functions in methods_of(kind).items():
        for function in functions:
            if not is_of_package(function, library):
                found.setdefault(name, []).append(function)
    for name, value in vars(trainer).items():
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType) and not is_of_package(function, library):
            found.setdefault(name, []).append(function)
    return found


def is_of_package(function: types.FunctionType, package: str) -> bool:
    """Whether its code stands there."""
    module = str(function.__globals__.get("__name__", ""))
    return module.split(".", maxsplit=1)[0] == package
