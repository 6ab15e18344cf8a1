# SPDX-License-Identifier: Apache-2.0
"""What a call takes from iterators before its step: which ones, and what they gave.

To take one item more is one argument more. So a call that is like an earlier one takes what that
one was seen to take first, is then a call with that item among its leaves, and so on until nothing
more is taken. Each of these has a signature.

Threads: a call's own. Failure: what an iterator raises is an outcome, which the step is given where
it calls ``next()``.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

from torch import Tensor

from anabranch._record.observe.observer import Observer
from anabranch._record.state.guards import is_plain
from anabranch._record.state.namespaces import (
    Lookup,
    Variables,
    is_librarys,
    may_enter,
    methods_of,
    named_in,
)
from anabranch._record.state.paths import ARGUMENT, Path
from anabranch._record.state.state import State

EXHAUSTED = object()  # in place of the containers of an item: next() answers the default


@dataclasses.dataclass(frozen=True)
class Draw:
    """``next(iterator)`` or ``next(iterator, default)``, where the iterator stands at these paths,
    with gradients on or off."""

    paths: tuple[Path, ...]
    has_default: bool
    with_grad: bool

    def leaves_among(self, objects: Sequence[int]) -> list[int]:
        """Which leaves the iterator is, if any. ``objects``: those that are objects."""
        return [objects[path[1]] for path in self.paths if _is_argument(path)]


def _is_argument(path: Path) -> bool:
    return len(path) == 2 and path[0] == ARGUMENT


@dataclasses.dataclass(frozen=True)
class Item:
    """What was drawn: its containers, and how many leaves are in them."""

    draw: Draw
    containers: Any
    leaves: int


@dataclasses.dataclass(frozen=True)
class Drawn:
    """In place of the containers of the arguments: these, and what was drawn. The leaves are those
    of the arguments, ``count`` with the containers, and then those of each item."""

    containers: Any
    count: int
    items: tuple[Item, ...]

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves of a call that draws nothing."""
        return [self.containers, *leaves[1:self.count]]

    def of_items(self, leaves: Sequence[Any]) -> list[tuple[Any, Sequence[Any]]]:
        """The containers of each item, and its leaves."""
        found, begin = [], self.count
        for item in self.items:
            found.append((item.containers, leaves[begin:begin + item.leaves]))
            begin += item.leaves
        return found


@dataclasses.dataclass
class NextOutcome:
    """What ``next()`` has done: given a thing, which may be EXHAUSTED, or raised an error."""

    iterator: Any
    has_default: bool
    thing: Any = None
    error: BaseException | None = None

    def again(self, thing: Any, default: tuple[Any, ...]) -> Any:
        """The same for the step; ``thing`` in place of what was given."""
        if self.error is None and thing is not EXHAUSTED:
            return thing
        if default and (self.error is None or isinstance(self.error, StopIteration)):
            return default[0]
        raise self.error or StopIteration


def with_item(leaves: Sequence[Any], draw: Draw, outcome: NextOutcome,
              flattened: Callable[[Any], tuple[Any, list[Any]]]) -> list[Any] | None:
    """The leaves of a call that has drawn this, too; None where it cannot be an argument."""
    if outcome.error is not None:
        return None
    containers, parts = (EXHAUSTED, []) if outcome.thing is EXHAUSTED else flattened(outcome.thing)
    if not can_be_given(parts):
        return None
    before = leaves[0] if isinstance(leaves[0], Drawn) else Drawn(leaves[0], len(leaves), ())
    items = (*before.items, Item(draw, containers, len(parts)))
    return [dataclasses.replace(before, items=items), *leaves[1:], *parts]


def tensors_drawn(leaves: Sequence[Any]) -> list[Tensor]:
    if not isinstance(leaves[0], Drawn):
        return []
    return [leaf for leaf in leaves[leaves[0].count:] if isinstance(leaf, Tensor)]


class _Way:
    """To an iterator, in one state: the objects on the way, and where it stands."""

    def __init__(self, state: State, path: Path) -> None:
        entered = state.walk_before_run().entered
        places = [(path[:end], entered[path[:end]]) for end in range(1, len(path) + 1)
                  if path[:end] in entered]
        self._before: list[tuple[Lookup, Any]] = [
            ((place.holder, place.key), thing) for there, (place, thing) in places if there != path]
        self._lookup: Lookup | None = \
            (entered[path][0].holder, entered[path][0].key) if path in entered else None

    def end(self) -> Any:
        """What stands there now; None where another object has come on the way."""
        try:
            if self._lookup is None or not all(
                    holder[key] is thing for (holder, key), thing in self._before):
                return None
            holder, key = self._lookup
            return holder[key]
        except (KeyError, IndexError, ValueError):
            return None


class Ways:
    """Of one callable to the iterators that it takes from. A walk finds them once a state.
    ``namespaces``: the variables of modules whose functions name ``next``. ``owned``: names of what
    iterators were seen to change."""

    def __init__(self) -> None:
        self.owned: set[str] = set()
        self.namespaces: list[dict[str, Any]] = []
        self._ways: weakref.WeakKeyDictionary[State, dict[Path, _Way]] = \
            weakref.WeakKeyDictionary()

    def iterator_of(self, draw: Draw, state: State) -> Any:
        """None where no iterator stands there, or not the same one at all of its paths."""
        first, *others = [state.argument(path[1]) if _is_argument(path) else self._at(path, state)
                          for path in draw.paths]
        return first if is_iterator(first) and all(one is first for one in others) else None

    def note_functions(self, state: State) -> None:
        """Those that the state leads to, and methods of what it leads to."""
        walk = state.walk_before_run()
        kinds: dict[Any, None] = dict.fromkeys(map(type, walk.modules))
        kinds |= {type(thing): None for _, thing in walk.entered.values() if may_enter(thing)}
        methods = (method for kind in kinds for some in methods_of(kind).values()
                   for method in some)
        self._note([*((holder.globals, holder.code) for holder, _ in walk.holders
                      if isinstance(holder, Variables)),
                    *((method.__globals__, method.__code__) for method in methods)])

    def note_ran(self, observer: Observer) -> None:
        """Those that were seen to run besides."""
        self._note((one.globals, one.code) for one in observer.ran.values())

    def _note(self, codes: Iterable[tuple[dict[str, Any], CodeType]]) -> None:
        known = set(map(id, self.namespaces))
        for names, code in codes:
            if "next" in named_in(code) and id(names) not in known \
                    and not is_librarys(str(names.get("__name__", ""))):
                known.add(id(names))
                self.namespaces.append(names)

    def _at(self, path: Path, state: State) -> Any:
        if path[0] != ARGUMENT:
            state = state.base  # there is a new one for each batch
        ways = self._ways.setdefault(state, {})
        found = ways[path].end() if path in ways else None
        if found is None:
            ways[path] = _Way(state, path)
            found = ways[path].end()
        return found


def can_be_given(leaves: Iterable[Any]) -> bool:
    """Whether they can be arguments by themselves."""
    return all(isinstance(leaf, Tensor) or is_plain(leaf) for leaf in leaves)


def is_iterator(thing: Any) -> bool:
    return hasattr(type(thing), "__next__")
