# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded step looks at before it is launched: does the same object still stand
at each place?

A watch list has holders and keys. *Fixed* things are objects on the way to the step's tensors or to
guarded values; if one of them is replaced, the state is another one. *Movable* things are the
tensors themselves, whose addresses are arguments of a launch. All are looked up in one pass.

Threads: any, once it is made; lists are not changed while they are used. Failure: None where
something is gone or another object stands there.
"""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType
from typing import Any, NamedTuple, TypeGuard

from torch import nn

from anabranch._record.quick import Question, Whole, holding, stand, standing
from anabranch._record.state.namespaces import CELL, Lookup, place_of


class WatchList:
    """Children of modules, and the values of mappings in their order, are compared as whole lists:
    they are many, and looking up each one would take twice as long. So are dictionaries of which at
    least half the things are watched, until one has changed."""

    def __init__(self, fixed: Iterable[tuple[Lookup, Any]] = (),
                 modules: Iterable[nn.Module] = (), mappings: Iterable[Mapping[Any, Any]] = (),
                 movable: Sequence[Lookup] = ()) -> None:
        self._fixed, self._movable = list(fixed), list(movable)
        self._registries = [module._modules for module in modules if module._modules]
        self._children = list(itertools.chain.from_iterable(map(dict.values, self._registries)))
        self._mappings = [(mapping, list(mapping.values())) for mapping in mappings]
        plain = [*self._registries,
                 *(mapping for mapping, _ in self._mappings if _is_plain(mapping))]
        self._dicts_stand = holding([(one, None, tuple(dict.values(one))) for one in plain])
        self._other_mappings = [(mapping, values) for mapping, values in self._mappings
                                if not _is_plain(mapping)]
        self._sort()

    def _sort(self) -> None:
        """Separates items of dictionaries and the like from cells of closures, the fixed ones first
        in both."""
        found = [(*place_of(lookup), thing) for lookup, thing in self._fixed]
        items = [(holder, key, thing) for holder, key, thing in found if key is not CELL]
        cells = [(holder, thing) for holder, key, thing in found if key is CELL]
        movable = list(map(place_of, self._movable))
        places = [*((holder, key) for holder, key, _ in items),
                  *((holder, key) for holder, key in movable if key is not CELL)]
        self._holders = tuple([holder for holder, _ in places])
        self._keys = tuple([key for _, key in places])
        self._seen: _Seen | None = None  # replaced, since threads may look at once
        self._cells: list[CellType] = [*(cell for cell, _ in cells),
                                       *(cell for cell, key in movable if key is CELL)]
        self._things = [thing for _, _, thing in items]
        self._cell_things = [thing for _, thing in cells]
        self._are_cells = [key is CELL for _, key in movable]
        self._has_movable_cells = any(self._are_cells)

    @property
    def is_empty(self) -> bool:
        return not (self._fixed or self._movable or self._registries or self._mappings)

    def joined(self, fixed: Iterable[tuple[Lookup, Any]] = (),
               movable: Iterable[Lookup] = ()) -> WatchList:
        """This list and more."""
        made = WatchList()
        made._fixed = [*self._fixed, *fixed]
        made._movable = [*self._movable, *movable]
        made._registries, made._children = self._registries, self._children
        made._mappings, made._other_mappings = self._mappings, self._other_mappings
        made._dicts_stand = self._dicts_stand
        made._sort()
        return made

    def look(self) -> list[Any] | None:
        """What stands at the movable places now; None unless everything fixed still stands in its
        place. The very list of last time where the same things do: it is not to be changed."""
        seen = self._seen
        try:
            cells = [cell.cell_contents for cell in self._cells]
            if seen is None or not seen.are_whole() \
                    or not stand(seen.holders, seen.keys, seen.things) \
                    or not all(map(operator.is_, cells, seen.cells)):
                seen = self._look_up(seen, cells)
                if seen is None:
                    return None
            if not self._dicts_stand():
                return None
            for mapping, values in self._other_mappings:
                if len(mapping) != len(values) \
                        or not all(map(operator.is_, mapping.values(), values)):
                    return None
        except (KeyError, IndexError, AttributeError, ValueError):  # of an empty cell
            return None
        except RuntimeError:  # another thread put something into one of these dictionaries
            return None
        return seen.movable

    def questions(self, found: list[Any]) -> list[Question] | None:
        """Whether everything stands where it stood when look() answered this; None where something
        has moved since, or where that takes more than questions."""
        seen = self._seen
        if seen is None or seen.movable is not found or self._other_mappings:
            return None
        count = len(self._cells)
        return [(self._dicts_stand, (), True), (seen.are_whole, (), True),
                *standing((*seen.holders, *self._cells), (*seen.keys, *[CellType] * count),
                          (*seen.things, *seen.cells))]

    def _look_up(self, seen: _Seen | None, cells: list[Any]) -> _Seen | None:
        """What stands there now, given what is in the cells; None where a fixed thing is
        another."""
        seen = self._without_changed(seen) if seen is not None else self._first_look()
        alone = tuple(map(operator.getitem, seen.holders, seen.keys))
        items = list(seen.items)
        for i, thing in zip(seen.alone, alone, strict=True):
            items[i] = thing
        fixed, fixed_cells = len(self._things), len(self._cell_things)
        if not all(map(operator.is_, items, self._things)) \
                or not all(map(operator.is_, cells, self._cell_things)):  # end with the fixed ones
            return None
        movable = items[fixed:]
        if self._has_movable_cells:
            movable = self._merged(movable, cells[fixed_cells:])
        seen = seen._replace(things=alone, items=items, cells=cells, movable=movable)
        self._seen = seen
        return seen

    def _first_look(self) -> _Seen:
        """Finds the dictionaries that are compared as a whole, and what stands in them."""
        watched = collections.Counter(map(id, self._holders))
        dicts = {id(one): one for one in self._holders
                 if type(one) is dict and len(one) <= 2 * watched[id(one)]}
        copies = {number: dict(one) for number, one in dicts.items()}
        items = [copies[id(holder)][key] if id(holder) in copies else None
                 for holder, key in zip(self._holders, self._keys, strict=True)]
        return self._seen_in([(dicts[number], tuple(copy), tuple(copy.values()))
                              for number, copy in copies.items()], items)

    def _without_changed(self, seen: _Seen) -> _Seen:
        """What is in dictionaries that have changed is looked up by its key from now on."""
        if seen.are_whole():
            return seen
        kept: list[Whole] = [
            (one, keys, values) for one, keys, values in seen.whole
            if len(one) == len(values) and keys is not None and all(map(operator.is_, one, keys))
            and all(map(operator.is_, one.values(), values))]
        return self._seen_in(kept, seen.items)

    def _seen_in(self, whole: list[Whole], items: list[Any]) -> _Seen:
        found = {id(one) for one, _, _ in whole}
        alone = [i for i, holder in enumerate(self._holders) if id(holder) not in found]
        return _Seen(whole, holding(whole), alone, tuple([self._holders[i] for i in alone]),
                     tuple([self._keys[i] for i in alone]), (), items, [], [])

    def _merged(self, items: list[Any], cells: list[Any]) -> list[Any]:
        """In the order of the movable places."""
        of_items, of_cells = iter(items), iter(cells)
        return [next(of_cells if is_cell else of_items) for is_cell in self._are_cells]

    def has_members_of(self, other: WatchList) -> bool:
        """Whether modules have the same children, and mappings the same values."""
        return self._children == other._children and len(self._mappings) == len(other._mappings) \
            and all(mapping is others and len(values) == len(values_there)
                    and all(map(operator.is_, values, values_there))
                    for (mapping, values), (others, values_there) in
                    zip(self._mappings, other._mappings, strict=True))


class _Seen(NamedTuple):
    """What stood at the places last."""

    whole: list[Whole]  # dictionaries that are compared as a whole
    are_whole: Callable[[], bool]  # whether they are so now
    alone: list[int]  # which of the places are in other holders
    holders: tuple[Any, ...]  # of these
    keys: tuple[Any, ...]
    things: tuple[Any, ...]
    items: list[Any]  # at all places that are no cells
    cells: list[Any]
    movable: list[Any]


def _is_plain(mapping: Mapping[Any, Any]) -> TypeGuard[dict[Any, Any]]:
    """Whether it has what dict finds in it."""
    return isinstance(mapping, dict) and type(mapping).values is dict.values \
        and type(mapping).__len__ is dict.__len__
