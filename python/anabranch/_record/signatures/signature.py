# SPDX-License-Identifier: Apache-2.0
"""The signature of a call: everything that tells one specialization of a callable from another.

A signature is a tuple that can be hashed: torch's modes, what the user's guard answers, a guard for
each leaf of the arguments, the number of the state, and the state's guards. Threads: any. Failure:
none.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from anabranch import _compat
from anabranch._record.draws.taken import is_iterator
from anabranch._record.refusals import Cause, Reason
from anabranch._record.state.guards import PLAIN
from anabranch._record.state.number_places import (
    FOLLOWED,
    Hyperparameter,
    NumberPlaces,
    hyperparameter_items,
)
from anabranch._record.state.paths import Path
from anabranch._record.state.state import State
from anabranch._record.tensors import layout_of

# Calls with these alone need no tree of containers to be walked.
LEAF_TYPES = frozenset((Tensor, nn.Parameter, int, float, bool, str, type(None)))
ARGUMENTS_ALONE = -1  # in place of the containers
LEAF = 0
_MOST_DESCRIBED = 12  # leaves


def unpack(thing: Any, leaves: list[Any]) -> Any:
    """Appends the leaves; answers the containers, or None where there are unusual ones."""
    kind = type(thing)
    if kind in LEAF_TYPES:
        leaves.append(thing)
        return LEAF
    parts: Any = thing
    keys: Any = None
    if kind is dict:
        parts, keys = thing.values(), tuple(thing)
    elif kind is list or kind is tuple:
        keys = len(thing)
    else:
        return None
    if LEAF_TYPES.issuperset(map(type, parts)):
        leaves += parts
        return kind, keys
    inner = tuple([unpack(part, leaves) for part in parts])
    return None if None in inner else (kind, keys, inner)


def signature_of(leaves: Sequence[Any], state: State, guarded: Any,
                 drawn_from: Collection[int] = ()) -> Any:
    """The signature of a call, as a key. Objects that lead to tensors are compared by the state.
    ``drawn_from``: leaves of which it does not matter which iterators they are."""
    leading = state.leading
    told = tuple(map(_guard_of, leaves)) if not leading else tuple(
        [type(leaf) if id(leaf) in leading else _guard_of(leaf) for leaf in leaves])
    if drawn_from:
        told = tuple([_of_kind(one) if i in drawn_from else one for i, one in enumerate(told)])
    if state.followed.arguments:
        told = tuple([(float, FOLLOWED) if i in state.followed.arguments and type(leaf) is float
                      else one for i, (one, leaf) in enumerate(zip(told, leaves, strict=True))])
    return _compat.modes(), guarded, told, state.number, state.guards()


def _of_kind(told: Any) -> Any:
    """What is told of a leaf, if that is an iterator, without which one."""
    is_one = type(told) is tuple and len(told) == 2 and is_iterator(told[1])
    return told[0] if is_one else told


def of_any_iterator(key: Any, drawn_from: Collection[int]) -> Any:
    """A signature that was made before it was known that these are drawn from."""
    modes, guarded, told, *rest = key
    return modes, guarded, tuple([_of_kind(one) if i in drawn_from else one
                                  for i, one in enumerate(told)]), *rest


def floats_apart(key: Any, other: Any,
                 names: list[Hyperparameter]) -> dict[NumberPlaces, float] | None:
    """Where two signatures have different floats, one place each, with the other's value; None
    where they differ in something else, or in nothing. ``names`` are the optimizers'
    hyperparameters in the order of the guards."""
    modes, guarded, told, number, guards = key
    if (modes, guarded, number) != (*other[:2], other[3]) or len(told) != len(other[2]):
        return None
    found: dict[NumberPlaces, float] = {}
    for i, (a, b) in enumerate(zip(told, other[2], strict=True)):
        if a != b:
            if not _are_floats(a, b):
                return None
            found[NumberPlaces(arguments=(i,))] = b[1]
    mine, theirs = guards.values, other[4].values
    if mine[:2] != theirs[:2] or mine[3:-1] != theirs[3:-1] \
            or len(mine[2]) != len(theirs[2]) or mine[2][len(names):] != theirs[2][len(names):]:
        return None
    groups = _hyperparameters_apart(names, mine[2], theirs[2])
    paths = _paths_apart(mine[-1], theirs[-1])
    if groups is None or paths is None:
        return None
    found |= {NumberPlaces(hyperparameters=(name,)): value for name, value in groups}
    found |= {NumberPlaces(paths=(path,)): value for path, value in paths}
    return found or None


def _are_floats(a: Any, b: Any) -> bool:
    return isinstance(a, tuple) and isinstance(b, tuple) \
        and len(a) == len(b) == 2 and a[0] is float is b[0]


def _hyperparameters_apart(names: Sequence[Hyperparameter], mine: Sequence[Any],
                           theirs: Sequence[Any]) -> list[tuple[Hyperparameter, float]] | None:
    """With the other's value; None where something else than a float differs."""
    found: list[tuple[Hyperparameter, float]] = []
    for name, a, b in zip(names, mine, theirs, strict=False):
        items, others = hyperparameter_items(name, a), hyperparameter_items(name, b)
        if [one for one, _ in items] != [one for one, _ in others]:
            return None
        apart = [(one, value, other) for (one, value), (_, other)
                 in zip(items, others, strict=True) if value != other]
        if not all(type(value) is float is type(other) for _, value, other in apart):
            return None
        found += [(one, other) for one, _, other in apart]
    return found


def _paths_apart(mine: Any, theirs: Any) -> list[tuple[Path, float]] | None:
    """Of Python's values, with the other's; None where something else differs."""
    if mine is None or theirs is None:
        return [] if mine is theirs else None
    if mine.of.paths != theirs.of.paths:
        return None
    apart = [(path, a, b) for path, a, b in zip(mine.of.paths, mine, theirs, strict=True) if a != b]
    return [(path, b[1]) for path, _, b in apart] \
        if all(_are_floats(a, b) for _, a, b in apart) else None


_CHANGES = 2  # after which one is told
_INSTEAD = {
    "an optimizer's numbers": "Keep what changes in a tensor on the GPU (lr=torch.tensor(3e-4, "
                              "device=\"cuda\"), with capturable=True where the optimizer has it).",
    "tensors on the CPU": "Keep them on the GPU, or pass them as arguments that the step copies "
                          "there.",
}
# A few of each are what people want: train() and eval(), gradients that are cleared or not.
_STATES = frozenset((
    "torch's modes", "what guard= answers", "which modules train", "which gradients there are",
    "hooks", "pinned tensors", "the objects that it uses"))

_GUARDS = ("which modules train", "which gradients there are", "an optimizer's numbers",
           "tensors on the CPU", "pinned tensors", "hooks")  # and then Python values


def differences(key: Any, keys: Sequence[Any]) -> list[str]:
    """In what a signature differs from the one that is nearest to it."""
    def parts(key: Any) -> dict[str, Any]:
        modes, guarded, told, number, guards = key
        *guards, seen, values = guards.values
        arguments = {f"argument {i}": leaf for i, leaf in enumerate(told)}
        return {"torch's modes": modes, "what guard= answers": guarded, **arguments,
                "the objects that it uses": number, **dict(zip(_GUARDS, guards, strict=True)),
                **seen.told(), **(values.told() if values else {})}

    mine = parts(key)
    apart = [[name for name in {**mine, **other} if mine.get(name) != other.get(name)]
             for other in map(parts, keys)]
    return min(apart, key=len, default=[])


class ChangingValues:
    """Values that tell signatures of one callable apart again and again: each of them is recorded
    by itself, which is seldom what somebody wants. To be used under the recorder's lock."""

    def __init__(self) -> None:
        self._changes: collections.Counter[str] = collections.Counter()

    def note(self, differs: Collection[str]) -> Reason | None:
        """``differs``: in what a new signature differs from the nearest one. What to tell of it,
        once for each value, after its second change."""
        if len(differs) != 1:
            return None
        [name] = differs
        if name in _STATES:
            return None
        self._changes[name] += 1
        return _told(name) if self._changes[name] == _CHANGES else None


def _told(name: str) -> Reason:
    instead = _INSTEAD.get(name, "")
    if name.startswith("argument "):
        instead = "A number may be a tensor on the GPU; a size may be padded to one of a few."
    return Cause.CHANGING_VALUE.because(
        f"{name} changes from call to call, and what it is each time is recorded by itself",
        instead)


def _guard_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        wants_gradient = (leaf.is_leaf, leaf.grad is None) if leaf.requires_grad else None
        return layout_of(leaf), type(leaf), wants_gradient
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), leaf


def describe(leaves: Sequence[Any]) -> str:
    """The first ones: a compiled graph has hundreds."""
    parts = [f"{str(leaf.dtype).removeprefix('torch.')}[{', '.join(map(str, leaf.shape))}]"
             if isinstance(leaf, Tensor) else repr(leaf)[:40] if isinstance(leaf, PLAIN)
             else type(leaf).__name__ for leaf in leaves[:_MOST_DESCRIBED]]
    left = len(leaves) - len(parts)
    return f"({', '.join(parts)}{f' and {left} more' if left > 0 else ''})"
