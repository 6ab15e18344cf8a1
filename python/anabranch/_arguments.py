# SPDX-License-Identifier: Apache-2.0
"""What public functions are given, looked at before anything is done with it. Without torch.

Threads: any. Failure: WrongArgument [E0611, E0612].
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.errors import WrongArgument, shown

_WRONG, _DEFERRED = 611, 612
_DEFERRING: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("an async function", inspect.iscoroutinefunction),
    ("a generator function", inspect.isgeneratorfunction),
    ("an async generator function", inspect.isasyncgenfunction),
)


def wrong(act: str, argument: str, value: object, wanted: str, remedy: str) -> WrongArgument:
    """The exception; the caller raises it."""
    return WrongArgument(_WRONG, f"{act}: {argument} is {shown(value)}, and it must be {wanted}.",
                         remedy)


def check_function(act: str, function: Any, remedy: str) -> None:
    """Of something that is called, and whose work is done when it returns."""
    if not callable(function):
        raise wrong(act, "the function", function, "something that can be called", remedy)
    if isinstance(function, type) and hasattr(function, "named_parameters"):
        raise wrong(act, "the function", function, "a model and not its class",
                    f"Give an object of it: {function.__name__}(...).")
    for kind, defers in _DEFERRING:
        if any(map(defers, _bodies_of(function))):
            name = getattr(function, "__qualname__", type(function).__name__)
            raise WrongArgument(
                _DEFERRED, f"{act}: {name} is {kind}, which returns before it has done its work.",
                "Give a plain function that does the work, and call that from here.")


def _bodies_of(function: Any) -> list[Any]:
    """What may run where it is called."""
    if inspect.isroutine(function) or isinstance(function, type):
        return [function]
    call = type(function).__call__
    is_model = getattr(call, "__module__", None) == "torch.nn.modules.module"
    return [function, call, *([function.forward] if is_model else [])]


def check_path(act: str, path: Any) -> Path:
    """Answers it as a Path."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text or not _is_encodable(text):
        raise wrong(act, "the path", path, "a str or a Path that is not empty and without NUL",
                    "Name a file in a folder that exists.")
    return Path(text)


def _is_encodable(text: str) -> bool:
    try:
        return bool(os.fsencode(text))
    except UnicodeEncodeError:  # half of a character
        return False
