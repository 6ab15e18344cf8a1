# SPDX-License-Identifier: Apache-2.0
"""Runs the campaign and prints what became of each change and each generated step.

    python tests/python/campaign/run.py [--mutations N] [--written N] [--only PROGRAM,...] [--seed N]
                                        [--json FILE] [--known] [--verbose]

On a GPU with its recordings, where there is one; else with tapes in their place. ``--known`` writes
known_wrong.py anew.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import json
import random
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "programs"))
sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

import pytest
import torch
import torch._dynamo
from campaign import (
    FAULTS,
    LAUNCHED,
    TRIED,
    Row,
    planned,
    planned_unread,
    run,
    run_written,
    some,
)
from counted_runs import count_runs
from side_by_side import names_of_programs
from written import WRITES, drawn, source_of

KNOWN = Path(__file__).parent / "known_wrong.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutations", type=int, default=10**9)
    parser.add_argument("--written", type=int, default=200, help="generated steps")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="each change that is wrong")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is imported by now stays
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            from tape_recording import OnTape

            OnTape(patch)
        count_runs(patch)
        names = [name for name in names_of_programs()
                 if any(part in name for part in chosen.only.split(","))]
        rows = changed(names, chosen.mutations, chosen.seed, chosen.verbose)
        needless = unread(names, chosen.verbose)
        written = [] if chosen.only else of_writes(chosen.written, chosen.verbose)
        if chosen.known:
            write_known(rows, written)
    if chosen.json:
        chosen.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows + needless + written],
                                          indent=1))


def changed(names: Sequence[str], most: int, seed: int, is_verbose: bool) -> list[Row]:
    every = [plan for name in names for plan in planned(name)]
    kept = random.Random(seed).sample(every, min(most, len(every)))
    print(f"{len(names)} programs, {len(kept)} of {len(every)} changes", flush=True)
    plans = {name: [] for name in names}
    for plan in dict.fromkeys([plan for name in names for plan in some(planned(name), TRIED)] + kept):
        plans[plan.program].append(plan)
    rows = []
    for name, of_it in plans.items():
        start = time.perf_counter()
        made = list(run(name, of_it))
        tell(name, made, time.perf_counter() - start, is_verbose)
        rows += made
    tell("all", rows, 0, False)
    return rows


def unread(names: Sequence[str], is_verbose: bool) -> list[Row]:
    """Changes of what is not read: each that is not launched costs a recording."""
    start = time.perf_counter()
    rows = [row for name in names for row in run(name, some(planned_unread(name), 40),
                                                 has_unread=True) if row.is_base_launched]
    needless = [row for row in rows if row.verdict != LAUNCHED]
    tell("unread", rows, time.perf_counter() - start, is_verbose)
    print(f"{len(needless)} of {len(rows)} changes of what is not read are not launched")
    for row in needless if is_verbose else ():
        print(f"    {row.program}: {row.place}: {row.change}: {row.verdict}")
    return rows


def of_writes(generated: int, is_verbose: bool) -> list[Row]:
    start = time.perf_counter()
    alone = [run_written(write.name, source_of([write])) for write in WRITES]
    tell("one write", alone, time.perf_counter() - start, is_verbose)
    start = time.perf_counter()
    some = [run_written(f"seed {seed}", source_of(drawn(seed), seed)) for seed in range(generated)]
    tell("some writes", some, time.perf_counter() - start, is_verbose)
    return alone + some


def tell(name: str, rows: list[Row], seconds: float, is_verbose: bool) -> None:
    counts = dict(collections.Counter(row.verdict for row in rows).most_common())
    unlaunched = sum(not row.is_base_launched for row in rows)
    print(f"{name:32s} {len(rows):6d}: {counts}; {unlaunched} of what is not launched; "
          f"at most {max((row.most_runs for row in rows), default=0)} runs a call; {seconds:.1f} s",
          flush=True)
    for row in rows:
        if is_verbose and row.verdict in FAULTS:
            print(f"    {row.place}: {row.change}, {row.when}: {row.verdict}, {row.where}")


def write_known(rows: list[Row], written: list[Row]) -> None:
    """One change a place, which is wrong by itself; () where none is, but behind others."""
    known: dict[str, dict[str, tuple[str, ...]]] = {}
    for row in rows:
        if row.verdict in FAULTS and not known.get(row.program, {}).get(row.place):
            plan = next(plan for plan in planned(row.program)
                        if tuple(plan[:4]) == (row.program, row.place, row.change, row.when))
            is_alone = next(run(row.program, [plan])).verdict in FAULTS
            known.setdefault(row.program, {})[row.place] = \
                (row.change, row.when) if is_alone else ()
    names = [row.place for row in written
             if row.verdict in FAULTS and not row.place.startswith("seed ")]
    lines = ["CHANGES = {"]
    for program, places in sorted(known.items()):
        lines += [f"    {program!r}: {{",
                  *(f"        {place!r}: {change!r}," for place, change in sorted(places.items())),
                  "    },"]
    lines += ["}", "WRITES = [", *(f"    {name!r}," for name in names), "]", ""]
    head = KNOWN.read_text().partition("CHANGES = ")[0]
    KNOWN.write_text(head + "\n".join(lines))


if __name__ == "__main__":
    main()
