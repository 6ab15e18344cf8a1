# SPDX-License-Identifier: Apache-2.0
"""What may become of a place between two calls: other values, equal ones, and the ways to put them
there. Each change undoes itself."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from walked import NEEDED, Place, is_own

_CONTAINERS = (list, dict, set, collections.deque)
_WORDS = {"sum": "mean", "mean": "sum", "relu": "tanh", "tanh": "relu", "on": "off", "off": "on",
          "left": "right", "right": "left", "a": "b", "b": "a"}


class Change(NamedTuple):
    """``do(place)`` makes it, and ``undo(place)``, called before, answers how it is taken back."""

    name: str
    do: Callable[[Place], None]
    undo: Callable[[Place], Callable[[], None]]

    @contextlib.contextmanager
    def made(self, place: Place) -> Iterator[None]:
        """What cannot be done raises Impossible."""
        undo = self.undo(place)
        try:
            self.do(place)
        except Exception as error:
            raise Impossible(repr(error)) from error
        try:
            yield
        finally:
            undo()


class Impossible(Exception):
    pass


def changes_of(place: Place) -> list[Change]:
    """All that may be tried with a place."""
    kind, value = place.edge.kind, place.edge.value
    found = [Change(f"{way} {name}", functools.partial(_put, put, make), _undo)
             for name, make in (*other_values(value), *equal_values(value))
             for way, put in _WAYS.get(kind, {}).items() if _has(place, way)]
    if kind in _DELETIONS and _has(place, "[]") and place.edge.key not in NEEDED:
        found.append(Change("del", _DELETIONS[kind], _undo))
    return found + [Change(name, functools.partial(_within, change), _undo_inside)
                    for kinds, changes in _INSIDE if isinstance(value, kinds)
                    and (is_own(value) if isinstance(value, types.FunctionType) else
                         not isinstance(value, _CONTAINERS) or len(value) > 0)
                    for name, change in changes.items()]


def _has(place: Place, way: str) -> bool:
    """Whether the holder has the method that puts something there."""
    if way == "__dict__ =":
        return not isinstance(place.holder, (nn.Module, types.FunctionType, threading.local))
    if place.edge.kind not in ("item", "member"):
        return not isinstance(place.holder, enum.EnumType)
    needs = {"update": "fromkeys", "[:]": "sort", "[]": "__setitem__"}.get(way, "add")
    return hasattr(place.holder, needs)


def _put(put: Callable[..., Any], make: Callable[[Any], Any], place: Place) -> None:
    put(place.holder, place.edge.key, make(place.edge.value))


def _within(change: Callable[[Any], Any], place: Place) -> None:
    change(place.edge.value)


# Values: (name, from the old one to the new one).

def other_values(value: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    for kind, values in _OTHERS:
        if isinstance(value, kind):
            return values
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [("another dataclass", _other_dataclass)]
    return []


def _other_dataclass(value: Any) -> Any:
    for field in dataclasses.fields(value):
        now = getattr(value, field.name)
        if isinstance(now, float):
            return dataclasses.replace(value, **{field.name: now * 1.5 + 0.25})
    return copy.copy(value)


def _other_item(items: Any) -> Any:
    """The last number that can be changed in a copy of it."""
    found = list(items)
    for i in reversed(range(len(found))):
        for _, make in other_values(found[i])[:1]:
            found[i] = make(found[i])
            return type(items)(found)
    return type(items)(found)


def _other_entry(items: Any) -> Any:
    made = copy.copy(items)
    for key in reversed(list(made)):
        for _, make in other_values(made[key])[:1]:
            made[key] = make(made[key])
            return made
    return made


def scaled(function: Callable[..., Any], by: float = 1.25) -> Callable[..., Any]:
    """The same whose numbers and tensors of floats are larger."""
    def larger(one: Any) -> Any:
        is_number = type(one) is float or (isinstance(one, Tensor) and one.is_floating_point())
        return one * by if is_number else one

    @functools.wraps(function)
    def other(*args: Any, **kwargs: Any) -> Any:
        return tree_map(larger, function(*args, **kwargs))

    return other


def _other_class(kind: type) -> type:
    methods = {name: scaled(value) for name, value in vars(kind).items()
               if isinstance(value, types.FunctionType) and not name.startswith("__")}
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})


def _filled_like(tensor: Tensor, make: Callable[..., Tensor] = torch.empty_like) -> Tensor:
    with torch.no_grad():
        made = make(tensor.detach())
        made.copy_(tensor.detach() * 3 + 1 if tensor.is_floating_point() else tensor)
        made.requires_grad_(tensor.requires_grad)
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def _other_strides(tensor: Tensor) -> Tensor:
    return _filled_like(tensor, lambda like: torch.empty(
        like.shape[::-1], dtype=like.dtype, device=like.device).permute(
            *reversed(range(like.dim()))))


def _of_doubles(tensor: Tensor) -> Tensor:
    return _filled_like(tensor, lambda like: like.double() if like.is_floating_point() else like)


def _other_module(module: nn.Module) -> nn.Module:
    made = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5)
    return made


_OTHERS: list[tuple[Any, list[tuple[str, Callable[[Any], Any]]]]] = [
    (bool, [("the other", lambda it: not it)]),
    (enum.Enum, [("the next", lambda it: list(type(it))[
        (list(type(it)).index(it) + 1) % len(type(it))])]),
    (int, [("one more", lambda it: it + 1), ("a float", lambda it: it + 0.5)]),
    (float, [("more", lambda it: it * 1.5 + 0.25), ("negative", lambda it: -it - 0.5),
             ("an integer", lambda it: int(it) + 1)]),
    (str, [("another word", lambda it: _WORDS.get(it, it + "_"))]),
    (type(None), [("a number", lambda it: 2.0)]),
    (tuple, [("another item", _other_item), ("one more item", lambda it: (*it, *it[-1:]))]),
    ((list, collections.deque), [("another item", _other_item),
                                 ("one item less", lambda it: type(it)(list(it)[:-1]))]),
    (dict, [("another item", _other_entry),
            ("other order", lambda it: type(it)(list(it.items())[::-1])
             if not isinstance(it, collections.defaultdict) else it)]),
    ((set, frozenset), [("one item less", lambda it: type(it)(sorted(it, key=repr)[:-1]))]),
    (nn.Module, [("another module", _other_module)]),
    (Tensor, [("another tensor", _filled_like), ("other strides", _other_strides),
              ("of doubles", _of_doubles)]),
    (property, [("another property", lambda it: property(scaled(it.fget)))]),
    (staticmethod, [("another function", lambda it: staticmethod(scaled(it.__func__)))]),
    (classmethod, [("another function", lambda it: classmethod(scaled(it.__func__)))]),
    (functools.partial, [("another partial", lambda it: functools.partial(
        scaled(it.func), *it.args, **it.keywords))]),
    (type, [("another class", _other_class)]),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType,
      functools._lru_cache_wrapper), [("another function", scaled)]),
]


def equal_values(value: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    if isinstance(value, bool):
        return []
    if isinstance(value, (int, float, str)):
        return [("an equal one", lambda it: type(it)(repr(it)) if not isinstance(it, (str, enum.Enum))
                 else it[:1] + it[1:] if isinstance(it, str) else it)]
    if isinstance(value, _CONTAINERS):
        return [("an equal one", copy.copy)]
    if isinstance(value, types.FunctionType) and is_own(value):
        return [("a copy", _same_function)]
    return []


def _same_function(function: types.FunctionType) -> types.FunctionType:
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__,
                              function.__defaults__, function.__closure__)
    made.__kwdefaults__, made.__module__ = function.__kwdefaults__, function.__module__
    return made


# Ways to put a value there, by the kind of the place: (holder, key, value).

def _set_from_a_thread(holder: Any, key: Any, value: Any) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(setattr, holder, key, value).result()


def _set_other_dict(holder: Any, key: Any, value: Any) -> None:
    holder.__dict__ = {**holder.__dict__, key: value}


def _set_default(function: Any, key: int, value: Any) -> None:
    function.__defaults__ = tuple(value if i == key else one
                                  for i, one in enumerate(function.__defaults__))


def _set_other_kwdefaults(function: Any, key: str, value: Any) -> None:
    function.__kwdefaults__ = {**function.__kwdefaults__, key: value}


def _set_slice(items: list[Any], key: int, value: Any) -> None:
    items[:] = [value if i == key else one for i, one in enumerate(items)]


def _set_member(items: set[Any], key: Any, value: Any) -> None:
    items.discard(key)
    items.add(value)


def _set_in_partial(partial: Any, key: Any, value: Any) -> None:
    func, args, keywords, space = partial.__reduce__()[2]
    partial.__setstate__((value if key == "func" else func,
                          tuple(value if i == key else one for i, one in enumerate(args)),
                          value if key == "keywords" else keywords, space))


def _set_base(kind: type, name: str, value: type) -> None:
    kind.__bases__ = tuple(value if one.__name__ == name else one for one in kind.__bases__)


def _cell(function: Any, name: str) -> types.CellType:
    return dict(zip(function.__code__.co_freevars, function.__closure__))[name]


def _set_cell(function: Any, name: str, value: Any) -> None:
    _cell(function, name).cell_contents = value


def _in_dict(holder: Any, key: Any, value: Any) -> None:
    vars(holder)[key] = value


_WAYS: dict[str, dict[str, Callable[[Any, Any, Any], Any]]] = {
    "attribute": {"=": setattr, "object.__setattr__": object.__setattr__, "__dict__[]": _in_dict,
                  "__dict__.update": lambda it, key, value: vars(it).update({key: value}),
                  "__dict__ =": _set_other_dict, "from a thread": _set_from_a_thread},
    "slot": {"=": setattr, "object.__setattr__": object.__setattr__},
    "class attribute": {"=": setattr},
    "library": {"=": setattr, "__dict__[]": _in_dict},
    "global": {"=": lambda it, key, value: it.__globals__.update({key: value})},
    "cell": {"=": _set_cell},
    "default": {"=": _set_default},
    "kwdefault": {"[]": lambda it, key, value: it.__kwdefaults__.update({key: value}),
                  "=": _set_other_kwdefaults},
    "item": {"[]": lambda it, key, value: it.__setitem__(key, value),
             "update": lambda it, key, value: it.update({key: value}), "[:]": _set_slice},
    "member": {"discard, add": _set_member},
    "context": {"set": lambda it, key, value: it.set(value)},
    "argument": {"__setstate__": _set_in_partial},
    "class": {"=": setattr},
    "base": {"=": _set_base}}
_DELETIONS: dict[str, Callable[[Place], Any]] = {
    **dict.fromkeys(("attribute", "slot", "class attribute"),
                    lambda at: delattr(at.holder, at.edge.key)),
    "item": lambda at: at.holder.__delitem__(at.edge.key),
    "global": lambda at: at.holder.__globals__.pop(at.edge.key)}


def _undo(place: Place) -> Callable[[], None]:
    holder, (kind, key, value) = place.holder, place.edge
    if kind == "attribute":
        space, before = holder.__dict__, dict(holder.__dict__)
        return lambda: _put_back_attributes(holder, space, before)
    if kind in ("item", "member"):
        return _undo_contents(holder)
    if kind == "default":
        return functools.partial(setattr, holder, "__defaults__", holder.__defaults__)
    if kind == "kwdefault":
        both = holder.__kwdefaults__, dict(holder.__kwdefaults__)
        return lambda: (setattr(holder, "__kwdefaults__", both[0]), both[0].update(both[1]))
    if kind == "argument":
        return functools.partial(holder.__setstate__, holder.__reduce__()[2])
    if kind == "base":
        return functools.partial(setattr, holder, "__bases__", holder.__bases__)
    put = {"context": _WAYS["context"]["set"], "global": _WAYS["global"]["="],
           "cell": _set_cell}.get(kind, setattr)
    return functools.partial(put, holder, key, value)


def _put_back_attributes(holder: Any, space: dict[str, Any], before: dict[str, Any]) -> None:
    """In their order."""
    if not isinstance(holder, threading.local) and holder.__dict__ is not space:
        object.__setattr__(holder, "__dict__", space)
    space.clear()
    space.update(before)


def _undo_contents(holder: Any) -> Callable[[], None]:
    if not isinstance(holder, _CONTAINERS):
        return lambda: None
    before = copy.copy(holder)

    def undo() -> None:
        holder.clear()
        (holder.update if isinstance(holder, (dict, set)) else holder.extend)(before)

    return undo


# Changes inside of what stands there.

def _first_is_last(mapping: dict[Any, Any]) -> None:
    key = next(iter(mapping))
    mapping[key] = mapping.pop(key)


def _other_numbers(function: types.FunctionType) -> None:
    """In its code."""
    code = function.__code__
    function.__code__ = code.replace(co_consts=tuple(
        one * 1.5 + 0.25 if type(one) is float else one for one in code.co_consts))


def _fill(tensor: Tensor) -> None:
    """A launch reads what is there."""
    with torch.no_grad():
        tensor.copy_(tensor * 2 + 1 if tensor.is_floating_point() else tensor.clone())


def _other_data(tensor: Tensor) -> None:
    tensor.data = _filled_like(tensor).detach()


def _want_gradient(tensor: Tensor) -> None:
    tensor.requires_grad_(not tensor.requires_grad)


def _larger(module: nn.Module, args: Any, out: Any) -> Any:
    return out * 1.5 if isinstance(out, Tensor) else out


_INSIDE: list[tuple[Any, dict[str, Callable[[Any], Any]]]] = [
    ((list, collections.deque), {
        "reverse": lambda it: it.reverse(), "pop": lambda it: it.pop(),
        "append": lambda it: it.append(it[-1]), "clear": lambda it: it.clear()}),
    (dict, {"first is last": _first_is_last, "popitem": lambda it: it.popitem()}),
    (set, {"pop": lambda it: it.remove(max(it, key=repr)), "clear": lambda it: it.clear()}),
    (types.FunctionType, {"__code__ =": _other_numbers}),
    (Tensor, {"copy_": _fill, "data =": _other_data, "requires_grad =": _want_gradient}),
    (nn.Module, {"train": lambda it: it.train(not it.training),
                 "register_forward_hook": lambda it: it.register_forward_hook(_larger)})]


def _undo_inside(place: Place) -> Callable[[], None]:
    value = place.edge.value
    if isinstance(value, types.FunctionType):
        return functools.partial(setattr, value, "__code__", value.__code__)
    if isinstance(value, Tensor):
        return _undo_tensor(value)
    if isinstance(value, nn.Module):
        modes = [(module, module.training, module._forward_hooks.copy())
                 for module in value.modules()]

        def undo() -> None:
            for module, is_training, hooks in modes:
                module.training = is_training
                for key in set(module._forward_hooks) - set(hooks):
                    del module._forward_hooks[key]

        return undo
    return _undo_contents(value)


def _undo_tensor(tensor: Tensor) -> Callable[[], None]:
    data, before, wants = tensor.data, tensor.detach().clone(), tensor.requires_grad

    def undo() -> None:
        tensor.data = data
        if tensor.is_leaf:
            tensor.requires_grad_(wants)
        with torch.no_grad():
            tensor.copy_(before)

    return undo
