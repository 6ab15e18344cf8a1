# SPDX-License-Identifier: Apache-2.0
"""The signature of a call: everything that tells one specialization of a callable from another.

A signature is a tuple that can be hashed: torch's modes, what the user's guard answers, a guard for
each leaf of the arguments, the number of the state, and the state's guards. Threads: any. Failure:
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from anabranch import _compat
from anabranch._record.state.guards import PLAIN
from anabranch._record.state.state import State

# Calls with these alone need no tree of containers to be walked.
LEAF_TYPES = frozenset((Tensor, nn.Parameter, int, float, bool, str, type(None)))
ARGUMENTS_ALONE = -1  # in place of the containers
_LEAF = 0


def unpack(thing: Any, leaves: list[Any]) -> Any:
    """Appends the leaves; answers the containers, or None where there are unusual ones."""
    kind = type(thing)
    if kind in LEAF_TYPES:
        leaves.append(thing)
        return _LEAF
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


def kind_of(leaves: Sequence[Any]) -> Any:
    """The part of a signature that comes from the arguments and torch's modes alone. The first leaf
    stands for the containers that the others lie in."""
    return _compat.modes(), leaves[0], *map(_guard_of, leaves[1:])


def signature_of(leaves: Sequence[Any], state: State, guarded: Any) -> Any:
    """The signature of a call, as a key. Objects that lead to tensors are compared by the state."""
    leading = state.leading
    told = tuple(map(_guard_of, leaves)) if not leading else tuple(
        [type(leaf) if id(leaf) in leading else _guard_of(leaf) for leaf in leaves])
    return _compat.modes(), guarded, told, state.number, state.guards()


_GUARDS = ("which modules train", "which gradients there are", "an optimizer's numbers",
           "tensors on the CPU", "pinned tensors", "hooks")  # and then Python values


def explain_difference(key: Any, keys: Sequence[Any]) -> str:
    """In what a signature differs from the one that is nearest to it."""
    def parts(key: Any) -> dict[str, Any]:
        modes, guarded, told, number, guards = key
        *guards, values = guards.values
        arguments = {f"argument {i}": leaf for i, leaf in enumerate(told)}
        return {"torch's modes": modes, "what guard= answers": guarded, **arguments,
                "the objects that it uses": number, **dict(zip(_GUARDS, guards, strict=True)),
                **(values.told() if values else {})}

    mine = parts(key)
    apart = [[name for name in {**mine, **other} if mine.get(name) != other.get(name)]
             for other in map(parts, keys)]
    nearest = min(apart, key=len, default=[])
    return f"; this one differs from the nearest in {', '.join(nearest[:4])}" if nearest else ""


def _guard_of(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        wants_gradient = (leaf.is_leaf, leaf.grad is None) if leaf.requires_grad else None
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device, type(leaf), wants_gradient
    try:
        hash(leaf)
    except TypeError:
        return type(leaf), id(leaf)
    return type(leaf), leaf


def describe(leaves: Sequence[Any]) -> str:
    parts = [f"{str(leaf.dtype).removeprefix('torch.')}[{', '.join(map(str, leaf.shape))}]"
             if isinstance(leaf, Tensor) else repr(leaf)[:40] if isinstance(leaf, PLAIN)
             else type(leaf).__name__ for leaf in leaves]
    return f"({', '.join(parts)})"
