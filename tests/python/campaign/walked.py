# SPDX-License-Identifier: Apache-2.0
"""What a program's Python can read and write: all that its functions, closures, globals, classes and
objects lead to, as places, and as a picture that can be compared with another copy's."""

from __future__ import annotations

import collections
import contextvars
import dis
import enum
import functools
import itertools
import re
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

OWN = "campaign_"  # how the modules of programs are named
_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device)
_ITERATORS = (types.GeneratorType, itertools.count, itertools.cycle, type(iter([])),
              type(iter(())), type(iter({})), type(iter(range(0))), enumerate, zip)
_METHODS = ("__init__", "__call__", "__getattr__", "__getattribute__", "__get__")
_LIBRARY = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__file__")
_COPY = re.compile(rf"(?<={OWN})\w+")  # of a module: which one
_MOST = 4000  # places
# What torch's classes keep for themselves; hooks by their order, for their keys are the process'.
NEEDED = {"training", "_parameters", "_buffers", "_modules", "param_groups", "state"}
_INSIDES = {*vars(nn.Module()), *vars(torch.optim.SGD([torch.zeros(1)]))} - NEEDED


class Edge(NamedTuple):
    """How a holder has a value: ``kind`` names the ways there are to change it."""

    kind: str
    key: Any
    value: Any


class Place(NamedTuple):
    """``path`` leads to the same in another copy of the program."""

    path: tuple[tuple[str, Any], ...]
    holder: Any
    edge: Edge

    @property
    def name(self) -> str:
        return "".join(_NAMES.get(kind, ".{}").format(key) for kind, key in self.path)


_NAMES = {"root": "{}", "item": "[{!r}]", "entry": "[#{}]", "member": "{{{!r}}}", "cell": "<{}>", "default": "({})",
          "kwdefault": "(*{})", "argument": "({})", "global": " {}", "library": ".{}"}


def is_own(thing: Any) -> bool:
    """Whether the program has defined it."""
    return str(getattr(thing, "__module__", "")).startswith(OWN)


def is_own_module(module: types.ModuleType) -> bool:
    return module.__name__.startswith(OWN)


def edges(thing: Any) -> list[Edge]:
    """What a thing has, in an order that copies of it share."""
    if isinstance(thing, (*_PLAIN, Tensor, *_ITERATORS)):
        return []
    for kinds, find in _FINDERS:
        if isinstance(thing, kinds):
            return list(find(thing))
    return list(_of_object(thing))


def _of_function(function: types.FunctionType) -> Iterator[Edge]:
    if not is_own(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield Edge("cell", name, cell.cell_contents)
        except ValueError:
            continue
    for i, value in enumerate(function.__defaults__ or ()):
        yield Edge("default", i, value)
    for name, value in (function.__kwdefaults__ or {}).items():
        yield Edge("kwdefault", name, value)
    yield from (Edge("attribute", name, value) for name, value in vars(function).items())
    for name in dict.fromkeys(chain[0] for chain in chains(function.__code__)):
        if name in function.__globals__:
            yield Edge("global", name, function.__globals__[name])


@functools.cache
def chains(code: types.CodeType) -> list[tuple[str, ...]]:
    """The globals that code names, each with the attributes behind it: ("F", "gelu")."""
    found: list[tuple[str, ...]] = []
    is_open = False
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found.append((one.argval,))
            is_open = True
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and is_open:
            found[-1] += (one.argval,)
        elif one.opname not in ("CACHE", "PRECALL"):
            is_open = False
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found += chains(inner)
    return found


def names_in(function: Any) -> list[str]:
    """Attributes that code of the program names."""
    return [name for name in function.__code__.co_names if not name.startswith("_")] \
        if isinstance(function, types.FunctionType) and is_own(function) else []


def _of_class(kind: type) -> Iterator[Edge]:
    if not is_own(kind):
        return
    for base in kind.__bases__:
        yield Edge("base", base.__name__, base)
    for name, value in list(vars(kind).items()):
        is_pythons = name.startswith("__") and name.endswith("__") and name not in _METHODS
        if not is_pythons and not isinstance(value, types.MemberDescriptorType):
            yield Edge("class attribute", name, value)


def _of_mapping(mapping: dict[Any, Any]) -> Iterator[Edge]:
    if isinstance(mapping, collections.defaultdict):
        yield Edge("factory", "default_factory", mapping.default_factory)
    for i, (key, value) in enumerate(list(mapping.items())):
        yield Edge("item", key, value) if isinstance(key, _PLAIN) else Edge("entry", i, value)


def _of_sequence(items: Any) -> Iterator[Edge]:
    yield from (Edge("item", i, value) for i, value in enumerate(items))


def _of_set(items: Any) -> Iterator[Edge]:
    yield from (Edge("member", value, value) for value in sorted(items, key=repr))


def _of_partial(partial: Any) -> Iterator[Edge]:
    yield Edge("argument", "func", partial.func)
    yield from (Edge("argument", i, value) for i, value in enumerate(partial.args))
    yield Edge("argument", "keywords", partial.keywords)


def _of_object(thing: Any) -> Iterator[Edge]:
    kind = type(thing)
    yield Edge("class", "__class__", kind)
    for base in reversed(kind.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(thing, name) and name not in ("__dict__", "__weakref__"):
                yield Edge("slot", name, getattr(thing, name))
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if not isinstance(thing, (nn.Module, torch.optim.Optimizer)) or name not in _INSIDES:
            yield Edge("attribute", name, value)
        elif name.endswith("_hooks"):
            yield from (Edge("hook", f"{name}[{i}]", hook) for i, hook in enumerate(value.values()))


_FINDERS = (
    (types.FunctionType, _of_function),
    (types.MethodType, lambda it: [Edge("self", "__self__", it.__self__),
                                   Edge("self", "__func__", it.__func__)]),
    (types.ModuleType, lambda it: [Edge("library", *each) for each in vars(it).items()
                                   if each[0] not in _LIBRARY] if is_own_module(it) else []),
    (type, _of_class),
    (property, lambda it: [Edge("self", "fget", it.fget)]),
    ((staticmethod, classmethod), lambda it: [Edge("self", "__func__", it.__func__)]),
    (functools.partial, _of_partial),
    (functools._lru_cache_wrapper, lambda it: [Edge("self", "__wrapped__", it.__wrapped__)]),
    (weakref.ref, lambda it: [Edge("self", "target", it())]),
    (contextvars.ContextVar, lambda it: [Edge("context", "now", it.get(None))]),
    (types.BuiltinFunctionType, lambda it: []),
    (threading.local, lambda it: [Edge("attribute", key, value)
                                  for key, value in vars(it).items()]),
    (dict, _of_mapping),
    ((list, tuple, collections.deque), _of_sequence),
    ((set, frozenset), _of_set),
)


def walk(roots: dict[str, Any]) -> Iterator[Place]:
    """All places once, in the order of their distance. Of modules that are a library's those
    attributes count that code names."""
    queue = collections.deque((((("root", name),), root)) for name, root in roots.items())
    known: set[int] = set(map(id, roots.values()))
    kept, count = list(roots.values()), 0  # so that no id is used twice
    named = _named_in_code(roots)
    while queue:
        path, thing = queue.popleft()
        found = [Edge("library", name, vars(thing)[name])
                 for name in sorted(named.get(id(thing), ())) if name in vars(thing)] \
            if isinstance(thing, types.ModuleType) and not is_own_module(thing) else edges(thing)
        for edge in found:
            place = Place((*path, (edge.kind, edge.key)), thing, edge)
            count += 1
            if count > _MOST:
                return
            yield place
            if id(edge.value) not in known and not isinstance(edge.value, _PLAIN):
                known.add(id(edge.value))
                kept.append(edge.value)
                queue.append((place.path, edge.value))


def _named_in_code(roots: dict[str, Any]) -> dict[int, set[str]]:
    """By module, the attributes of it that code of the program names."""
    found: dict[int, set[str]] = {}
    queue, known = list(roots.values()), set()
    while queue:
        thing = queue.pop()
        if id(thing) in known:
            continue
        known.add(id(thing))
        queue += [edge.value for edge in edges(thing) if not isinstance(edge.value, _PLAIN)]
        if not isinstance(thing, types.FunctionType):
            continue
        for first, *rest in chains(thing.__code__):
            module = thing.__globals__.get(first)
            for name in rest:
                if not isinstance(module, types.ModuleType):
                    break
                found.setdefault(id(module), set()).add(name)
                module = vars(module).get(name)
    return found


def find(roots: dict[str, Any], path: tuple[tuple[str, Any], ...]) -> Place:
    """The place of this path. LookupError where there is none."""
    thing = roots[path[0][1]]
    for step in path[1:-1]:
        thing = _next(thing, step).value
    return Place(path, thing, _next(thing, path[-1]))


def _next(thing: Any, step: tuple[str, Any]) -> Edge:
    kind, key = step
    if kind == "library":  # whose they are
        return Edge(kind, key, vars(thing)[key])
    for edge in edges(thing):
        if (edge.kind, edge.key) == step:
            return edge
    raise LookupError(step)


def _is_note(key: Any) -> bool:
    """Of a check that torch's optimizers make once, and not again."""
    return isinstance(key, str) and key == "_need_device_dtype_check_for_fused"


def picture(roots: dict[str, Any]) -> dict[str, Any]:
    """All that can be compared between two copies, by the names of places: values, the bytes of
    tensors and their gradients, how far iterators are, and what is the same object as what."""
    told: dict[str, Any] = {}
    names = {id(root): name for name, root in roots.items()}
    queue = collections.deque((root, name) for name, root in roots.items())
    kept = list(roots.values())
    while queue:
        thing, name = queue.popleft()
        found = edges(thing)
        told[name] = _told(thing), [
            (edge.kind, edge.key, type(edge.value).__name__, _COPY.sub("", repr(edge.value)))
            for edge in found if isinstance(edge.value, _PLAIN) and not _is_note(edge.key)]
        for kind, key, value in found:
            if isinstance(value, _PLAIN):
                continue
            at = name + _NAMES.get(kind, ".{}").format(key)
            if id(value) in names:
                told[at] = "as", names[id(value)]
                continue
            names[id(value)] = at
            kept.append(value)
            queue.append((value, at))
    return told


def _told(value: Any) -> Any:
    if isinstance(value, Tensor):
        grad = value.grad if value.is_leaf else None
        return bits(value), bits(grad) if grad is not None else None
    return _how_far(value) if isinstance(value, _ITERATORS) else type(value).__name__


def _how_far(value: Any) -> Any:
    """How far an iterator is."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        return frame and (frame.f_lasti, sorted((k, repr(v)) for k, v in frame.f_locals.items()
                                                if isinstance(v, _PLAIN)))
    if not isinstance(value, _ITERATORS):
        return [_how_far(one) for one in value] if isinstance(value, tuple) else \
            repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    _, *rest = value.__reduce__()
    return type(value).__name__, [_how_far(one) for one in rest]


def bits(tensor: Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad and tensor.is_leaf,
            type(tensor) is nn.Parameter, flat.view(torch.uint8).numpy().tobytes())


def answer_bits(answer: Any) -> Any:
    """An answer, or an exception that was raised, to be compared."""
    if isinstance(answer, Tensor):
        return bits(answer.detach())
    if isinstance(answer, BaseException):
        return type(answer).__name__, str(answer)
    if isinstance(answer, dict):
        return [(key, answer_bits(value)) for key, value in answer.items()]
    if isinstance(answer, (list, tuple)):
        return type(answer).__name__, [answer_bits(one) for one in answer]
    return answer if isinstance(answer, _PLAIN) else picture({"answer": answer})


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
