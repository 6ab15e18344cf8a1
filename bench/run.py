# SPDX-License-Identifier: Apache-2.0
"""Runs the torch benchmarks one after the other and sums up what was reached.

    python bench/run.py [--quick] [--backend inductor] [--rounds N] [name ...]

Each is a process of its own, so that none inherits compiled code or threads from another. A target
that was missed is shown and does not stop the rest; the exit status says whether all were reached.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from torch_common import LOAD_BEFORE, MISSED, results_folder

FOLDER = Path(__file__).resolve().parent
NAMES = ("branches", "models", "overhead", "compile_time")


def run(name: str, passed_on: list[str]) -> int:
    command = [sys.executable, str(FOLDER / f"torch_{name}.py"), *passed_on]
    return subprocess.run(command, env={"BENCH_LOAD_BEFORE": str(LOAD_BEFORE), **os.environ},
                          check=False).returncode


def summary(names: list[str], folder: Path) -> tuple[int, int]:
    """Targets reached and targets set, by the files that were written."""
    rows = []
    for name in names:
        kept = json.loads((folder / f"torch_{name}.json").read_text())
        rows += [row for row in kept["rows"] if row["reach"] is not None]
    return sum(row["reached"] for row in rows), len(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(NAMES))
    parser.add_argument("--backend", default="anabranch")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    names = chosen.names or list(NAMES)
    if unknown := set(names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    passed_on = ["--backend", chosen.backend, "--rounds", str(chosen.rounds)]
    statuses = [run(name, passed_on + ["--quick"] * chosen.quick) for name in names]
    if any(status not in (0, MISSED) for status in statuses):
        return 2
    folder = results_folder(chosen.backend, chosen.quick)
    reached, total = summary(names, folder)
    print(f"\n{reached} of {total} targets reached; raw figures in {folder}")
    return int(reached != total)


if __name__ == "__main__":
    sys.exit(main())
