# SPDX-License-Identifier: Apache-2.0
"""Which values a launch may leave in place of the step's Python, and which are as good as others.

Threads: as the values. Failure: none.
"""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from anabranch._record.state.guards import is_plain

_DEEPEST = 6  # objects and containers within one another
_CONTAINERS = (list, tuple, dict, set, frozenset)
_LASTING = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType,
            nn.Module)


def is_constant(value: Any, known: Collection[int], depth: int = 0) -> bool:
    """Whether launches may leave it: a plain value, a function, a container of such, or an object
    that there was before, by its id."""
    if is_plain(value) or isinstance(value, _LASTING) or id(value) in known:
        return True
    if type(value) not in _CONTAINERS or depth == _DEEPEST:
        return False
    parts = (*value, *value.values()) if isinstance(value, dict) else value
    return all(is_constant(part, known, depth + 1) for part in parts)


def are_alike(old: Any, new: Any, depth: int = 0) -> bool:
    """Whether nothing but its identity tells one from the other. Tensors are not looked at."""
    if old is new:
        return True
    if type(old) is not type(new) or isinstance(old, (Tensor, nn.Module)) or depth == _DEEPEST:
        return False
    if is_plain(old):
        return bool(old == new)
    if isinstance(old, types.FunctionType):
        return old.__code__ is new.__code__ and are_alike(
            _closed_over(old), _closed_over(new), depth + 1)
    if isinstance(old, types.MethodType):
        return are_alike(old.__func__, new.__func__, depth) and old.__self__ is new.__self__
    if isinstance(old, dict):
        return len(old) == len(new) and all(
            key in new and are_alike(value, new[key], depth + 1) for key, value in old.items())
    if isinstance(old, (list, tuple)):
        return len(old) == len(new) and all(
            are_alike(a, b, depth + 1) for a, b in zip(old, new, strict=True))
    if isinstance(old, (set, frozenset)):
        return all(map(is_plain, old)) and bool(old == new)
    if type(old) is object:
        return True
    if type(old) is types.SimpleNamespace:
        return are_alike(vars(old), vars(new), depth + 1)
    # What an object of C holds cannot be seen.
    return _is_of_attributes(type(old)) and hasattr(old, "__dict__") \
        and are_alike(vars(old), vars(new), depth + 1)


_HEAP_TYPE = 1 << 9  # a class that was made by a statement


def _is_of_attributes(kind: type) -> bool:
    """Whether its objects are what is in their dictionaries."""
    return all(base is object or (base.__flags__ & _HEAP_TYPE and "__slots__" not in vars(base))
               for base in kind.__mro__)


def _closed_over(function: types.FunctionType) -> Any:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [cells, list(function.__defaults__ or ()), dict(function.__kwdefaults__ or {})]
