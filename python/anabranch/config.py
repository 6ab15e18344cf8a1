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
import numbers
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anabranch._arguments import check_function
from anabranch.errors import ALLOWABLE, ConfigError, code_text, shown

MOST_LANES = 1024  # as many as a program has streams at most, kMaxStreams of program.h
_HOUR_US = 3_600_000_000
_MOST_COUNT, _MOST_BYTES, _MOST_SEED = 2**31 - 1, 2**63 - 1, 2**64 - 1
_UNKNOWN, _WRONG_TYPE, _OUT_OF_RANGE = 701, 702, 703
_WORDS = {"1": True, "true": True, "on": True, "yes": True,
          "0": False, "false": False, "off": False, "no": False}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,100}")
_CODE = re.compile(r"[Ee]?0*([0-9]{1,9})")
_SHARE = re.compile(r"[0-9]{0,100}\.[0-9]{1,100}")
_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "None": type(None),
          "frozenset[int]": frozenset}
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Picked = TypeVar("_Picked")


class UnknownOption(ConfigError, AttributeError):
    """No option has this name. Also an AttributeError, which is what hasattr() asks for."""


def _option(default: Any, doc: str, least: int = 0, most: int = 0,
            words: tuple[str, ...] = (), few: int = 0) -> Any:
    """Of numbers both bounds are possible values; the core takes all between them uncut. A text is
    one of ``words``, where there are any, and a float a share of something, from 0.0 to 1.0. Fewer
    bytes than ``few`` but none were meant as a share."""
    return dataclasses.field(default=default, metadata={
        "doc": doc, "bounds": (least, most), "words": words, "few": few})


@dataclasses.dataclass(frozen=True)
class Options:
    """One value for every option, as resolve() answers them."""

    strict: bool = _option(
        False, "Raise where a graph would otherwise fall back to Inductor, with the same reason.")
    allow: frozenset[int] = _option(
        frozenset(), "Codes of docs/errors.md, such as E0312, that strict does not raise and of "
        "which no warning is given.")
    summary: bool = _option(
        False, "When Python ends, say on stderr what ran unrecorded: a line for each code and "
        "place, with how often.")
    streams: bool = _option(
        True, "Honour stream annotations. Off: every graph is one region on the caller's thread.")
    record: bool = _option(
        True, "Record CUDA graphs and launch them. Off: everything runs as torch would run it, "
        "named streams on streams of the GPU.")
    verify: bool = _option(
        True, "Compare a recording's first launch with a plain run before it is used.")
    python_once: bool = _option(
        True, "Run the Python of a recorded callable once a call, also in the calls that record "
        "it: the second call of a signature is captured and launched, the third is compared with "
        "it. Off: the second call is recorded, and runs the Python three times or more.")
    max_parallel_kernels: int = _option(
        4, "About how many kernels of one recording may run side by side on a GPU, where that is "
        "measured faster. 1: they run in the order in which the step queued them.", 1, MOST_LANES)
    prefetch_bytes: int = _option(
        256 << 20, "Bytes that copies from pinned memory to the GPU may bring in a recording "
        "before the kernels that were queued earlier have read what came before.", 0, _MOST_BYTES)
    parallel_bytes: int | None = _option(
        None, "Bytes that a launch may take more than the plain step does, for kernels that run "
        "side by side. None: a 1024th of the GPU's memory, or that much for each lane that streams "
        "and overlap ask for by name.", 0, _MOST_BYTES)
    activation_memory: float | int | str | None = _option(
        None, "How much of what a forward saves for its backward may stay on the GPU: a share of "
        "it (0.6), bytes (an int), or 'fit', which takes off as little as makes the step fit what "
        "is free. The rest is computed again, or goes to the host's memory and comes back. None: "
        "all stays.", 0, _MOST_BYTES, ("fit",), 4096)
    bucket_bytes: int = _option(
        64 << 20, "Bytes up to which gathers inside anabranch.overlap are put into one call on a "
        "GPU. 0: each is a call of its own.", 0, _MOST_BYTES)
    max_recordings: int = _option(
        64, "Signatures of one callable that are recorded. Further ones run plainly, until one "
        "that comes again and again takes the place of one that does not; `reports` says in what "
        "they differ.", 1, _MOST_COUNT)
    max_recording_bytes: int = _option(
        4 << 30, "Bytes that the recordings of one callable may hold between launches, on the GPU, "
        "pinned and by the driver. Those that were used least lately go.", 0, _MOST_BYTES)
    follow_numbers: bool = _option(
        True, "Launch recordings with other values of a float that changes between calls, where "
        "its way into the kernels is known, and with other numbers in lists of integers. Off: "
        "each value is recorded by itself.")
    guards: bool = _option(
        True, "Compare Python values that a recorded callable's code names with those of its "
        "recording, before each launch. Off: only what `guard=` answers.")
    timing: bool = _option(
        False, "Time the kernels of recordings, by a launch now and then that has an event behind "
        "each kernel; `reports` and `explain` tell of them. It keeps the mean launch within 1 %.")
    traceparent: str | None = _option(
        None, "The caller's id in W3C's trace context: what `explain` tells belongs to its trace.")
    native_regions: bool = _option(
        True, "Run regions through the C++ runtime. Off: through Inductor's Python callables.")
    delay_seed: int | None = _option(
        None, "Seed of a random delay before every step, to bring out races. None: no delays.", 0,
        _MOST_SEED)
    max_threads: int | None = _option(
        None, "Threads that one launch may use, the caller's included. None: one a core.", 1,
        MOST_LANES)
    spin_us: int = _option(
        400, "Microseconds that a waiting worker spins before it sleeps.", 0, _HOUR_US)
    progress: bool | None = _option(
        None, "Show a line while compiling. None: on a terminal or in a notebook, after two "
        "seconds.")
    library_path: str | None = _option(
        None, "Path of the native library. None: the one installed with the package.")


    @property
    def may_have_lanes(self) -> bool:
        """Whether kernels may run side by side: only where that is verified."""
        return self.max_parallel_kernels > 1 and self.verify


# What options were called before, for who knows them by that.
RENAMED = {"ahead_bytes": "prefetch_bytes", "gather_bytes": "bucket_bytes", "delays": "delay_seed",
           "max_lanes": "max_threads", "overlap": "max_parallel_kernels",
           "overlap_bytes": "parallel_bytes", "native": "native_regions",
           "library": "library_path"}
_FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def _kind_of(name: str) -> str:
    """Its type, and the bounds of a number: "int | None, 1 to 1024"."""
    field = _FIELDS[name]
    least, most = field.metadata["bounds"]
    return f"{field.type}, {least} to {_number(most)}" if most else str(field.type)


def _number(bound: int) -> str:
    is_of_bits = bound > 2**30 and (bound + 1).bit_count() == 1
    return f"2^{bound.bit_length()} - 1" if is_of_bits else str(bound)


def _meaning(name: str) -> str:
    return f"{name}: {_FIELDS[name].metadata['doc']}"


def _wrong_type(name: str, origin: str, value: object) -> ConfigError:
    return ConfigError(
        _WRONG_TYPE, f"config: {origin} is {shown(value)}, the option wants {_kind_of(name)}.",
        _meaning(name))


def _out_of_range(name: str, origin: str, value: object, range_: str) -> ConfigError:
    text = shown(value).removesuffix(f" ({type(value).__name__})")
    return ConfigError(_OUT_OF_RANGE, f"config: {origin} is {text}, {range_}.", _meaning(name))


def _known(name: Any, origin: str) -> str:
    if isinstance(name, str) and name in _FIELDS:
        return name
    is_text = isinstance(name, str)
    if is_text and name in RENAMED:
        raise UnknownOption(_UNKNOWN, f"config: {origin} names no option any more: {name!r}.",
                            f"It is called {RENAMED[name]} now.")
    near = difflib.get_close_matches(name, _FIELDS, n=3, cutoff=0.5) if is_text else []
    remedy = f"Nearest: {', '.join(near)}." if near else f"Options: {', '.join(_FIELDS)}."
    told = repr(name) if is_text else shown(name)
    raise UnknownOption(_UNKNOWN, f"config: {origin} names no option: {told}.", remedy)


def _checked(name: str, value: Any, origin: str) -> Any:
    """The value, or the one that it stands for. All values come through here, whoever gives
    them."""
    field = _FIELDS[_known(name, origin)]
    kinds = str(field.type).split(" | ")
    if isinstance(value, os.PathLike) and "str" in kinds:
        value = os.fspath(value)
    if kinds == ["frozenset[int]"] and isinstance(value, Collection):
        return _codes(name, value, origin)
    # By exact type: True is an int to Python, but not to someone who reads `spin_us = True`.
    value = _plain(value)
    if type(value) not in [_TYPES[kind] for kind in kinds]:
        raise _wrong_type(name, origin, value)
    least, most = field.metadata["bounds"]
    if type(value) is int and value < least:
        raise _out_of_range(name, origin, value, f"the least possible is {least}")
    if type(value) is int and 0 < value < field.metadata["few"]:
        raise _out_of_range(name, origin, value, "which are bytes; all of it is 1.0")
    if type(value) is int and value > most:
        raise _out_of_range(name, origin, value, f"the most possible is {_number(most)}")
    if type(value) is float and not 0.0 <= value <= 1.0:
        raise _out_of_range(name, origin, value, "and a share is from 0.0 to 1.0")
    words = field.metadata["words"]
    if type(value) is str and words and value not in words:
        raise _out_of_range(name, origin, value, f"and the only word is {' or '.join(words)!r}")
    if type(value) is str and "\0" in value:
        raise _out_of_range(name, origin, value, "and no path has a NUL in it")
    return value


def _plain(value: Any) -> Any:
    """Python's own number where it is one of another library, such as numpy's float64."""
    if isinstance(value, (bool, int)) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _codes(name: str, value: Collection[Any], origin: str) -> frozenset[int]:
    """Of numbers, or of texts such as "E0312"; of one text with commas between."""
    parts = re.findall(r"[^,\s]+", value) if isinstance(value, str) else value
    found = set()
    for part in parts:
        said = _CODE.fullmatch(str(part)) if type(part) in (int, str) else None
        if said is None:
            raise _wrong_type(name, origin, value)
        if (code := int(said[1])) not in ALLOWABLE:
            near = sorted(sorted(ALLOWABLE, key=lambda one: abs(one - code))[:3])
            told = part if isinstance(part, str) else code_text(code)
            raise ConfigError(
                _OUT_OF_RANGE, f"config: {origin} names {told}, which is no code that "
                "can be allowed.", f"Nearest: {', '.join(map(code_text, near))}.")
        found.add(code)
    return frozenset(found)


def _parsed(name: str, text: str, origin: str) -> Any:
    kinds = str(_FIELDS[name].type).split(" | ")
    word = text.strip().lower()
    if "None" in kinds and word == "none":
        return None
    if "bool" in kinds and word in _WORDS:
        return _WORDS[word]
    if "int" in kinds and _WHOLE_NUMBER.fullmatch(word):
        return _checked(name, int(word), origin)
    if "float" in kinds and _SHARE.fullmatch(word):
        return _checked(name, float(word), origin)
    if "str" in kinds:
        return _checked(name, text, origin)
    if "frozenset[int]" in kinds:
        return _codes(name, text, origin)
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
        if not self._before:
            raise RuntimeError("config.patch: it is left without having been entered")
        _module._assign(self._before.pop(), drop=self._changes)

    def __call__(self, function: _Function) -> _Function:
        check_function("config.patch", function, "Use it as `with patch(...):`, or as a decorator.")

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

    def __str__(self) -> str:
        """A line for each option; `print(anabranch.config)` shows them."""
        return "\n".join(f"{name} = {self._told(name)}  # {kind}: {doc}"
                         for name, kind, _, doc in describe())

    def _told(self, name: str) -> str:
        try:
            return repr(getattr(self, name))
        except ConfigError as error:  # of a variable: printing is how one finds out
            return f"? ({error.message} [{code_text(error.code)}])"


def patch(**changes: Any) -> _Patch:
    """Values for the time of a `with` block or of a decorated function."""
    return _Patch(changes)


def resolve(options: Mapping[str, Any] | None = None, **more: Any) -> Options:
    """The value of every option; `options` is what torch.compile(options=...) was given, and `more`
    what stands beside it as keywords, which beat it."""
    return _resolved(_given(options, more), _Config._assigned)


def _given(options: Mapping[str, Any] | None, more: Mapping[str, Any] = {}) -> dict[str, Any]:
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(_WRONG_TYPE, f"config: options is {shown(options)}, and it must be a "
                          "dict of names and values.", 'For example: options={"strict": True}.')
    return {name: _checked(name, value, _origin(name))
            for name, value in {**(options or {}), **more}.items()}


def _resolved(given: Mapping[str, Any], assigned: Mapping[str, Any]) -> Options:
    return Options(**{name: _value(name, given, assigned) for name in _FIELDS})


def follow(options: Mapping[str, Any] | None, pick: Callable[[Options], _Picked],
           ) -> Callable[[], _Picked]:
    """Answers, whenever it is called, what `pick` makes of resolve(options). It is for who asks at
    every call: an assignment is seen by the next one, a variable of the environment only with it.
    """
    given = _given(options)
    assigned = _Config._assigned
    seen = assigned, pick(_resolved(given, assigned))

    def followed() -> _Picked:
        nonlocal seen
        assigned, picked = seen
        if assigned is not _Config._assigned:
            assigned = _Config._assigned
            picked = pick(_resolved(given, assigned))
            seen = assigned, picked
        return picked

    return followed


def _origin(name: Any) -> str:
    return f'options["{name}"]' if isinstance(name, str) else "options"


def describe() -> Iterator[tuple[str, str, Any, str]]:
    """Name, type with bounds, default and meaning of every option, in order."""
    for name, field in _FIELDS.items():
        yield name, _kind_of(name), field.default, field.metadata["doc"]


def unknown_variables() -> list[str]:
    """Variables of ours in the environment that mirror no option: misspelt, or of an option that
    has another name now."""
    known = {prefix + name.upper() for name in _FIELDS
             for prefix in ("ANABRANCH_", "ANABRANCH_FORCE_")}
    return sorted(variable for variable in os.environ
                  if variable.startswith("ANABRANCH_") and variable not in known)


def compiler_variable() -> str | None:
    """$CXX, which torch's Inductor obeys too."""
    return os.environ.get("CXX") or None


def cache_folder() -> Path:
    """Where what was measured of a machine is kept, by the rule of most programs on Linux."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anabranch"


def wants_no_colour() -> bool:
    """$NO_COLOR, by which people tell all programs: https://no-color.org."""
    return bool(os.environ.get("NO_COLOR"))


if TYPE_CHECKING:  # the module's attributes, which _Config answers; a test holds them to Options
    strict: bool
    allow: frozenset[int]
    summary: bool
    streams: bool
    record: bool
    verify: bool
    python_once: bool
    max_parallel_kernels: int
    prefetch_bytes: int
    parallel_bytes: int | None
    activation_memory: float | int | str | None
    bucket_bytes: int
    max_recordings: int
    max_recording_bytes: int
    follow_numbers: bool
    guards: bool
    timing: bool
    traceparent: str | None
    native_regions: bool
    delay_seed: int | None
    max_threads: int | None
    spin_us: int
    progress: bool | None
    library_path: str | None

_module: Any = sys.modules[__name__]
_module.__class__ = _Config
