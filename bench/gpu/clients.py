# SPDX-License-Identifier: Apache-2.0
"""Other people's libraries with a line of ours and without it: docs/clients.md tells the lines.

    python bench/gpu/clients.py [results.json] [--only NAME ...] [--rounds N]

Each client has a process, in which its ways take turns from the same weights. What is timed ends
with a synchronise. A way that raises is told with its error and left out. A client whose library is
not installed is skipped. Hugging Face's Trainer is in trainer.py, FSDP2 in fsdp.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.config
from cases.clients import BACKEND, COMPILE, EAGER, RECORD, Client, Made, serving, titan, training
from turns import Sample, ratio, save

CLIENTS: dict[str, Client] = {**serving.CLIENTS, **training.CLIENTS, **titan.CLIENTS}
WARM_UP = 4  # units, in each of which something is called twice
FORM = "{:20s} {:24s} {:>9s} {:>8s} {:>14s}"


def raced(client: Client, rounds: int) -> dict[str, Any]:
    """Milliseconds of each way, what was wrong with others, and how far answers are from eager's."""
    torch._dynamo.config.recompile_limit *= len(client.ways)  # they share the code it counts for
    made: dict[str, Made] = {}
    failed: dict[str, str] = {}
    for way in client.ways:
        try:
            made[way] = client.make(way)
            for _ in range(WARM_UP):
                made[way].timed()
        except Exception as error:
            made.pop(way, None)
            failed[way] = f"{type(error).__name__}: {error}".splitlines()[0]
    apart = {way: far(one.answer(), made[EAGER].answer()) for way, one in made.items()} \
        if EAGER in made else {}
    found: dict[str, Sample] = {way: Sample([]) for way in made}
    for index in range(rounds):
        for way in made if index % 2 == 0 else reversed(made):
            found[way].rounds.append(round(made[way].timed() / 1000, 4))
    return {"unit": client.unit, "failed": failed, "apart": apart,
            "ms": {way: sample.median for way, sample in found.items()},
            "iqr_ms": {way: sample.iqr for way, sample in found.items()},
            "over_compile": {way: ratio(found[way], found[COMPILE]) for way in (BACKEND, RECORD)
                             if way in found and COMPILE in found},
            "raw_ms": {way: sample.rounds for way, sample in found.items()},
            "reports": [str(report) for one in made.values() if one.recorded is not None
                        for report in one.recorded.reports]}


def far(answer: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference; how many differ, of whole numbers."""
    if not answer.is_floating_point():
        return int((answer != wanted).sum())
    return float((answer.double() - wanted.double()).abs().max())


def show(name: str, row: dict[str, Any]) -> None:
    for way, ms in row["ms"].items():
        more = row["over_compile"].get(way)
        print(FORM.format(name, way, f"{ms:.3f}", f"{row['iqr_ms'][way]:.3f}",
                          f"{more[0]:.2f} ({more[1]:.2f})" if more else ""), flush=True)
    for way, why in row["failed"].items():
        print(f"{name}, {way}: {why}", flush=True)
    if recorded := row["reports"]:
        print(f"{name}: {recorded[-1].splitlines()[0]}", flush=True)


def in_a_process(name: str, rounds: int) -> dict[str, Any] | None:
    library = CLIENTS[name].library
    if importlib.util.find_spec(library) is None:
        print(f"{name}: skipped, {library} is not installed", flush=True)
        return None
    run = subprocess.run([sys.executable, __file__, "--one", name, "--rounds", str(rounds)],
                         stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print(f"{name}: its process ended with {run.returncode}", flush=True)
        return None
    return {"client": name, "version": version_of(library),
            **json.loads(run.stdout.splitlines()[-1])}


def version_of(library: str) -> str:
    return str(importlib.import_module(library).__version__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", choices=CLIENTS, default=[*CLIENTS])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one", choices=CLIENTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(raced(CLIENTS[chosen.one], chosen.rounds)), flush=True)
        return
    print(FORM.format("", "", "ms", "IQR", "over compile"), flush=True)
    rows: list[dict[str, Any]] = []
    for name in chosen.only:
        if (row := in_a_process(name, chosen.rounds)) is not None:
            show(name, row)
            rows.append(row)
            save(chosen.results, "gpu_clients", clients=rows)


if __name__ == "__main__":
    main()
