# SPDX-License-Identifier: Apache-2.0
"""Call plans: what calls of a recorded step are checked for, and launched by.

The full way of a call finds the state, makes the signature, and looks the specialization up. Nearly
all calls find what an earlier one found. So a call that has gone that way leaves a plan, which
answers later calls of the kind: checks that nothing which that way has looked at is another now,
and the launch behind them. Tensors may be others where they lie alike, and so may objects of the
arguments (``call_shape``). Where a check does not hold, the call goes the full way, which is right
whatever has changed.

Threads: any; lists are changed under the interpreter's lock alone. Failure: none; what cannot be
checked has no plan.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from anabranch._record.checks import (
    ARGUMENTS,
    GUARDED,
    KEYWORDS,
    At,
    CallPlan,
    Check,
    Kind,
    Launched,
    answers,
    item,
    modes,
    packed,
)
from anabranch._record.draws.taken import Drawn
from anabranch._record.memory.garbage import no_collection
from anabranch._record.quick import modes_told, tell_gradients
from anabranch._record.signatures.call_shape import CallShape, likeness_to
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.state.guards import Guards
from anabranch._record.state.paths import name_of
from anabranch._record.state.place_checks import NotQuick, PlaceChecks, Registers
from anabranch._record.state.state import State
from anabranch._record.tensors import layout_of

_MOST = 64  # plans of one callable


@dataclasses.dataclass
class Call:
    """What the full way of a call has found. ``leaves`` are those of the arguments, behind what
    stands for their containers; ``told`` is what the signature has of each; ``objects`` are the ids
    of those that later calls give again."""

    args: Any
    kwargs: Any
    guarded: Any
    leaves: Sequence[Any]
    told: Sequence[Any]
    objects: tuple[int, ...]
    state: State
    guards: Guards


# See ``otherwise`` of checks.Launched.
Launch = Callable[..., Any]


class CallPlans:
    """Of one callable. ``of_args`` are tried with its arguments as they are, ``of_leaves`` with a
    list of their leaves, for what only torch can take apart."""

    def __init__(self) -> None:
        self.of_args: list[Any] = []
        self.of_leaves: list[Any] = []
        self._made: dict[int, _Made] = {}  # by the ids of plans

    def keep(self, states: Sequence[State]) -> None:
        """Lets go of what belongs to none of these: it would keep its state's tensors. And of what
        has been retired, which would keep its recording."""
        alive = {id(state.base) for state in states}
        self._drop(lambda made: id(made.state.base) not in alive or made.spec.is_retired)

    def _drop(self, is_gone: Callable[[_Made], bool]) -> None:
        gone = {number for number, made in list(self._made.items()) if is_gone(made)}
        for plans in (self.of_args, self.of_leaves) if gone else ():
            plans[:] = [plan for plan in plans if id(plan) not in gone]
        for number in gone:
            self._made.pop(number, None)

    def add(self, call: Call, spec: Specialization, bound: BoundState | None,
            launch: Launch) -> None:
        """A plan of what has just been launched, in front of those that are there. Not each time
        where earlier ones have not been of use. ``bound`` is None where nothing is launched: the
        step takes something from an iterator first."""
        key, misses = (id(spec), call.objects), spec.plan_misses
        before = next((made for made in self._made.values() if made.key == key), None)
        if before is not None and (name := before.plan.missed()):
            spec.slow_calls, spec.slow_because = spec.slow_calls + 1, name
        is_used = before is not None and before.is_used()
        misses[call.objects] = 1 if is_used else 1 + misses.get(call.objects, 0)
        if misses[call.objects] & (misses[call.objects] - 1):
            return
        with no_collection():  # of thousands of checks, none of which is garbage
            made = self._plan_of(call, spec, bound, launch)
        self._drop(lambda other: other.key == key)
        if made is not None:
            plan, plans = made
            self._made[id(plan)] = _Made(plan, spec, call.state, key, spec.plans_used)
            plans.insert(0, plan)
            self._drop(lambda other: len(plans) > _MOST and other.plan is plans[-1])

    def _plan_of(self, call: Call, spec: Specialization, bound: BoundState | None,
                 launch: Launch) -> tuple[Any, list[Any]] | None:
        for is_of_args in (False,) if isinstance(call.leaves[0], Drawn) else (True, False):
            try:
                maker = _Maker(call, spec, bound, is_of_args)
                plan = maker.gate(launch) if bound is None else maker.plan(launch)
            except (NotQuick, LookupError, ValueError):  # or something has gone
                continue
            return plan, self.of_args if is_of_args else self.of_leaves
        return None


@dataclasses.dataclass
class _Made:
    plan: Any
    spec: Specialization
    state: State
    key: Any
    launches: int  # of the specialization's plans, when it was made

    def is_used(self) -> bool:
        return self.spec.plans_used > self.launches


class _Maker:
    """Of one plan."""

    def __init__(self, call: Call, spec: Specialization, bound: BoundState | None,
                 is_of_args: bool) -> None:
        self._call, self._spec = call, spec
        if bound is not None:
            self._bound = bound
        self._is_of_args = is_of_args
        self._registers = Registers()
        self._follows = spec.follows
        self._likenesses: dict[Any, Any] = {}
        self._shape = CallShape(self._registers, call.state.leading, call.told[1:], {
            leaf - 1: number for number, leaf in enumerate(self._follows.arguments)},
            call.state.may_be_read)

    def gate(self, launch: Launch) -> Any:
        """Of a call that takes something from an iterator. Raises as plan() does."""
        call, spec = self._call, self._spec
        if not call.state.guards().are_but_for_gradients(call.guards):
            raise NotQuick("it is not what was looked at")
        first, checks = [modes(modes_told()), *self._of_arguments()], PlaceChecks(self._registers)
        call.state.add_checks(checks, self._follows, call.guards)
        for name, value in (("draw", spec.draw), ("is_retired", False)):
            checks.add((vars(spec), name), Kind.IS, value, name="what it takes")
        return CallPlan(checks.in_order(first), Launched(
            self._registers.kept, otherwise=launch, calls=spec.passes))

    def plan(self, launch: Launch) -> Any:
        """Raises NotQuick, and what a thing that is gone raises."""
        call, spec, bound = self._call, self._spec, self._bound
        state, recording = call.state, spec.recording
        if recording is None or not state.guards().are_but_for_gradients(call.guards):
            raise NotQuick("it is not what was launched")
        first = [modes(modes_told()), *self._of_arguments()]
        checks = PlaceChecks(self._registers)
        state.add_checks(checks, self._follows, call.guards)
        self._add_side_effects(checks)
        known = self._known(checks)
        self._add_own(checks)
        all_owners = spec.owners(call.leaves, bound.parameters)
        owners = packed(map(self._registers.of, all_owners))
        given = packed([*(self._leaf(i) for i in spec.arguments), *known])
        direct = recording.direct_or_none() if not bound.mutations and not bound.objects \
            and spec.on_host is None and recording.has_words == bool(self._follows) else None
        if direct is not None:
            checks.add((vars(recording), "direct"), Kind.IS, direct, name="how it is launched")
            if bound.mutations is not None:
                direct = direct._replace(answer=-1, finish=_Unwrapped(recording.finish))
        return CallPlan(checks.in_order(first), Launched(
            self._registers.kept, given, owners, self._count_numbers(),
            _Words(spec) if self._follows else None, launch, spec.launches, direct))

    def _count_numbers(self) -> int:
        return sum(1 for _ in self._follows.each())

    def _of_arguments(self) -> list[Check]:
        call, shape = self._call, self._shape
        if self._is_of_args:
            shape.look(call.args, ARGUMENTS, "arguments")
            shape.look(call.kwargs, KEYWORDS, "keywords")
            before = []
        else:
            containers, *leaves = call.leaves
            shape.look_at_leaves(leaves, ARGUMENTS)
            before = [Check(Kind.EQUALS, At.ITEM, None, 0, containers, ARGUMENTS,
                            name="the containers of the arguments")]
        if len(shape.leaves) != len(call.leaves) - 1:
            raise NotQuick("they are other leaves")
        if call.guarded is not None:
            before.append(Check(Kind.EQUALS, At.ITSELF, None, None, call.guarded, GUARDED,
                                name="what guard= answers"))
        return [*before, *shape.checks()]

    def _leaf(self, number: int) -> int:
        register = self._shape.leaves[number - 1]
        if register < 0:
            raise NotQuick(f"argument {number} is no tensor")
        return register

    def _known(self, checks: PlaceChecks) -> list[int]:
        """The registers of the state's tensors."""
        bound, state, registers = self._bound, self._call.state, self._registers
        tensors = bound.tensors(state)
        if tensors is None:
            raise NotQuick("a tensor has gone")
        found = [registers.of(tensor) for tensor in tensors]
        others = dict[int, Tensor]()  # that require no gradients, and may from some call on
        for lookup, path, index in self._spec.places_in(bound):
            tensor = tensors[index]
            if state.may_become_parameter(path, tensor):
                others[found[index]] = tensor
            if (path in state.beside) != (id(tensor) in registers.inside):
                raise NotQuick(f"{name_of(path)} is where arguments are not looked at, or both")
            if id(tensor) not in registers.inside:
                checks.add(lookup, Kind.LIKE, self._likeness_to(tensor), path, to=found[index])
        if others and self._call.guards.gradients is not None:
            checks.all.append(Check(Kind.GRADIENTS, At.ITSELF, None, packed(others),
                                    tell_gradients([*others.values()]),
                                    name="which tensors require gradients"))
        return found

    def _likeness_to(self, tensor: Tensor) -> Any:
        """The same for all that lie alike."""
        kind = type(tensor), layout_of(tensor), tensor.requires_grad
        if kind not in self._likenesses:
            self._likenesses[kind] = likeness_to(tensor)
        return self._likenesses[kind]

    def _add_side_effects(self, checks: PlaceChecks) -> None:
        """That they go where they went, and that what may not move has not."""
        bound, spec, inside = self._bound, self._spec, self._registers.inside
        for lookup, thing in (*bound.ways(), *spec.wrappers):
            if id(thing) in inside or id(lookup[0]) in inside:
                raise NotQuick("it leaves something in an argument")
            checks.add(lookup, Kind.IS, thing)
        if any(id(place.get()) in inside for place in bound.objects):
            raise NotQuick("it answers an object of an argument")
        if spec.fixed:
            checks.all.append(answers(spec.is_inside_fixed, (), True, "tensors in tensors"))
        if bound.mutations:
            checks.all.append(answers(bound.finds_mutations, (), True, "side effects"))

    def _add_own(self, checks: PlaceChecks) -> None:
        spec = self._spec
        for name, value in (("recording", spec.recording), ("is_retired", False),
                            ("shortage", None)):
            checks.add((vars(spec), name), Kind.IS, value, name="the recording")


class _Unwrapped:
    """Of a recording that answers side effects as well, of which there are none."""

    def __init__(self, finish: Callable[..., Any]) -> None:
        self._finish = finish

    def __call__(self, *of_what: Any) -> Any:
        return self._finish(*of_what)[0]


class _Words:
    """What kernels are given for numbers; None where the recording may not be launched with that,
    or not yet."""

    def __init__(self, spec: Specialization) -> None:
        self._spec = spec

    def __call__(self, numbers: bytes) -> Sequence[int] | None:
        recording = self._spec.recording
        if recording is None:
            return None
        words = recording.words(struct.unpack(f"{len(numbers) // 8}d", numbers))
        return words if self._spec.may_be_launched_with(words) else None


def plan_of_graph(spec: Specialization, more: Sequence[Check], finish: Callable[..., Any],
                  launch: Launch, offsets: bytes = b"") -> Any:
    """A plan for a step that uses its leaves alone, and whose signature is known; None where its
    launches take more than addresses."""
    recording = spec.recording
    direct = recording.direct_or_none() if recording is not None else None
    if direct is None or spec.fixed or spec.on_host is not None:
        return None
    registers = Registers()
    where = [registers.new() for _ in spec.arguments]
    checks = [*(item(vars(spec), name, Kind.IS, value) for name, value in (
                  ("recording", recording), ("is_retired", False), ("shortage", None))),
              item(vars(recording), "direct", Kind.IS, direct), *more,
              *(Check(Kind.ANY, At.ITEM, None, i, None, ARGUMENTS, to)
                for i, to in zip(spec.arguments, where, strict=True))]
    return CallPlan(checks, Launched(
        registers.kept, packed(where), otherwise=launch, calls=spec.launches,
        direct=direct._replace(finish=finish, offsets=offsets, answer=-1)))
