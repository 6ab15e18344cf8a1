# SPDX-License-Identifier: Apache-2.0
"""``anabranch.bisect(fn, *args)``: who makes a result differ from eager.

    print(anabranch.bisect(model, x, reproducer="wrong.py"))
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from anabranch import _compat, config
from anabranch._arguments import check_function, check_path, wrong
from anabranch._bisect import rungs as ladder
from anabranch._bisect.compare import Difference, Tolerance, distances
from anabranch._bisect.graphs import GraphCall, GraphCalls, InductorCalls
from anabranch._bisect.regions import find_place, find_race
from anabranch._bisect.reproducer import NotWritable, write_reproducer
from anabranch._bisect.run import Runner
from anabranch._bisect.verdict import Blame, Rung, Verdict
from anabranch._compile.report import Collector, collect
from anabranch._compile.threads import HostOptions
from anabranch._record.recorded_callable import RecordedCallable
from anabranch._record.recorded_module import callable_of

_EAGER_RUNS = 2
_ROUNDINGS = (1, 2)  # seeds
_MORE_EAGER_RUNS = 2  # where the first ones differ
_MOST_LAUNCHES = 8  # calls until a callable is launched


def bisect(fn: Callable[..., Any], /, *args: Any, atol: float | None = None,
           rtol: float | None = None, reproducer: str | os.PathLike[str] | None = None,
           **kwargs: Any) -> Verdict:
    """Runs ``fn`` in eager and then with one part more at a time, until a result differs::

        print(anabranch.bisect(model, x, reproducer="wrong.py"))

    ``fn`` is a model or a function, compiled or not, whose original is compiled for each rung, or a
    callable of ``anabranch.record``. All runs start from the same state, and that is there
    afterwards: tensors, gradients, optimizers, attributes and random generators that the function
    leads to. Its copies take as much memory again. Results, gradients (of a weighted sum of the
    results, unless ``fn`` runs its own backward), arguments and state are compared. An element may
    differ by ``atol + rtol * |eager|``; by default ``rtol`` depends on the dtype, and ``atol`` is
    the same share of a tensor's largest element, or ten times what runs in eager differ by, also
    when their floats are off by the last bit.

    Where one of our rungs or Inductor differs, ``place`` says in which graph and region, or between
    which two. With ``reproducer`` a program that shows it is written to that path, and its tensors
    beside it as ``.pt``. Random numbers are those of eager in all rungs. What ``fn`` raises is told
    in the verdict. One call at a time in a process, and nobody else may use the model meanwhile:
    CompileError [E0615] where explain or bisect runs already. Raises WrongArgument [E0611] unless
    ``fn`` can be called and tolerances are numbers, [E0612] for coroutines and generators.
    """
    check_function("bisect", fn, "Give what is called, and then its arguments: bisect(model, x).")
    for name, number in (("atol", atol), ("rtol", rtol)):
        if number is not None and not (isinstance(number, (int, float)) and number >= 0):
            raise wrong("bisect", name, number, "a number that is not negative, or None",
                        "Leave it out for a tolerance by dtype.")
    path = None if reproducer is None else check_path("bisect", reproducer)
    with collect("bisect", keeps_graphs=True) as collector, ladder.around_compiled():
        return _Bisection(fn, args, kwargs, Tolerance(atol, rtol), path, collector).verdict()


class _Bisection:
    def __init__(self, fn: Any, args: Any, kwargs: Any, tolerance: Tolerance, path: Path | None,
                 collector: Collector) -> None:
        fn = callable_of(fn)
        self._recorded = fn if isinstance(fn, RecordedCallable) else None
        self._function: Any = fn.__wrapped__ if self._recorded else _compat.uncompiled(fn)
        state = self._recorded.state if self._recorded else ()
        self._runner = Runner(self._function, state, args, kwargs)
        self._tolerance, self._path, self._collector = tolerance, path, collector
        self._inductor = InductorCalls()
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._told: list[Rung] = []
        self._notes: list[str] = []

    def verdict(self) -> Verdict:
        try:
            return self._climb_all()
        finally:
            self._runner.snapshot.put_back()

    def _climb_all(self) -> Verdict:
        try:
            wanted = self._eager()
        except Exception as error:
            self._told.append(Rung("eager", "raises", _text(error)))
            return Verdict(tuple(self._told), rung="eager")
        rungs = ladder.rungs_of_recorded() if self._recorded else \
            ladder.rungs_of_model(self._runner.has_gpu, self._inductor)
        of_torch: Verdict | None = None
        is_below = False  # whether the rung below has differed
        for rung in rungs:
            verdict = self._look_at(rung, wanted)
            if rung.is_torchs:  # what is wrong there may be right in the next one, or in ours
                of_torch = _first(of_torch, verdict)
            elif verdict is not None:
                return _first(of_torch if is_below else None, verdict) or verdict
            is_below = verdict is not None
        if of_torch is None:
            return self._verdict()
        self._notes.append("that is torch's own, and anabranch is right")
        return dataclasses.replace(of_torch, rungs=tuple(self._told), notes=tuple(self._notes))

    def _look_at(self, rung: ladder.RungMaker, wanted: dict[str, Any]) -> Verdict | None:
        """None where it agrees."""
        if reason := self._why_not(rung):
            self._told.append(Rung(rung.name, "not run", reason))
            return None
        try:
            difference = self._climb(rung, wanted)
        except Exception as error:
            self._told.append(Rung(rung.name, "raises", _text(error)))
            return self._verdict(rung.name)
        found = None
        if difference is None and rung.looks_for_races:
            found = self._race(rung)
            difference = found and Difference(found[0].value or "", found[0].difference or 0.0, 0.0)
        self._told.append(Rung(rung.name, "differs" if difference else "agrees",
                               str(difference or "")))
        if difference is None:
            return None
        return self._blame(rung, difference, found or self._find(rung, difference))

    def _verdict(self, rung: str | None = None, **more: Any) -> Verdict:
        return Verdict(tuple(self._told), rung, spread=dict(self._tolerance.spread),
                       notes=tuple(self._notes), **more)

    def _eager(self) -> dict[str, Any]:
        """What it leaves in eager. Runs that differ from one another set the tolerance."""
        with _compat.all_eager():
            runs = [self._runner.run(self._function) for _ in range(_EAGER_RUNS)]
            if distances(*runs):
                runs += [self._runner.run(self._function) for _ in range(_MORE_EAGER_RUNS)]
            rounded = [self._runner.run(self._function, rounding=seed) for seed in _ROUNDINGS] \
                if self._tolerance.atol is None else []
        spread = _spread(runs[0], runs[1:])
        self._tolerance = dataclasses.replace(self._tolerance, spread=spread,
                                              rounding=_spread(runs[0], rounded))
        self._told.append(Rung("eager", "differs from itself" if spread else "agrees"))
        return runs[0]

    def _why_not(self, rung: ladder.RungMaker) -> str | None:
        if self._recorded is not None and not _has_gpu():
            return "torch finds no GPU, and nothing is recorded without one"
        if rung.needs_streams and not any(report.streamed for report in self._collector.ran):
            return "no graph has several streams"
        return None

    def _climb(self, rung: ladder.RungMaker, wanted: dict[str, Any]) -> Difference | None:
        for found in self._runs(rung):
            if difference := self._tolerance.compare(found, wanted):
                return difference
        return None

    def _runs(self, rung: ladder.RungMaker) -> Iterator[dict[str, Any]]:
        if self._recorded is not None:
            again: Any = callable_of(rung.compile(self._recorded))
            yield from self._launches(again)
            return
        if rung.compiled_as not in self._compiled:
            self._compiled[rung.compiled_as] = rung.compile(self._function)
        for launch in rung.launch:
            with config.patch(**launch):
                yield self._runner.run(self._compiled[rung.compiled_as])

    def _launches(self, recorded: RecordedCallable[..., Any]) -> Iterator[dict[str, Any]]:
        """Calls until one is launched or none is going to be, and some more."""
        for _ in range(_MOST_LAUNCHES):
            yield self._runner.run(recorded)
            if any(report.launched for report in recorded.reports) or \
                    all(report.reason for report in recorded.reports):
                break
        reasons = dict.fromkeys(report.reason for report in recorded.reports if report.reason)
        self._notes += [f"not recorded: {reason}" for reason in reasons]
        for _ in range(2 if not reasons else 0):
            yield self._runner.run(recorded)

    def _race(self, rung: ladder.RungMaker) -> tuple[Blame, GraphCall] | None:
        """Graphs by themselves, one region late at a time: what no delay has shown."""
        for number, call in enumerate(self._calls(rung)):
            if call.streamed is not None and (place := find_race(
                    call, number, _host_options(), self._tolerance)):
                return place, call
        return None

    def _blame(self, rung: ladder.RungMaker, difference: Difference,
               found: tuple[Blame, GraphCall | None] | None) -> Verdict:
        place, call = found or (None, None)
        written = None
        if place is not None and call is not None and self._path is not None:
            try:
                written = write_reproducer(self._path, call, place, rung.options, self._tolerance)
            except NotWritable as error:
                self._notes.append(f"no reproducer: {error}")
        elif self._path is not None and rung.name != "aot_eager":
            self._notes.append("no reproducer: no graph is known to differ by itself")
        return self._verdict(rung.name, tensor=difference.name, difference=difference.largest,
                             bound=difference.bound, place=place, reproducer=written)

    def _find(self, rung: ladder.RungMaker, difference: Difference,
              ) -> tuple[Blame, GraphCall | None] | None:
        if self._recorded is not None:
            return Blame("recording", f"the recording of {self._recorded.name}, {rung.name}: "
                         f"{difference}", value=difference.name,
                         difference=difference.largest), None
        if rung.name == "aot_eager":
            return None
        return self._find_in(self._calls(rung), rung)

    def _calls(self, rung: ladder.RungMaker) -> list[GraphCall]:
        if rung.options is None:
            self._inductor.is_on = True
            list(self._runs(rung._replace(launch=rung.launch[:1])))
            self._inductor.is_on = False
            return self._inductor.calls
        with GraphCalls(self._collector) as noted:
            list(self._runs(rung._replace(launch=rung.launch[:1])))
        return noted.calls

    def _find_in(self, calls: list[GraphCall], rung: ladder.RungMaker,
                 ) -> tuple[Blame, GraphCall | None] | None:
        for number, call in enumerate(calls):
            with config.patch(**rung.launch[0]):
                if place := self._place(number, call, rung):
                    return place, call
        if not calls or rung.has_threads:
            return None
        return Blame("passes", f"each of the {len(calls)} graphs is right by itself: what was "
                     "made of the program before they were compiled is not"), None

    def _place(self, number: int, call: GraphCall, rung: ladder.RungMaker) -> Blame | None:
        difference = call.difference(self._tolerance)
        if call.streamed is not None and (difference or rung.has_threads):
            place = find_place(call, number, _host_options(), self._tolerance)
            if place is not None:
                return place
        if difference is None:
            return None
        return Blame("graph", f"graph {number} ({call.kind}, {call.source or 'of no line'}): as a "
                      f"whole it differs from its operators; {difference}", number, call.kind,
                     source=call.source, value=difference.name, difference=difference.largest)


def _first(first: Verdict | None, second: Verdict | None) -> Verdict | None:
    """Of two rungs that differ, the first one, with what is known of the second: that looks at
    graphs."""
    if first is None or second is None:
        return first or second
    return dataclasses.replace(second, rung=first.rung)


def _spread(run: dict[str, Any], others: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By how much others are apart from a run, by name."""
    spread: dict[str, float] = {}
    for other in others:
        for name, distance in distances(other, run).items():
            spread[name] = max(distance, spread.get(name, 0.0))
    return spread


def _host_options() -> HostOptions:
    return HostOptions.of(config.resolve())._replace(delay_seed=None)


def _has_gpu() -> bool:
    return torch.cuda.is_available()


def _text(error: Exception) -> str:
    """Its first two lines: of what a compiler raises, the first says whose it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
