# SPDX-License-Identifier: Apache-2.0
"""Calls that only have to be looked at and launched: the quick way of a recorded callable.

The full way of a call finds the state, makes the signature, and looks the specialization up. Nearly
all calls find what an earlier one found. So a call whose arguments look like an earlier one's tries
that one's specialization first: one pass over its watch list, and its guards compared with those of
now. Where anything differs, the call goes the full way, which is right whatever has changed.

Threads: any; what is kept is replaced, never changed. Failure: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from anabranch import _compat
from anabranch._record.launch.recording import StepRecording
from anabranch._record.quick import answers_are, modes_are, modes_told
from anabranch._record.signatures.as_last import AsLast, as_last
from anabranch._record.signatures.signature import ARGUMENTS_ALONE, kind_of
from anabranch._record.signatures.specialization import BoundState, Specialization
from anabranch._record.state.guards import Guards
from anabranch._record.state.number_places import NumberPlaces
from anabranch._record.state.state import State

_MOST_ALIKE = 4  # ready calls whose arguments look alike: a model in training and not, say
_MOST_KINDS = 64  # of arguments


class ReadyCall:
    """A specialization in a state, with everything that a call has to look at."""

    def __init__(self, spec: Specialization, state: State, bound: BoundState,
                 guards: Guards) -> None:
        self.spec, self.state, self.bound = spec, state, bound
        self._watch = bound.watch(state, spec.wrappers)
        self._guards = guards
        self._found: list[Any] | None = None  # that the watch list answered last
        self.as_last: AsLast | None = None
        self._may_ask = not spec.fixed and not bound.mutations
        hooks = state.hook_questions()
        if hooks is not None and self._may_ask and state.is_bare and self._watch.is_empty:
            # There is nothing else besides the arguments that could have changed.
            self.as_last = as_last(hooks, [], self._launched)

    @property
    def _launched(self) -> StepRecording | None:
        """The recording, where launches take tensors alone and have no side effects."""
        spec, bound = self.spec, self.bound
        return spec.recording if spec.takes_tensors_alone and not bound.mutations \
            and not bound.objects else None

    def tensors(self) -> list[Tensor] | None:
        """The state's tensors as they are now; None unless all is as it was."""
        if (last := self.as_last) is not None:
            if answers_are(*last.questions):
                return last.tensors
            self.as_last = None
        found = self._watch.look()
        if found is None:
            return None
        guards = self.state.guards()
        if guards is not self._guards:
            if guards != self._guards:
                return None
            self._guards = guards  # what the state answers as long as nothing changes
        if self.spec.fixed and not self.spec.is_inside_fixed():
            return None
        tensors = self.bound.tensors_of(found, self.state)
        if found is self._found and self._may_ask and tensors is not None:
            self._ask_from_now_on(found, guards, tensors)
        self._found = found
        return tensors

    def _ask_from_now_on(self, found: list[Any], guards: Guards, tensors: list[Tensor]) -> None:
        """Nothing has moved between two calls. Later ones ask all at once whether that is still
        so, of compiled functions alone: where something else of Python's ran before, each function
        of ours costs some microseconds."""
        watched, guarded = self._watch.questions(found), self.state.questions(guards)
        self._may_ask = watched is not None and guarded is not None
        if watched is not None and guarded is not None:
            self.as_last = as_last([*watched, *guarded], tensors, self._launched)


class _Front(NamedTuple):
    """The kind of a call and what was found for it. Calls with nothing but tensors are mostly like
    the one before, which torch tells of all of them at once; to make a kind takes longer."""

    kind: Any
    calls: Sequence[ReadyCall]
    by_kind: dict[Any, list[ReadyCall]]  # in which they were found
    guarded: Any
    modes: Any  # as modes_told() tells them
    containers: Any
    leaf_count: int
    are_alike: Callable[..., bool]
    args_count: int  # -1 unless the leaves are just that

    def has(self, leaves: Sequence[Any], guarded: Any, modes: Any) -> bool:
        return (len(leaves) == self.leaf_count and modes == self.modes
                and leaves[0] == self.containers and guarded == self.guarded
                and self.are_alike(*leaves[1:]))


class ReadyCalls:
    """Those of one callable, by what is seen of the arguments."""

    def __init__(self) -> None:
        self.by_kind: dict[Any, list[ReadyCall]] = {}
        self._front: _Front | None = None
        self._last_kind: Any = None

    def of_args(self, args: Sequence[Any]) -> Sequence[ReadyCall]:
        """Of a call that is like the one before, so that it is not intercepted either, and has
        these arguments alone; none of another one. Only where nothing is guarded by the user."""
        front = self._front
        return front.calls if front is not None and front.by_kind is self.by_kind \
            and len(args) == front.args_count \
            and modes_are(front.modes) \
            and (not args or front.are_alike(*args)) else ()

    def look(self, leaves: Sequence[Any], guarded: Any,
             followed: NumberPlaces) -> tuple[Any, Sequence[ReadyCall]]:
        """What is seen of the arguments, and the ready calls for that."""
        modes, front, by_kind = modes_told(), self._front, self.by_kind
        if front is not None and front.by_kind is by_kind and front.has(leaves, guarded, modes):
            return front.kind, front.calls
        kind = guarded, *kind_of(leaves, followed, modes)
        calls = by_kind.get(kind, ())
        if calls and kind == self._last_kind:  # not where kinds come in turn
            if front is None or front.by_kind is not by_kind or front.kind != kind:
                is_args = leaves[0] == ARGUMENTS_ALONE and guarded is None
                self._front = _Front(kind, calls, by_kind, guarded, modes, leaves[0], len(leaves),
                                     _likeness_of(leaves[1:]), len(leaves) - 1 if is_args else -1)
        elif calls:
            self._last_kind = kind
        return kind, calls

    def keep(self, states: Sequence[State]) -> None:
        """Lets go of what belongs to none of these: it would keep its state's tensors. And of what
        has been retired, which would keep its recording."""
        self._front = self._last_kind = None
        alive = set(map(id, states))
        if not all(id(one.state) in alive and not one.spec.is_retired
                   for some in self.by_kind.values() for one in some):
            self.by_kind = {kind: kept for kind, some in self.by_kind.items() if (kept := [
                one for one in some if id(one.state) in alive and not one.spec.is_retired])}

    def add(self, kind: Any, ready: ReadyCall) -> None:
        """In front of those that were there."""
        kept = {other: some for other, some in self.by_kind.items() if other != kind}
        others = [one for one in self.by_kind.get(kind, ()) if one.spec is not ready.spec]
        while len(kept) >= _MOST_KINDS:
            kept.pop(next(iter(kept)))
        self.by_kind = {**kept, kind: [ready, *others[:_MOST_ALIKE - 1]]}


def _likeness_of(leaves: Sequence[Any]) -> Callable[..., bool]:
    """Of tensors that require no gradient: of others more is seen. Where something else is among
    the leaves, none are alike."""
    if not leaves:
        return _always
    are_plain = all(type(leaf) in (Tensor, nn.Parameter) and not leaf.requires_grad
                    for leaf in leaves)
    return (_compat.likeness_of(leaves) if are_plain else None) or _never


def _always() -> bool:
    return True


def _never(*leaves: Any) -> bool:
    return False
