# SPDX-License-Identifier: Apache-2.0
"""The suite's results: a file a model and kind, with a row a mode, merged over runs.

A row tells where it comes from (machine, versions, commit, command), since its neighbours may come
from other runs. A row of a run that did not time it keeps the time of the row before, and tells of
which run that is (``timed_in``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
# In the place of a mode, rows of several:
TOGETHER = "together"  # timed in one process
ALONE = "alone"  # seconds until fast of processes of one mode each, with nothing else on the GPU


_TIMED = ("ms", "iqr_ms", "calls", "first_call_s", "until_fast_s")


def folder_of(out: Path, device: str, batch: str, precision: str) -> Path:
    """Figures of other batches, devices or precisions are other figures."""
    asked = "" if precision == "own" else f"-{precision}"
    return out / f"{device}-{batch}{asked}"


def path_of(folder: Path, list_name: str, kind: str, model: str) -> Path:
    return folder / f"{list_name}-{kind}" / f"{model}.json"


def merge(path: Path, head: dict[str, Any], mode: str, row: Row, run: dict[str, Any]) -> None:
    """Puts the row in the place of an older one of its mode. ``run`` is where it comes from. The
    file is replaced as a whole."""
    kept = json.loads(path.read_text()) if path.exists() else {"rows": {}, "runs": {}}
    old = kept["rows"].get(mode, {})
    if "cold" in old and "cold" not in row and "error" not in row:
        row = {**row, "cold": old["cold"]}  # measured only where it is asked for
    if "ms" in old and "ms" not in row and "error" not in row:
        row = {**row, **{name: old[name] for name in _TIMED if name in old},
               "timed_in": old.get("timed_in", old["run"])}
    key = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:8]
    rows = {**kept["rows"], mode: {**row, "run": key}}
    runs = {**kept["runs"], key: run}
    used = {row[of] for row in rows.values() for of in ("run", "timed_in") if of in row}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({
        **head, "rows": rows,
        "runs": {key: run for key, run in runs.items() if key in used}}, indent=1) + "\n")
    os.replace(part, path)


def load(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*/*.json")):
        yield json.loads(path.read_text())


def with_verdicts(files: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]]
                  ) -> Iterator[dict[str, Any]]:
    """Modes that were only timed have the verdict on the same model with another batch, as the
    benchmark judges results with small ones."""
    judged = {(kept["list"], kept["kind"], kept["model"]): kept["rows"] for kept in others}
    for kept in files:
        rows = judged.get((kept["list"], kept["kind"], kept["model"]), {})
        known = {mode: {"batch": kept["rows"][TOGETHER]["batch"],
                        **{name: rows[mode][name] for name in ("accuracy", "error")
                           if name in rows[mode]}}
                 for mode in together_of(kept) if mode in rows}
        yield {**kept, "rows": {**known, **kept["rows"]}}


def is_right(row: Row | None) -> bool:
    """It ran, and its results were what they should be."""
    return row is not None and "error" not in row and row["accuracy"]["passed"]


def together_of(kept: dict[str, Any]) -> dict[str, float]:
    """Milliseconds a mode, of those that have been timed in one process."""
    return kept["rows"].get(TOGETHER, {}).get("ms", {})


def ms_of(kept: dict[str, Any], *modes: str) -> tuple[float, ...] | None:
    """Of modes of a file that are right: of one process if all have been timed in one."""
    rows = kept["rows"]
    if not all(is_right(rows.get(mode)) for mode in modes):
        return None
    apart = {mode: rows[mode]["ms"] for mode in modes if "ms" in rows[mode]}
    for found in (together_of(kept), apart):
        if all(mode in found for mode in modes):
            return tuple(found[mode] for mode in modes)
    return None
