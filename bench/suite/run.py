# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch's compiler benchmark in eager, torch.compile, reduce-overhead, the backend and
anabranch.record.

    python bench/suite/run.py [--lists hf timm torchbench] [--models ...] [--kinds ...]
        [--modes ...] [--device cuda|cpu] [--batch own|small|1] [--minutes N] [--warm-jobs N]
        [--at-once N] [--cold] [--together] [--untimed] [--until-fast] [--missing] [--share 1/4]
        [--names]

A run may do a part: results are merged (results.py), and table.py makes a table of what there is.
Each model in each mode is a process of its own and has the device for itself while it is timed.
Before, a process has filled the caches of compiled code, several side by side with --warm-jobs. With
--at-once several are compiled, set up and judged side by side instead, and all but one stand still
while that is timed (standstill.py); the seconds until they are fast are then left out. With --together the
modes of a model are timed in one process and in turn (together.py); the table's ratios are of these
where they are there. Nothing else is measured then, unless with --untimed, which leaves out the times
of processes of one mode: a model costs least with both. --until-fast measures nothing but the seconds
until each mode is fast, with caches that a process before has filled; with --cold those of that process
as well, whose caches were empty.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from about import about
from lists import APART, CPU_SUBSET, LISTS, SMALL_BATCH, Entry, precision_of
from measure import Job
from modes import CPU_MODES, KINDS, MODES
from processes import Task, context_for, run_all
from results import ALONE, TOGETHER, folder_of, is_right, load, merge, path_of
from together import SEPARATOR

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 2  # models and kinds for each job side by side, whose caches are filled before they run


@dataclasses.dataclass(frozen=True)
class Subject:
    """What a file of the results is about."""

    entry: Entry
    kind: str

    def __str__(self) -> str:
        return f"{self.entry.list} {self.entry.name}, {self.kind}"


class Run:
    """``chosen``: the arguments."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.folder = folder_of(chosen.out, chosen.device, chosen.batch, chosen.precision)
        self.about = about(chosen.device, chosen.commit)
        self.context = context_for(chosen.device)
        self.end = time.monotonic() + chosen.minutes * 60
        self.places = Path(tempfile.mkdtemp(prefix="suite-"))
        self.there = {(kept["list"], kept["kind"], kept["model"], mode): row
                      for kept in load(self.folder) for mode, row in kept["rows"].items()}

    def may_start(self) -> bool:
        return time.monotonic() < self.end

    def job(self, subject: Subject, mode: str, what: Any) -> Job:
        chosen, entry = self.chosen, subject.entry
        batch = {"own": entry.batch, "small": SMALL_BATCH[entry.list], "1": 1}[chosen.batch]
        precision = chosen.precision
        if precision == "own":
            precision = precision_of(entry, subject.kind, chosen.device)
        return Job(entry.list, entry.name, subject.kind, mode, chosen.device, batch, precision,
                   chosen.calls, what)

    def task(self, subject: Subject, mode: str, what: Any = "all",
             cache: Path | None = None) -> Task:
        name = f"{subject.entry.list}-{subject.entry.name}-{subject.kind}-{mode}-{what}"
        side_by_side = self.chosen.warm_jobs if what == "compile" else self.chosen.at_once
        compilers = max(len(os.sched_getaffinity(0)) // side_by_side, 1) if side_by_side > 1 else 0
        is_alone = what not in ("all", "untimed", "together") or self.chosen.at_once == 1
        return Task(self.job(subject, mode, what), cache or self.chosen.cache, self.places / name,
                    self.chosen.timeout * (1 if is_alone else self.chosen.at_once), compilers,
                    is_alone)

    def stamp(self, job: Job) -> Path:
        """Is there where the cache holds what the job compiles."""
        return self.chosen.cache / "filled" / "-".join(map(str, (
            job.list, job.name, job.kind, job.mode, job.device, job.batch, job.precision)))

    def wanted(self, subject: Subject) -> list[str]:
        return [mode for mode in self.chosen.modes
                if not self.chosen.missing or not self.is_there(subject, mode)]

    def row_of(self, subject: Subject, mode: str) -> dict[str, Any] | None:
        entry = subject.entry
        return self.there.get((entry.list, subject.kind, entry.name, mode))

    def is_there(self, subject: Subject, mode: str) -> bool:
        return self.row_of(subject, mode) is not None

    def lacks_times(self, subject: Subject) -> bool:
        """Of a mode that has been judged."""
        rows = (self.row_of(subject, mode) or {} for mode in self.chosen.modes)
        return not self.is_there(subject, TOGETHER) and any(
            "accuracy" in row and "ms" not in row for row in rows)

    def keep(self, subject: Subject, mode: str, row: dict[str, Any]) -> None:
        entry = subject.entry
        head = {"list": entry.list, "model": entry.name, "kind": subject.kind,
                "device": self.chosen.device}
        self.there[entry.list, subject.kind, entry.name, mode] = row
        merge(path_of(self.folder, entry.list, subject.kind, entry.name), head, mode,
              row, self.about)
        print(f"{subject}, {mode}: {said(row)}", flush=True)

    def alone(self, task: Task) -> dict[str, Any]:
        return next(row for _, row in run_all(self.context, [task], 1))

    def fill(self, subjects: list[Subject]) -> None:
        """Modes one after the other: what the first compiles the others find."""
        for mode in self.chosen.modes:
            tasks = [self.task(subject, mode, "compile") for subject in subjects
                     if mode != "eager"
                     and (self.chosen.until_fast or mode in self.wanted(subject))]
            tasks = [task for task in tasks if not self.stamp(task.job).exists()]
            for task, row in run_all(self.context, tasks, self.chosen.warm_jobs, self.may_start):
                if "error" not in row:
                    self.stamp(task.job).parent.mkdir(parents=True, exist_ok=True)
                    self.stamp(task.job).touch()

    def cold(self, subject: Subject, mode: str) -> dict[str, Any]:
        """Seconds with empty caches."""
        with self.empty_cache() as cache:
            row = self.alone(self.task(subject, mode, "speed", cache))
        return {"cold": {name: row[name] for name in ("first_call_s", "until_fast_s")}} \
            if "error" not in row else {}

    def measure(self, wanted: list[tuple[Subject, str]]) -> None:
        what = "untimed" if self.chosen.untimed else "all"
        tasks = {self.task(subject, mode, what): (subject, mode) for subject, mode in wanted}
        are_warm = {task: self.stamp(task.job).exists() for task in tasks}
        for task, row in run_all(self.context, list(tasks), self.chosen.at_once, self.may_start):
            subject, mode = tasks[task]
            if mode != "eager" and "error" not in row:
                if not self.chosen.untimed:
                    row["is_warm"] = are_warm[task]
                if self.chosen.cold:
                    row.update(self.cold(subject, mode))
            self.keep(subject, mode, row)

    def runs(self, subject: Subject, mode: str = "eager") -> bool:
        """False where it has been found not to."""
        return "error" not in (self.row_of(subject, mode) or {})

    def chunk(self, subjects: list[Subject]) -> None:
        self.measure([(subject, "eager") for subject in subjects
                      if "eager" in self.wanted(subject)])
        subjects = list(filter(self.runs, subjects))
        if self.chosen.at_once == 1 and not self.chosen.untimed:
            self.fill(subjects)
        self.measure([(subject, mode) for mode in self.chosen.modes for subject in subjects
                      if mode in self.wanted(subject) and mode != "eager"])

    def together(self, subjects: list[Subject]) -> None:
        tasks = {}
        for subject in filter(self.runs, subjects):
            modes = [mode for mode in self.chosen.modes if self.runs(subject, mode)]
            if not self.chosen.missing or not self.is_there(subject, TOGETHER):
                tasks[self.task(subject, SEPARATOR.join(modes), "together")] = subject
        for task, row in run_all(self.context, list(tasks), self.chosen.at_once, self.may_start):
            self.keep(tasks[task], TOGETHER, row)

    def until_fast(self, subjects: list[Subject]) -> None:
        """Each mode has the GPU for itself. They begin after one another in an order that turns
        from model to model: what the first finds in the machine's caches is not always theirs."""
        modes = [mode for mode in self.chosen.modes if mode != "eager"]
        if not self.chosen.cold:
            self.fill(subjects)
        for i, subject in enumerate(subjects):
            if not self.may_start():
                return
            turned = modes[i % len(modes):] + modes[:i % len(modes)]
            cold: dict[str, dict[str, Any]] = {}
            warm: dict[str, dict[str, Any]] = {}
            for mode in turned:
                if self.chosen.cold:
                    cold[mode], warm[mode] = self.cold_and_warm(subject, mode)
                else:
                    warm[mode] = self.alone(self.task(subject, mode, "speed"))
            batch = self.job(subject, modes[0], "speed").batch
            self.keep(subject, ALONE, {**seconds_of(warm), "batch": batch}
                      | ({"cold": seconds_of(cold)} if cold else {}))

    def cold_and_warm(self, subject: Subject,
                      mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of a process with empty caches, and of one that finds what that has left there."""
        with self.empty_cache() as cache:
            task = self.task(subject, mode, "speed", cache)
            first = dataclasses.replace(task, place=task.place.with_name(f"{task.place.name}-cold"))
            return self.alone(first), self.alone(task)

    @contextlib.contextmanager
    def empty_cache(self) -> Iterator[Path]:
        """Nothing is left of it."""
        cache = Path(tempfile.mkdtemp(prefix="cold-", dir=self.places))
        try:
            yield cache
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    def all(self, subjects: list[Subject]) -> None:
        if self.chosen.until_fast:
            subjects = [subject for subject in subjects
                        if not self.chosen.missing or not self.is_there(subject, ALONE)]
            size = CHUNK * self.chosen.warm_jobs
            for first in range(0, len(subjects), size):
                self.until_fast(subjects[first:first + size])
            return
        if self.chosen.together and not self.chosen.untimed:
            self.together(subjects)
            return
        subjects = [subject for subject in subjects
                    if self.wanted(subject) or (self.chosen.together and self.lacks_times(subject))]
        size = max(CHUNK * self.chosen.warm_jobs, self.chosen.at_once)
        for first in range(0, len(subjects), size):
            self.chunk(subjects[first:first + size])
            if self.chosen.together:
                self.together(subjects[first:first + size])
        shutil.rmtree(self.places, ignore_errors=True)


def seconds_of(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By what was measured, and by mode."""
    return {name: {mode: row[name] for mode, row in rows.items()
                   if name in row and "error" not in row}
            for name in ("first_call_s", "until_fast_s", "recording_s")}


def said(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['error']['stage']}: {row['error']['message']}"
    if isinstance(fast := row.get("until_fast_s"), dict):
        cold = row.get("cold", {}).get("until_fast_s", {})
        return ", ".join(f"{mode} {took:.1f}" + (f" (cold {cold[mode]:.1f})" if mode in cold else "")
                         for mode, took in fast.items()) + " s until fast"
    if isinstance(row.get("ms"), dict):
        return ", ".join(f"{mode} {took:.3f}" for mode, took in row["ms"].items()) + " ms"
    right = "right" if is_right(row) else f"WRONG, {row['accuracy']}"
    after = f"fast after {fast:.1f} s, " if fast is not None else ""
    took = f"{row['ms']:.3f} ms, " if "ms" in row else ""
    return f"{took}{after}{right}"


def entries_of(chosen: argparse.Namespace) -> list[Entry]:
    """This run's share; in the order of --models, where that is given."""
    found = {entry.name: entry for name in chosen.lists for entry in LISTS[name].values()}
    part, parts = map(int, chosen.share.split("/"))
    return [found[name] for name in chosen.models or found if name in found][part - 1::parts]


def print_names(entries: list[Entry]) -> None:
    """Which can be made, on a device without memory; and which are apart, and why."""
    from case import make_case

    for entry in entries:
        try:
            model = make_case(entry, 2, "training", "meta").model
            size = sum(parameter.numel() for parameter in model.parameters())
            print(f"{entry.list:<10} {entry.name:<42} {entry.batch:>5} {size / 1e6:8.1f} M")
        except Exception as error:
            print(f"{entry.list:<10} {entry.name:<42} apart: {error}")
    for name, apart in APART.items():
        for model, why in apart.items():
            print(f"{name:<10} {model:<42} apart: {why}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lists", nargs="+", choices=LISTS, default=[*LISTS])
    parser.add_argument("--models", nargs="+", help="names of the lists")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--modes", nargs="+", choices=MODES)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", choices=("own", "small", "1"),
                        help="the list's; that with which the benchmark judges results; one")
    parser.add_argument("--precision", choices=("own", "float32", "amp", "bfloat16"), default="own")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "suite")
    parser.add_argument("--cache", type=Path, default=ROOT / "out" / "bench" / "suite-cache")
    parser.add_argument("--minutes", type=float, default=1e6, help="then nothing more is begun")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--warm-jobs", type=int, default=1, help="that compile side by side")
    parser.add_argument("--at-once", type=int, default=1, help="that are set up side by side")
    parser.add_argument("--cold", action="store_true", help="also with empty caches")
    parser.add_argument("--together", action="store_true",
                        help="modes timed in turn in one process")
    parser.add_argument("--untimed", action="store_true",
                        help="no times of processes of one mode")
    parser.add_argument("--until-fast", action="store_true",
                        help="only seconds until fast, each mode alone, with filled caches")
    parser.add_argument("--missing", action="store_true", help="only rows that are not there yet")
    parser.add_argument("--share", default="1/1", help="2/4: the second of four parts")
    parser.add_argument("--calls", type=int, default=30, help="timed at least; two or more")
    parser.add_argument("--commit", help="where the tree does not tell")
    parser.add_argument("--names", action="store_true", help="only tells which can be made")
    chosen = parser.parse_args()
    is_cpu = chosen.device == "cpu"
    chosen.batch = chosen.batch or ("small" if is_cpu else "own")
    chosen.modes = chosen.modes or list(CPU_MODES if is_cpu else MODES)
    chosen.modes.sort(key=MODES.index)
    if is_cpu and chosen.models is None and not chosen.names:
        chosen.models = list(CPU_SUBSET)
    if (chosen.cold or chosen.until_fast) and chosen.at_once > 1:
        parser.error("seconds are measured, for which each must be alone: leave --at-once out")
    known = {name for entries in LISTS.values() for name in entries}
    if unknown := set(chosen.models or ()) - known:
        parser.error(f"no model {', '.join(sorted(unknown))}; --names tells what there is")
    return chosen


def main() -> None:
    chosen = arguments()
    entries = entries_of(chosen)
    if chosen.names:
        print_names(entries)
        return
    Run(chosen).all([Subject(entry, kind) for entry in entries for kind in chosen.kinds])


if __name__ == "__main__":
    sys.exit(main())
