# SPDX-License-Identifier: Apache-2.0
"""A program in two copies, one eager and one recorded, called in turn: what differs, and whether the
recorded one was launched.

A program is a function of a module in ``programs/`` that answers its step and ``args(i)``, the
arguments of call i. The module is loaded anew for each copy, so that copies share no globals.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from counted_runs import runs_so_far
from torch import nn
from walked import OWN, answer_bits, differing, is_own, names_in, picture, walk

import anabranch

PROGRAMS = Path(__file__).parent / "programs"
_MOST_CALLS = 12  # until a step is launched
UNREAD_NAME = "campaign_unread"
_numbers = itertools.count()


def load(path: Path, source: str | None = None) -> ModuleType:
    """A new module of a file, or of text in its place."""
    name = f"{OWN}{path.stem}_{next(_numbers)}"
    module = sys.modules[name] = ModuleType(name)
    exec(_compiled(path, source), vars(module))
    return module


@functools.cache
def _compiled(path: Path, source: str | None) -> Any:
    return compile(source or path.read_text(), str(path), "exec")


def names_of_programs() -> list[str]:
    return [f"{path.stem}.{name}" for path in sorted(PROGRAMS.glob("*.py"))
            if path.stem != "common" for name in load_names(path)]


def load_names(path: Path) -> list[str]:
    module = load(path)
    del sys.modules[module.__name__]
    return [program.__name__ for program in module.PROGRAMS]


class Side:
    """One copy; ``roots`` lead to all of it."""

    def __init__(self, name: str, source: str | None, wrap: Any = lambda step: step) -> None:
        group, program = name.split(".")
        self.module = load(PROGRAMS / f"{group}.py", source)
        torch.manual_seed(0)
        self.step, self.args = getattr(self.module, program)()
        self.roots = {"step": self.step, "args": self.args}
        self.unread: set[tuple[int, str]] = set()  # ids of objects, and names
        self.called = wrap(self.step)

    def add_unread(self) -> None:
        """Attributes that no code reads, to all that can have some: one of a name that code has
        for something else, too."""
        places = list(walk(self.roots))
        names = sorted({name for place in places for name in names_in(place.edge.value)})
        for place in places:
            value = place.edge.value
            if (is_own(value) or isinstance(value, nn.Module)) and hasattr(value, "__dict__"):
                other = next((name for name in names if not hasattr(value, name)), UNREAD_NAME)
                for name in (UNREAD_NAME, other):
                    with contextlib.suppress(AttributeError):
                        setattr(value, name, 1.0)
                        self.unread.add((id(value), name))

    def close(self) -> None:
        sys.modules.pop(self.module.__name__, None)

    def call(self, number: int) -> Any:
        """The bits of an answer, or what was raised."""
        try:
            answer = self.called(*self.args(number))
        except Exception as error:
            return answer_bits(error)
        return answer_bits(answer)


class Pair:
    """``source`` is that of its module where no file has it; ``has_unread``: with attributes that
    no code reads. ``runs`` and ``was_launched`` are of the last call."""

    def __init__(self, name: str, source: str | None = None, *, has_unread: bool = False,
                 **options: Any) -> None:
        self.eager = Side(name, source)
        self.recorded = Side(name, source, lambda step: anabranch.record(
            step, max_recordings=256, **options))
        if has_unread:
            self.eager.add_unread()
            self.recorded.add_unread()
        self._number = itertools.count()
        self.runs, self.was_launched, self.most_runs = 0, False, 0

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.eager, self.recorded

    @property
    def signatures(self) -> int:
        return len(self.recorded.called.reports)

    @property
    def broken_by(self) -> str:
        """The mistake of ours that has ended recording, if any has."""
        called = self.recorded.called
        return "" if called._is_recorded else str(called.reports[-1].reason)

    def call(self) -> list[str]:
        """Where the copies differ behind one more call."""
        number = next(self._number)
        want = self.eager.call(number)
        runs, calls = runs_so_far(), self._calls()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = self.recorded.call(number)
        self.runs = runs_so_far() - runs
        self.was_launched = self.runs == 0 and self._calls() > calls
        self.most_runs = max(self.most_runs, self.runs)
        found = differing(*(picture(side.roots) for side in self.sides))
        return found if want == got else ["the answer", *found]

    def _calls(self) -> int:
        return sum(report.calls for report in self.recorded.called.reports)

    def settle(self) -> list[str]:
        """Calls until it is launched; where they differ before."""
        for _ in range(_MOST_CALLS):
            if found := self.call():
                return found
            if self.was_launched:
                break
        return []

    def close(self) -> None:
        for side in self.sides:
            side.close()


@contextlib.contextmanager
def pair_of(name: str, source: str | None = None, **options: Any) -> Iterator[Pair]:
    pair = Pair(name, source, **options)
    try:
        yield pair
    finally:
        pair.close()
