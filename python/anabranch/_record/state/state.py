# SPDX-License-Identifier: Apache-2.0
"""What a step uses beside its arguments: modules, optimizers and tensors that it can reach.

A recording holds their addresses and whatever Python said when it was made. So a step's state is
found once, as *places* (a holder and a key), and looked up again before each launch: a tensor
that moved, or another one in its place, is seen, and so is another object on the way to it. Where a
capture names a tensor that was not found, it is looked for farther away (``capture/untracked.py``).

Threads: as the objects found. Failure: none; what cannot be walked is left out.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anabranch._record.state.guard_collector import GuardCollector
from anabranch._record.state.guards import Guards, GuardSet, GuardValues
from anabranch._record.state.hooks import Hooks
from anabranch._record.state.paths import ARGUMENT, Everywhere, Found, Ignored, Path, Place
from anabranch._record.state.walk import Walk
from anabranch._record.state.watch_list import Lookup, WatchList
from anabranch._record.tensors import inner_tensors, is_wrapper, may_be_parameter, version_of

_COUNTER_BYTES = 1 << 16
_TRAINING = operator.itemgetter("training")


class State:
    """Everything found from a callable, from what the user named, and from objects that it is
    given. ``before`` is what was found when it was looked for last, so that what has been written
    since is known; ``farther`` where one has to look besides, see Walk. ``base`` is the state, as
    it is now, of the roots and some of the arguments, and None in the others' places: those that
    are given again, where the others, batches, are new ones in each call and few things lead from
    them. Numbers are ``ignored`` where the step itself has changed them."""

    def __init__(self, roots: Iterable[Any] = (), arguments: Sequence[Any] = (),
                 before: State | None = None, farther: frozenset[Path] = frozenset(),
                 base: State | None = None, ignored: Ignored = frozenset()) -> None:
        self._names: set[str]
        self._numbers: GuardSet
        self.number = 0  # equal for those that recordings need not tell apart
        self._roots, self._arguments, self._farther = tuple(roots), list(arguments), farther
        self.ignored = ignored
        self._begin(base)
        numbers = base._numbers_now() if base else {}
        collector = GuardCollector(base._names if base else ())
        walk = Walk((), _others(arguments, base), farther, base._known(numbers), collector) \
            if base else self.walk_again(collector)
        leading = {id(value) for _, value in walk.ways}
        places = collector.places(leading).without(ignored)
        self._numbers = GuardSet([*base._numbers.held, *places.held]) if base else places
        self._names = collector.names
        # What is on the way to guarded values, where there are any.
        watched = [stand for stand in collector.watched if id(stand.thing) not in leading] \
            if self._numbers.held else []
        self._watched += [((holder, key), thing) for holder, key, thing in watched]
        self._guards: Guards | None = None
        for found in walk.tensors:
            self._sort(found, walk.more_places[id(found.tensor)])
        for tensor_id, number in numbers.items():
            self._add_places(number, walk.more_places.get(tensor_id, []))
        self._keep(walk)
        self._modes = [vars(module) for module in self.modules if "training" in vars(module)]
        # Guards tell these by their ids, which nothing else may get.
        pinned = standing(self.pinned)
        self.held = [*standing(self.on_cpu), *pinned]
        self._versions = {id(tensor): version_of(tensor) for tensor in pinned}
        known = before._versions if before else {}
        # Of the pinned ones: the step has written them, for all that is known.
        self.written = [tensor for tensor in pinned
                        if known.get(id(tensor), version_of(tensor)) != version_of(tensor)]
        self._parameters: list[Tensor] = []  # and what may become one
        self.parameter_paths: list[Path] = []
        self.parameters()
        # Of a base that has all modules and optimizers already. No reference to itself: a state is
        # let go of as soon as nothing uses it.
        self._hooked = base if base and len(self.modules) == len(base.modules) \
            and len(self.optimizers) == len(base.optimizers) else None
        self._hooks: Hooks = self._hooked._hooks if self._hooked \
            else Hooks(self.modules, self.optimizers)

    def _begin(self, base: State | None) -> None:
        """With what the base has, or nothing."""
        def begun(name: str) -> Any:
            return list(getattr(base, name)) if base else []

        self._base = base
        self.beside: dict[Path, Place] = {}  # where tensors that may move stand, if not in the base
        self.places: list[Place] = begun("places")  # plain tensors on a GPU: they may move
        self.more_places: list[list[Place]] = begun("more_places")  # where else each of them stands
        self.wrapped: list[Place] = begun("wrapped")  # tensors of wrapping classes: these may not
        self.on_cpu: list[Place] = begun("on_cpu")  # read when recorded, and frozen
        # Copied from and to by each launch: they may not move.
        self.pinned: list[Place] = begun("pinned")
        # On the CPU, changed by every step of an optimizer.
        self.counters: list[Tensor] = begun("counters")
        self.generators: list[torch.Generator] = begun("generators")
        self.modules: list[nn.Module] = begun("modules")
        self.optimizers: list[torch.optim.Optimizer] = begun("optimizers")
        # Other objects may lead to the tensors that a step cannot tell from these: of the same
        # types, with the same numbers and functions in them. Then their forms are equal.
        self.fingerprint: list[tuple[Path, Any]] = begun("fingerprint")
        # Where that stands which leads there, and the same of what leads to guarded values alone.
        self._ways: list[tuple[Lookup, Any]] = begun("_ways")
        self._watched: list[tuple[Lookup, Any]] = begun("_watched")
        # Of the arguments that lead to anything, their ids.
        self.leading: set[int] = set(begun("leading"))

    def _sort(self, found: Found, more: list[Place]) -> None:
        place, tensor, counts = found
        if is_wrapper(tensor):
            self.wrapped.append(place)
        elif tensor.is_cuda:
            self.places.append(place)
            self.more_places.append([])
            self._add_places(len(self.places) - 1, more)
            if self._base is not None:
                self.beside[place.path] = place
        elif tensor.device.type == "cpu" and counts:
            self.counters.append(tensor)
        elif tensor.device.type == "cpu":
            (self.pinned if _is_pinned(tensor) else self.on_cpu).append(place)

    @property
    def base(self) -> State:
        return self._base or self

    def _add_places(self, number: int, more: list[Place]) -> None:
        if more:
            self.more_places[number] = [*self.more_places[number], *more]
        if self._base is not None:
            self.beside.update((place.path, place) for place in more)

    def _numbers_now(self) -> dict[int, int]:
        """Of the tensors that stand there now, by their ids."""
        return {id(tensor): i for i, place in enumerate(self.places)
                if (tensor := place.get()) is not None}

    def _known(self, numbers: dict[int, int]) -> Iterator[int]:
        """The ids of all that leads anywhere and is alive."""
        others = [place.get() for place in (*self.wrapped, *self.on_cpu, *self.pinned)]
        stood = [thing for _, thing in self._ways]
        things = (stood, self.modules, self.generators, self.counters, others)
        return itertools.chain(numbers, map(id, itertools.chain(*things)))

    def _keep(self, walk: Walk) -> None:
        """What is_current() and leads_as() compare, and what a state is like."""
        self.generators += walk.generators
        self.modules += walk.modules
        self.optimizers += walk.optimizers
        self.fingerprint += walk.fingerprint
        self.leading |= {id(value) for place, value in walk.ways if place.path[:-1] == (ARGUMENT,)}
        self._ways += [((place.holder, place.key), thing) for place, thing in walk.ways]
        self.watch = WatchList([*self._ways, *self._watched], self.modules,
                               [one.state for one in self.optimizers])
        # Objects that were looked into beside the base.
        self.entered_beside = {path: place for path, (place, _) in walk.entered.items()} \
            if self._base else {}

    def walk_again(self, collector: GuardCollector | None = None) -> Walk:
        """What there is to be found by now."""
        return Walk(self._roots, self._arguments, self._farther, numbers=collector)

    def objects(self) -> dict[Path, Any]:
        """All that were looked into, as they are now. Of what cannot change it does not matter
        which one it is."""
        return {path: value for path, (_, value) in self.walk_again().entered.items()
                if not isinstance(value, (tuple, frozenset))}

    def places_of(self, paths: Collection[Path]) -> list[Place] | None:
        """Where such objects stand; None where one is not there."""
        places = self.entered_beside
        if not all(path in places for path in paths):
            places = {path: place for path, (place, _) in self.walk_again().entered.items()}
        return [places[path] for path in paths] if all(path in places for path in paths) else None

    def ways_to(self, tensors: Iterable[Tensor]) -> set[Path] | None:
        """Where to look besides, to find these too. None where one would not be found, or it has
        looked there in vain."""
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
        # Something may have come there since: what a cache keeps is named by its id.
        known = {*self._numbers_now(), *map(id, self.inner_tensors())}
        found = {id(inner) for there in self.walk_again().tensors
                 for inner in inner_tensors(there.tensor)}
        return ways if found.issuperset(all_wanted) and not known.issuperset(all_wanted) else None

    def is_of(self, arguments: Sequence[Any]) -> bool:
        """Whether it was found with these objects."""
        return _are_same(self._arguments, arguments)

    def is_current(self) -> bool:
        """Whether everything on the way to the tensors and to guarded values stands where it
        stood."""
        return self.watch.look() is not None

    def leads_as(self, other: State) -> bool:
        """Whether the same objects lead to the tensors."""
        return len(self._ways) == len(other._ways) \
            and all(thing is theirs for (_, thing), (_, theirs) in
                    zip(self._ways, other._ways, strict=True)) \
            and self.watch.has_members_of(other.watch)

    def by_path(self) -> dict[Path, Place]:
        """Where tensors that may move stand, each as often as it does."""
        return {place.path: place for places in ([one, *more] for one, more in
                                                 zip(self.places, self.more_places, strict=True))
                for place in places}

    def tensors(self) -> list[Tensor]:
        """Those that may move, as they are now. KeyError and its like where one is gone."""
        return [place.holder[place.key] for place in self.places]

    def inner_tensors(self) -> list[Tensor]:
        """Those that may not move: the insides of wrapping classes."""
        return [inner for tensor in standing(self.wrapped) for inner in inner_tensors(tensor)]

    def on_host(self) -> list[Tensor]:
        """What a step may write on the CPU: counters and the like, no data sets."""
        return [*self.counters, *(tensor for tensor in standing(self.on_cpu)
                                  if tensor.numel() * tensor.element_size() <= _COUNTER_BYTES)]

    def parameters(self) -> list[Tensor]:
        """Tensors that backward may give a ``.grad``, or that have one, as they are now: a step of
        their optimizer uses it, though nobody wants it any more."""
        found = [(place.path, tensor) for place in (*self.places, *self.wrapped)
                 if (tensor := place.get()) is not None and may_be_parameter(tensor)]
        self._parameters = [tensor for _, tensor in found]
        self.parameter_paths = [path for path, tensor in found if _concerns_gradients(tensor)]
        return [tensor for tensor in self._parameters if _concerns_gradients(tensor)]

    def guards(self) -> Guards:
        """What Python says about the state and a recording has frozen. Where nobody asks for
        gradients, whether there are any is left to launches that read some."""
        now = (
            tuple(map(_TRAINING, self._modes)),
            tuple([parameter.requires_grad + 2 * (parameter.grad is None)
                   for parameter in self._parameters])
            if self.optimizers or torch.is_grad_enabled() else None,
            tuple([None if isinstance(value, Tensor) else value for optimizer in self.optimizers
                   for group in optimizer.param_groups
                   for key, value in group.items() if key != "params"])
            if self.optimizers else (),
            tuple([(id(tensor), version_of(tensor)) for tensor in standing(self.on_cpu)])
            if self.on_cpu else (),
            tuple([(id(tensor), tensor.data_ptr()) for tensor in standing(self.pinned)])
            if self.pinned else (),
            self._hooks.now((self._hooked or self)._parameters),
            self._numbers.now(),
        )
        if self._guards is None or self._guards.values != now:
            self._guards = Guards(now)
        return self._guards

    def numbers(self) -> GuardValues | None:
        """Those of Python's that the step may read, as they are now; None where one is gone."""
        return self._numbers.now()

    @staticmethod
    def hyperparameters(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        """Values that are no tensors; a tensor's value is read by the kernels."""
        return tuple([
            tuple([value if not isinstance(value, Tensor) else None
                   for key, value in group.items() if key != "params"])
            for group in optimizer.param_groups
        ])


def standing(places: Iterable[Place]) -> list[Tensor]:
    """What stands there now, where something does."""
    return [tensor for place in places if (tensor := place.get()) is not None]


def _concerns_gradients(parameter: Tensor) -> bool:
    return parameter.requires_grad or parameter.grad is not None


def _others(arguments: Sequence[Any], base: State) -> list[Any]:
    """Those that the base has not, each in its place."""
    return [None if known is argument else argument
            for argument, known in zip(arguments, base._arguments, strict=True)]


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_pinned()


NO_STATE = State()  # of what uses nothing beside its arguments
