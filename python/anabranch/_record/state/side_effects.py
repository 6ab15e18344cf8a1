# SPDX-License-Identifier: Apache-2.0
"""Side effects: tensors that a run of a step leaves in Python's objects, a hidden state or the last
loss.

A launch does not run the step's Python, so it has to leave the same tensors there itself. To find
them, the containers and objects that lead to the step's state are compared, shallowly, before and
after a run. Tensors that the run has bound there become results of the recording. Side effects
without tensors, such as counters and texts, are left to Python.

Threads: the recorder's, one at a time. Failure: NotRecordable, with the place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from anabranch import _compat
from anabranch._record.refusals import Cause, NotRecordable, reason_of_fault
from anabranch._record.state.paths import Path
from anabranch._record.state.state import State
from anabranch._record.state.walk import Walk
from anabranch._record.tensors import is_wrapper


class _Nothing:
    """Where a holder has nothing at a key."""


_NOTHING = _Nothing()


class Mutation(NamedTuple):
    """One side effect: where a run binds a tensor or a container of tensors. ``path`` leads to the
    holder. A key that is a slice stands for what the run appends to a list."""

    holder: Any
    key: Any
    path: Path
    before: type  # of what stood there

    def get(self) -> Any:
        if isinstance(self.key, slice):
            return self.holder[self.key]
        if isinstance(self.holder, list):
            return self.holder[self.key] if self.key < len(self.holder) else _NOTHING
        return self.holder.get(self.key, _NOTHING)

    def put(self, value: Any) -> None:
        if isinstance(self.key, slice):
            self.holder.extend(value)
        elif value is not _NOTHING:
            self.holder[self.key] = value
        elif self.get() is not _NOTHING:
            del self.holder[self.key]

    def finds_as_before(self) -> bool:
        """Whether something of the same type stands there as before the recorded run. Python may
        have branched on it."""
        return isinstance(self.key, slice) or type(self.get()) is self.before

    def __str__(self) -> str:
        names = [*self.path[1:], self.key if isinstance(self.key, (str, int)) else ""]
        return ".".join(str(name) for name in names if name != "")


class _Change(NamedTuple):
    """A holder in which tensors have changed: at which keys, and what it held before."""

    holder: Any
    path: Path
    keys: list[Any]
    before: dict[Any, Any]


class HolderSnapshot:
    """What the objects that lead to a state's tensors hold before a run, to be compared and put
    back later."""

    def __init__(self, state: State) -> None:
        self._saved = [(holder, path, _items_of(holder))
                       for holder, path in state.walk_before_run().holders]

    def _changes(self) -> Iterator[_Change]:
        for holder, path, before in self._saved:
            now = _items_of(holder)
            pairs = [(key, before.get(key, _NOTHING), now.get(key, _NOTHING))
                     for key in (*before, *(key for key in now if key not in before))]
            keys = [key for key, old, new in pairs
                    if old is not new and (_concerns_tensors(old) or _concerns_tensors(new))]
            if keys:
                yield _Change(holder, path, keys, before)

    def mutations(self) -> list[Mutation]:
        """The places at which other tensors have been bound since."""
        found = []
        for holder, path, changed, before in self._changes():
            keys = changed
            if isinstance(holder, list) and len(holder) > len(before):
                end = len(before)
                keys = [*(key for key in changed if key < end), slice(end, None)]
            mutations = [Mutation(holder, key, path, _type_in(before, key)) for key in keys]
            if isinstance(holder, list) and len(holder) < len(before):
                raise NotRecordable(f"it makes a list of tensors shorter ({mutations[0]})",
                                    Cause.LEAVES_TENSORS, "Do that outside of the step.")
            for mutation in mutations:
                _check_can_be_left(mutation)
            found += mutations
        return found

    def put_back(self) -> None:
        for holder, path, keys, before in list(self._changes()):
            if isinstance(holder, list):
                holder[:] = before.values()
                continue
            for key in keys:
                Mutation(holder, key, path, type(None)).put(before.get(key, _NOTHING))


def _type_in(before: dict[Any, Any], key: Any) -> type:
    return list if isinstance(key, slice) else type(before.get(key, _NOTHING))


def _check_can_be_left(mutation: Mutation) -> None:
    leaves, _ = _compat.tree_flatten(mutation.get())
    for leaf in leaves:
        if not isinstance(leaf, Tensor) and _concerns_tensors(leaf):
            raise NotRecordable(f"it leaves a {type(leaf).__name__} with tensors in {mutation}",
                                Cause.LEAVES_TENSORS)


class SideEffects:
    """A step's callable, made to answer its side effects as well: ``(answer, [what the run has left
    at each mutation])``. After each run it puts back what stood there before.

    The first run finds the mutations. If it finds one that a launch cannot repeat, the refusal is
    raised at once; after a first run that is plain, and has done its work, it is raised by check().
    """

    def __init__(self, call: Callable[[list[Any]], Any], state: State, *,
                 is_first_plain: bool) -> None:
        self.call = call
        self._is_first_plain = is_first_plain
        self.mutations: list[Mutation] | None = None
        self._holders = HolderSnapshot(state)
        self._refusal: NotRecordable | None = None

    def __call__(self, leaves: list[Any]) -> Any:
        try:
            answer = self.call(leaves)
            if self.mutations is None:
                self.mutations = self._find_mutations()
            return answer, [mutation.get() for mutation in self.mutations]
        finally:
            self._holders.put_back()

    def _find_mutations(self) -> list[Mutation]:
        try:
            return self._holders.mutations()
        except Exception as error:
            if not self._is_first_plain:
                raise
            self._refusal = error if isinstance(error, NotRecordable) \
                else NotRecordable(reason_of_fault(error))
            return []

    def check(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    @property
    def is_complete(self) -> bool:
        """Whether it answers all side effects of its callable."""
        return self._refusal is None

    def apply(self, answer: Any) -> Any:
        """Leaves the side effects of an answer where the callable had left them, and returns the
        callable's own answer."""
        answer, left = answer
        _put(self.mutations or (), left)
        return answer


class BoundMutations:
    """The mutations of a recording in one state, and the objects on the way to them. Some of these
    objects lead to no tensor of the state, so the state does not compare them; this does."""

    def __init__(self, mutations: Sequence[Mutation], walk: Walk) -> None:
        holders = {path: holder for holder, path in walk.holders}
        self._mutations = [one._replace(holder=holders[one.path]) for one in mutations]
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
    if not {mutation.path for mutation in mutations} <= {path for _, path in walk.holders}:
        return None
    return BoundMutations(mutations, walk)


def _put(mutations: Sequence[Mutation], values: Sequence[Any]) -> None:
    for mutation, value in zip(mutations, values, strict=True):
        mutation.put(value)


def _items_of(holder: Any) -> dict[Any, Any]:
    return dict(enumerate(holder)) if isinstance(holder, list) else dict(holder.items())


def _concerns_tensors(value: Any) -> bool:
    """Whether it is a tensor or leads to some. Tensors of wrapping classes do not count: their
    libraries look after them."""
    return any(not is_wrapper(found.tensor) for found in Walk((value,)).tensors)
