# SPDX-License-Identifier: Apache-2.0
"""The suite's results as Markdown: sums by list and kind, a line a model, and what did not run.

    python bench/suite/table.py [bench/results/suite/cuda-own]

A ratio is how many times as fast, over models whose results are right in both modes: of calls in one
process, where there are such, else of the milliseconds beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from results import ALONE, Row, is_right, load, ms_of, together_of, with_verdicts

MODES = ("eager", "compile", "reduce-overhead", "anabranch", "record")
RIVALS = ("eager", "compile", "reduce-overhead")
OURS = ("anabranch", "record")
WORSE = 0.98
REASON = 160  # characters of a reason or an error that are shown
NONE = "-"

Kept = dict[str, Any]


def markdown(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    ruler = ["---", *("---:" for _ in heading[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (heading, ruler, *lines))


def geometric_mean(values: Sequence[float]) -> float | None:
    return statistics.geometric_mean(values) if values else None


def ratios(files: Iterable[Kept], ours: str, rival: str) -> list[float]:
    """How many times as fast, of each model that is right in both."""
    found = (ms_of(kept, ours, rival) for kept in files)
    return [theirs / own for own, theirs in filter(None, found)]


def memory_ratios(files: Iterable[Kept], ours: str, what: str) -> list[float]:
    """Of what torch.compile takes."""
    pairs = ((kept["rows"].get(ours), kept["rows"].get("compile")) for kept in files)
    return [own["memory"][what] / theirs["memory"][what] for own, theirs in pairs
            if is_right(own) and is_right(theirs) and "memory" in own and "memory" in theirs]


def seconds(files: Iterable[Kept], mode: str, of: Callable[[Kept, str], float | None]) -> str:
    found = [value for kept in files if is_right(kept["rows"].get(mode))
             and (value := of(kept, mode)) is not None]
    return f"{statistics.median(found):.1f}" if found else NONE


def warm(kept: Kept, mode: str) -> float | None:
    alone = kept["rows"].get(ALONE, {}).get("until_fast_s", {})
    row = kept["rows"][mode]
    return alone.get(mode, row.get("until_fast_s") if row.get("is_warm") else None)


def cold(kept: Kept, mode: str) -> float | None:
    alone = kept["rows"].get(ALONE, {}).get("cold", {}).get("until_fast_s", {})
    return alone.get(mode, kept["rows"][mode].get("cold", {}).get("until_fast_s"))


def until_fast_ratio(files: Iterable[Kept], ours: str, rival: str) -> float | None:
    """Geometric mean over models that have both."""
    pairs = [(warm(kept, ours), warm(kept, rival)) for kept in files
             if is_right(kept["rows"].get(ours)) and is_right(kept["rows"].get(rival))]
    return geometric_mean([own / theirs for own, theirs in pairs if own and theirs])


def number(value: float | None, digits: int = 3) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def groups(files: Iterable[Kept]) -> dict[tuple[str, str], list[Kept]]:
    found: dict[tuple[str, str], list[Kept]] = {}
    for kept in files:
        found.setdefault((kept["list"], kept["kind"]), []).append(kept)
    return dict(sorted(found.items()))


def worse(found: Sequence[float]) -> str:
    return f"{sum(value < WORSE for value in found)} of {len(found)}" if found else NONE


def sum_of(name: str, files: Sequence[Kept], mode: str) -> list[str]:
    rows = [kept["rows"][mode] for kept in files if mode in kept["rows"]]
    against = {rival: ratios(files, mode, rival) if rival != mode else [] for rival in RIVALS}
    return [f"{name}, {mode}", f"{sum(map(is_right, rows))} of {len(rows)}",
            *(number(geometric_mean(against[rival])) for rival in RIVALS),
            worse(against["compile"]), worse(against["reduce-overhead"]),
            *(number(geometric_mean(memory_ratios(files, mode, what)) if mode != "compile" else None)
              for what in ("allocated", "reserved")),
            seconds(files, mode, warm), seconds(files, mode, cold),
            number(until_fast_ratio(files, mode, "reduce-overhead"))]


def sums(files: Sequence[Kept]) -> str:
    lines = [sum_of(f"{list_name}, {kind}", members, mode)
             for (list_name, kind), members in groups(files).items()
             for mode in MODES[1:] if any(mode in kept["rows"] for kept in members)]
    return markdown(
        ["list, kind, mode", "right", "times eager", "times compile", "times reduce-overhead",
         f"below {WORSE} of compile", f"below {WORSE} of reduce-overhead", "allocated / compile",
         "reserved / compile", "s until fast, warm", "s until fast, cold",
         "until fast / reduce-overhead, warm"], lines)


def cell(kept: Kept, mode: str) -> str:
    row = kept["rows"].get(mode)
    if row is not None and "error" in row:
        return "fails"
    took = together_of(kept).get(mode, (row or {}).get("ms"))
    return NONE if row is None or took is None else \
        f"{took:.3f}" + ("" if is_right(row) else " (wrong)")


def models(files: Iterable[Kept]) -> str:
    """A line a model and kind: milliseconds a call, those of one process where there are such, and
    how many times as fast as the rivals."""
    lines = []
    for kept in sorted(files, key=lambda kept: (kept["list"], kept["kind"], kept["model"].lower())):
        rows = kept["rows"]
        batch = next((str(row["batch"]) for row in rows.values()), NONE)
        lines.append([f"{kept['model']}, {kept['kind']}", batch,
                      *(cell(kept, mode) for mode in MODES),
                      *(number(next(iter(ratios([kept], ours, rival)), None), 2)
                        for ours in OURS for rival in RIVALS[1:]),
                      *(number(next(iter(memory_ratios([kept], ours, "allocated")), None), 2)
                        for ours in OURS)])
    return markdown(
        ["model, kind", "batch", *(f"{mode}, ms" for mode in MODES),
         *(f"{ours} / {rival}" for ours in OURS for rival in RIVALS[1:]),
         *(f"memory, {ours} / compile" for ours in OURS)], lines)


def short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= REASON else line[:REASON - 3] + "..."


def why_not(row: Row | None) -> str | None:
    if row is None or is_right(row):
        return None
    if "error" in row:
        return f"{row['error']['stage']}: {short(row['error']['message'])}"
    return f"wrong: {row['accuracy'].get('first_wrong')}, by {short(row['accuracy']['by'])}"


def failures(files: Iterable[Kept]) -> dict[str, list[str]]:
    """Lines by whose failure it is: that of a rival comes before ours."""
    found: dict[str, list[str]] = {"eager": [], "compile": [], "reduce-overhead": [], "ours": []}
    for kept in files:
        whys = {mode: why for mode in MODES if (why := why_not(kept["rows"].get(mode)))}
        first = "eager" if "eager" in whys else "compile" if "compile" in whys else None
        for mode, why in whys.items():
            of = first or ("ours" if mode in OURS else mode)
            found[of].append(f"{kept['list']} {kept['model']}, {kept['kind']}, {mode}: {why}")
    return found


def reasons(files: Iterable[Kept]) -> list[str]:
    """Why something ran plainly, with the models of which that was said."""
    said: dict[str, list[str]] = {}
    for kept in files:
        for mode in OURS:
            for why in (kept["rows"].get(mode) or {}).get("recordings", {}).get("plain", []):
                said.setdefault(short(why), []).append(f"{kept['model']} ({kept['kind']}, {mode})")
    return [f"{why}: {', '.join(dict.fromkeys(where))}" for why, where in sorted(said.items())]


def bullets(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "\n".join(f"- {line}" for line in lines)] if lines else []


def page(files: Sequence[Kept]) -> str:
    failed = failures(files)
    return "\n\n".join([
        sums(files), models(files),
        *bullets("Not made, or not run in eager", failed["eager"]),
        *bullets("Fail under torch.compile too", failed["compile"]),
        *bullets("Fail under reduce-overhead", failed["reduce-overhead"]),
        *bullets("Fail in ours alone", failed["ours"]),
        *bullets("Run plainly", reasons(files))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(
        __file__).resolve().parents[1] / "results" / "suite" / "cuda-own")
    chosen = parser.parse_args()
    small = chosen.folder.with_name(f"{chosen.folder.name.partition('-')[0]}-small")
    files = list(with_verdicts(load(chosen.folder), load(small)))
    print(page(files) if files else f"no results in {chosen.folder}")


if __name__ == "__main__":
    main()
