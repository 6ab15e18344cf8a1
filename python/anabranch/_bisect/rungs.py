# SPDX-License-Identifier: Apache-2.0
"""The rungs of the ladder: one thing more is added at each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from anabranch import _compat, config
from anabranch._bisect.graphs import InductorCalls
from anabranch._compile.backend import backend

_DELAYS = (1, 2, 3, 4, 5)
_Launches = tuple[Mapping[str, Any], ...]
_CALLS = 2  # from the same state: memory has moved, and what one call leaves may meet the next


class RungMaker(NamedTuple):
    """``compile`` makes of the user's function what is run; rungs with the same ``compiled_as``
    share that. ``launch`` are options around each call, one set a call. ``compiled`` has those of
    our backend. A rung that ``needs_streams`` is run only where some graph has several."""

    name: str
    compiled_as: str
    compile: Callable[[Callable[..., Any]], Callable[..., Any]]
    launch: _Launches = ({},) * _CALLS
    options: dict[str, Any] | None = None
    needs_streams: bool = False
    has_threads: bool = False

    @property
    def is_torchs(self) -> bool:
        return self.options is None

    @property
    def looks_for_races(self) -> bool:
        return self.has_threads and "delay_seed" in self.launch[0]


def rungs_of_model(has_gpu: bool, inductor: InductorCalls) -> list[RungMaker]:
    """The first is not eager: that is what all are compared with."""
    first = [RungMaker("aot_eager", "aot_eager", _compiled_by("aot_eager")),
             RungMaker("inductor", "inductor", _compiled_by(inductor.backend)),
             _ours("anabranch, one stream", {"streams": False, "record": False})]
    return [*first, *(_on_gpu() if has_gpu else _on_host())]


def _on_host() -> list[RungMaker]:
    """The plan of regions is one and the same: what differs is how it is launched."""
    threads = {"native_regions": True, "max_threads": config.resolve().max_threads}
    launches: dict[str, list[Mapping[str, Any]]] = {
        "streams, on one thread in Python": [{"native_regions": False, "max_threads": 1}] * _CALLS,
        "native regions, on one thread": [{"native_regions": True, "max_threads": 1}] * _CALLS,
        "threads": [threads] * _CALLS,
        "delays": _delayed(threads),
    }
    return [_ours(name, {"streams": True, "record": False}, tuple(launch))._replace(
                needs_streams=i > 0, has_threads=launch[0]["max_threads"] != 1)
            for i, (name, launch) in enumerate(launches.items())]


def _delayed(launch: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{**launch, "delay_seed": seed} for seed in _DELAYS]


def _on_gpu() -> list[RungMaker]:
    calls: _Launches = ({},) * (2 + _CALLS)  # a graph is recorded by its first calls
    one_lane = {"streams": False, "record": True, "max_parallel_kernels": 1}
    many = {"streams": False, "record": True}
    return [_ours("recordings, in captured order", one_lane, calls),
            _ours("kernels side by side", many, calls),
            _ours("streams", {"streams": True, "record": True}, calls)]


def _ours(name: str, options: dict[str, Any], launch: _Launches = ({},) * _CALLS) -> RungMaker:
    return RungMaker(name, f"anabranch {options}", _compiled_by(backend, options), launch, options)


def _compiled_by(name: Any, options: dict[str, Any] | None = None,
                 ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: torch.compile(_fresh(function), backend=functools.partial(
        name, options=options) if options is not None else name)


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls it, from code that nobody has compiled: Dynamo keeps what it compiles with the code."""
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name="call")
    return call


def rungs_of_recorded() -> list[RungMaker]:
    """Of a callable of ``anabranch.record``: ``compile`` is given that."""
    return [RungMaker(name, name, functools.partial(_with_options, options=options),
                      options=options)
            for name, options in (
                ("recordings, in captured order", {"record": True, "max_parallel_kernels": 1}),
                ("kernels side by side", {"record": True}))]


def _with_options(recorded: Any, options: dict[str, Any]) -> Any:
    return recorded.with_options(**options)


@contextlib.contextmanager
def around_compiled() -> Any:
    """Around everything that is compiled and run by rungs."""
    with _compat.random_as_eager(), config.patch(progress=False):
        yield
