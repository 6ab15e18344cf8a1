# SPDX-License-Identifier: Apache-2.0
"""The state of a step: the modules, optimizers and tensors that it uses besides its arguments.

A recording holds the addresses of these tensors, and the Python values that it was made with. So
the state is found once, as *places* (a holder and a key), and looked up again before each launch.
That shows a tensor that has moved or been replaced, and an object on the way to it that has been
replaced. A tensor that a capture names and that was not found is searched for along wider paths
(``capture/untracked.py``).

Threads: as the objects found. Failure: none; what cannot be walked is left out.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anabranch._record.checks import At, Check, Kind, answers, holding, packed
from anabranch._record.quick import tell_gradients
from anabranch._record.state.dotted import is_users
from anabranch._record.state.fingerprint import registered
from anabranch._record.state.guard_collector import GuardCollector, may_be_read
from anabranch._record.state.guards import Guards, GuardSet, GuardValues, is_often_new, is_plain
from anabranch._record.state.hooks import Hooks
from anabranch._record.state.namespaces import Lookup
from anabranch._record.state.number_places import (
    FOLLOWED,
    NO_NUMBERS,
    Hyperparameter,
    NumberPlaces,
    TupleItems,
    told_of_hyperparameter,
)
from anabranch._record.state.optimizer_checks import add_groups
from anabranch._record.state.paths import (
    ARGUMENT,
    Everywhere,
    Found,
    Path,
    Place,
    bare,
)
from anabranch._record.state.place_checks import PlaceChecks, Registers
from anabranch._record.state.read_set import NOTHING_READ, ReadSet
from anabranch._record.state.search_rules import NO_RULES, SearchRules
from anabranch._record.state.walk import Walk
from anabranch._record.tensors import (
    inner_tensors,
    is_pinned,
    is_wrapper,
    may_be_parameter,
    may_get_gradient,
    version_of,
)

_COUNTER_BYTES = 1 << 16

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class State:
    """The tensors, modules and optimizers that can be reached from a step, and the guards on them.

    Args:
        roots: the callable, and what the user named with ``state=``.
        arguments: objects among the arguments of the call.
        before: the previous state, to see which pinned tensors have been written since.
        base: a state of the same roots whose arguments have None in the places of batches. It is
            reused, and only the batches are walked: they are new in each call and lead to little.
    """

    def __init__(self, roots: Iterable[Any] = (), arguments: Sequence[Any] = (),
                 before: State | None = None, base: State | None = None,
                 rules: SearchRules = NO_RULES) -> None:
        farther, ignored, followed, often_new, seen = rules
        self._names: set[str]
        self._only_called: set[str]
        self._changing: GuardSet
        self._guard_set: GuardSet
        self.number = 0  # equal for states that one recording may serve
        self._roots, self._arguments, self._farther = tuple(roots), list(arguments), farther
        self.ignored, self.followed, self.often_new = ignored, followed, often_new
        self.told_seen = seen
        self._begin(base)
        indices = base._indices_now() if base else {}
        collector = GuardCollector(base._names, base._only_called, often_new) if base \
            else GuardCollector(often_new=often_new)
        walk = Walk((), _others(arguments, base), farther, base._known(indices), collector) \
            if base else self.walk_again(collector)
        self._walk = None if base else walk  # of everything, until forget_walk()
        leading = {id(value) for _, value in walk.ways}
        places = collector.places(leading)
        self._found = places  # also what is no guard
        self._seen: ReadSet = NOTHING_READ
        self._see_beyond(seen)
        self._followed_at: dict[Path, Lookup] = dict(base._followed_at) if base else {}
        if followed.paths:
            self._followed_at |= {path: (collector.settable(holder), key)
                                  for holder, paths in places.held
                                  for key, path in paths.items() if path in followed.paths}
            ignored = ignored.union(followed.paths)
        # What the step itself changes, as earlier calls have shown; not where all is ignored.
        changing = places.only(self.ignored if isinstance(self.ignored, frozenset) else ())
        self._changing = GuardSet([*base._changing.held, *changing.held]) if base else changing
        places = places.without(ignored)
        self._guard_set = GuardSet([*base._guard_set.held, *places.held]) if base else places
        self._names, self._only_called = collector.names, collector.only_called
        # Objects on the way to guarded values, where there are any.
        watched = {path: stand for path, stand in collector.watched.items()
                   if id(stand.thing) not in leading} if self._guard_set.held else {}
        self._watched |= {path: ((holder, key), thing)
                          for path, (holder, key, thing) in watched.items()}
        self._given += collector.given()
        self._hiding += collector.hiding
        self._kinds += collector.kinds()
        self.callables += [thing for thing, path in collector.callables.values()
                           if path[:1] != (ARGUMENT,)]
        self._guards: Guards | None = None
        for found in walk.tensors:
            self._sort(found, walk.more_places[id(found.tensor)])
        for tensor_id, index in indices.items():
            self._add_places(index, walk.more_places.get(tensor_id, []))
        self._keep(walk)
        # Places of parameters, and where else each of them stands. Others may come and go.
        self._of_parameters = [
            (place, more) for place, more in zip(self.places, self.more_places, strict=True)
            if (tensor := place.get()) is not None and may_be_parameter(tensor)]
        self._leaves = [place for place in (*self.places, *self.wrapped)
                        if (tensor := place.get()) is not None and may_get_gradient(tensor)
                        and place.path not in self._of_optimizers]
        self._shared = frozenset(frozenset([place.path, *(one.path for one in more)])
                                 for place, more in self._of_parameters if more)
        kinds = [(path, kind) for path, _, kind in self._kinds]
        self.fingerprint.append((("", "shared"), (self._shared, kinds)))
        self._modes = [vars(module) for module in self.modules if "training" in vars(module)]
        # Guards compare these by their ids. While they are held, nothing else gets these ids.
        pinned = standing(self.pinned)
        self.held = [*standing(self.on_cpu), *pinned]
        self._versions = {id(tensor): version_of(tensor) for tensor in pinned}
        known = before._versions if before else {}
        # Pinned tensors that have another version than before: the step may have written them.
        self.written = [tensor for tensor in pinned
                        if known.get(id(tensor), version_of(tensor)) != version_of(tensor)]
        self._ids: list[int] = []  # of the tensors that stood there last
        self._parameters: list[Tensor] = []  # and what may become one
        self.parameter_paths: list[Path] = []
        self.parameters()
        # The base, where it has all modules and optimizers already. Never this state
        # itself: without a cycle a state is freed as soon as nothing uses it.
        self._hooked = base if base and len(self.modules) == len(base.modules) \
            and len(self.optimizers) == len(base.optimizers) else None
        self._hooks: Hooks = self._hooked._hooks if self._hooked \
            else Hooks(self.modules, self.optimizers)

    def _begin(self, base: State | None) -> None:
        """Begins with what the base has, if there is one."""
        def begun(name: str) -> Any:
            return list(getattr(base, name)) if base else []

        self._base = base
        self.beside: dict[Path, Place] = {}  # where tensors that may move stand, if not in the base
        self.places: list[Place] = begun("places")  # plain tensors on a GPU: they may move
        self.more_places: list[list[Place]] = begun("more_places")  # where else each of them stands
        self._of_optimizers = set[Path](begun("_of_optimizers"))  # paths of what they keep
        self.wrapped: list[Place] = begun("wrapped")  # tensors of wrapping classes: these may not
        self.on_cpu: list[Place] = begun("on_cpu")  # read when recorded, and frozen
        # Copied from and to by each launch: they may not move.
        self.pinned: list[Place] = begun("pinned")
        # On the CPU, changed by every step of an optimizer.
        self.counters: list[Tensor] = begun("counters")
        self.generators: list[torch.Generator] = begun("generators")
        self.modules: list[nn.Module] = begun("modules")
        self.optimizers: list[torch.optim.Optimizer] = begun("optimizers")
        # By path, the fingerprints of the objects that lead to the tensors. A recording also serves
        # other objects whose fingerprints are equal.
        self.fingerprint: list[tuple[Path, Any]] = begun("fingerprint")[:-1]
        # Where the objects stand that lead to tensors, and those that lead to guarded values only.
        self._ways: list[tuple[Path, tuple[Lookup, Any]]] = begun("_ways")
        self._watched: dict[Path, tuple[Lookup, Any]] = dict(base._watched) if base else {}
        # What callables are made of, and the dictionaries of objects.
        self._given: list[tuple[Path, tuple[Lookup, Any]]] = begun("_given")
        self.callables: list[Any] = begun("callables")
        self._kinds: list[tuple[Path, Any, type]] = begun("_kinds")  # of objects
        # Where an attribute of an object itself would hide one of its class.
        self._hiding: list[tuple[Path, Lookup]] = begun("_hiding")
        # The ids of arguments that lead to tensors.
        self.leading: set[int] = set(begun("leading"))

    def _sort(self, found: Found, more: list[Place]) -> None:
        place, tensor, counts = found
        if is_wrapper(tensor):
            self.wrapped.append(place)
        elif tensor.is_cuda:
            if counts:
                self._of_optimizers.add(place.path)
            self.places.append(place)
            self.more_places.append([])
            self._add_places(len(self.places) - 1, more)
            if self._base is not None:
                self.beside[place.path] = place
        elif tensor.device.type == "cpu" and is_pinned(tensor):
            self.pinned.append(place)
        elif tensor.device.type == "cpu" and counts:
            self.counters.append(tensor)
        elif tensor.device.type == "cpu":
            self.on_cpu.append(place)

    @property
    def base(self) -> State:
        return self._base or self

    def _add_places(self, index: int, more: list[Place]) -> None:
        if more:
            self.more_places[index] = [*self.more_places[index], *more]
        if self._base is not None:
            self.beside.update((place.path, place) for place in more)

    def _indices_now(self) -> dict[int, int]:
        """Where in ``places`` each tensor stands now, by its id."""
        return {id(tensor): i for i, place in enumerate(self.places)
                if (tensor := place.get()) is not None}

    def _known(self, indices: dict[int, int]) -> Iterator[int]:
        """The ids of everything alive that is a tensor of this state or leads to one."""
        others = [place.get() for place in (*self.wrapped, *self.on_cpu, *self.pinned)]
        stood = [thing for _, (_, thing) in self._ways]
        things = (stood, self.modules, self.generators, self.counters, others)
        return itertools.chain(indices, map(id, itertools.chain(*things)))

    def _keep(self, walk: Walk) -> None:
        """Stores what is_current() and leads_as() compare, and the fingerprint."""
        self.generators += walk.generators
        self.modules += walk.modules
        self.optimizers += walk.optimizers
        self.fingerprint += walk.fingerprint
        self.leading |= {id(value) for place, value in walk.ways if place.path[:-1] == (ARGUMENT,)}
        self._ways += [(place.path, ((place.holder, place.key), thing))
                       for place, thing in walk.ways]
        self._members = [(module._modules, tuple(dict.values(module._modules)))
                         for module in self.modules
                         if module._modules or is_users(type(module).__module__)]
        self._classes = list(map(type, self.modules))
        self._registered = list(map(registered, self.modules))
        self._in_groups = [list(map(id, group.get("params", ()))) for optimizer in self.optimizers
                           for group in optimizer.param_groups]
        self._states = [(one.state, list(one.state.values())) for one in self.optimizers]
        checks = PlaceChecks(Registers())
        self._add_ways(checks)
        self._stands = holding(checks.in_order(()))
        # Objects that were looked into beside the base.
        self.entered_beside = {path: place for path, (place, _) in walk.entered.items()} \
            if self._base else {}

    def walk_again(self, collector: GuardCollector | None = None) -> Walk:
        """Everything that can be found by now."""
        return Walk(self._roots, self._arguments, self._farther, collector=collector)

    def walk_before_run(self) -> Walk:
        """The same before the step's Python runs: the walk that has found the state, in the call
        that it was found for."""
        return self._walk or self.walk_again()

    def forget_walk(self) -> None:
        """To be called when that call ends. What the walk has met need not live on."""
        self._walk = None

    def see(self, seen: ReadSet) -> None:
        """Code was seen to read that."""
        if self._base is not None:
            self._base.see(seen)
        self.told_seen = seen
        self._see_beyond(seen)

    def _see_beyond(self, seen: ReadSet) -> None:
        self._seen = self._base._seen if self._base is not None else seen.beyond(self._found.held)

    def objects(self) -> dict[Path, Any]:
        """Before the step's Python runs: all objects that the walk enters, by their paths, but for
        those that cannot change."""
        return {path: value for path, (_, value) in self.walk_before_run().entered.items()
                if not isinstance(value, (tuple, frozenset))}

    def places_of(self, paths: Collection[Path]) -> list[Place] | None:
        """Where the objects of these paths stand; None where one is not there."""
        places = self.entered_beside
        if not all(path in places for path in paths):
            places = {path: place for path, (place, _) in self.walk_again().entered.items()}
        return [places[path] for path in paths] if all(path in places for path in paths) else None

    def ways_to(self, tensors: Iterable[Tensor]) -> set[Path] | None:
        """The paths to follow besides, so that these tensors are found, too. None where nothing
        leads to one of them, or all these paths have been followed in vain."""
        all_wanted, ways = set(map(id, tensors)), set[Path]()
        wanted, walk = set(all_wanted), Walk(self._roots, self._arguments, Everywhere())
        for place, tensor, _ in walk.tensors:
            there = wanted.intersection(map(id, inner_tensors(tensor)))
            for path in [place.path, *(more.path for more in walk.more_places[id(tensor)])]:
                ways.update(path[:end] for end in range(1 + len(path)) if there)
            wanted -= there
        if wanted:
            return None
        if not self._farther.issuperset(ways):
            return ways
        # Unless the tensor came there after the walk: what a cache keeps has its id for a name.
        known = {*self._indices_now(), *map(id, self.inner_tensors())}
        found = {id(inner) for there in self.walk_again().tensors
                 for inner in inner_tensors(there.tensor)}
        return ways if found.issuperset(all_wanted) and not known.issuperset(all_wanted) else None

    def is_of(self, arguments: Sequence[Any]) -> bool:
        """Whether it was found with these objects."""
        return _are_same(self._arguments, arguments)

    def argument(self, number: int) -> Any:
        """One of the objects that it was found with."""
        return self._arguments[number]

    def is_current(self) -> bool:
        """Whether all objects on the way to tensors and guarded values still stand in their
        places, and one parameter where one stood, though that may be another."""
        return bool(self._stands.holds()) and self._are_apart()

    def _are_apart(self) -> bool:
        leaves = list(map(id, filter(may_be_parameter, standing(self._leaves))))
        if leaves != self._ids:
            self._ids = leaves
            self.parameters()
        found = [place.get() for place, _ in self._of_parameters]
        there = [id(tensor) for tensor in found if tensor is not None]
        return len(set(there)) == len(there) and all(
            place.get() is tensor
            for tensor, (_, more) in zip(found, self._of_parameters, strict=True) for place in more)

    def replaced_containers(self) -> set[Path]:
        """Where a list or dictionary of plain values has been replaced by another one since. Only
        where a dictionary holds it, such as the attributes of an object."""
        return {path for path, ((holder, key), thing) in self._watched.items()
                if type(holder) is dict and (now := holder.get(key)) is not thing
                and type(now) is type(thing) and is_often_new(now) and is_often_new(thing)}

    def leads_as(self, other: State) -> bool:
        """Whether the same objects lead to the tensors."""
        return len(self._ways) == len(other._ways) \
            and all(thing is theirs for (_, (_, thing)), (_, (_, theirs)) in
                    zip(self._ways, other._ways, strict=True)) \
            and self._classes == other._classes and self._registered == other._registered \
            and self._shared == other._shared \
            and [kind for *_, kind in self._kinds] == [kind for *_, kind in other._kinds] \
            and list(map(len, self._in_groups)) == list(map(len, other._in_groups)) \
            and [values for _, values in self._members] \
            == [values for _, values in other._members] \
            and len(self._states) == len(other._states) \
            and all(mapping is theirs and _are_same(values, values_there) for (
                mapping, values), (theirs, values_there) in
                zip(self._states, other._states, strict=True))

    def by_path(self) -> dict[Path, Place]:
        """All places of tensors that may move, by their paths."""
        return {place.path: place for places in ([one, *more] for one, more in
                                                 zip(self.places, self.more_places, strict=True))
                for place in places}

    def tensors(self) -> list[Tensor]:
        """The tensors that may move, as they are now. KeyError or the like where one is gone."""
        return [place.holder[place.key] for place in self.places]

    def inner_tensors(self) -> list[Tensor]:
        """The tensors that may not move: those inside tensors of wrapping classes."""
        return [inner for tensor in standing(self.wrapped) for inner in inner_tensors(tensor)]

    def on_host(self) -> list[Tensor]:
        """Tensors on the CPU that a step may write: counters and the like, no data sets."""
        return [*self.counters, *(tensor for tensor in standing(self.on_cpu)
                                  if tensor.numel() * tensor.element_size() <= _COUNTER_BYTES)]

    def parameters(self) -> list[Tensor]:
        """The tensors, as they are now, to which backward may give a ``.grad``, and those that have
        one: an optimizer's step uses it, even where they no longer require gradients."""
        found = [(place.path, tensor) for place in self._leaves
                 if (tensor := place.get()) is not None and may_be_parameter(tensor)]
        self._parameters = [tensor for _, tensor in found]
        self.parameter_paths = [path for path, tensor in found if _concerns_gradients(tensor)]
        return [tensor for tensor in self._parameters if _concerns_gradients(tensor)]

    def may_become_parameter(self, path: Path, tensor: Tensor) -> bool:
        """By requires_grad_(). Not what an optimizer has for its parameters: it is used without
        gradients."""
        return not may_be_parameter(tensor) and may_get_gradient(tensor) \
            and path not in self._of_optimizers

    def hyperparameter_names(self) -> list[Hyperparameter]:
        """In the order of their guards."""
        return [(i, j, key, None) for i, optimizer in enumerate(self.optimizers)
                for j, group in enumerate(optimizer.param_groups)
                for key in group if key != "params"]

    def number_holders(self, places: NumberPlaces) -> list[Lookup] | None:
        """Where those of the followed numbers stand that are no arguments; None where one does
        not."""
        try:
            groups = [(self.optimizers[i].param_groups[j], key, index)
                      for i, j, key, index in places.hyperparameters]
            return [*((group, key) if index is None else (TupleItems(group, key), index)
                      for group, key, index in groups),
                    *(self._followed_at[path] for path in places.paths)]
        except (IndexError, KeyError):
            return None

    def _with_followed(self, hyperparameters: list[Any]) -> list[Any]:
        """Without the values of followed numbers; what stands in the places of those that are no
        hyperparameters comes behind."""
        followed = set(self.followed.hyperparameters)
        told = [told_of_hyperparameter(name, value, followed) for name, value in
                zip(self.hyperparameter_names(), hyperparameters, strict=True)]
        for path in self.followed.paths:
            holder, key = self._followed_at.get(path, ((None,), 0))
            try:
                value = holder[key]
            except (KeyError, IndexError, ValueError):
                value = None
            told.append(FOLLOWED if type(value) is float else
                        (type(value), value if is_plain(value) else id(value)))
        return told

    def guards(self) -> Guards:
        """The guarded values as they are now. Without an optimizer, and with gradients off, missing
        gradients are not guarded: launches that read some look for themselves."""
        now = (
            self._modes_told(),
            self._gradients_told()
            if self.optimizers or torch.is_grad_enabled() else None,
            self._hyperparameters_told(),
            tuple([(id(tensor), _told_on_cpu(tensor)) for tensor in standing(self.on_cpu)])
            if self.on_cpu else (),
            tuple([(id(tensor), tensor.data_ptr()) for tensor in standing(self.pinned)])
            if self.pinned else (),
            self._hooks_now(),
            self._seen.now(),
            self._guard_set.now(),
        )
        if self._guards is None or self._guards.values != now:
            self._guards = Guards(now)
        return self._guards

    def _hooks_now(self) -> tuple[Any, ...]:
        return self._hooks.now((self._hooked or self)._parameters)

    def _modes_told(self) -> tuple[Any, ...]:
        """Which modules train."""
        return tuple([attributes["training"] for attributes in self._modes])

    def _hyperparameters_told(self) -> tuple[Any, ...]:
        """Of all groups, without tensors."""
        found = [None if isinstance(value, Tensor) else value for optimizer in self.optimizers
                 for group in optimizer.param_groups
                 for key, value in group.items() if key != "params"]
        return tuple(found if self.followed is NO_NUMBERS else self._with_followed(found))

    def _gradients_told(self) -> bytes:
        """Which parameters require gradients (1), and which have none (2)."""
        return tell_gradients(self._parameters)

    def add_checks(self, checks: PlaceChecks, follows: NumberPlaces, guards: Guards) -> None:
        """That all is as it is now, but for tensors that may move, and numbers that are followed;
        gradients are to be as these guards tell. Raises NotQuick."""
        for attributes in self._modes:
            checks.add((attributes, "training"), Kind.EQUALS, attributes["training"],
                       name="which modules train")
        self._add_ways(checks)
        add_groups(checks, self.optimizers, follows)
        self._add_followed(checks, follows)
        self._seen.add_checks(checks)
        self._guard_set.add_checks(checks)
        (self._hooked or self)._hooks.add_checks(checks)
        for place in (*self.on_cpu, *self.pinned):
            checks.add((place.holder, place.key), Kind.IS, place.get(), place.path)
        checks.all += [answers(_told_on_cpu, (tensor,), _told_on_cpu(tensor), "tensors on the CPU")
                       for tensor in standing(self.on_cpu)]
        checks.all += [answers(Tensor.data_ptr, (tensor,), tensor.data_ptr(), "pinned tensors")
                       for tensor in standing(self.pinned)]
        if guards.gradients:
            which = packed(map(checks.registers.of, self._parameters))
            checks.all.append(Check(Kind.GRADIENTS, At.ITSELF, None, which, guards.gradients,
                                    name="which gradients there are"))

    def _add_ways(self, checks: PlaceChecks) -> None:
        """That all objects on the way to tensors and guarded values stand in their places."""
        for path, (lookup, thing) in (*self._ways, *self._watched.items(), *self._given):
            checks.add(lookup, Kind.IS, thing, path)
        for path, thing, kind in self._kinds:
            checks.add_kind(thing, kind, path)
        for path, lookup in self._hiding:
            checks.add(lookup, Kind.ABSENT, None, path)
        for module, kind in zip(self.modules, self._classes, strict=True):
            self._add_module(checks, module, kind)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                if "params" in group:
                    checks.add_length(group["params"], len(group["params"]), name="param_groups")
        for registry, values in self._members:
            checks.all.append(Check(Kind.VALUES, At.ITSELF, registry, None, values,
                                    name="the modules in a module"))
        for mapping, states in self._states:
            if type(mapping).values is dict.values and type(mapping).__len__ is dict.__len__:
                checks.all.append(Check(Kind.VALUES, At.ITSELF, mapping, None, tuple(states),
                                        name="an optimizer's state"))
            else:
                checks.add_length(mapping, len(states), name="an optimizer's state")
                for key, state in zip(mapping, states, strict=True):
                    checks.add((mapping, key), Kind.IS, state, name="an optimizer's state")

    @staticmethod
    def _add_module(checks: PlaceChecks, module: nn.Module, kind: type) -> None:
        """That it has the same class, and as many tensors by the same names. A class of a library
        gives names to none that has none."""
        is_own = is_users(kind.__module__)
        checks.all.append(Check(Kind.TYPE, At.ITSELF, module, None, kind, name="a module's class"))
        for name in _REGISTRIES:
            registry = vars(module)[name]
            checks.add((vars(module), name), Kind.IS, registry, name="a module's tensors")
            if (registry or is_own) and name != "_modules":
                checks.all.append(Check(Kind.KEYS, At.ITSELF, registry, None, tuple(registry),
                                        name="a module's tensors"))
                for key, thing in registry.items():
                    if not isinstance(thing, Tensor):
                        checks.add((registry, key), Kind.IS, thing, name="a module's tensors")

    def _add_followed(self, checks: PlaceChecks, follows: NumberPlaces) -> None:
        """Of the values that code names."""
        first = len(follows.arguments) + len(follows.hyperparameters)
        for path in self.followed.paths:
            holder, key = self._followed_at[path]
            if path in follows.paths:
                checks.add((holder, key), Kind.FLOAT, path=path,
                           to=first + follows.paths.index(path))
            else:
                value = holder[key]
                checks.add((holder, key), Kind.EQUALS if is_plain(value) else Kind.IS, value, path)

    def may_be_read(self, name: str) -> bool:
        """Whether the step's code may read an attribute of this name."""
        return may_be_read(name, self._names)

    def python_values(self) -> GuardValues | None:
        """The Python values that the step may read, as they are now; None where one is gone."""
        return self._guard_set.now()

    def guarded_paths(self) -> Container[Path]:
        """Of Python values, bare."""
        if not isinstance(self.ignored, frozenset):
            return self.ignored  # none is, and that is what the user wants
        return {bare(path) for paths in (self._guard_set.paths(), self._seen.paths())
                for path in paths}

    def seen_values(self) -> GuardValues:
        """What code was seen to read besides, as it is now."""
        return self._seen.now()

    def changing_values(self) -> GuardValues | None:
        """Of those that the step itself changes, as they are now; None where one is gone."""
        return self._changing.now()


def standing(places: Iterable[Place]) -> list[Tensor]:
    """The tensors that stand at these places now."""
    return [tensor for place in places if (tensor := place.get()) is not None]


def _told_on_cpu(tensor: Tensor) -> tuple[Any, bool]:
    return version_of(tensor), tensor.requires_grad


def _concerns_gradients(parameter: Tensor) -> bool:
    return parameter.requires_grad or parameter.grad is not None


def _others(arguments: Sequence[Any], base: State) -> list[Any]:
    """The arguments, with None in place of those that the base has."""
    return [None if known is argument else argument
            for argument, known in zip(arguments, base._arguments, strict=True)]


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


NO_STATE = State()  # of a step that uses nothing besides its arguments
