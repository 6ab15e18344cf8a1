# SPDX-License-Identifier: Apache-2.0
"""Changes between calls, one at a time, and steps that write Python's state: what became of each."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ambient import AMBIENT, UNREAD
from changes import Change, Impossible, changes_of
from side_by_side import Pair, pair_of
from walked import Place, find, walk

LAUNCHED, NEW, PLAIN, WRONG = "launched", "new signature", "plain", "wrong"
IMPOSSIBLE = "impossible"  # Python refuses the change
BROKEN = "broken"  # nothing is recorded any more, for a mistake of ours
FAULTS = (WRONG, BROKEN)
_CHANGED_CALLS, _CALLS_AFTERWARDS = 3, 2
_SIGNATURES = 60  # copies are made anew beyond
TRIED = 10  # changes of a program in a test run
LATE, BACK, EARLY = "once it is launched", "and back", ("before call 1", "before call 2",
                                                        "before call 3")


class Plan(NamedTuple):
    """One change of a program. ``path``: None, where it is one of torch's state around calls."""

    program: str
    place: str
    change: str
    when: str
    path: Any


@dataclasses.dataclass
class Row:
    """What became of it. ``most_runs``: of the step's Python in one call."""

    program: str
    place: str
    change: str
    when: str
    verdict: str = PLAIN
    where: str = ""  # it differs
    is_base_launched: bool = True
    most_runs: int = 0


def planned(name: str) -> list[Plan]:
    """All changes of a program. Some are also made and taken back at once, and in early calls."""
    found = []
    with pair_of(name) as pair:
        for place in walk(pair.eager.roots):
            if _is_one_of_many(place):
                continue
            for i, change in enumerate(changes_of(place)):
                found += [Plan(name, place.name, change.name, when, place.path) for when in
                          (LATE, *((BACK, *EARLY) if i == 0 else ()))]
    return found + [Plan(name, f"torch: {change}", "on", LATE, None) for change in AMBIENT]


def planned_unread(name: str) -> list[Plan]:
    """Changes of what the program does not read: attributes that all its objects, classes and
    modules have for that, and what is beside it in the process."""
    with pair_of(name, has_unread=True) as pair:
        found = [Plan(name, place.name, change.name, LATE, place.path)
                 for place in walk(pair.eager.roots)
                 if place.edge.kind.endswith("attribute")
                 and (id(place.holder), place.edge.key) in pair.eager.unread
                 for change in changes_of(place)]
    return found + [Plan(name, f"unread: {change}", "on", LATE, None) for change in UNREAD]


def some(plans: list[Plan], count: int) -> list[Plan]:
    """So many of a program's, always the same."""
    return random.Random(plans[0].program).sample(plans, min(count, len(plans)))


def _is_one_of_many(place: Place) -> bool:
    """Of the items of a long container some are enough."""
    count = len(place.holder) if place.edge.kind == "item" else 0
    keys = list(place.holder) if isinstance(place.holder, dict) else range(count)
    return count > 8 and place.edge.key not in {keys[i] for i in (0, count // 2, count - 1)}


def run(name: str, plans: Iterable[Plan], **options: Any) -> Iterator[Row]:
    """One row a change of a program. Copies that are right serve for the next."""
    pair: Pair | None = None
    try:
        for plan in plans:
            if pair is None or plan.when in EARLY or pair.signatures > _SIGNATURES:
                pair = _another(pair, name, options)
            row = _row(pair, plan)
            yield row
            if row.verdict in FAULTS or plan.when in EARLY:
                pair = _another(pair, None, {})
    finally:
        _another(pair, None, {})


def _another(pair: Pair | None, name: str | None, options: dict[str, Any]) -> Pair | None:
    if pair is not None:
        pair.close()
    return Pair(name, **options) if name is not None else None


def _row(pair: Pair, plan: Plan) -> Row:
    row = Row(*plan[:4])
    pair.most_runs = 0
    before = [pair.call() for _ in range(1 + EARLY.index(plan.when))] if plan.when in EARLY \
        else [pair.settle()]
    row.is_base_launched = pair.was_launched
    found = next(filter(None, before), [])
    try:
        found = found or _changed(pair, plan, row)
    except Impossible as error:
        row.verdict, row.where = IMPOSSIBLE, str(error)
        return row
    for _ in range(_CALLS_AFTERWARDS):
        found = found or [f"afterwards: {one}" for one in pair.call()]
    if found:
        row.verdict, row.where = WRONG, ", ".join(found[:4])
    elif pair.broken_by:
        row.verdict, row.where = BROKEN, pair.broken_by
    row.most_runs = pair.most_runs
    return row


def _changed(pair: Pair, plan: Plan, row: Row) -> list[str]:
    """Calls with the change; where the copies differ."""
    signatures = pair.signatures
    with contextlib.ExitStack() as stack:
        for context in _contexts(pair, plan):
            stack.enter_context(context)
        if plan.when == BACK:
            stack.close()
        for i in range(_CHANGED_CALLS):
            found = pair.call()
            if i == 0:
                row.verdict = LAUNCHED if pair.was_launched else \
                    NEW if pair.signatures > signatures else PLAIN
            if found:
                return found
    return []


def _contexts(pair: Pair, plan: Plan) -> list[Any]:
    if plan.path is None:
        kind, _, change = plan.place.partition(": ")
        return [AMBIENT[change]() if kind == "torch" else
                UNREAD[change](*(side.module for side in pair.sides))]
    places = [find(side.roots, plan.path) for side in pair.sides]
    return [_change_of(place, plan.change).made(place) for place in places]


def _change_of(place: Place, name: str) -> Change:
    return next(change for change in changes_of(place) if change.name == name)


def run_written(name: str, source: str, calls: int = 20, **options: Any) -> Row:
    """A step that writes Python's state: where it differs first, and in which call."""
    row = Row("written", name, "", "")
    with pair_of("written.program", source, **options) as pair, \
            contextlib.redirect_stdout(io.StringIO()):
        for i in range(calls):
            found = pair.call()
            row.most_runs = pair.most_runs
            row.verdict = LAUNCHED if pair.was_launched else PLAIN
            if found or pair.broken_by:
                row.verdict = WRONG if found else BROKEN
                row.where = f"call {i}: {', '.join(found[:4]) or pair.broken_by}"
                break
    return row
