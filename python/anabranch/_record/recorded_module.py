# SPDX-License-Identifier: Apache-2.0
"""What ``anabranch.record`` answers of a model: a module, whose calls are recorded.

It is the model in all but its call. Both have one ``__dict__``, so that parameters, buffers, hooks,
modes and the names of a ``state_dict`` are the model's own, whichever of them is asked; its class
derives from the model's; and it equals the model, so that a tree in which both stand has one
module. Plain runs, captures and compiled code call the model itself.

Threads: as the model; calls as those of RecordedCallable. Failure: as the model's.
"""

from __future__ import annotations

import abc
import copy
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from anabranch import _compat
from anabranch._record.recorded_callable import RecordedCallable

_TRUE_CLASS: Any = object.__dict__["__class__"]
_SLOTS = ("__anabranch_called__", "__anabranch_model__")
_UNSCRIPTED = "__jit_unused_properties__"  # which torch.jit.script leaves out
# Of the recorded callable, where the model has nothing of that name.
_OFFERED = ("name", "precompile", "reports", "reset", "state", "with_options")


class RecordedModule(nn.Module):
    """What all such modules derive from, beside the class of their model."""

    __slots__ = ()  # these two are those of the class of each model: see _class_for
    __anabranch_called__: types.MethodType  # the recorded callable's call, which is the quicker
    __anabranch_model__: nn.Module

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Whoever calls the class gets what the model's class makes. That is not recorded."""
        return _class_behind(cls)(*args, **kwargs)

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Is not for the model's class to hear of."""

    def __plainly(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__anabranch_model__(*args, **kwargs)

    @_compat.traced_as(__plainly)
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.__anabranch_called__(*args, **kwargs)

    @property
    def anabranch(self) -> _CalledModule:
        """What is called. It has ``reports``, ``precompile``, ``reset`` and the like, also where
        the model has something else of such a name."""
        called: Any = self.__anabranch_called__.__self__
        return called  # type: ignore[no-any-return]

    @property
    def __class__(self) -> type:
        """The model's, so that who asks for it, and derives from it, has the model's own."""
        return type(self.__anabranch_model__)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        """Both change, as where torch parametrizes a layer, shards it or knows its sizes now."""
        self.__anabranch_model__.__class__ = kind
        _TRUE_CLASS.__set__(self, _class_for(kind))

    def __getattr__(self, name: str) -> Any:
        if name in _SLOTS:  # it is being made
            raise AttributeError(name)
        if name not in _OFFERED:
            return getattr(self.__anabranch_model__, name)
        try:
            return getattr(self.__anabranch_model__, name)
        except AttributeError:
            return getattr(self.anabranch, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self.__anabranch_model__), *_OFFERED, "anabranch"})

    def __eq__(self, other: object) -> bool:
        return bool(self.__anabranch_model__ == model_of(other))

    def __hash__(self) -> int:
        return hash(self.__anabranch_model__)

    def __del__(self) -> None:
        """The model's own is called where the model ends."""

    def __copy__(self) -> RecordedModule:
        model, *rest = self.anabranch.made_of
        return record_module(copy.copy(model), *rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedModule:
        made = memo[id(self)] = _blank(type(self))
        made.__setstate__(copy.deepcopy(self.anabranch.made_of, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _blank, (), self.anabranch.made_of

    def __setstate__(self, made_of: Any) -> None:
        model, put = made_of[0], functools.partial(object.__setattr__, self)
        _TRUE_CLASS.__set__(self, _class_for(type(model)))
        put("__anabranch_model__", model)  # a module's own way would make it a child
        put("__anabranch_called__", _CalledModule(*made_of).__call__)
        put("__dict__", model.__dict__)


def _replicated(self: Any) -> nn.Module:
    """Replicas of DataParallel are the model's: each belongs to one call."""
    replica: nn.Module = getattr(model_of(self), _compat.REPLICATE)()
    return replica


setattr(RecordedModule, _compat.REPLICATE, _replicated)


class _CalledModule(RecordedCallable[..., Any]):
    """The calls of a recorded module. What is made of it anew is a module, too."""

    @property
    def made_of(self) -> tuple[Any, ...]:
        """The model, ``state``, ``guard`` and the options."""
        return self._made_of

    def _anew(self, *made_of: Any) -> Any:
        return record_module(*made_of)


def record_module(model: nn.Module, state: tuple[Any, ...], guard: Callable[[], Any] | None,
                  options: Mapping[str, Any]) -> RecordedModule:
    made = _blank(_class_for(type(model)))
    made.__setstate__((model, state, guard, options))
    return made


def _blank(kind: type | None = None) -> RecordedModule:
    """Where its model's class is not known yet, it becomes that later."""
    made: RecordedModule = object.__new__(kind or _class_for(nn.Module))
    return made


def callable_of(function: Any) -> Any:
    """What is called where a recorded module is; others as they are."""
    return function.anabranch if isinstance(function, RecordedModule) else function


def model_of(function: Any) -> Any:
    """The model behind a recorded module; others as they are."""
    return function.anabranch.made_of[0] if isinstance(function, RecordedModule) else function


def _class_for(kind: type) -> type:
    """The class of recorded models of a class: one for all, which ends with the last of them."""
    subclasses: list[type] = type.__subclasses__(kind)
    for known in subclasses:
        if known.__bases__ == (RecordedModule, kind):
            return known
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    names |= {"__slots__": _SLOTS, _UNSCRIPTED: [*getattr(kind, _UNSCRIPTED, ()), "anabranch"]}
    make: Any = abc.ABCMeta if isinstance(kind, abc.ABCMeta) else type
    # A metaclass of the user's may count its classes by name, or refuse this one.
    made: type = make.__new__(type(kind), kind.__name__, (RecordedModule, kind), names)
    return made


def _class_behind(kind: type) -> Any:
    """The model's class, given that of recorded ones or one that derives from it."""
    line = kind.__mro__
    return line[line.index(RecordedModule) + 1]
