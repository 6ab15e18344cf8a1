# SPDX-License-Identifier: Apache-2.0
"""What recording a training step takes beside the step, and what a recorded one takes afterwards.

    python bench/gpu/memory.py [results.json] [--only limits steady reference]
        [--sizes small medium large] [--ways record backend] [--shares 1.0 1.05 ...]
        [--cases 'gradients B1 S256' ...] [--layers N]

`limits`: peaks of whole loops, first step included, over P, the plain compiled loop's; and what
becomes of a step that is allowed some share of P. `steady`: peaks of steps after the warm-up, and
what is left behind. `reference`: a step of Llama 3 70B's shape that fills 100 GB.

Each run is a process of its own. Those whose device memory is watched have the GPU for themselves;
those under a limit to torch's memory compile beside one another and then have the GPU in turn.
GB are 10^9 bytes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from cases.llama import Shape
from cases.memory_loop import LIMIT_S, MIB, OWN_CASES, TIMED, steady, training
from cases.memory_models import filling
from steps import BACKEND, PLAIN, RECORD
from turns import save

ROOT = Path(__file__).resolve().parents[2]
GB = 1_000_000_000
SIZES = {
    "small": ("16 layers, 2,048 wide", Shape(width=2048, layers=16, heads=16, hidden=5632)),
    "medium": ("6 layers, 4,096 wide", Shape(width=4096, layers=6, heads=32, hidden=11008)),
    "large": ("4 layers, 8,192 wide", Shape(width=8192, layers=4, heads=64, hidden=22016)),
}
WAYS = {"record": RECORD, "backend": BACKEND}
SHARES = (1.00, 1.02, 1.05, 1.1, 1.25, 1.5)
STEADY = {"training B1 S256": RECORD, "training B4 S1024": RECORD, "gradients B1 S256": BACKEND,
          **dict.fromkeys(OWN_CASES, RECORD)}
REFERENCE = Shape(width=8192, heads=64, kv_heads=8, hidden=28672, vocabulary=128256)
REFERENCE_BYTES, REFERENCE_LENGTH, REFERENCE_CALLS = 100 * GB, 2048, 20
LENGTH, CALLS = 1024, 6 + TIMED

Row = dict[str, Any]
RUNS = {"training": training, "steady": steady}


def run(given: Mapping[str, Any]) -> Row:
    """What a process of its own found, or the exception that ended it."""
    command = [sys.executable, __file__, "--one", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        row: Row = json.loads(done.stdout.splitlines()[-1])
        return row
    if done.returncode == -signal.SIGALRM:
        return {"exception": f"it took more than {LIMIT_S} s"}
    last = done.stderr.strip().splitlines()[-1:]
    return {"exception": f"the process ended with {done.returncode}: {' '.join(last)}"}


def run_all(givens: Sequence[Mapping[str, Any]], at_once: int) -> Iterator[Row]:
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(run, givens)


def warm(givens: Sequence[Mapping[str, Any]], at_once: int = 3) -> None:
    """One call of each that has not run with this cache, so many beside one another. Inductor times
    kernels to choose among them, which takes memory as well."""
    cold = [(marker(given), given) for given in givens if not marker(given).exists()]
    firsts = [{**given, "calls": 1} for _, given in cold]
    for (mark, given), row in zip(cold, run_all(firsts, at_once), strict=True):
        what = row["exception"] or "compiled into the cache, not measured"
        print(f"  {given['way']:<30} {what}", flush=True)
        if not row["exception"]:
            mark.touch()


def marker(given: Mapping[str, Any]) -> Path:
    kept = {**given, "turn": "", "torch": torch.__version__}
    name = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / f"warm_{name}"


class Plan:
    """What was asked for on the command line, and the file whose lock is the GPU's turn."""

    def __init__(self, chosen: argparse.Namespace, turn: str) -> None:
        self.chosen = chosen
        self.turn = turn

    def training(self, way: str, shape: Shape, allowed: int | None = None,
                 **more: Any) -> dict[str, Any]:
        return {"run": "training", "way": way, "shape": dataclasses.asdict(shape),
                "allowed": allowed, "is_alone": allowed is None, "turn": self.turn,
                "is_deterministic": self.chosen.deterministic, "length": LENGTH, "calls": CALLS,
                "blocks_apart": False, **more}

    def ways(self, default: Sequence[str]) -> list[str]:
        """By the names that ``default`` has too."""
        return [WAYS[name] for name in self.chosen.ways or default]


def judge(what: str, figure: float | None, most: float, decimals: int = 2) -> Row:
    """A figure as it is shown; None, where there is none, reaches nothing."""
    shown = None if figure is None else round(figure, decimals)
    return {"what": what, "figure": shown, "at_most": most,
            "reached": shown is not None and shown <= most}


def over(row: Row, plain: Row, part: str) -> float | None:
    return row[part] / plain[part] if row.get(part) and plain.get(part) else None


def losses_apart(row: Row, plain: Row) -> float | None:
    """The largest relative difference; 0 where all bits are equal, None where some are missing."""
    mine, theirs = row.get("losses"), plain.get("losses")
    if not mine or not theirs or len(mine) != len(theirs):
        return None
    pairs = [(float.fromhex(a), float.fromhex(b))
             for a, b in zip(mine, theirs, strict=True) if a != b]
    return max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)


def outcome(row: Row) -> str:
    if row.get("exception"):
        return str(row["exception"])
    if not row["reports"]:
        return "as it is"
    return "recorded" if row["recorded"] else f"plain: {'; '.join(row['reasons']) or 'no reason'}"


def show(name: str, row: Row) -> None:
    """A line; what there is no figure of is left out."""
    parts = [f"{row[part] / GB:.2f} GB {part}" for part in ("reserved", "allocated", "device")
             if part in row]
    for key, form in (("reserved_over_p", "{:.3f} of P"),
                      ("device_over_p", "{:.3f} of the plain device"), ("ms", "{:.1f} ms"),
                      ("first_s", "first {:.1f} s"), ("recording_s", "recording {:.2f} s"),
                      ("until_recorded_s", "until recorded {:.2f} s"),
                      ("losses_apart", "losses {:.0e} apart")):
        if row.get(key) is not None:
            parts.append(form.format(row[key]))
    print(f"  {name:<30} {', '.join([*parts, outcome(row)])}", flush=True)


def compared(row: Row, plain: Row) -> Row:
    return {**row, "reserved_over_p": over(row, plain, "reserved"),
            "device_over_p": over(row, plain, "device"), "losses_apart": losses_apart(row, plain)}


def limits(plan: Plan) -> Iterator[Row]:
    for size in plan.chosen.sizes:
        label, shape = SIZES[size]
        print(f"\nlimits: {label}, one sequence of {LENGTH} tokens", flush=True)
        ways = plan.ways(tuple(WAYS))
        rows: dict[str, Row] = {}
        names = [PLAIN, *ways]
        givens = [plan.training(way, shape) for way in names]
        warm(givens)
        for way, row in zip(names, run_all(givens, 1), strict=True):
            rows[way] = compared(row, rows.get(PLAIN, row))
            show(way, rows[way])
        plain = rows[PLAIN]
        if not plain["exception"]:
            run_limited(plan, shape, ways, rows)
        yield {"kind": f"limits: {label}", "rows": rows,
               "judged": judged_limits(rows, ways, plan.chosen.shares, size)}


def at(way: str, share: float) -> str:
    return f"{way}, {share:.2f} P"


def run_limited(plan: Plan, shape: Shape, ways: Sequence[str], rows: dict[str, Row]) -> None:
    """As many processes at once as have room: what their limits allow, and contexts of a GB."""
    plain, shares = rows[PLAIN], plan.chosen.shares
    peak, total = plain["reserved"], plain["device_total"]
    tries = [(PLAIN, 1.0), *((way, share) for way in ways for share in shares)]
    givens = [plan.training(way, shape, int(peak * share)) for way, share in tries]
    at_once = int(0.9 * total / (max(shares, default=1.0) * peak + GB))
    found = run_all(givens, min(4, max(1, at_once)))
    for (way, share), row in zip(tries, found, strict=True):
        name = at(way, share)
        rows[name] = {**compared(row, plain), "allowed": int(peak * share)}
        show(name, rows[name])


def judged_limits(rows: Mapping[str, Row], ways: Sequence[str], shares: Sequence[float],
                  size: str) -> list[Row]:
    plain_runs = not rows.get(at(PLAIN, 1.0), {"exception": "not run"})["exception"]
    found = []
    for way in ways:
        tried = {share: rows[at(way, share)] for share in shares if at(way, share) in rows}
        least = min((share for share, row in tried.items() if row.get("recorded")), default=None)
        counted = [rows[way], *(row for share, row in tried.items() if share > 1.0 or plain_runs)]
        raised = sum(bool(row["exception"]) for row in counted)
        found += [judge(f"{way}: peak reserved over P", rows[way]["reserved_over_p"], 1.05),
                  judge(f"{way}: device's peak over the plain loop's", rows[way]["device_over_p"],
                        1.05),
                  judge(f"{way}: least share of P at which it is recorded", least, 1.05),
                  judge(f"{way}: exceptions where the plain step runs", raised, 0)]
        if size == "small" and way == RECORD:
            found.append(judge(f"{way}: recording, seconds", rows[way].get("recording_s"), 2.0))
    return found


def steady_memory(plan: Plan) -> Iterator[Row]:
    print("\nsteady: MiB at the peak, allocated / reserved, and left behind", flush=True)
    cases = plan.chosen.cases
    pairs = [(case, way) for case in cases for way in (PLAIN, STEADY[case])]
    found = run_all([{"run": "steady", "case": case, "way": way} for case, way in pairs], 4)
    rows: dict[str, Row] = {}
    for (case, way), row in zip(pairs, found, strict=True):
        rows[f"{case}, {way}"] = row
        why = row.get("skipped") or row.get("exception")
        if way != PLAIN and not why and not row["recorded"]:
            why = f"not recorded: {'; '.join(row['reasons'])}"
        text = why or "{:,} / {:,}, left {:,}".format(
            *(round(row[part] / MIB) for part in ("allocated", "reserved", "left")))
        print(f"  {case:<26} {way:<18} {text}", flush=True)
    yield {"kind": "steady", "rows": rows, "judged": judged_steady(rows, cases)}


def judged_steady(rows: Mapping[str, Row], cases: Sequence[str]) -> list[Row]:
    """What was left behind is judged in MiB more than torch.compile leaves. What does not run
    recorded has no figures."""
    found = []
    for case in cases:
        way = STEADY[case]
        ours, plain = rows[f"{case}, {way}"], rows[f"{case}, {PLAIN}"]
        if "skipped" in ours:
            continue
        if not ours.get("recorded"):
            ours = {}
        found += [judge(f"{case}: {part} over torch.compile's", over(ours, plain, part), 1.0)
                  for part in ("allocated", "reserved")]
        more = (ours["left"] - plain["left"]) / MIB if "left" in ours and "left" in plain else None
        found.append(judge(f"{case}: MiB left behind, more than torch.compile leaves", more, 0.0))
    return found


def reference(plan: Plan) -> Iterator[Row]:
    layers = plan.chosen.layers
    shape = dataclasses.replace(REFERENCE, layers=layers) if layers else \
        filling(REFERENCE_BYTES, REFERENCE, REFERENCE_LENGTH)
    label = f"reference: {shape.layers} layers of Llama 3 70B's shape"
    print(f"\n{label}, one sequence of {REFERENCE_LENGTH} tokens", flush=True)
    ways = plan.ways(("record",))
    rows: dict[str, Row] = {}
    names = [PLAIN, *ways]
    givens = [plan.training(way, shape, length=REFERENCE_LENGTH, calls=REFERENCE_CALLS,
                            blocks_apart=True) for way in names]
    warm(givens, 1)
    for way, row in zip(names, run_all(givens, 1), strict=True):
        rows[way] = compared(row, rows.get(PLAIN, row))
        show(way, rows[way])
    yield {"kind": label, "shape": dataclasses.asdict(shape), "rows": rows,
           "judged": [each for way in ways
                      for each in judged_reference(way, rows, plan.chosen.deterministic)]}


def judged_reference(way: str, rows: Mapping[str, Row], is_deterministic: bool) -> list[Row]:
    """Where attention's gradient adds by atomics, losses are told and not judged."""
    plain, ours = rows[PLAIN], rows[way]
    extra = {part: (ours[part] - plain[part]) / GB if part in ours and part in plain else None
             for part in ("reserved", "allocated", "device")}
    bound = round(5 + 3 * plain.get("written", 0) / (20 * GB), 2)
    return [judge("GB that the plain step falls short of 100",
                  max(0.0, 100 - plain.get("reserved", 0) / GB), 0.0),
            *(judge(f"{way}: GB more {part} than the plain loop", more, 2.0)
              for part, more in extra.items()),
            judge(f"{way}: time a step over the plain one's", over(ours, plain, "ms"), 1.0),
            judge(f"{way}: recording, seconds; 5 and 3 times what is written at 20 GB/s",
                  ours.get("recording_s"), bound),
            *([judge(f"{way}: losses apart, relative", ours["losses_apart"], 0.0, decimals=12)]
              if is_deterministic else [])]


PARTS = {"limits": limits, "steady": steady_memory, "reference": reference}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[*PARTS])
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=[*SIZES])
    parser.add_argument("--ways", nargs="*", choices=WAYS)
    parser.add_argument("--shares", nargs="*", type=float, default=[*SHARES])
    parser.add_argument("--cases", nargs="*", choices=STEADY, default=[*STEADY])
    parser.add_argument("--layers", type=int, help="of the reference, instead of what fills 100 GB")
    parser.add_argument("--deterministic", action="store_true",
                        help="torch's deterministic algorithms, so that losses can be equal")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    if chosen.one:
        print(json.dumps(RUNS[chosen.one["run"]](chosen.one)), flush=True)
        return
    # Processes compile once between them.
    cache = os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / ".cache" / "inductor"))
    Path(cache).mkdir(parents=True, exist_ok=True)
    answers: list[Row] = []
    with tempfile.NamedTemporaryFile() as turn:
        plan = Plan(chosen, turn.name)
        for name in chosen.only:
            for answer in PARTS[name](plan):
                answers.append(answer)
                print(*(f"  {row}" for row in answer["judged"]), sep="\n", flush=True)
                save(chosen.results, "gpu_memory", answers=answers)


if __name__ == "__main__":
    main()
