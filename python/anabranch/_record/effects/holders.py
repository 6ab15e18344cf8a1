# SPDX-License-Identifier: Apache-2.0
"""What Python's objects hold before a run of a step: shallow copies of containers, of attributes of
objects and classes, and of variables, to be compared afterwards and put back.

Threads: the recorder's, one at a time. Failure: none; what cannot be put back stays.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any, NamedTuple

from torch import Tensor

from anabranch._record.effects.iterators import position_of
from anabranch._record.quick import dict_behind
from anabranch._record.state.dotted import is_users
from anabranch._record.state.namespaces import (
    CELL,
    OfClass,
    Slotted,
    Variables,
    is_library_base,
    may_enter,
    place_of,
)
from anabranch._record.state.paths import Path
from anabranch._record.state.state import State
from anabranch._record.tensors import is_wrapper


class Nothing:
    """Where a holder has nothing at a key."""


NOTHING = Nothing()
SEQUENCES = (list, collections.deque)
# Whose methods are Python's own.
_DICTIONARIES = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


class Held(NamedTuple):
    """A holder, the way to it, and what it held: a list of a sequence's items, a set, or else a
    dictionary."""

    holder: Any
    path: Path
    before: Any

    @classmethod
    def now(cls, holder: Any, path: Path) -> Held:
        return cls(holder, path, _copy(holder))

    @property
    def is_changed(self) -> bool:
        if isinstance(self.before, dict):
            return any(old is not new for _, old, new in self.pairs()) or self.is_reordered
        now = _copy(self.holder)
        return bool(now != self.before) if isinstance(now, set) else \
            list(map(id, now)) != list(map(id, self.before))

    @property
    def is_reordered(self) -> bool:
        """Whether keys that a dictionary had, and has, have another order."""
        if type(self.holder) not in _DICTIONARIES \
                or list(map(id, self.holder)) == list(map(id, self.before)):
            return False
        return [key for key in self.before if key in self.holder] \
            != [key for key in self.holder if key in self.before]

    def items(self) -> Iterable[tuple[Any, Any]]:
        """What it held, by its keys or numbers."""
        return list(self.before.items()) if isinstance(self.before, dict) \
            else list(enumerate(self.before))

    def pairs(self) -> Iterator[tuple[Any, Any, Any]]:
        """Of a dictionary: each key, with what was there and what is."""
        now = _copy(self.holder)
        for key in (*self.before, *(key for key in now if key not in self.before)):
            old, new = self.before.get(key, NOTHING), now.get(key, NOTHING)
            if not (_is_librarys(old) or _is_librarys(new)):
                yield key, old, new

    def put_back(self) -> None:
        if not self.is_changed:
            return
        if isinstance(self.holder, list):
            self.holder[:] = self.before
        elif isinstance(self.holder, set):
            self.holder.clear()
            self.holder.update(self.before)
        elif isinstance(self.holder, collections.deque):
            self.holder.clear()
            self.holder.extend(self.before)
        else:
            self._put_items_back()

    def _put_items_back(self) -> None:
        for key, old, new in list(self.pairs()):
            if old is not new:
                with contextlib.suppress(AttributeError, TypeError, KeyError):
                    put(self.holder, key, old)
        if type(self.holder) in _DICTIONARIES and list(self.holder) != list(self.before):
            self.holder.clear()  # what was deleted has come back at the end
            self.holder.update(self.before)


def put(holder: Any, key: Any, value: Any) -> None:
    if value is not NOTHING:
        holder[key] = value
    elif key in holder:
        del holder[key]


def _is_librarys(value: Any) -> bool:
    """Tensors of wrapping classes are looked after by their libraries."""
    return isinstance(value, Tensor) and is_wrapper(value)


class OfCells(MutableMapping[str, Any]):
    """The variables of a function that are in its closure."""

    def __init__(self, variables: Variables) -> None:
        self.variables = variables

    def __getitem__(self, name: str) -> Any:
        return self.variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.variables[name] = value

    def __delitem__(self, name: str) -> None:
        del self.variables[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self.variables.cells if name in self.variables)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _copy(holder: Any) -> Any:
    if isinstance(holder, SEQUENCES):
        return list(holder)
    return set(holder) if isinstance(holder, set) else dict(holder.items())


def _own(holder: Any, everywhere: dict[int, tuple[Any, Path]]) -> Any:
    """Of a function of the user's, the variables of its closure; those of its module are held by
    that."""
    module = str(holder.globals.get("__name__", "")) if isinstance(holder, Variables) else ""
    if not module or not is_users(module):
        return holder
    everywhere.setdefault(id(holder.globals), (holder.globals, ("", module)))
    return OfCells(holder)


def _place(holder: Any, key: Any) -> tuple[int, Any]:
    variables = holder.variables if isinstance(holder, OfCells) else holder
    owner, name = place_of((variables, key))
    owner = owner.thing if isinstance(owner, Slotted) else owner
    return id(owner), id(CELL) if name is CELL else name


class HolderSnapshot:
    """Of all that a step's state leads to, of the classes of its objects, and of the modules whose
    code was seen to run."""

    def __init__(self, state: State) -> None:
        walk = state.walk_before_run()
        kinds = {kind: None for _, thing in walk.entered.values() if may_enter(thing)
                 for kind in type(thing).__mro__}
        kinds |= {kind: None for module in walk.modules for kind in type(module).__mro__}
        everywhere = {id(one.names): (one.holder, one.path) for one in state.told_seen.namespaces}
        for kind in kinds:
            if not is_library_base(kind) and kind.__module__ != "builtins":
                everywhere.setdefault(id(dict_behind(vars(kind))),
                                      (OfClass(kind), ("", f"class {kind.__name__}")))
        holders = [(_own(holder, everywhere), path) for holder, path in walk.holders]
        known = {id(holder) for holder, _ in holders}
        holders += [(holder, path) for holder, path in walk.looked_at if id(holder) not in known]
        self.held = [Held.now(holder, path) for holder, path in (*holders, *everywhere.values())]
        self._iterators: list[tuple[Any, Path, Any]] = []
        # What was there before and is no value: launches may bind these very objects.
        self.objects = {id(thing) for _, thing in walk.entered.values()}

    def changes(self) -> Iterator[tuple[Held, list[tuple[Any, Any, Any]]]]:
        """Each holder that has changed. Of those with keys, what has: key, before and now. A
        variable that several functions name comes once."""
        seen: set[tuple[int, Any]] = set()
        for held in self.held:
            if not isinstance(held.before, dict):
                if held.is_changed:
                    yield held, []
                continue
            pairs = [(key, old, new) for key, old, new in held.pairs()
                     if old is not new and _place(held.holder, key) not in seen]
            seen.update(_place(held.holder, key) for key, _, _ in pairs)
            if pairs:
                yield held, pairs

    def reordered(self) -> Iterator[Held]:
        """Dictionaries whose keys have another order."""
        return (held for held in self.held if held.is_reordered)

    def take(self) -> None:
        """Of now. What others do between runs is none of the step's."""
        self.held = [Held.now(held.holder, held.path) for held in self.held]
        self._iterators = [(iterator, (*held.path, name), position) for held in self.held
                           for name, iterator in held.items()
                           if (position := position_of(iterator)) is not None]

    def advanced(self) -> Path | None:
        """The path of an iterator from which something has been taken since."""
        return next((path for iterator, path, position in self._iterators
                     if position_of(iterator) != position), None)

    def left(self) -> list[Held]:
        """What a run has left in the holders that it has changed, to be put there again."""
        return [Held.now(held.holder, held.path) for held in self.held if held.is_changed]

    def put_back(self) -> None:
        for held in self.held:
            held.put_back()
