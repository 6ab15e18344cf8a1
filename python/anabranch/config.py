# SPDX-License-Identifier: Apache-2.0
"""Options: what can be chosen, and who wins when several places choose.

    anabranch.config.strict = True                        # for the process
    with anabranch.config.patch(strict=True): ...         # for a block; also a decorator
    torch.compile(model, backend="anabranch", options={"strict": True})
    ANABRANCH_STRICT=1 python train.py                    # for a run

options= beats config, config beats the environment, the environment beats the default, and
ANABRANCH_FORCE_STRICT=1 beats them all. No other file of the package reads the environment.
Threads: a reader sees all of an assignment or patch, or none; patches of one option from two
threads at once leave the value of whichever ended last. Failure: ConfigError, and nothing changes.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from .errors import ConfigError

_UNKNOWN, _WRONG_TYPE, _OUT_OF_RANGE = 701, 702, 703
_WORDS = {"1": True, "true": True, "on": True, "yes": True,
          "0": False, "false": False, "off": False, "no": False}
_Function = TypeVar("_Function", bound=Callable[..., Any])


class UnknownOption(ConfigError, AttributeError):
    """No option has this name. Also an AttributeError, which is what hasattr() asks for."""


def _option(default: Any, doc: str, minimum: int | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, "minimum": minimum})


@dataclasses.dataclass(frozen=True)
class Options:
    """One value for every option, as resolve() answers them."""

    strict: bool = _option(
        False, "Raise where a graph would otherwise fall back to Inductor, with the same reason.")
    streams: bool = _option(
        True, "Honour stream annotations. Off: every graph is one region on the caller's thread.")
    record: bool = _option(
        True, "Record CUDA graphs and launch them. Off: everything runs as torch would run it, "
        "named streams on streams of the GPU.")
    verify: bool = _option(
        True, "Compare a recording's first launch with a plain run before it is used.")
    overlap: int = _option(
        4, "About how many kernels of one recording may run side by side on a GPU, where that is "
        "measured faster. 1: they run in the order in which the step queued them.", 1)
    ahead_bytes: int = _option(
        256 << 20, "Bytes that copies from pinned memory to the GPU may bring in a recording before "
        "the kernels that were queued earlier have read what came before.", 0)
    overlap_bytes: int = _option(
        0, "Bytes that a recording may take more than the plain step does, for kernels that run side "
        "by side.", 0)
    gather_bytes: int = _option(
        64 << 20, "Bytes up to which gathers inside anabranch.overlap are put into one call on a "
        "GPU. 0: each is a call of its own.", 0)
    max_recordings: int = _option(
        16, "Signatures of one callable that are recorded; further ones run plainly, and `report` says "
        "in what they differ.", 1)
    native: bool = _option(
        True, "Run regions through the C++ runtime. Off: through Inductor's Python callables.")
    delays: int | None = _option(
        None, "Seed of a random delay before every step, to bring out races. None: no delays.", 0)
    max_lanes: int | None = _option(
        None, "Threads that one launch may use, the caller's included. None: one a core.", 1)
    spin_us: int = _option(
        400, "Microseconds that a waiting worker spins before it sleeps.", 0)
    progress: bool | None = _option(
        None, "Show a line while compiling. None: on a terminal, after two seconds.")
    library: str | None = _option(
        None, "Path of the native library. None: the one installed with the package.")


_FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def _wrong_type(name: str, origin: str, value: object) -> ConfigError:
    wanted = _FIELDS[name].type
    return ConfigError(
        _WRONG_TYPE,
        f"config: {origin} is {value!r} ({type(value).__name__}), the option wants {wanted}.",
        f"{name}: {_FIELDS[name].metadata['doc']}")


def _known(name: str, origin: str) -> str:
    if name in _FIELDS:
        return name
    near = difflib.get_close_matches(name, _FIELDS, n=3, cutoff=0.5)
    remedy = f"Nearest: {', '.join(near)}." if near else f"Options: {', '.join(_FIELDS)}."
    raise UnknownOption(_UNKNOWN, f"config: {origin} names no option: {name!r}.", remedy)


def _checked(name: str, value: Any, origin: str) -> Any:
    field = _FIELDS[_known(name, origin)]
    kinds = str(field.type).split(" | ")
    # By exact type name: True is an int to Python, but not to someone who reads `spin_us = True`.
    kind = "None" if value is None else type(value).__name__
    if isinstance(value, os.PathLike) and "str" in kinds:
        value, kind = os.fspath(value), "str"
    if kind not in kinds:
        raise _wrong_type(name, origin, value)
    minimum = field.metadata["minimum"]
    if minimum is not None and value is not None and value < minimum:
        raise ConfigError(_OUT_OF_RANGE,
                          f"config: {origin} is {value}, the least possible is {minimum}.",
                          f"{name}: {field.metadata['doc']}")
    return value


def _parsed(name: str, text: str, origin: str) -> Any:
    kinds = str(_FIELDS[name].type).split(" | ")
    word = text.strip().lower()
    if "None" in kinds and word == "none":
        return None
    if "bool" in kinds and word in _WORDS:
        return _WORDS[word]
    if "str" in kinds:
        return text
    if "int" in kinds and word.lstrip("+-").isdecimal():
        return _checked(name, int(word), origin)
    raise _wrong_type(name, origin, text)


def _from_environment(name: str, prefix: str) -> tuple[bool, Any]:
    variable = prefix + name.upper()
    text = os.environ.get(variable, "")
    if not text:  # set but empty is how shells write "not set"
        return False, None
    return True, _parsed(name, text, f"the variable {variable}")


def _value(name: str, options: Mapping[str, Any], assigned: Mapping[str, Any]) -> Any:
    forced, value = _from_environment(name, "ANABRANCH_FORCE_")
    if forced:
        return value
    if name in options:
        return options[name]
    if name in assigned:
        return assigned[name]
    found, value = _from_environment(name, "ANABRANCH_")
    return value if found else _FIELDS[name].default


class _Patch:
    """Context manager and decorator; the same one may be entered again, also while it is on."""

    def __init__(self, changes: Mapping[str, Any]) -> None:
        self._changes = {name: _checked(name, value, f"patch({name}=...)")
                         for name, value in changes.items()}
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append(_module._assign(self._changes))

    def __exit__(self, *exception: object) -> None:
        _module._assign(self._before.pop(), drop=self._changes)

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with _Patch(self._changes):
                return function(*args, **kwargs)

        return patched  # type: ignore[return-value]


class _Config(types.ModuleType):
    """This module's class, so that `config.strict = 1` is refused and `config.strcit` is named."""

    _assigned: Mapping[str, Any] = types.MappingProxyType({})  # replaced whole, never changed
    _lock = threading.Lock()

    def _assign(self, changes: Mapping[str, Any], drop: Mapping[str, Any] = {}) -> dict[str, Any]:
        """Assigns `changes`, forgets the rest of `drop`, and answers what it replaced."""
        with _Config._lock:
            before = {name: _Config._assigned[name] for name in changes
                      if name in _Config._assigned}
            kept = {name: value for name, value in _Config._assigned.items() if name not in drop}
            _Config._assigned = types.MappingProxyType({**kept, **changes})
        return before

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _value(_known(name, "anabranch.config"), {}, _Config._assigned)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._assign({name: _checked(name, value, f"anabranch.config.{name}")})

    def __delattr__(self, name: str) -> None:
        self._assign({}, drop={_known(name, "anabranch.config"): None})

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_FIELDS]


def patch(**changes: Any) -> _Patch:
    """Values for the time of a `with` block or of a decorated function."""
    return _Patch(changes)


def resolve(options: Mapping[str, Any] | None = None) -> Options:
    """The value of every option; `options` is what torch.compile(options=...) was given."""
    given = {name: _checked(name, value, f'options["{name}"]')
             for name, value in (options or {}).items()}
    assigned = _Config._assigned
    return Options(**{name: _value(name, given, assigned) for name in _FIELDS})


def describe() -> Iterator[tuple[str, str, Any, str]]:
    """Name, type, default and meaning of every option, in order."""
    for name, field in _FIELDS.items():
        yield name, str(field.type), field.default, field.metadata["doc"]


def unknown_variables() -> list[str]:
    """Variables of ours in the environment that mirror no option: most often misspelt."""
    known = {prefix + name.upper() for name in _FIELDS
             for prefix in ("ANABRANCH_", "ANABRANCH_FORCE_")}
    return sorted(variable for variable in os.environ
                  if variable.startswith("ANABRANCH_") and variable not in known)


def compiler_variable() -> str | None:
    """$CXX, which torch's Inductor obeys too."""
    return os.environ.get("CXX") or None


_module = sys.modules[__name__]
_module.__class__ = _Config
