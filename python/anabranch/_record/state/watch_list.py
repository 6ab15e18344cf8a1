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

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from types import CellType
from typing import Any, TypeGuard

from torch import nn

from anabranch._record.quick import stand, values_stand
from anabranch._record.state.namespaces import Variables

Lookup = tuple[Any, Any]  # holder and key


class WatchList:
    """Children of modules, and the values of mappings in their order, are compared as whole lists:
    they are many, and looking up each one would take twice as long."""

    def __init__(self, fixed: Iterable[tuple[Lookup, Any]] = (),
                 modules: Iterable[nn.Module] = (), mappings: Iterable[Mapping[Any, Any]] = (),
                 movable: Sequence[Lookup] = ()) -> None:
        self._fixed, self._movable = list(fixed), list(movable)
        self._registries = [module._modules for module in modules if module._modules]
        self._children = list(itertools.chain.from_iterable(map(dict.values, self._registries)))
        self._mappings = [(mapping, list(mapping.values())) for mapping in mappings]
        plain = [*self._registries,
                 *(mapping for mapping, _ in self._mappings if _is_plain(mapping))]
        self._dicts = tuple(plain), tuple([tuple(dict.values(one)) for one in plain])
        self._other_mappings = [(mapping, values) for mapping, values in self._mappings
                                if not _is_plain(mapping)]
        self._sort()

    def _sort(self) -> None:
        """Separates items of dictionaries and the like from cells of closures, the fixed ones first
        in both."""
        found = [(*_where(lookup), thing) for lookup, thing in self._fixed]
        items = [(holder, key, thing) for holder, key, thing in found if key is not _CELL]
        cells = [(holder, thing) for holder, key, thing in found if key is _CELL]
        movable = list(map(_where, self._movable))
        places = [*((holder, key) for holder, key, _ in items),
                  *((holder, key) for holder, key in movable if key is not _CELL)]
        self._holders = tuple([holder for holder, _ in places])
        self._keys = tuple([key for _, key in places])
        # What stood there last, in items and in cells, and the movable things of it. Replaced
        # together, since threads may look at once.
        self._last: tuple[tuple[Any, ...] | None, list[Any], list[Any]] = (None, [], [])
        self._cells: list[CellType] = [*(cell for cell, _ in cells),
                                       *(cell for cell, key in movable if key is _CELL)]
        self._things = [thing for _, _, thing in items]
        self._cell_things = [thing for _, thing in cells]
        self._are_cells = [key is _CELL for _, key in movable]
        self._has_movable_cells = any(self._are_cells)

    def joined(self, fixed: Iterable[tuple[Lookup, Any]] = (),
               movable: Iterable[Lookup] = ()) -> WatchList:
        """This list and more."""
        made = WatchList()
        made._fixed = [*self._fixed, *fixed]
        made._movable = [*self._movable, *movable]
        made._registries, made._children = self._registries, self._children
        made._mappings, made._other_mappings = self._mappings, self._other_mappings
        made._dicts = self._dicts
        made._sort()
        return made

    def look(self) -> list[Any] | None:
        """What stands at the movable places now; None unless everything fixed still stands in its
        place. The very list of last time where the same things do: it is not to be changed."""
        items, cells, movable = self._last
        try:
            now = [cell.cell_contents for cell in self._cells]
            if items is None or not stand(self._holders, self._keys, items) \
                    or not all(map(operator.is_, now, cells)):
                found = self._look_up(now)
                if found is None:
                    return None
                movable = found
            if not values_stand(*self._dicts):
                return None
            for mapping, values in self._other_mappings:
                if len(mapping) != len(values) \
                        or not all(map(operator.is_, mapping.values(), values)):
                    return None
        except (KeyError, IndexError, AttributeError, ValueError):  # of an empty cell
            return None
        except RuntimeError:  # another thread put something into one of these dictionaries
            return None
        return movable

    def _look_up(self, cells: list[Any]) -> list[Any] | None:
        """The movable things as they are now, given what is in the cells; None where a fixed one is
        another."""
        items = list(map(operator.getitem, self._holders, self._keys))
        fixed, fixed_cells = len(self._things), len(self._cell_things)
        if not all(map(operator.is_, items, self._things)) \
                or not all(map(operator.is_, cells, self._cell_things)):  # end with the fixed ones
            return None
        movable = items[fixed:]
        if self._has_movable_cells:
            movable = self._merged(movable, cells[fixed_cells:])
        self._last = tuple(items), cells, movable
        return movable

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


def _is_plain(mapping: Mapping[Any, Any]) -> TypeGuard[dict[Any, Any]]:
    """Whether it has what dict finds in it."""
    return isinstance(mapping, dict) and type(mapping).values is dict.values \
        and type(mapping).__len__ is dict.__len__


_CELL = object()  # in the place of a key


def _where(lookup: Lookup) -> tuple[Any, Any]:
    """For variables of a function, the cell or the globals that hold them: looking these up calls
    no Python code."""
    holder, key = lookup
    if not isinstance(holder, Variables):
        return lookup
    return (holder.cells[key], _CELL) if key in holder.cells else (holder.globals, key)
