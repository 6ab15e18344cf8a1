# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of an object on the way to a step's tensors: everything in it that the step may
have read, except what it leads to.

Two objects with equal fingerprints share a recording: one may stand in the other's place. Numbers,
texts and functions are compared by value, and so are containers of them that are small and shallow.
Anything else is compared by identity. Threads: as the objects. Failure: none.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._record.state.guards import PLAIN
from anabranch._record.state.namespaces import attributes_of, may_enter, parts_of_function
from anabranch._record.state.paths import Place

_DEEPEST, _MOST = 3, 100  # levels of containers and objects; items; beyond, by identity
# Of a module, and what DistributedDataParallel notes of its buckets.
_NOT_CONSTANT = ("_parameters", "_buffers", "_modules", "training", _compat.NOTED_OF_BUCKETS)
_CONTAINERS = (dict, list, tuple, set, frozenset)
PLAIN_TYPES = frozenset(PLAIN)
_NO_OBJECTS = (Tensor, *PLAIN)


class Fingerprinter:
    """Args:
        leads: by the id of an object, whether it leads to tensors. Those that do are compared at
            places of their own.
        may_be_read: whether the step's code mentions an attribute of this name.
    """

    def __init__(self, leads: Mapping[int, bool], may_be_read: Callable[[str], bool]) -> None:
        self._leads, self._may_be_read = leads, may_be_read

    def of(self, thing: Any, is_given: bool) -> Any:
        """The fingerprint. ``is_given``: the object is an argument or in one."""
        kind: Any = type(thing)
        if isinstance(thing, torch.optim.Optimizer):
            return kind  # its hyperparameters have guards of their own
        if isinstance(thing, types.FunctionType):
            kind = thing.__code__
            items: Any = [(name, Place(holder, key, ()).get())
                          for name, holder, key in parts_of_function(thing)]
        elif isinstance(thing, nn.Module):
            items = [*registered(thing),
                     *(item for item in vars(thing).items() if item[0] not in _NOT_CONSTANT)]
        elif isinstance(thing, dict):
            items = [(self._constant(key, is_given), value) for key, value in thing.items()]
        elif isinstance(thing, (list, tuple)):
            items = enumerate(thing)
        elif may_enter(thing):
            items = self._attributes(thing, is_given)
        else:
            return Same(thing)
        return kind, [(name, self._constant(value, is_given)) for name, value in items]

    def _attributes(self, thing: Any, is_given: bool) -> Iterator[tuple[str, Any]]:
        """Of an argument only those attributes that lead to tensors or that the step's code names:
        a batch may store how many samples it has, another number in each call."""
        return ((name, value) for name, value in attributes_of(thing).items()
                if not is_given or self._may_be_read(name) or self._leads.get(id(value), False))

    def _constant(self, value: Any, is_given: bool, depth: int = 0) -> Any:
        kind = type(value)
        if kind in PLAIN_TYPES:
            return kind, value
        if self._leads.get(id(value), False):
            return kind  # it is compared at a place of its own
        if isinstance(value, _CONTAINERS):
            parts: Any = value
        elif is_object(value) and may_enter(value):
            parts = dict(self._attributes(value, is_given))
        else:
            return Same(value)
        if not parts:
            return kind, ()
        if depth == _DEEPEST or len(parts) > _MOST:
            return Same(value)
        if isinstance(parts, dict):
            parts = itertools.chain.from_iterable(parts.items())
        constants = [self._constant(part, is_given, depth + 1) for part in parts]
        return kind, frozenset(parts) if isinstance(parts, (set, frozenset)) else constants


def is_object(thing: Any) -> bool:
    """Whether it may lead to tensors, and is no tensor or plain value itself."""
    return not isinstance(thing, _NO_OBJECTS)


def registered(module: nn.Module) -> list[tuple[Any, Any]]:
    """The names of a module's tensors; those of missing ones, and what else stands there, with
    that."""
    return [((registry, name), None if isinstance(thing, Tensor) else ("lacks", thing))
            for registry in ("_parameters", "_buffers")
            for name, thing in vars(module)[registry].items()]


class Same:
    """Stands for one object, and equals whatever stands for the same one."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._thing is other._thing

    def __hash__(self) -> int:
        return id(self._thing)
