# SPDX-License-Identifier: Apache-2.0
"""Checks of what stands in the places of a state.

Places among a call's arguments are left out: what arguments lead to is checked from these on, since
other objects of the same kinds may come.

Threads: one makes it. Failure: NotQuick.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

from anabranch._record.checks import FIRST_FREE, At, Check, Kind, answers, item
from anabranch._record.state.namespaces import (
    CELL,
    Behind,
    Given,
    Lookup,
    OfClass,
    Slotted,
    StandsNow,
    place_of,
)
from anabranch._record.state.paths import ARGUMENT, Path, name_of, name_of_key

MOST_ITEMS = 1000  # of a container that have a guard each; beyond, one is for all


class NotQuick(Exception):
    """There are no checks for something."""


class Registers:
    """Of a plan that is made. ``inside`` are the ids of what is found among the arguments."""

    def __init__(self) -> None:
        self.kept: list[Any] = [None] * FIRST_FREE
        self.inside: dict[int, int] = {}
        self._known: dict[int, int] = {}

    def new(self, kept: Any = None) -> int:
        self.kept.append(kept)
        return len(self.kept) - 1

    def of(self, thing: Any) -> int:
        """The one in which this is found, or kept from now on."""
        register = self.inside.get(id(thing), self._known.get(id(thing)))
        if register is None:
            register = self._known[id(thing)] = self.new(thing)
        return register


class PlaceChecks:
    """Makes the checks of one plan."""

    def __init__(self, registers: Registers) -> None:
        self.registers, self.all = registers, list[Check]()
        self._stand_now: dict[int, int] = {}

    def add(self, lookup: Lookup, kind: Kind, expected: Any = None, path: Path = (), *,
            to: int = -1, name: str = "") -> None:
        """What is to stand in this place, to which the path leads. What is expected may be found
        among the arguments."""
        holder, key = place_of(lookup)
        if not self._is_given(holder, path) \
                and not (kind is Kind.IS and self._is_given(expected, path)):
            if isinstance(holder, Behind):
                if kind is not Kind.EQUALS:
                    raise NotQuick(f"{name_of(path)} is behind a weak reference")
                self.all.append(answers(holder.told, (key,), holder.told(key), name_of(path)))
                return
            self.all.append(self._of(holder, key, kind, expected, to,
                                     name or name_of(path) or name_of_key(key)))

    def _is_given(self, thing: Any, path: Path) -> bool:
        """Whether it is found among the arguments, and checked there."""
        if isinstance(thing, StandsNow):
            return self._is_given(thing.place[0], path)
        if (id(thing.thing) if isinstance(thing, (Slotted, Given)) else id(thing)) \
                not in self.registers.inside:
            return False
        if path[:1] != (ARGUMENT,):
            raise NotQuick(f"{name_of(path)} is an argument, too")
        return True

    def _of(self, holder: Any, key: Any, kind: Kind, expected: Any, to: int, name: str) -> Check:
        if key is CELL:
            return Check(kind, At.CELL, holder, None, expected, -1, to, "a variable of a closure")
        if isinstance(holder, Slotted):
            return Check(kind, At.ATTRIBUTE, holder.thing, key, expected, -1, to, name)
        if isinstance(holder, Given):
            at = At.VARS if key == "__dict__" else At.ATTRIBUTE
            return Check(kind, at, holder.thing, key, expected, -1, to, name)
        if isinstance(holder, StandsNow):
            return Check(kind, At.ITEM, None, key, expected, self._now(holder), to, name)
        return item(vars(holder.kind) if isinstance(holder, OfClass) else holder, key, kind,
                    expected, to=to, name=name)

    def add_kind(self, thing: Any, kind: type, path: Path) -> None:
        if not self._is_given(thing, path):
            self.all.append(Check(Kind.TYPE, At.ITSELF, thing, None, kind, name=name_of(path)))

    def add_length(self, holder: Any, count: int, path: Path = (), name: str = "") -> None:
        if self._is_given(holder, path):
            return
        register = -1
        if isinstance(holder, StandsNow):
            holder, register = None, self._now(holder)
        self.all.append(Check(Kind.LENGTH, At.ITSELF, holder, None, count, register,
                              name=name or name_of(path)))

    def add_order(self, holder: Any, path: Path) -> None:
        """That there are as many items as now; of a dictionary these keys, in this order."""
        keys = keys_of(holder)
        if keys is None:
            self.add_length(holder, len(holder), path)
        elif not self._is_given(holder, path):
            name = name_of(path)
            if type(holder) is collections.OrderedDict:  # another order than the dictionary's own
                self.all.append(answers(tuple, (holder,), keys, name))
                return
            register = self._now(holder) if isinstance(holder, StandsNow) else -1
            self.all.append(Check(Kind.KEYS, At.ITSELF, holder if register < 0 else None, None,
                                  keys, register, name=name))

    def _now(self, holder: StandsNow) -> int:
        """The register of whatever stands there."""
        if id(holder) not in self._stand_now:
            place = holder.place
            register = self._stand_now[id(holder)] = self.registers.new()
            self.add(place, Kind.TYPE, holder.kind, to=register)
        return self._stand_now[id(holder)]

    def in_order(self, first: Iterable[Check]) -> list[Check]:
        """Those of one dictionary one after the other, so that it is looked through once; before
        them ``first``, and behind them what has to be called."""
        found: dict[Any, list[Check]] = {}
        behind: list[Check] = []
        for check in self.all:
            if check.kind in (Kind.ANSWERS, Kind.GRADIENTS, Kind.ALIKE) or check.register >= 0:
                behind.append(check)
            else:
                found.setdefault(id(check.holder), []).append(check)
        return [*first, *(check for some in found.values() for check in some), *behind]


def keys_of(holder: Any) -> tuple[Any, ...] | None:
    """Of a dictionary, in its order. None of anything else, and where one guard is for all."""
    thing = holder.now() if isinstance(holder, StandsNow) else holder
    if not isinstance(thing, dict) or len(thing) > MOST_ITEMS:
        return None
    return tuple(thing if type(thing) is collections.OrderedDict else dict.keys(thing))
