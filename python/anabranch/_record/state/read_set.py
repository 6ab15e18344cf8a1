# SPDX-License-Identifier: Apache-2.0
"""Guards on what code was seen to read: items of dictionaries, which variables of modules and
attributes of classes are, and context variables.

Threads: immutable, but for what was found last, which is replaced. Failure: none.
"""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Container, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anabranch._record.checks import At, Check, Kind, answers, item
from anabranch._record.quick import dict_behind
from anabranch._record.state.dotted import Inherited
from anabranch._record.state.guards import (
    GuardLayout,
    GuardValues,
    SameObject,
    is_plain,
    told_of,
)
from anabranch._record.state.namespaces import Given
from anabranch._record.state.paths import Path, name_of
from anabranch._record.state.place_checks import PlaceChecks

ABSENT = object()  # in place of what stands at a key
# These may be replaced between launches, and are no guards.
MOVABLE = (Tensor, nn.Module, torch.optim.Optimizer, torch.Generator)


class MadeOf:
    """What a function, a partial or a class is made of, by the names of attributes. It is not kept
    alive: of one that is no more, what was told last is told."""

    def __init__(self, thing: Any) -> None:
        self.which = SameObject(thing)
        self._told: dict[str, Any] = {}

    def told(self, name: str) -> Any:
        thing = self.which.get()
        if thing is not None:
            value = Given(thing)[name]
            self._told[name] = _items_told(value) if type(value) is dict else told_of(value)
        return self._told.get(name)


def _items_told(some: dict[str, Any]) -> Any:
    """Tensors and what leads to them may be replaced."""
    return tuple([(name, type(value) if isinstance(value, MOVABLE) else told_of(value))
                  for name, value in some.items()])


class Read(NamedTuple):
    """An item of a dictionary, or none: ABSENT."""

    holder: dict[Any, Any] | MadeOf
    key: Any
    path: Path

    def named_apart(self, taken: Container[Path]) -> Read:
        """With a path that is none of these: other objects may have stood there meanwhile."""
        return self if self.path not in taken else self._replace(path=next(
            path for i in itertools.count(2) if (path := (*self.path, i)) not in taken))

    @property
    def id(self) -> tuple[Any, Any]:
        holder = self.holder
        return holder.which if isinstance(holder, MadeOf) else id(holder), self.key

    def told(self) -> Any:
        holder = self.holder
        return holder.told(self.key) if isinstance(holder, MadeOf) \
            else told_of(holder.get(self.key, ABSENT))

    def checks(self) -> Iterator[Check]:
        """That it is as it is now; none of what is no more."""
        holder, name = self.holder, name_of(self.path)
        if not isinstance(holder, MadeOf):
            thing = holder.get(self.key, ABSENT)
            kind = Kind.ABSENT if thing is ABSENT else _kind_for(thing)
            yield item(holder, self.key, kind, None if thing is ABSENT else thing, name=name)
        elif (made := holder.which.get()) is not None:
            thing = Given(made)[self.key]
            yield Check(_kind_for(thing), At.ATTRIBUTE, made, self.key, thing, name=name)


class Namespace(NamedTuple):
    """The user's variables of a module whose code ran, or attributes of a class that such code
    names: ``names``, by way of ``holder``. Code may have changed them."""

    names: dict[str, Any]
    holder: Any
    path: Path


class ReadSet:
    """Items of dictionaries, context variables, and what callables and classes are made of. It
    keeps none of the latter alive."""

    def __init__(self, reads: Iterable[Read] = (),
                 variables: Iterable[contextvars.ContextVar[Any]] = (),
                 namespaces: Iterable[Namespace] = ()) -> None:
        self.namespaces = list({id(one.names): one for one in namespaces}.values())
        self._reads: dict[tuple[int, Any], Read] = {}
        taken = set[Path]()
        for read in reads:
            if read.id not in self._reads:
                self._reads[read.id] = named = read.named_apart(taken)
                taken.add(named.path)
        self._variables = list(dict.fromkeys(variables))
        paths = [*(read.path for read in self._reads.values()), *map(_path_of, self._variables)]
        self._layout = GuardLayout([dict(enumerate(paths))] if paths else [])

    def __bool__(self) -> bool:
        return bool(self._reads or self._variables)

    def paths(self) -> list[Path]:
        return self._layout.paths

    def joined(self, other: ReadSet) -> ReadSet:
        """Both; this very one where the other has nothing more."""
        if self._reads.keys() >= other._reads.keys() \
                and set(self._variables).issuperset(other._variables) \
                and {id(one.names) for one in self.namespaces}.issuperset(
                    id(one.names) for one in other.namespaces):
            return self
        return ReadSet([*self._reads.values(), *other._reads.values()],
                       [*self._variables, *other._variables],
                       [*self.namespaces, *other.namespaces])

    def beyond(self, held: Iterable[tuple[Any, Iterable[Any]]]) -> ReadSet:
        """What holders with these keys do not have."""
        known = {(id(dict_behind(owner)), key) for holder, keys in held for key in keys
                 for owner in [holder.owner_of(key) if isinstance(holder, Inherited) else holder]}
        return ReadSet([one for one in self._reads.values() if one.id not in known],
                       self._variables, self.namespaces)

    def without(self, ignored: Container[Path]) -> ReadSet:
        return ReadSet([one for one in self._reads.values() if one.path not in ignored],
                       [one for one in self._variables if _path_of(one) not in ignored],
                       self.namespaces)

    def now(self) -> GuardValues:
        set_to = (told_of(one.get(ABSENT)) for one in self._variables)
        return self._layout.with_values([*(read.told() for read in self._reads.values()), *set_to])

    def add_checks(self, checks: PlaceChecks) -> None:
        """That all is as it is now."""
        checks.all += [check for read in self._reads.values() for check in read.checks()]
        checks.all += [answers(_IsSetTo(one, one.get(ABSENT)), (), True, name_of(_path_of(one)))
                       for one in self._variables]


def _kind_for(thing: Any) -> Kind:
    return Kind.EQUALS if is_plain(thing) else Kind.IS


class _IsSetTo:
    """Whether a context variable has this value."""

    def __init__(self, variable: contextvars.ContextVar[Any], value: Any) -> None:
        self._variable, self._value = variable, value

    def __call__(self) -> bool:
        now, then = self._variable.get(ABSENT), self._value
        return now is then or (type(now) is type(then) and is_plain(then) and now == then)


def _path_of(variable: contextvars.ContextVar[Any]) -> Path:
    return "", "context", variable.name


NOTHING_READ = ReadSet()
