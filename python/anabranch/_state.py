# SPDX-License-Identifier: Apache-2.0
"""What a step uses beside its arguments: modules, optimizers and tensors that it can reach.

A recording holds their addresses and whatever Python said when it was made. So a step's state is
found once, as *places* (a dictionary and a key), and looked up again before each launch: a tensor
that moved, or another one in its place, is seen. What cannot be found this way (a tensor inside an
object of somebody's library) is frozen where it was; ``static=`` names it.

Threads: as the objects found. Failure: none; what cannot be walked is left out.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_COUNTER_BYTES = 1 << 16
_DEEPEST = 8  # containers and objects within one another
_DONT_ENTER = ("torch", "builtins", "typing", "collections", "functools", "numpy", "anabranch")


class _Cell:
    """A closure's cell as something with one key."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __getitem__(self, _: Any) -> Any:
        return self._cell.cell_contents


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a tensor is found: ``holder[key]``."""

    holder: Any
    key: Any

    def get(self) -> Any:
        try:
            return self.holder[self.key]
        except (KeyError, IndexError, ValueError):
            return None


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The plain tensors inside one of a wrapping class (DTensor and its like), or itself."""
    if not is_wrapper(tensor):
        return [tensor]
    return [inner for _, _, part in _parts_of_wrapper(tensor) for inner in inner_tensors(part)]


def inner_places(tensor: Tensor) -> list[tuple[Any, str]]:
    """Where the plain tensors inside a wrapping one are: object and attribute."""
    places: list[tuple[Any, str]] = []
    for owner, name, inner in _parts_of_wrapper(tensor):
        places += inner_places(inner) if is_wrapper(inner) else [(owner, name)]
    return places


def _parts_of_wrapper(tensor: Tensor) -> Iterator[tuple[Any, str, Tensor]]:
    """Owner, attribute and value. A wrapper may name other things too: DTensor its mesh (2.15)."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        if isinstance(part := getattr(tensor, name), Tensor):
            yield tensor, name, part


def version_of(tensor: Tensor) -> int:
    """How often it was written in place; 0 for those that do not count."""
    return 0 if tensor.is_inference() else tensor._version


def is_wrapper(tensor: Tensor) -> bool:
    return hasattr(type(tensor), "__tensor_flatten__")


class State:
    """Everything found from a callable and from what the user named. ``before`` is what was found
    when it was looked for last, so that what has been written since is known."""

    def __init__(self, roots: Iterable[Any] = (), before: State | None = None) -> None:
        self.places: list[Place] = []  # plain tensors on a GPU: they may move
        self.wrapped: list[Place] = []  # tensors of wrapping classes: these may not
        self.on_cpu: list[Place] = []  # read when recorded, and frozen
        self.pinned: list[Place] = []  # copied from and to by each launch: they may not move
        self.counters: list[Tensor] = []  # on the CPU, changed by every step of an optimizer
        self.generators: list[torch.Generator] = []
        self.modules: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._seen: set[int] = set()
        self._keep: list[Any] = []  # what an id in _seen belongs to
        for holder, key in _items(list(roots)):
            self._look(Place(holder, key), 0)
        del self._seen, self._keep
        self._modes = [vars(module) for module in self.modules if "training" in vars(module)]
        # Guards tell these by their ids, which nothing else may get.
        pinned = [tensor for place in self.pinned if (tensor := place.get()) is not None]
        self._held = [*(optimizer.state for optimizer in self.optimizers),
                      *(place.get() for place in self.on_cpu), *pinned]
        self._versions = {id(tensor): version_of(tensor) for tensor in pinned}
        known = before._versions if before else {}
        # Of the pinned ones: the step has written them, for all that is known.
        self.written = [tensor for tensor in pinned
                        if known.get(id(tensor), version_of(tensor)) != version_of(tensor)]
        self._parameters: list[Tensor] = []  # and what may become one
        self.parameters()

    def tensors(self) -> list[Tensor]:
        """Those that may move, as they are now. KeyError and its like where one is gone."""
        return [place.holder[place.key] for place in self.places]

    def inner_tensors(self) -> list[Tensor]:
        """Those that may not move: the insides of wrapping classes."""
        return [inner for place in self.wrapped if (tensor := place.get()) is not None
                for inner in inner_tensors(tensor)]

    def on_host(self) -> list[Tensor]:
        """What a step may write on the CPU: counters and the like, no data sets."""
        return [*self.counters, *(tensor for place in self.on_cpu
                                  if (tensor := place.get()) is not None
                                  and tensor.numel() * tensor.element_size() <= _COUNTER_BYTES)]

    def parameters(self) -> list[Tensor]:
        """Tensors that backward may give a ``.grad``, as they are now."""
        self._parameters = [tensor for place in (*self.places, *self.wrapped)
                            if (tensor := place.get()) is not None and tensor.is_leaf
                            and (tensor.requires_grad or isinstance(tensor, nn.Parameter))]
        return [tensor for tensor in self._parameters if tensor.requires_grad]

    def guards(self) -> tuple[Any, ...]:
        """What Python says about the state and a recording has frozen. Where nobody asks for
        gradients, whether there are any is left to launches that read some."""
        return (
            tuple([attributes["training"] for attributes in self._modes]),
            tuple([parameter.grad is None if parameter.requires_grad else None
                   for parameter in self._parameters])
            if self.optimizers or torch.is_grad_enabled() else None,
            tuple([(id(opt.state), len(opt.state), self.hyperparameters(opt))
                   for opt in self.optimizers]),
            tuple([(id(tensor), version_of(tensor)) for place in self.on_cpu
                   if (tensor := place.get()) is not None]),
            tuple([(id(tensor), tensor.data_ptr()) for place in self.pinned
                   if (tensor := place.get()) is not None]),
        )

    @staticmethod
    def hyperparameters(optimizer: torch.optim.Optimizer) -> tuple[Any, ...]:
        """Values that are no tensors; a tensor's value is read by the kernels."""
        return tuple([
            tuple([value if not isinstance(value, Tensor) else None
                   for key, value in group.items() if key != "params"])
            for group in optimizer.param_groups
        ])

    def _visit(self, thing: Any, depth: int) -> None:
        if id(thing) in self._seen or depth > _DEEPEST:
            return
        self._seen.add(id(thing))
        self._keep.append(thing)
        if isinstance(thing, nn.Module):
            self._visit_module(thing, depth)
        elif isinstance(thing, torch.optim.Optimizer):
            self._visit_optimizer(thing)
        elif isinstance(thing, torch.Generator):
            self.generators.append(thing)
        else:
            for holder, key in _parts(thing):
                self._look(Place(holder, key), depth)

    def _look(self, place: Place, depth: int) -> None:
        try:
            value = place.get()
        except Exception:  # an empty cell, a property that fails
            return
        if isinstance(value, Tensor):
            self._add(place, value)
        elif value is not None:
            self._visit(value, depth + 1)

    def _add(self, place: Place, tensor: Tensor, counts: bool = False) -> None:
        """``counts``: it changes with every step, and the optimizer refuses to be captured so."""
        if id(tensor) in self._seen:
            return
        self._seen.add(id(tensor))
        self._keep.append(tensor)
        if is_wrapper(tensor):
            self.wrapped.append(place)
        elif tensor.is_cuda:
            self.places.append(place)
        elif tensor.device.type == "cpu" and counts:
            self.counters.append(tensor)
        elif tensor.device.type == "cpu":
            (self.pinned if _is_pinned(tensor) else self.on_cpu).append(place)

    def _visit_module(self, module: nn.Module, depth: int) -> None:
        for part in module.modules():
            self._seen.add(id(part))
            self._keep.append(part)
            self.modules.append(part)
            for holder in (part._parameters, part._buffers, part.__dict__):
                for key, value in list(holder.items()):
                    if isinstance(value, Tensor):
                        self._add(Place(holder, key), value)

    def _visit_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.append(optimizer)
        for group in optimizer.param_groups:
            for holder in (group, group["params"]):
                items = holder.items() if isinstance(holder, dict) else enumerate(holder)
                for key, value in list(items):
                    if isinstance(value, Tensor):
                        self._add(Place(holder, key), value)
        for state in list(optimizer.state.values()):
            for key, value in list(state.items()) if isinstance(state, dict) else ():
                if isinstance(value, Tensor):
                    self._add(Place(state, key), value, counts=True)


def _is_pinned(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_pinned()


def _parts(thing: Any) -> Iterator[tuple[Any, Any]]:
    """What one looks at inside a callable, a container or an object: holder and key."""
    if isinstance(thing, functools.partial):
        yield from _items([thing.func, *thing.args, *thing.keywords.values()])
    elif isinstance(thing, types.MethodType):
        yield from _items([thing.__self__, thing.__func__])
    elif isinstance(thing, types.FunctionType):
        yield from _parts_of_function(thing)
    elif isinstance(thing, (dict, list, tuple)):
        yield from _items(thing)
    elif isinstance(thing, (set, frozenset)):
        yield from _items(list(thing))
    elif _may_enter(thing):
        yield from _items(vars(thing))
        if callable(thing) and isinstance(call := getattr(type(thing), "__call__", None),
                                          types.FunctionType):
            yield from _items([call])


def _items(thing: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    keys = list(thing) if isinstance(thing, dict) else range(len(thing))
    for key in keys:
        yield thing, key


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[Any, Any]]:
    for cell in function.__closure__ or ():
        yield _Cell(cell), 0
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__, name
    yield from _items(list(function.__defaults__ or ()))
    yield from _items(function.__kwdefaults__ or {})
    compiled = getattr(function, "_torchdynamo_orig_callable", None)
    if compiled is not None:
        yield from _items([compiled])


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _may_enter(thing: Any) -> bool:
    if isinstance(thing, (type, types.ModuleType)) or not hasattr(thing, "__dict__"):
        return False
    return type(thing).__module__.split(".")[0] not in _DONT_ENTER


def find_state(function: Callable[..., Any], static: Iterable[Any],
               before: State | None = None) -> State:
    return State([function, *static], before)
