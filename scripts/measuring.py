#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tables of docs/measuring.md and README.md from what was measured: bench/results.

    python scripts/measuring.py                  rewrites the pages
    python scripts/measuring.py --check          writes nothing; answers 1 if a page would change

What stands in a page between ``<!-- table: NAME -->`` and ``<!-- end -->`` becomes the table of
that name: a line with the machine and the command, as the JSON tells them, then the rows.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench/suite"))

import results as suite_results  # noqa: E402
import table as suite_table  # noqa: E402

BEGIN = "<!-- table: "
PLACE = re.compile(rf"({BEGIN}(\S+) -->\n)(?:(?!{BEGIN}).)*?(<!-- end -->)", re.DOTALL)
NONE = "-"
GB, MIB = 1e9, 1 << 20
COMPILE, FROZEN, GRAPH_TREES = "torch.compile", "frozen graph", "reduce-overhead"
RECORD, BACKEND = "anabranch.record", "anabranch backend"
GAINS = {"gradients B1 S256": "forward and backward, 256 tokens, `backend`",
         "training B1 S256": "training step, 256 tokens, `record`",
         "training B4 S1024": "the same, 4 x 1,024 tokens",
         "inference B1 S16": "inference, 16 tokens, `record`"}
STEP = "training, no gradients left"  # a case of bench/gpu/calls.py
STAYS = "training, gradients stay"
LIMITS = ("", "1.00 P", "1.05 P", "1.10 P")  # of those that bench/gpu/memory.py sets

Kept = dict[str, Any]
Rows = Iterable[Sequence[str]]


def load(folder: Path, name: str) -> Kept:
    found: Kept = json.loads((folder / f"{name}.json").read_text())
    return found


def number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def device(machine: Mapping[str, Any]) -> str:
    torch = str(machine["torch"]).partition("+")[0]
    cpu = f"{machine['cores']} cores ({machine['processor']})"
    return f"{machine.get('gpu', cpu)}, torch {torch}"


def command(machine: Mapping[str, Any], folder: str) -> str:
    """Without remarks, and without the file that the figures went to."""
    words = re.split(r"[(;]", machine["command"])[0].split()
    script, *options = (word for word in words if not word.endswith(".json"))
    where = "" if "/" in script else f"{folder}/"
    return f"`python {' '.join([where + script, *options])}`"


def about(found: Kept, folder: str = "bench/gpu") -> str:
    many = f"{found['gpus']} x " if "gpus" in found else ""
    return f"{many}{device(found['machine'])}: {command(found['machine'], folder)}"


def markdown(caption: str, heading: Sequence[str], rows: Rows) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return f"{caption}\n\n" + "".join(f"|{'|'.join(line)}|\n" for line in lines)


def ms_of(rows: Mapping[str, Kept], name: str) -> str:
    return number(rows[name]["end_to_end_us"] / 1000) if name in rows else NONE


def answers_of_steps(found: Kept) -> list[tuple[Kept, str, str]]:
    """Of the machine that is named, with the names of ours side by side and in captured order."""
    answers = [answer for answer in found["answers"] if "rounds" in answer and "run" not in answer]
    named = []
    for answer in answers:
        ours = RECORD if RECORD in answer["rows"] else BACKEND
        named.append((answer, ours, next((name for name in answer["rows"]
                                          if name.startswith(f"{ours}, ")), "")))
    return named


def gains(folder: Path) -> str:
    found, sharded = load(folder, "gpu_steps"), load(folder, "gpu_fsdp")
    rows = [[GAINS[answer["kind"]], *(ms_of(answer["rows"], name)
                                      for name in (COMPILE, GRAPH_TREES, ours))]
            for answer, ours, _ in answers_of_steps(found) if answer["kind"] in GAINS]
    rows.append([f"FSDP2 training step, 2,048 wide, {sharded['gpus']} GPUs, `record`",
                 *(ms_of(sharded["rows"], name) for name in (COMPILE, GRAPH_TREES, RECORD))])
    return markdown(f"{about(found)}; ms", ["a 16-layer transformer, 1,024 wide, bf16", COMPILE,
                                            GRAPH_TREES, "Anabranch"], rows)


def steps(folder: Path) -> str:
    found = load(folder, "gpu_steps")
    rows = []
    for answer, ours, in_order in answers_of_steps(found):
        times = {judged["rival"]: judged["times"] for judged in answer["judged"]
                 if judged["ours"] == ours}
        rows.append([answer["kind"] + (", backend" if ours == BACKEND else ""),
                     *(ms_of(answer["rows"], name)
                       for name in (COMPILE, GRAPH_TREES, FROZEN, in_order, ours)),
                     *(number(times.get(rival)) for rival in (COMPILE, GRAPH_TREES))])
    return markdown(f"{about(found)}; ms", [
        "step", COMPILE, GRAPH_TREES, FROZEN, "captured order", "Anabranch",
        "times torch.compile", "times reduce-overhead"], rows)


def chain(folder: Path) -> str:
    found = load(folder, "gpu_chain_bench")
    by_nodes: dict[int, dict[str, Kept]] = {}
    for row in found["rows"]:
        by_nodes.setdefault(row["nodes"], {})[row["what"]] = row
    moved, from_host = "all moved, updater", "all moved, from the host"
    rows = [[f"{nodes:,}", number(of[FROZEN]["end_to_end_us"], 1),
             *(number(of[what]["over_frozen"], 3)
               for what in ("nothing moved", "one buffer moved", moved, from_host)),
             *(number(of[what]["cpu_us"], 1) for what in (FROZEN, moved))]
            for nodes, of in by_nodes.items()]
    version = f"{found['cuda_driver'] // 1000}.{found['cuda_driver'] % 1000 // 10}"
    caption = f"{found['device']}, CUDA {version}: `make bench-gpu`, {found['bench']}"
    return markdown(caption, [
        "nodes", "frozen graph, us", "nothing moved", "one moved", "all moved", "all from the host",
        "CPU of a frozen launch, us", "all moved"], rows)


def calls_of(run: Kept) -> dict[str, dict[str, float]]:
    """Medians of each kind of call, with the GPU idle and behind a step of torch.compile."""
    return {answer["kind"]: {where: statistics.median(us) for where, us in (
        answer["cpu_us"].items() if isinstance(answer["cpu_us"], dict)
        else [("alone", answer["cpu_us"])])} for answer in run["answers"]}


def target(run: Kept) -> float:
    return next(float(judged["at_most"]) for answer in run["answers"]
                for judged in answer["judged"])


def calls(folder: Path) -> str:
    """Other machines count whose runs had the same target: older ones are of other code."""
    found = load(folder, "gpu_calls")
    others = [calls_of(run) for run in found["other_machines"] if target(run) == target(found)]
    here, kinds = calls_of(found), {
        "one kernel, 8 inputs": "small", "a training step of 591 tensors": STEP,
        "the same, gradients stay": STAYS, "a frozen graph of as many nodes": "frozen"}
    rows = []
    for title, kind in kinds.items():
        cells = []
        for where in ("alone", "behind"):
            seen = [other[kind][where] for other in others if where in other.get(kind, {})]
            cells.append(f"{here[kind][where]:.1f} ({min(seen):.1f} to {max(seen):.1f})"
                         if seen else NONE)
        rows.append([title, *cells])
    return markdown(f"{about(found)}; in brackets {len(others)} more such machines; us", [
        "call", "GPU idle", "behind torch.compile"], rows)


def limit_rows(rows: Mapping[str, Kept], title: str) -> Rows:
    """A line a limit: what each way reserved at its peak."""
    limits = dict.fromkeys(name.partition(", ")[2] for name in rows)
    for limit in sorted(limits):
        cells = []
        for way in (COMPILE, RECORD, BACKEND):
            row = rows.get(f"{way}, {limit}" if limit else way)
            text = NONE if row is None else number(row["reserved"] / GB)
            is_plain = row is not None and way != COMPILE and not row["recorded"]
            cells.append(f"{text}, plain" if is_plain else text)
        if limit in LIMITS and set(cells[1:]) != {NONE}:
            yield [f"{title}, {limit or 'no limit'}", *cells]


def recording(folder: Path) -> str:
    found = load(folder, "gpu_memory")
    merged: dict[str, dict[str, Kept]] = {}
    for answer in found["answers"]:
        if answer["kind"].startswith(("limits", "reference")):
            title = answer["kind"].partition(": ")[2]
            merged.setdefault(title, {}).update(answer["rows"])
    rows = [row for title, of in merged.items() for row in limit_rows(of, title)]
    sharded = load(folder, "gpu_fsdp_limits")
    plain = sharded["plain_bytes"] / GB
    for limit in ("no limit", "1.00 P"):
        ours = plain * sharded["rows"][limit]["reserved_over_p"]
        rows.append([f"FSDP2, {sharded['gpus']} GPUs, {limit}", number(plain), number(ours), NONE])
    caption = f"{about(found)};\n{about(sharded)};\nGB reserved at most"
    return markdown(caption, ["loop, limit", COMPILE, "`record`", "backend"], rows)


def steady(folder: Path) -> str:
    found = load(folder, "gpu_memory")
    answer = next(answer for answer in found["answers"] if answer["kind"] == "steady")
    kinds = dict.fromkeys(name.rpartition(", ")[0] for name in answer["rows"])
    rows = []
    for kind in kinds:
        plain = answer["rows"][f"{kind}, {COMPILE}"]
        ours, own = next((name.rpartition(", ")[2], row) for name, row in answer["rows"].items()
                         if name.startswith(f"{kind}, ") and not name.endswith(COMPILE))
        rows.append([kind + (", backend" if ours == BACKEND else ""),
                     *(number(plain[what] / MIB, 0) for what in ("allocated", "reserved")),
                     *(number(own[what] / plain[what]) for what in ("allocated", "reserved"))])
    caption = f"{answer['gpu']}: `{answer['command']}`"
    return markdown(caption, ["step", "torch.compile allocates, MiB", "reserves",
                              "recorded over it, allocated", "reserved"], rows)


def once(folder: Path) -> str:
    found = load(folder, "gpu_memory")
    answer = next(answer for answer in found["answers"]
                  if answer["kind"].startswith("recording"))
    runs = {name.rpartition("python_once=")[2]: tries[0] for name, tries in answer["rows"].items()
            if "python_once=" in name}
    whats = {"device": ("the device at most, GB", GB),
             "reserved": ("torch counts, addresses too, GB", GB),
             "recording_s": ("the call that records, s", 1.0),
             "until_recorded_s": ("until it is recorded, s", 1.0)}
    rows = [[title, *(number(run[what] / unit) for run in runs.values())]
            for what, (title, unit) in whats.items()]
    caption = f"{device(found['machine'])}: `{answer['command'].partition(':')[0]}`"
    return markdown(caption, ["", *(f"`python_once={value}`" for value in runs)], rows)


def rate_rows(cases: Sequence[Kept]) -> Rows:
    over = [case["over_other"] for case in cases]
    times = [case["over_compile"] for case in cases]
    same = sum(case["losses_equal"] and case["recordings"] == 1 for case in cases)
    title = f"a rate in every step, {len(cases)} schedules"
    yield [f"{title}, over a rate that is a tensor", f"{min(over):.3f} to {max(over):.3f}"]
    yield ["times as fast as torch.compile", f"{min(times):.1f} to {max(times):.1f}"]
    yield ["one recording and equal losses", f"{same} of {len(cases)}"]


def loops(folder: Path) -> str:
    found = load(folder, "gpu_loops")
    answers = {answer["kind"]: answer for answer in found["answers"]}
    figures = {judged["what"]: judged["figure"] for answer in answers.values()
               for judged in answer["judged"]}
    wanted = {"numbers: time over that without changes": "a thousand floats, over none that change",
              "generation: time a token over Graph Trees'": "a token, over reduce-overhead",
              "lengths: from cold, over torch.compile's time":
                  "150 texts of 24 lengths from cold, over torch.compile",
              "lengths: once more, times as fast": "the same once more, times as fast",
              "lengths: a further length, seconds": "a further length, s",
              "batches: a call over a frozen graph's": "batches of 1 to 64, over 64 frozen graphs",
              "batches: memory over that of frozen graphs": "their memory, over the frozen graphs'",
              "batches: seconds until all are ready": "until all are ready, s"}
    rows = [*rate_rows(answers["rates"]["cases"]),
            *([title, number(figures[what])] for what, title in wanted.items())]
    rates = {**found["machine"], "command": "loops.py"}
    return markdown(f"{device(rates)}: {command(rates, 'bench/gpu')}", ["loop", "measured"], rows)


def trainer(folder: Path) -> str:
    found = load(folder, "gpu_trainer")
    rows = [[case["case"], *(number(case["step_us"][way] / 1000)
                             for way in ("torch_compile", "one line of ours")),
             f"{case['over_compile']:.2f} (IQR {case['iqr']:.2f})"] for case in found["cases"]]
    caption = f"transformers {found['transformers']}, {about(found)}; ms a step"
    return markdown(caption, ["case", "`torch_compile`", "with `record(trainer)`", "times"], rows)


def clients(folder: Path) -> str:
    found = load(folder, "gpu_clients")
    ways = (COMPILE, GRAPH_TREES, 'backend="anabranch"', RECORD)
    rows = [[f"{client['client']}, {client['unit']}",
             *(number(client["ms"].get(way)) for way in ways)] for client in found["clients"]]
    return markdown(f"{about(found)}; ms", ["client, unit", *ways[:2], "backend", "`record`"],
                    rows)


def gpus(folder: Path) -> str:
    sharded, parallel = load(folder, "gpu_fsdp"), load(folder, "gpu_ddp")
    ways = (COMPILE, FROZEN, 'backend="anabranch"', RECORD)
    rows = [[name, *(ms_of(found["rows"], way) for way in ways)]
            for name, found in (("DDP", parallel), ("FSDP2", sharded))]
    caption = f"{about(parallel)}, {command(sharded['machine'], 'bench/gpu')}; ms"
    return markdown(caption, ["a step", *ways[:2], "backend", "`record`"], rows)


def branches(folder: Path) -> str:
    found = load(folder, "gpu_branches")
    rows = [[f"{answer['width']:,}, {answer['rows']:,}",
             *(number(answer["rows_us"][way]["end_to_end_us"], 0)
               for way in ("captured order", "side by side")), number(answer["times"])]
            for answer in found["answers"]]
    return markdown(f"{about(found)}; us", ["width, rows", "captured order", "side by side",
                                            "times"], rows)


def bound(folder: Path) -> str:
    """Copies and gathers under kernels: over the longer of the two alone."""
    copies, gathers = load(folder, "gpu_copies"), load(folder, "gpu_collectives")
    rows = []
    for answer in copies["answers"]:
        over = answer["times_of_bound"]
        rows.append([f"copies, kernels {answer['compute_to_copy']:g} x as long",
                     *(number(over[way])
                       for way in ("captured order", "eager by hand", "ours"))])
    for case in gathers["cases"]:
        us = {way: row["end_to_end_us"] for way, row in case["rows"].items()}
        longer = max(us["layers"], us["gathers"])
        rows.append([f"gathers, {case['rows_of_x']:,} rows",
                     *(number(us[way] / longer) for way in ("captured order", "ahead by hand")),
                     number(case["over_longer"]["median"])])
    return markdown(f"{about(copies)};\n{about(gathers)}",
                    ["over the longer of both alone", "captured order", "by hand", "Anabranch"],
                    rows)


def cpu(folder: Path) -> str:
    found = load(folder, "torch_branches")
    figures = {row["what"]: row["figure"] for row in found["rows"]}
    widths = [what.rpartition(" ")[2] for what in figures if what.startswith("inference")]
    rows = [[width, *(number(figures[f"{kind}, hidden {width}"])
                      for kind in ("inference", "training"))] for width in widths]
    return markdown(f"{about(found, 'bench')}; times as fast", ["width", "inference", "training"],
                    rows)


def cpu_costs(folder: Path) -> str:
    overhead, first = load(folder, "torch_overhead"), load(folder, "torch_compile_time")
    models = load(folder, "torch_models")
    rows = [[f"{kind}{row['what']}", row["ours"], row["rival"], number(1 / row["figure"])]
            for kind, found in (("an empty call, ", overhead), ("", first))
            for row in found["rows"]]
    figures = [row["figure"] for row in models["rows"]]
    rows.append([f"{len(figures) // 2} models without streams", NONE, NONE,
                 f"{min(figures):.2f} to {max(figures):.2f}"])
    scripts = (command(found["machine"], "bench").split()[1]
               for found in (overhead, first, models))
    return markdown(f"{device(overhead['machine'])}: {', '.join(f'`{name}`' for name in scripts)}",
                    ["", "Anabranch", COMPILE, "times as fast"], rows)


def microbatches(folder: Path) -> str:
    found = load(folder, "gpu_microbatches")
    times = {(answer["model"], answer["code"], answer["width"], answer["microbatches"],
              answer["rows"]): answer["times"] for answer in found["answers"]}
    columns = ((2, 16), (2, 4096), (8, 16), (8, 256), (8, 4096))
    kinds = sorted({key[:3] for key in times})
    rows = [[f"{model}, {width:,} wide, {code}",
             *(number(times.get((model, code, width, *column)), 1) for column in columns)]
            for model, code, width in kinds]
    return markdown(about(found), [
        "model", *(f"{count} of {height:,} rows" for count, height in columns)], rows)


def offload(folder: Path) -> str:
    found = load(folder, "gpu_offload")
    models = {"transformer": "llama", "ViT": "vit", "U-Net": "unet"}
    ways = [COMPILE, *(f"torch, budget {share}" for share in ("0.8", "0.6", "0.4")),
            "torch, checkpoints", *(f"ours, {share}, recorded" for share in ("0.8", "0.6", "0.4"))]
    rows = []
    for way in ways:
        cells = []
        for model in models.values():
            of = found["answers"][model]
            row, plain = of.get(way, {}), of[COMPILE]
            shown = f"{row['step_us'] / plain['step_us']:.2f}" if row is not plain and row else \
                f"{plain['step_us'] / 1000:.1f} ms"
            cells.append(f"{row['peak_mib']:,.0f}, {shown}" if row else NONE)
        rows.append([way, *cells])
    caption = f"{about(found)} and others;\nMiB at the peak, time over torch.compile's"
    return markdown(caption, ["way", *models], rows)


def optimizer(folder: Path) -> str:
    found = load(folder, "gpu_optimizer")
    ways = ("on the GPU", "pinned", "pinned, recorded", "in, then out")
    rows = [[answer["what"], *(number(answer["rows_us"][way]["end_to_end_us"] / 1000, 0)
                               for way in ways)] for answer in found["answers"]]
    return markdown(f"{about(found)}; ms", ["", *ways], rows)


def suite_row(name: str, files: Sequence[Kept]) -> list[str]:
    """Of the backend and of ``record``, each against what it is compared with."""
    cells: list[list[str]] = []
    for mode in suite_table.OURS:
        over = [suite_table.ratios(files, mode, rival) for rival in ("compile", GRAPH_TREES)]
        memory = suite_table.memory_ratios(files, mode, "allocated")
        last = over[1] or over[0]
        cells.append([str(len(last)), *(number(suite_table.geometric_mean(values))
                                        for values in (*over, memory)),
                      str(sum(value < suite_table.WORSE for value in last))])
    (count, *backend), (_, *record) = cells
    return [name, count, *(NONE if {own, whole} == {NONE} else f"{own}, {whole}"
                           for own, whole in zip(backend, record, strict=True))]


def suite(folder: Path) -> str:
    rows, machines = [], set()
    small = list(suite_results.load(folder / "suite/cuda-small"))
    for title in ("small", "own"):
        files = list(suite_results.with_verdicts(
            suite_results.load(folder / f"suite/cuda-{title}"), small))
        machines |= {run["gpu"] for kept in files for run in kept["runs"].values()}
        rows += [suite_row(f"{title} batches, {kind}",
                           [kept for kept in files if kept["kind"] == kind])
                 for kind in ("inference", "training")]
    caption = f"{' and '.join(sorted(machines))}: `python bench/suite/run.py --together`"
    return markdown(f"{caption}; geometric means, backend and `record`", [
        "", "models", "times torch.compile", "times reduce-overhead", "memory over torch.compile",
        f"models below {suite_table.WORSE}"], rows)


def reports(folder: Path) -> str:
    timing, page = load(folder, "gpu_timing"), load(folder, "page")
    mean, stalls = timing["costs"]["mean_us"], timing["stalls"]
    rows = [["a step with `timing=True`, over one never timed",
             number(mean["timing=True"] / mean["never timed"], 3)],
            ["planted stalls that are named", f"{stalls['named']} of {len(stalls['planted'])}"],
            [f"page of {page['page']['steps']:,} steps, MB",
             number(page["page"]["page_bytes"] / 1e6)],
            ["until it is drawn, ms", number(statistics.median(page["page"]["open_ms"]), 0)]]
    return markdown(f"{about(timing)};\n{about(page, 'bench')}", ["", "measured"], rows)


TABLES: dict[str, Callable[[Path], str]] = {
    function.__name__.replace("_", "-"): function for function in (
        gains, steps, chain, calls, recording, steady, once, loops, trainer, clients, gpus,
        branches, bound, cpu, cpu_costs, microbatches, offload, optimizer, suite, reports)}


def written(page: str, folder: Path) -> str:
    """The page with its tables as the results have them."""
    def replace(place: re.Match[str]) -> str:
        begin, name, end = place.groups()
        if name not in TABLES:
            raise SystemExit(f"no table is named {name}: {', '.join(TABLES)}")
        return f"{begin}{TABLES[name](folder)}{end}"
    after, places = PLACE.subn(replace, page)
    if places != page.count(BEGIN):
        raise SystemExit("a table of the page has no <!-- end -->")
    return after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=Path, nargs="*",
                        default=[ROOT / "docs/measuring.md", ROOT / "README.md"])
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results")
    chosen = parser.parse_args()
    differing = 0
    for page in chosen.page:
        before = page.read_text()
        after = written(before, chosen.results)
        if not chosen.check:
            page.write_text(after)
        elif after != before:
            print(f"{page} is not what its results say: run scripts/measuring.py")
            differing = 1
    return differing


if __name__ == "__main__":
    sys.exit(main())
