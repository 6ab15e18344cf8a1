# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over two GPUs whose memory is limited: what becomes of a recorded step.

    python bench/gpu/fsdp_limits.py [results.json] [--shares 1.0 1.05 ...]

P is what the plain loop reserves at its peak, first step included, on the rank that reserves most.
Each share of P is tried by processes of its own, which may reserve that much (and a MiB). A step
that runs plainly has to do so on both ranks. Losses are compared with the plain loop's bit for bit.
GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsdp import GPUS, Case
from steps import PLAIN, RECORD
from turns import over_gpus, save

import anabranch

SHARES = (1.00, 1.02, 1.05, 1.1, 1.25, 1.5)
STEPS, MIB, GB = 8, 1 << 20, 1_000_000_000


def own(way: str, allowed: int) -> dict[str, Any]:
    """What this rank has found; ``allowed`` bytes, 0 for all."""
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    if allowed:
        torch.cuda.set_per_process_memory_fraction(min(1.0, (allowed + MIB) / total))
    case = Case(compiled=False)
    step = anabranch.record(case.step) if way == RECORD else case.step
    found: dict[str, Any] = {"exception": ""}
    losses = []
    try:
        for _ in range(STEPS):
            losses.append(step(case.tokens))
    except torch.OutOfMemoryError as error:
        found["exception"] = str(error).splitlines()[0]
    reports = step.reports if way == RECORD else []
    torch.cuda.synchronize()
    return {**found, "losses": [loss.item().hex() for loss in losses],
            "reserved": torch.cuda.max_memory_reserved(),
            "launched": sum(report.launched for report in reports),
            "reasons": sorted({str(report.reason or report.shortage) for report in reports
                               if report.reason or report.shortage})}


def worker(way: str, allowed: int) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    mine = own(way, allowed)
    gc.collect()
    if mine["exception"]:  # the other rank waits in a collective, and is stopped by this one's end
        print(json.dumps([mine]), flush=True)
        os._exit(1)
    rows: list[Any] = [None] * GPUS
    dist.all_gather_object(rows, mine)
    if rank == 0:
        print(json.dumps(rows), flush=True)
    torch.cuda.synchronize()
    dist.barrier()
    os._exit(0)  # graphs with collectives go before their communicator, and here both just go


def run(way: str, allowed: int = 0) -> Any:
    """What each rank has found, or the one that failed first; None without the GPUs."""
    try:
        return over_gpus(GPUS, __file__, "--way", way, "--allowed", str(allowed))
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stdout.splitlines() if line.startswith("[{")]
        return json.loads(said[0]) if said else [
            {"exception": f"ended with {error.returncode}", "losses": [], "reserved": 0,
             "launched": 0, "reasons": []}]


def outcome(rows: list[dict[str, Any]], plain: list[dict[str, Any]], most: int) -> dict[str, Any]:
    launched = [row["launched"] for row in rows]
    return {"exception": next((row["exception"] for row in rows if row["exception"]), ""),
            "recorded": all(launched), "ranks_agree": len({*map(bool, launched)}) == 1,
            "losses_equal": len(rows) == GPUS and all(
                a["losses"] == b["losses"] for a, b in zip(rows, plain, strict=True)),
            "reserved_over_p": max(row["reserved"] for row in rows) / most,
            "reasons": sorted({reason for row in rows for reason in row["reasons"]})}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--shares", nargs="*", type=float, default=[*SHARES])
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--allowed", type=int, default=0, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.way:
        return worker(chosen.way, chosen.allowed)
    plain = run(PLAIN)
    if plain is None:
        return None
    most = max(row["reserved"] for row in plain)
    print(f"plain: {most / GB:.2f} GB", flush=True)
    found = {}
    for share in (None, *chosen.shares):
        name = "no limit" if share is None else f"{share:.2f} P"
        found[name] = outcome(run(RECORD, int((share or 0) * most)), plain, most)
        print(f"  {name:<10} {found[name]}", flush=True)
    least = min((float(name.split()[0]) for name, row in found.items()
                 if row["recorded"] and name != "no limit"), default=None)
    judged = [
        {"what": "fsdp: peak reserved over P", "figure": found["no limit"]["reserved_over_p"],
         "at_most": 1.05},
        {"what": "fsdp: least share of P at which it is recorded", "figure": least,
         "at_most": 1.05},
        {"what": "fsdp: runs with an exception, other losses, or ranks apart", "at_most": 0,
         "figure": sum(bool(row["exception"]) or not row["losses_equal"] or not row["ranks_agree"]
                       for row in found.values())}]
    for row in judged:
        row["reached"] = row["figure"] is not None and row["figure"] <= row["at_most"]
        print(f"  {row}")
    save(chosen.results, "gpu_fsdp_limits", gpus=GPUS, plain_bytes=most, steps=STEPS, rows=found,
         judged=judged)
    return None


if __name__ == "__main__":
    main()
