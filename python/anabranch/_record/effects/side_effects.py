# SPDX-License-Identifier: Apache-2.0
"""Side effects: what a run of a step leaves in Python's objects. A counter that it adds to, the
last loss, what it appends to a list.

A launch does not run the step's Python, so it has to leave the same there itself. To find it, all
that the step's state leads to is compared, shallowly, before and after a run. Tensors that the run
has bound there become results of the recording, and what else it leaves becomes constants of it:
by how much it has added, what it has appended. After each run that is put back, so that every run
begins with what the first one found, however many there are.

Threads: the recorder's, one at a time. Failure: NotRecordable, with the place.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from anabranch import _compat
from anabranch._record.effects.constants import are_alike, is_constant
from anabranch._record.effects.holders import NOTHING, Held, HolderSnapshot, put
from anabranch._record.effects.mutations import Count, Grown, Mutation, of_collection
from anabranch._record.refusals import Again, Cause, CountsFound, NotRecordable, reason_of_fault
from anabranch._record.state.guards import LENGTH
from anabranch._record.state.paths import Path, bare, name_of
from anabranch._record.state.state import State
from anabranch._record.state.walk import Walk
from anabranch._record.tensors import is_wrapper

# By the name of a collection, where code that ran does more with it than to change it; None where
# it does not.
ReadAt = Callable[[str], str | None]


class SideEffects:
    """A step's callable, made to answer its side effects as well: ``(answer, [what the run has left
    at each mutation])``. After each run it puts back what stood there before.

    The first run finds the mutations. If it finds one that a launch cannot repeat, the refusal is
    raised at once; after a first run that is plain, and has done its work, it is raised by check().

    Args:
        is_first_plain: whether a plain run comes before the captures.
        are_left_out: whether launches may leave out what they cannot repeat.
        read_at: asked about collections after the first run.
        check: what else to look at then, before anything is put back. Raises NotRecordable.
    """

    def __init__(self, call: Callable[[list[Any]], Any], state: State, *, is_first_plain: bool,
                 are_left_out: bool = False, read_at: ReadAt = lambda name: None,
                 check: Callable[[], None] = lambda: None) -> None:
        self.call = call
        self._is_first_plain, self._are_left_out = is_first_plain, are_left_out
        self._read_at, self._check = read_at, check
        self.mutations: list[Mutation] | None = None
        self._holders, self._guarded = HolderSnapshot(state), state.guarded_paths()
        self._left_out: list[tuple[Any, Any, Any]] = []  # holder, key, and what is left there
        self._refusal: NotRecordable | None = None
        self._first: list[Held] = []  # what the first run has left
        self._captures = -1  # no run is one
        self._is_adopted = False

    def adopt(self, found: Sequence[Mutation]) -> None:
        """What the run of an earlier call has been found to change is what runs change. One that
        changes something else is refused."""
        holders = {held.path: held.holder for held in self._holders.held}
        if any(one.path not in holders for one in found):
            raise Again("what it changes is not where it was")
        self.mutations = [one.before_run(holders[one.path]) for one in found]
        self._is_adopted = True

    def _check_adopted(self) -> None:
        known = {bare(one.place) for one in self.mutations or ()}
        for held, pairs in self._holders.changes():
            places = [(*held.path, key) for key, old, new in pairs if not are_alike(old, new)]
            for place in places if isinstance(held.before, dict) else [(*held.path, "")]:
                if bare(place) not in known and not any(
                        one.holder is held.holder for one in self.mutations or ()):
                    raise Again(f"its Python changes {name_of(place)}, which it did not before")

    @property
    def leaves_out(self) -> bool:
        """Whether launches leave out some of what the first run has left."""
        return bool(self._left_out)

    def begin_captures(self) -> None:
        """From now on runs are captures, of which each finds other numbers where the step changes
        them."""
        self._captures = 0

    def end_captures(self) -> None:
        self._captures = -1

    @property
    def counts(self) -> list[Count]:
        return [one for one in self.mutations or () if isinstance(one, Count)]

    def __call__(self, leaves: list[Any]) -> Any:
        with self._ours():
            self._holders.take()
            if self._captures >= 0:
                for count in self.counts:
                    count.begin(self._captures)
                self._captures += 1
        try:
            answer = self._called(leaves)
            if self._is_adopted:
                self._check_adopted()
            if self.mutations is None:
                self.mutations = self._find_mutations()
                if self._captures >= 0 and self.counts:
                    raise CountsFound("its Python counts")
            return answer, [mutation.left() for mutation in self.mutations]
        finally:
            with self._ours():
                self._holders.put_back()

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """Around what is not the step's: a mistake of ours there is a refusal."""
        try:
            yield
        except Exception as error:
            self._refusal = NotRecordable(reason_of_fault(error))
            if self._captures >= 0:
                raise self._refusal from error

    def _called(self, leaves: list[Any]) -> Any:
        """Compiled code takes the type of a number for granted, and is not compiled anew for a
        tagged one."""
        if self._captures < 0 or not self.counts:
            return self.call(leaves)
        compiling = _compat.NothingCompiled()
        try:
            with compiling:
                return self.call(leaves)
        except Exception:
            if compiling.is_met:
                raise NotRecordable(
                    f"its Python changes {self.counts[0]}, which compiled code reads",
                    Cause.PYTHON_CHANGES) from None
            raise

    def _find_mutations(self) -> list[Mutation]:
        try:
            self._first = self._holders.left() if self._is_first_plain else []
            self._check()
            return list(self._mutations())
        except Exception as error:
            if not self._is_first_plain:
                raise
            self._refusal = error if isinstance(error, NotRecordable) \
                else NotRecordable(reason_of_fault(error))
            return []

    def _mutations(self) -> Iterator[Mutation]:
        if (advanced := self._holders.advanced()) is not None:
            raise NotRecordable(f"its Python takes from an iterator ({name_of(advanced)}), which "
                                "launches would not do", Cause.HIDDEN_INPUT)
        for held in self._holders.reordered():
            # Nobody goes through an object's attributes, unless that is guarded as containers are.
            if bare((*held.path, LENGTH)) in self._guarded:
                made = Mutation(held.holder, LENGTH, held.path, type(held.holder))
                self._leave_out(made, held.holder, None, dict(held.holder.items()))
        for held, pairs in self._holders.changes():
            if isinstance(held.before, dict):
                for key, old, new in pairs:
                    made = Mutation(held.holder, key, held.path, type(old))
                    yield from self._bound(made, old, new)
            else:
                yield from self._collected(held)

    def _bound(self, made: Mutation, old: Any, new: Any) -> Iterator[Mutation]:
        """Where a run has put another thing."""
        if _concerns_tensors(old) or _concerns_tensors(new):
            self._check_can_be_left(made, new)
            yield made
        elif are_alike(old, new):
            return
        elif type(old) in (int, float) and type(new) is type(old):
            yield Count(made.holder, made.key, made.path, made.before, base=old)
        elif (new is NOTHING or is_constant(new, self._holders.objects)) \
                and bare(made.place) in self._guarded:
            yield dataclasses.replace(made, is_guarded=True)
        else:
            self._leave_out(made, made.holder, made.key, new)

    def _collected(self, held: Held) -> Iterator[Mutation]:
        """By what a run has changed a sequence or a set."""
        made = of_collection(held)
        if isinstance(made, Grown):
            first, last, added = made.get()
            if first == len(held.before) <= len(held.holder) and isinstance(held.holder, list):
                yield from self._replaced(held)
                if len(held.holder) == len(held.before):
                    return
                made.is_tail = True
                first, last, added = made.get()
            dropped = (*held.before[:first], *held.before[len(held.before) - last:])
            made.dropped = len(dropped)
            if {id(item) for item in dropped}.intersection(map(id, added)):
                raise NotRecordable(f"its Python changes the order of {made}", Cause.PYTHON_CHANGES)
            has_tensors = any(map(_concerns_tensors, (*dropped, *added)))
            if has_tensors and (last or (first and isinstance(held.holder, list))):
                raise NotRecordable(f"it makes a list of tensors shorter ({made})",
                                    Cause.LEAVES_TENSORS, "Do that outside of the step.")
            for item in added:
                self._check_can_be_left(made, item)
            can_be_left = all(_concerns_tensors(item) or is_constant(item, self._holders.objects)
                              for item in added)
        else:
            has_tensors, can_be_left = False, is_constant(made.get()[0], ())
        name = next((part for part in reversed(held.path) if isinstance(part, str) and part), "")
        place = self._read_at(name.rpartition(" ")[2])
        if can_be_left and place is None:
            yield made
        else:
            self._leave_out(made, held.holder, None, list(held.holder), place)

    def _replaced(self, held: Held) -> Iterator[Mutation]:
        """Items of a list in whose places a run has put others."""
        for i, (old, new) in enumerate(zip(held.before, held.holder, strict=False)):
            if old is not new:
                made = Mutation(held.holder, i, held.path, type(old))
                yield from self._bound(made, old, new)

    def _check_can_be_left(self, mutation: Mutation, value: Any) -> None:
        leaves, _ = _compat.tree_flatten(value)
        for leaf in leaves:
            if not isinstance(leaf, Tensor) and _concerns_tensors(leaf):
                raise NotRecordable(f"it leaves a {type(leaf).__name__} with tensors in {mutation}",
                                    Cause.LEAVES_TENSORS)

    def _leave_out(self, made: Mutation, holder: Any, key: Any, left: Any,
                   place: str | None = None) -> None:
        if not self._are_left_out:
            what = "and reads what is in it" if place else "which a launch cannot repeat"
            why = Cause.PYTHON_CHANGES.because(f"its Python changes {made}, {what}")
            raise NotRecordable(why._replace(place=f"at {place}" if place else ""))
        self._left_out.append((holder, key, left))

    def check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def leave_first(self) -> None:
        """Leaves all as the first run has left it."""
        for held in self._first:
            held.put_back()

    def forget_first(self) -> None:
        """Lets go of the tensors among that."""
        self._first = []

    def leave_rest(self) -> None:
        """What launches leave out, as the first run has left it."""
        for holder, key, left in self._left_out:
            if key is not None:
                put(holder, key, left)
            elif isinstance(holder, list):
                holder[:] = left
            else:
                holder.clear()
                (holder.update if isinstance(holder, (set, dict)) else holder.extend)(left)


class EffectPaths:
    """Where launches have side effects, by the paths of guards."""

    def __init__(self, mutations: Sequence[Mutation]) -> None:
        self._set = {bare(one.place) for one in mutations if one.is_guarded}
        self._repeated = {bare(one.place) for one in mutations if not one.is_guarded}

    def set_again(self, path: Path) -> bool:
        """Whether they leave the same there each time."""
        return bare(path) in self._set

    def are_repeated(self, path: Path) -> bool:
        """Whether they leave something else there each time, or in the collection that it is in."""
        path = bare(path)
        return any(path[:end] in self._repeated for end in range(1, len(path) + 1))


class BoundMutations:
    """The mutations of a recording in one state, and the objects on the way to them. Some of these
    objects lead to no tensor of the state, so the state does not compare them; this does."""

    def __init__(self, mutations: Sequence[Mutation], walk: Walk) -> None:
        holders = {path: holder for holder, path in walk.holders}
        self._mutations = [one.bound_to(holders.get(one.path, one.holder)) for one in mutations]
        prefixes = {one.path[:end] for one in mutations for end in range(len(one.path) + 1)}
        entered = [walk.entered[path] for path in prefixes if path in walk.entered]
        self.ways = [((place.holder, place.key), thing) for place, thing in entered]

    def find_as_before(self) -> bool:
        """Whether all places hold something of the same type as before the recorded run."""
        return all(mutation.finds_as_before() for mutation in self._mutations)

    def are_current(self) -> bool:
        try:
            return all(holder[key] is thing for (holder, key), thing in self.ways)
        except (KeyError, IndexError):
            return False

    def put(self, values: Sequence[Any]) -> None:
        _put(self._mutations, values)


def bind_mutations(state: State, mutations: Sequence[Mutation]) -> BoundMutations | None:
    """The same mutations among the objects that a state has now; None where one is not there."""
    walk = state.walk_again()
    known = {path for _, path in walk.holders}
    if not all(mutation.path in known or mutation.is_everywhere for mutation in mutations):
        return None
    return BoundMutations(mutations, walk)


def _put(mutations: Sequence[Mutation], values: Sequence[Any]) -> None:
    for mutation, value in zip(mutations, values, strict=True):
        mutation.put(value)


def _concerns_tensors(value: Any) -> bool:
    """Whether it is a tensor or leads to some. Tensors of wrapping classes do not count: their
    libraries look after them."""
    return any(not is_wrapper(found.tensor) for found in Walk((value,)).tensors)
