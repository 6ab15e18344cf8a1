# SPDX-License-Identifier: Apache-2.0
"""What ``bisect`` answers: plain data, to be printed or written as JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Rung:
    """One step of the ladder. ``status`` is "agrees", "differs", "raises" or "not run"; ``text``
    says where it differs, what it raised or why it was not run."""

    name: str
    status: str
    text: str = ""


@dataclasses.dataclass(frozen=True)
class Blame:
    """What is to blame within a rung.

    ``kind``: "graph" for one that Inductor compiled as a whole, "kernel" for Inductor's code of a
    region, "tape" for its replay in C++, "memory" for a region that in the plan writes what it does
    not own, "order" for two regions that nothing keeps apart, "answers" for results that are
    wrongly put together from right values, "recording" for a recorded callable, "passes" where
    each graph does what it says and the graphs are not the program. ``graph`` counts the calls of
    graphs. ``regions`` are names as ``explain`` has them: one, or for "order" the earlier and the
    later one. ``value`` is what is wrong there.
    """

    kind: str
    text: str
    graph: int | None = None
    graph_kind: str | None = None
    regions: tuple[str, ...] = ()
    source: str | None = None
    value: str | None = None
    difference: float | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What ``bisect`` has found. ``rung`` is the first one that differs or raises, None where all
    agree; ``tensor`` is what differs most there, by ``difference`` where ``bound`` is allowed.
    ``spread`` has by how much runs in eager differ from one another, where they do; what a rung
    may differ by is then ten times that. ``place`` is None where nothing more was found."""

    rungs: tuple[Rung, ...]
    rung: str | None = None
    tensor: str | None = None
    difference: float | None = None
    bound: float | None = None
    place: Blame | None = None
    reproducer: Path | None = None
    spread: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def is_deterministic(self) -> bool:
        return not self.spread

    def to_dict(self) -> dict[str, Any]:
        """Of plain values, as json.dumps takes them."""
        return {**dataclasses.asdict(self), "is_deterministic": self.is_deterministic,
                "reproducer": None if self.reproducer is None else str(self.reproducer)}

    def __str__(self) -> str:
        width = max(len(rung.name) for rung in self.rungs)
        lines = [f"bisect: {self._summary()}"]
        lines += [f"  {rung.name:<{width}}  {rung.status}" + (f": {rung.text}" if rung.text else "")
                  for rung in self.rungs]
        if self.spread:
            name, most = max(self.spread.items(), key=lambda item: item[1])
            lines.append(f"  runs in eager differ from one another: {name} by {most:.3g}")
        if self.place is not None:
            lines.append(f"  {self.place.text}")
        lines += [f"  {note}" for note in self.notes]
        if self.reproducer is not None:
            lines.append(f"  reproducer: {self.reproducer}")
        return "\n".join(lines)

    def _summary(self) -> str:
        if self.rung is None:
            return "all agree with eager" if self.is_deterministic else \
                "the model itself is not deterministic, and nothing differs beyond that"
        if self.tensor is None:
            return f"{self.rung!r} is the first that raises"
        return (f"{self.rung!r} is the first that differs, in {self.tensor} by "
                f"{self.difference:.3g} where {self.bound:.3g} is allowed")
