# SPDX-License-Identifier: Apache-2.0
"""What a call's arguments are to be, so that a recording serves them: containers of the same kinds,
with the same keys and lengths; tensors that lie alike; equal plain values; objects of the same
classes with attributes that are alike. Whatever else there is has to be the very object.

Of an object's attributes those that no code of the step names, and that lead to no tensor, may be
anything: a batch may store how many samples it has.

Threads: one makes it. Failure: NotQuick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anabranch import _compat
from anabranch._record.checks import At, Check, Kind, packed
from anabranch._record.state.guards import is_plain
from anabranch._record.state.namespaces import attributes_of, may_enter, slots_of
from anabranch._record.state.place_checks import NotQuick, Registers
from anabranch._record.tensors import is_wrapper, layout_of

_DEEPEST = 8  # containers and objects within one another
_THEMSELVES = nn.Module, torch.optim.Optimizer, torch.Generator, type


class _Place(NamedTuple):
    """Where something stands: in which register its holder is, and what it is called."""

    at: At
    register: int
    key: Any
    name: str


class CallShape:
    """Args:
        registers: in which all that is found is.
        leading: ids of the objects among the arguments that lead to tensors; others are compared as
            leaves.
        told: of each leaf what the signature has.
        floats: by the number of a leaf, that of a float which is followed.
        may_be_read: whether the step's code may read an attribute of this name.
    """

    def __init__(self, registers: Registers, leading: set[int], told: Sequence[Any],
                 floats: dict[int, int], may_be_read: Callable[[str], bool]) -> None:
        self._registers, self._leading = registers, leading
        self._told, self._floats = told, floats
        self._may_be_read = may_be_read
        self.leaves: list[int] = []  # registers of the tensors among them; -1: it is none
        self._checks: list[Check] = []
        self._tensors: list[Tensor] = []
        self._where: list[int] = []  # registers of these

    def look(self, thing: Any, register: int, name: str) -> None:
        """At what is in a register: the arguments, in their order."""
        self._look(thing, _Place(At.ITSELF, register, None, name), 0)

    def look_at_leaves(self, leaves: Sequence[Any], register: int) -> None:
        """The same, of leaves in a list behind its first item."""
        self._add(Kind.LENGTH, _Place(At.ITSELF, register, None, "the arguments"), len(leaves) + 1)
        for i, leaf in enumerate(leaves):
            self._look(leaf, _Place(At.ITEM, register, i + 1, f"argument {i}"), 0)

    def checks(self) -> list[Check]:
        """Those that call nothing come first."""
        return [*self._checks, *self._of_tensors()]

    def _of_tensors(self) -> list[Check]:
        found = []
        if self._tensors:
            likeness = _compat.likeness_of(self._tensors)
            if likeness is None or len(set(map(id, self._tensors))) < len(self._tensors):
                found += [Check(Kind.ALIKE, At.ITSELF, likeness_to(one), packed([where]), None,
                                name="the layout of an argument")
                          for one, where in zip(self._tensors, self._where, strict=True)]
            else:
                found.append(Check(Kind.ALIKE, At.ITSELF, likeness, packed(self._where), None,
                                   name="the layouts of the arguments"))
        wanting = [(where, *wants) for where, told in zip(self.leaves, self._told, strict=True)
                   if where >= 0 and (wants := told[-1]) is not None]
        if wanting:
            found.append(Check(
                Kind.GRADIENTS, At.ITSELF, None, packed(where for where, _, _ in wanting),
                bytes([1 + 2 * has_none for _, _, has_none in wanting]),
                name="the gradients of the arguments"))
            found += [Check(Kind.IS, At.ATTRIBUTE, None, "is_leaf", is_leaf, where,
                            name="the history of an argument") for where, is_leaf, _ in wanting]
        return found

    def _look(self, thing: Any, place: _Place, depth: int, is_leaf: bool = True) -> None:
        """``is_leaf``: it is one of the call's leaves, or contains some."""
        kind = type(thing)
        if isinstance(thing, Tensor):
            if is_wrapper(thing):
                raise NotQuick(f"{place.name} is a {kind.__name__}")
            self._tensors.append(thing)
            self._where.append(self._find(thing, place))
            self._note(is_leaf, self._where[-1])
        elif is_leaf and len(self.leaves) in self._floats and kind is float:
            self._add(Kind.FLOAT, place, to=self._floats[len(self.leaves)])
            self._note(is_leaf)
        elif kind in (dict, list) or (isinstance(thing, tuple) and (
                kind is tuple or hasattr(kind, "_fields"))):
            self._look_into(thing, place, depth, is_leaf)
        elif is_plain(thing):
            self._add(Kind.EQUALS, place, thing)
            self._note(is_leaf)
        elif isinstance(thing, (dict, list, tuple)) or (
                is_leaf and kind in _compat.SUPPORTED_NODES):
            raise NotQuick(f"{place.name} is a {kind.__name__}")  # a container of torch's
        else:
            self._note(is_leaf)
            self._look_at_object(thing, place, depth, is_leaf)

    def _note(self, is_leaf: bool, register: int = -1) -> None:
        if is_leaf:
            self.leaves.append(register)

    def _find(self, thing: Any, place: _Place) -> int:
        """The register that it is in from now on."""
        register = self._registers.new()
        self._registers.inside[id(thing)] = register
        self._add(Kind.TYPE, place, type(thing), register)
        return register

    def _add(self, kind: Kind, place: _Place, expected: Any = None, to: int = -1) -> None:
        self._checks.append(Check(kind, place.at, None, place.key, expected, place.register, to,
                                  place.name))

    def _look_into(self, thing: Any, place: _Place, depth: int, is_leaf: bool) -> None:
        if depth > _DEEPEST:
            raise NotQuick(f"{place.name} lies deep")
        register = self._find(thing, place)
        there = _Place(At.ITSELF, register, None, place.name)
        if isinstance(thing, dict):
            self._add(Kind.KEYS, there, tuple(thing))
            items: Any = thing.items()
        else:
            self._add(Kind.LENGTH, there, len(thing))
            items = enumerate(thing)
        for key, part in items:
            self._look(part, _Place(At.ITEM, register, key, f"{place.name}[{key!r}]"), depth + 1,
                       is_leaf)

    def _look_at_object(self, thing: Any, place: _Place, depth: int, is_leaf: bool) -> None:
        is_itself = isinstance(thing, _THEMSELVES) or callable(thing) or not may_enter(thing) \
            or (is_leaf and id(thing) not in self._leading) or depth > _DEEPEST
        if is_itself:
            self._add(Kind.IS, place, thing)
            return
        register, attributes = self._find(thing, place), attributes_of(thing)
        own = getattr(thing, "__dict__", None)
        if own is not None:
            where = _Place(At.ITSELF, register, None, place.name)
            of_own = self._registers.new()
            self._registers.inside[id(own)] = of_own
            self._add(Kind.TYPE, where._replace(at=At.VARS), dict, of_own)
            self._add(Kind.KEYS, where._replace(register=of_own), tuple(own))
        for name in slots_of(thing):
            if name not in attributes:
                raise NotQuick(f"{place.name} has no {name}")
        for name, part in attributes.items():
            there = _Place(At.ATTRIBUTE, register, name, f"{place.name}.{name}") \
                if own is None or name not in own \
                else _Place(At.ITEM, of_own, name, f"{place.name}.{name}")
            self._look_at_attribute(name, part, there, depth + 1)

    def _look_at_attribute(self, name: str, thing: Any, place: _Place, depth: int) -> None:
        """Where it may not be read, only if it leads to tensors."""
        before = len(self._tensors), len(self._checks)
        self._look(thing, place, depth, is_leaf=False)
        if len(self._tensors) == before[0] and not self._may_be_read(name):
            del self._checks[before[1]:]


def likeness_to(tensor: Tensor) -> Callable[[Any], bool]:
    """Whether another tensor is of its class, and lies as it does."""
    return _compat.likeness_of([tensor]) or _Likeness(tensor)


class _Likeness:
    """The same in Python."""

    def __init__(self, tensor: Tensor) -> None:
        self._told = _told(tensor)

    def __call__(self, other: Any) -> bool:
        return isinstance(other, Tensor) and _told(other) == self._told


def _told(tensor: Tensor) -> Any:
    return type(tensor), layout_of(tensor)
