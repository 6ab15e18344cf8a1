# SPDX-License-Identifier: Apache-2.0
"""``anabranch.record(fn)``: any callable of tensors, recorded once and launched ever after.

    step = anabranch.record(train_step)

Threads: any. Failure: wrong uses are refused at once; see ``record``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn

from anabranch import config
from anabranch._arguments import check_function, wrong
from anabranch._record.recorded_callable import (
    RecordedCallable,
    RecordedOfClass,
    RecordedStatic,
)
from anabranch._record.recorded_module import RecordedModule, model_of, record_module

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def record(function: nn.Module, *, state: Iterable[Any] = (),  # type: ignore[overload-overlap]
           guard: Callable[[], Any] | None = None, options: Mapping[str, Any] | None = None,
           record: bool | None = None, strict: bool | None = None,
           allow: Collection[str | int] | None = None, verify: bool | None = None,
           python_once: bool | None = None, guards: bool | None = None,
           max_recordings: int | None = None, max_recording_bytes: int | None = None,
           max_parallel_kernels: int | None = None, parallel_bytes: int | None = None,
           prefetch_bytes: int | None = None,
           timing: bool | None = None) -> RecordedModule: ...


@overload
def record(function: Callable[_P, _R], *, state: Iterable[Any] = (),
           guard: Callable[[], Any] | None = None, options: Mapping[str, Any] | None = None,
           record: bool | None = None, strict: bool | None = None,
           allow: Collection[str | int] | None = None, verify: bool | None = None,
           python_once: bool | None = None, guards: bool | None = None,
           max_recordings: int | None = None, max_recording_bytes: int | None = None,
           max_parallel_kernels: int | None = None, parallel_bytes: int | None = None,
           prefetch_bytes: int | None = None,
           timing: bool | None = None) -> RecordedCallable[_P, _R]: ...


@overload
def record(function: None = None, *, state: Iterable[Any] = (),
           guard: Callable[[], Any] | None = None, options: Mapping[str, Any] | None = None,
           record: bool | None = None, strict: bool | None = None,
           allow: Collection[str | int] | None = None, verify: bool | None = None,
           python_once: bool | None = None, guards: bool | None = None,
           max_recordings: int | None = None, max_recording_bytes: int | None = None,
           max_parallel_kernels: int | None = None, parallel_bytes: int | None = None,
           prefetch_bytes: int | None = None, timing: bool | None = None,
           ) -> Callable[[Callable[_P, _R]], RecordedCallable[_P, _R]]: ...


def record(function: Callable[..., Any] | None = None, *, state: Iterable[Any] = (),
           guard: Callable[[], Any] | None = None, options: Mapping[str, Any] | None = None,
           **keywords: Any) -> Any:
    """Records a callable of tensors: inference, or a whole training step with its optimizer. What
    it answers of a model is a module, a RecordedModule of the model's class.

    ``state`` names modules, optimizers and tensors that the callable uses and that cannot be
    found from it (those in its closure, its globals, its object and its arguments are found).
    ``guard`` is called before each launch, without arguments; where it answers something else, the
    call has another recording. What it answers can be hashed. ``options``, or keywords, are those
    of ``anabranch.config`` and beat it. Also a decorator. Raises WrongArgument [E0611] where
    ``function`` or ``guard`` cannot be called or ``state`` is no list or tuple of these, [E0612]
    for coroutines and generators, and ConfigError for options.

    A recording repeats what the callable does on the GPU and not what it does in Python: branches
    and side effects are those of the recording. Python values that it may read and does not change
    are guards: they are compared before each launch, and another value is recorded by itself. What
    it answers are fresh tensors without history. It may leave new tensors in ``.grad``, and in
    objects, containers and variables that are found from it: launches then leave theirs there.
    """
    _refuse_static(keywords)
    roots = _roots_in(state)
    given = {name: value for name, value in keywords.items()
             if value is not None or name not in _KEYWORDS}
    config.resolve(options, **given)  # refused here, and not only where it decorates
    wanted = {**(options or {}), **given}
    if guard is not None:
        check_function("record", guard, "guard= is called without arguments before each launch.")

    def recorded(given: Any) -> Any:
        kind = next((made for of, made in _KINDS.items() if isinstance(given, of)), None)
        given = given.__func__ if kind is not None else model_of(given)
        check_function("record", given, "Give a function, or a model: anabranch.record(step). As a "
                       "decorator it stands below @property.")
        if isinstance(given, nn.Module):
            return record_module(given, roots, guard, wanted)
        return (kind or RecordedCallable)(given, roots, guard, wanted)

    return recorded if function is None else recorded(function)


_KINDS = {staticmethod: RecordedStatic, classmethod: RecordedOfClass}

# Options that have keywords of their own, where None is not given.
_KEYWORDS = frozenset(("record", "strict", "allow", "verify", "python_once", "guards",
                       "max_recordings", "max_recording_bytes", "max_parallel_kernels",
                       "parallel_bytes", "prefetch_bytes", "timing"))


def _refuse_static(keywords: Mapping[str, Any]) -> None:
    if "static" in keywords:
        raise wrong("record", "a keyword", "static", "state, as it is called now",
                    "record(step, state=(model,)).")


_WHOLE = (Tensor, nn.Module, torch.optim.Optimizer, Mapping, str, bytes)
_LISTS = (nn.ModuleList, nn.ParameterList)


def _roots_in(state: Any) -> tuple[Any, ...]:
    """What is in ``state``. A model would give its layers, and a tensor its rows."""
    wanted = "a list or tuple of modules, optimizers and tensors"
    remedy = "One alone is state=(model,), with the comma."
    if not isinstance(state, Iterable) or (isinstance(state, _WHOLE) \
                                            and not isinstance(state, _LISTS)):
        raise wrong("record", "state", state, wanted, remedy)
    roots = tuple(state)
    for i, root in enumerate(roots):
        if isinstance(root, (str, bytes, int, float, complex)):
            raise wrong("record", f"state[{i}]", root, "something that leads to a tensor", remedy)
    return roots
