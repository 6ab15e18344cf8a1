# SPDX-License-Identifier: Apache-2.0
"""What can be reached from a callable: tensors, modules, optimizers, and the objects on the way.

Each thing is named by its *path*, the keys that lead to it. A later walk finds by the same path
what stands in its place then. Closures, globals that the code names, methods, partials, containers
and objects are walked. Objects among a module's attributes, classes, modules of Python and objects
of big libraries may lead to everything that a program has. Into these the walk goes only along
paths that it is given, *farther*.

Threads: as the objects found. Failure: none; what cannot be walked is left out.
"""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from collections.abc import Container, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anabranch._record.state.fingerprint import PLAIN_TYPES, Fingerprinter, is_object
from anabranch._record.state.guard_collector import GuardCollector, of_base
from anabranch._record.state.hooks import HOOKS
from anabranch._record.state.namespaces import (
    OfClass,
    Variables,
    attributes_of,
    found_in,
    is_librarys,
    may_enter,
    numbered,
    parts_of_function,
)
from anabranch._record.state.paths import ARGUMENT, Found, Path, Place

_DEEPEST = 32  # containers and objects within one another
_CACHE = type(functools.cache(int))


class Walk:
    """Everything that some objects lead to, each thing once, in the order of the walk.

    Args:
        roots: walked first.
        arguments: walked then; later calls may give others in their places.
        farther: paths that the walk follows though it would not by itself; all beginnings of such
            a path are in it, too.
        known: ids of things that an earlier walk has found. Only further places of these are noted.
        collector: is shown all objects that the walk meets, and finds the guards on their values.
    """

    def __init__(self, roots: Iterable[Any], arguments: Sequence[Any] = (),
                 farther: Container[Path] = (), known: Iterable[int] = (),
                 collector: GuardCollector | None = None) -> None:
        self.tensors: list[Found] = []
        self.more_places: dict[int, list[Place]] = {}  # of a tensor, by its id
        self.generators: list[torch.Generator] = []
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        # Objects that lead to any of these, and where they stand. What stands in a tuple is left
        # out, since it cannot be replaced, and so are modules in modules.
        self.ways: list[tuple[Place, Any]] = []
        # The fingerprints of these objects, by path. If those of another walk are equal, a
        # recording serves the objects of both. Made only with a collector, which knows names.
        self.fingerprint: list[tuple[Path, Any]] = []
        # All objects that were looked into, by their paths, also those that lead to nothing.
        self.entered: dict[Path, tuple[Place, Any]] = {}
        # Their containers and attributes, and the way to each.
        self.holders: list[tuple[Any, Path]] = []
        # Those of objects that only guarded values are read of; with a collector.
        self.looked_at: list[tuple[Any, Path]] = []
        self._farther, self._collector = farther, collector
        # Path and object, and a fingerprint if it is not the usual one.
        self._fingerprinted: list[tuple[Path, Any, Any]] = []
        self._finds = 0  # how often the walk has met something, known or not
        self._leads = dict.fromkeys(known, True)  # by id, whether it leads to anything
        self._keep: list[Any] = []  # what these ids belong to
        self._look_into(tuple(roots), (), 0)
        if arguments:
            self._look_into(list(arguments), (ARGUMENT,), 0)
        if collector is not None:
            collector.follow_names()
            fingerprinter = Fingerprinter(self._leads, collector.may_be_read)
            self.looked_at = collector.looked_at()
            self.fingerprint = [(path, known or fingerprinter.of(thing, path[0] == ARGUMENT))
                                for path, thing, known in self._fingerprinted]
        del self._finds, self._leads, self._keep, self._fingerprinted

    def _look_into(self, holder: Any, path: Path, depth: int) -> None:
        if not isinstance(holder, tuple):
            self.holders.append((holder, path))
        for i, key in enumerate(list(holder) if isinstance(holder, dict) else range(len(holder))):
            name = key if isinstance(key, str) else i
            self._look(Place(holder, key, (*path, name)), depth)

    def _look(self, place: Place, depth: int) -> None:
        try:
            value = place.get()
        except Exception:  # an empty cell, a property that fails
            return
        if type(value) in PLAIN_TYPES and not (
                self._farther and isinstance(value, type) and place.path in self._farther):
            return
        if isinstance(value, Tensor):
            self._add(place, value)
        else:
            self._enter(place, value, depth + 1)

    def _enter(self, place: Place, value: Any, depth: int) -> None:
        if depth > _DEEPEST:
            return
        if not isinstance(place.holder, tuple):
            self.entered[place.path] = place, value
            if self._collector is not None:
                self._collector.add_stand(*place, value)
        if id(value) not in self._leads:
            before = self._finds
            self._mark(value)
            self._visit(value, place.path, depth)
            self._leads[id(value)] = self._finds != before
        if self._leads[id(value)]:
            self._finds += 1
            self._add_way(place, value)

    def _mark(self, thing: Any) -> None:
        """Notes that it is being walked. Until that has ended it counts as leading somewhere."""
        self._leads[id(thing)] = True
        self._keep.append(thing)

    def _add_way(self, place: Place, value: Any, known: Any = None) -> None:
        if not isinstance(place.holder, tuple):
            self.ways.append((place, value))
            self._fingerprinted.append((place.path, value, known))

    def _visit(self, thing: Any, path: Path, depth: int) -> None:
        if isinstance(thing, nn.Module):
            self._visit_module(thing, path, depth)
        elif isinstance(thing, torch.optim.Optimizer):
            name = name_of_wrapped(thing)
            if name is None:
                self._visit_optimizer(thing, path, depth)
            else:
                self._look(Place(vars(thing), name, (*path, name)), depth)
                if self._collector is not None:
                    self._collector.add_object(thing, vars(thing), path)
        elif isinstance(thing, torch.Generator):
            self._finds += 1
            self.generators.append(thing)
        elif isinstance(thing, (dict, list, tuple)):
            if self._collector is not None and not isinstance(thing, tuple):
                self._collector.add_container(thing, path)
            self._look_into(thing, path, depth)
        else:
            if isinstance(thing, (set, collections.deque)):
                self.holders.append((thing, path))
            elif isinstance(thing, types.FunctionType):
                self.holders.append((Variables(thing), path))
            elif may_enter(thing):
                self.holders.append((attributes_of(thing), path))
            if self._collector is not None:
                self._collect(thing, path)
            for name, holder, key in _parts(thing):
                self._look(Place(holder, key, (*path, name)), depth)
            self._look_farther(thing, path, depth)

    def _collect(self, thing: Any, path: Path) -> None:
        assert self._collector is not None
        if isinstance(thing, types.FunctionType):
            self._collector.add_function(thing, path)
        elif isinstance(thing, functools.partial):
            self._collector.add_partial(thing, path)
        elif isinstance(thing, weakref.ref):
            self._collector.add_weak(thing, path)
        elif may_enter(thing):
            self._collector.add_object(thing, attributes_of(thing), path)

    def _look_farther(self, thing: Any, path: Path, depth: int) -> None:
        """Follows ``farther`` into a module of Python, a class, the classes of an object, what
        functools.cache keeps, or an object of a library, such as torch's GradScaler."""
        if not self._farther:
            return
        if isinstance(thing, types.ModuleType):
            self._look_at_variables(vars(thing), thing.__name__, path, depth)
            return
        if isinstance(thing, _CACHE):
            for value in _kept_by(thing):
                name = f"cached {id(value)}"  # values of a cache have no other name that lasts
                if (*path, name) in self._farther:
                    self._look(Place((value,), 0, (*path, name)), depth)
        if _is_of_library(thing):
            self._look_at_some(vars(thing), path, depth)  # no holder: only its library binds there
        kinds = thing.__mro__ if isinstance(thing, type) else type(thing).__mro__
        for kind in kinds:
            self._look_at_variables(OfClass(kind), kind.__module__,
                                    (*path, f"class {kind.__name__}"), depth)

    def _look_at_variables(self, holder: MutableMapping[str, Any], module: str, path: Path,
                           depth: int) -> None:
        if not is_librarys(module) and self._look_at_some(holder, path, depth):
            self.holders.append((holder, path))

    def _look_at_some(self, holder: MutableMapping[str, Any], path: Path, depth: int) -> bool:
        """Whether ``farther`` leads through this holder."""
        names = [name for name in list(holder) if (*path, name) in self._farther] \
            if path in self._farther else []
        for name in names:
            self._look(Place(holder, name, (*path, name)), depth)
        return bool(names)

    def _add(self, place: Place, tensor: Tensor, counts: bool = False) -> None:
        self._finds += 1
        if id(tensor) in self._leads:
            self.more_places.setdefault(id(tensor), []).append(place)
            return
        self._mark(tensor)
        if self._collector is not None and (attributes := vars(tensor)):
            self._collector.add_object(tensor, attributes, place.path)
        self.more_places[id(tensor)] = []
        self.tensors.append(Found(place, tensor, counts))

    def _visit_module(self, module: nn.Module, path: Path, depth: int) -> None:
        self._leads.pop(id(module))
        parts = [(name, part) for name, part in module.named_modules()
                 if id(part) not in self._leads]
        for name, part in parts:
            self._mark(part)
            self._finds += 1
            self.modules.append(part)
            for kind, holder in (("parameters", part._parameters), ("buffers", part._buffers),
                                 ("", part.__dict__)):
                self.holders.append((holder, (*path, name, kind)))
                self._add_tensors(holder, (*path, name))
        for name, part in parts:
            self._look_into_attributes(part, (*path, name), depth)
        for name, part in parts:
            self.holders.append((part._modules, (*path, name, "modules")))
            for key, child in part._modules.items():
                self._fingerprinted.append(((*path, name, key), child, None))

    def _look_into_attributes(self, thing: nn.Module | torch.optim.Optimizer, path: Path,
                              depth: int) -> None:
        """Looks into containers, such as a cache of keys and values, and into optimizers of an
        optimizer. A module's attributes may name any objects, its trainer and all data."""
        attributes, depth = vars(thing), max(depth, _DEEPEST - 3)
        if self._collector is not None:
            self._collector.add_object(thing, attributes, path)
        for name in HOOKS:
            if hooks := attributes.get(name):
                for i, key in enumerate(list(hooks)):
                    self._look(Place(hooks, key, (*path, name, i)), depth)
        hidden, is_optimizer = of_base(type(thing)), isinstance(thing, torch.optim.Optimizer)
        for key, value in list(attributes.items()):
            is_wanted = (isinstance(value, (dict, list, tuple)) and value) \
                or (is_optimizer and isinstance(value, torch.optim.Optimizer)) \
                or (hasattr(type(value), "__next__") and not may_enter(value))
            if key not in hidden and (is_wanted or (
                    self._farther and is_object(value) and (*path, key) in self._farther)):
                self._look(Place(attributes, key, (*path, key)), depth)
        self._look_farther(thing, path, depth)

    def _visit_optimizer(self, optimizer: torch.optim.Optimizer, path: Path, depth: int) -> None:
        self._finds += 1
        self.optimizers.append(optimizer)
        groups, states, attributes = optimizer.param_groups, optimizer.state, vars(optimizer)
        self.holders.append((states, (*path, "state")))
        for i, group in enumerate(groups):
            self._mark(group)
            self.holders.append((group, (*path, i)))
            self._add_tensors(group, (*path, i))
            if "params" in group:
                self._mark(group["params"])
                self._add_tensors(group["params"], (*path, i, "params"))
        for i, state in enumerate(list(states.values())):
            if isinstance(state, dict):
                self.holders.append((state, (*path, "state", i)))
                self._add_tensors(state, (*path, "state", i), counts=True)
        for i, group in enumerate(groups):
            self._add_way(Place(groups, i, (*path, i)), group, "guarded, in any order")
            if "params" in group:
                self._add_way(Place(group, "params", (*path, i, "params")), group["params"])
        self._add_way(Place(attributes, "param_groups", path), groups)
        self._add_way(Place(attributes, "state", (*path, "state")), states)
        self.holders.append((attributes, path))
        self._add_tensors(attributes, path)
        self._look_into_attributes(optimizer, path, depth)

    def _add_tensors(self, holder: Any, path: Path, counts: bool = False) -> None:
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in list(items):
            if isinstance(value, Tensor):
                self._add(Place(holder, key, (*path, key)), value, counts)


def name_of_wrapped(optimizer: torch.optim.Optimizer) -> str | None:
    """The attribute in which an optimizer holds another one whose parameters and state it shows as
    its own, as that of accelerate does."""
    for name, value in list(vars(optimizer).items()):
        if isinstance(value, torch.optim.Optimizer) \
                and value.param_groups is optimizer.param_groups:
            return name
    return None


def _parts(thing: Any) -> Iterator[tuple[Any, Any, Any]]:
    """The parts of a callable or an object that the walk looks at: name, holder and key."""
    if isinstance(thing, functools.partial):
        yield from numbered((thing.func, *thing.args))
        yield from ((f"keyword {name}", thing.keywords, name) for name in list(thing.keywords))
    elif isinstance(thing, types.MethodType):
        yield from numbered((thing.__self__, thing.__func__))
    elif isinstance(thing, types.FunctionType):
        yield from parts_of_function(thing)
    elif isinstance(thing, (set, frozenset)):
        yield from numbered(tuple(thing))
    elif callable(wrapped := found_in(thing, "__wrapped__")):  # a recorded callable
        yield "wrapped", (wrapped,), 0
    elif may_enter(thing):
        attributes = attributes_of(thing)
        yield from ((name, attributes, name) for name, _ in list(attributes.items()))
        if callable(thing) and isinstance(call := type(thing).__call__, types.FunctionType):
            yield "__call__", (call,), 0


def _kept_by(cache: Any) -> Iterator[Any]:
    for thing in gc.get_referents(cache):
        if thing is not vars(cache):
            yield from thing.values() if isinstance(thing, dict) else (thing,)


def _is_of_library(thing: Any) -> bool:
    """Whether it is an object of a library: it has attributes, and the walk enters it only along
    ``farther``."""
    return not isinstance(thing, (type, types.FunctionType, nn.Module)) \
        and isinstance(found_in(thing, "__dict__"), dict) and not may_enter(thing)
