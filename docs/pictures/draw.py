#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of README and pages from what was measured: bench/results/gpu_steps.json, and
demo_timeline.json beside this file, which is one launch of `make demo`'s timeline.

    draw.py [folder]                    writes the pictures, beside this file unless told otherwise
    draw.py --take out/timeline.json    takes its quickest launch as demo_timeline.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from svg import Drawing

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "bench/results"
TIMELINE = HERE / "demo_timeline.json"
# What of gpu_steps.json is shown, and as what; rows that a kind does not have are left out.
STEPS = {"gradients B1 S256": "forward and backward, 256 tokens",
         "training B1 S256": "training step, 256 tokens",
         "training B4 S1024": "training step, 4 x 1,024 tokens",
         "inference B1 S16": "inference, 16 tokens"}
ROWS = {"torch.compile": ("torch.compile", "theirs"),
        "reduce-overhead": ("reduce-overhead", "other"),
        "anabranch.record": ("Anabranch", "ours"), "anabranch backend": ("Anabranch", "ours")}


def draw_flow() -> Drawing:
    """What Anabranch is, in one picture."""
    drawing = Drawing(720, 210, "A program is planned, recorded once, and launched many times")
    stages = [("program", "steps over buffers,", "marked with streams"),
              ("plan", "order, waits, memory;", "checked for races"),
              ("record", "once, on a device:", "threads or CUDA graphs"),
              ("launch", "again and again,", "at new addresses")]
    for i, (name, first, second) in enumerate(stages):
        x = 20 + 175 * i
        drawing.box(x, 60, 155, 76, "box", round_=6)
        drawing.text(x + 77, 84, name, "strong", "middle")
        drawing.text(x + 77, 105, first, "small", "middle")
        drawing.text(x + 77, 121, second, "small", "middle")
        if i:
            drawing.arrow(x - 20, 98, x, 98)
    for x, name in ((97, "torch.compile, anabranch.record, C++"), (622, "addresses of inputs")):
        drawing.text(x if x > 400 else 20, 28, name, "small", "middle" if x > 400 else "start")
        drawing.arrow(x, 36, x, 60)
    drawing.arrow(622, 136, 622, 172)
    drawing.text(622, 188, "results of eager, and a ticket", "small", "middle")
    drawing.text(20, 188, "What cannot be planned or recorded runs plainly, and a report says why.",
                 "small")
    return drawing


def draw_figures(results: dict[str, Any]) -> Drawing:
    """Times of steps under torch.compile and under Anabranch, a bar each."""
    kinds = {answer["kind"]: answer["rows"] for answer in results["answers"]}
    bars = [(title, [(*ROWS[name], kinds[kind][name]["end_to_end_us"] / 1000)
                     for name in ROWS if name in kinds[kind] and not _is_second(name, kinds[kind])])
            for kind, title in STEPS.items()]
    height = 96 + sum(24 + 20 * len(rows) for _, rows in bars)
    machine = results["machine"]
    drawing = Drawing(720, height, "Milliseconds a step; shorter is better")
    drawing.text(20, 28, "A 16-layer transformer of width 1,024 in bf16, milliseconds a step",
                 "strong")
    drawing.text(20, 46, f"One {machine['gpu']}, torch {machine['torch'].split('+')[0]}. "
                 "Shorter is better; median of rounds.", "small")
    y, scale = 66.0, 480 / max(value for _, rows in bars for *_, value in rows)
    for title, rows in bars:
        drawing.text(20, y + 12, title)
        for name, kind, value in rows:
            y += 20
            drawing.text(150, y + 11, name, "small", "end")
            drawing.box(160, y, max(value * scale, 1), 14, kind)
            drawing.text(166 + value * scale, y + 11, _digits(value), "small")
        y += 24
    drawing.text(20, height - 14, "The CPU limits torch.compile here, and CPUs differ: see "
                 "docs/measuring.md.", "small")
    return drawing


def _digits(value: float) -> str:
    return f"{value:.{2 if value < 10 else 1}f}"


def _is_second(name: str, rows: dict[str, Any]) -> bool:
    """One bar of ours a kind: of a whole step recorded, where there is one."""
    return name == "anabranch backend" and "anabranch.record" in rows


def draw_timeline(events: list[dict[str, Any]]) -> Drawing:
    """A launch of the demo: its steps on the streams that the model names."""
    names = {event["tid"]: event["args"]["name"] for event in events
             if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    launch = next(event for event in slices if event["name"] == "launch")
    scale = 590 / launch["dur"]
    drawing = Drawing(720, 110 + 34 * len(names), "A launch of the demo on two threads")
    drawing.text(20, 28, "One launch of the demo: attention beside the MLP, block by block",
                 "strong")
    drawing.text(20, 46, f"{launch['dur'] / 1000:.2f} ms on two threads of a CPU, as traced.",
                 "small")
    rows = {tid: 66 + 34 * i for i, tid in enumerate(names)}
    for tid, y in rows.items():
        drawing.text(20, y + 16, names[tid])
        drawing.line(110, y + 27, 700, y + 27, "grid")
    for event in slices:
        if event is not launch:
            waits = event["name"].startswith("wait")
            drawing.box(110 + (event["ts"] - launch["ts"]) * scale, rows[event["tid"]],
                        max(event["dur"] * scale, 0.5), 22, "wait" if waits else "ours", 2,
                        f"{event['name']}: {event['dur']:.1f} us")
    y = 66 + 34 * len(names) + 14
    for x, kind, told in ((110, "ours", "a step"), (190, "wait", "a wait for another stream")):
        drawing.box(x, y, 12, 12, kind, 2)
        drawing.text(x + 18, y + 10, told, "small")
    return drawing


def take_launch(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """The quickest launch of several streams, with its streams' names; no other keys than are
    drawn."""
    events = timeline["traceEvents"]
    launches = [event for event in events if event["ph"] == "X" and event["name"] == "launch"]
    several = [launch for launch in launches
               if len({event["tid"] for event in _inside(launch, events)}) > 2]
    quickest = min(several, key=lambda event: event["dur"])
    kept = [quickest, *_inside(quickest, events)]
    used = {event["tid"] for event in kept}
    named = [event for event in events if event["name"] == "thread_name"
             and event["pid"] == quickest["pid"] and event["tid"] in used]
    return [{"ph": "M", "name": "thread_name", "tid": event["tid"],
             "args": {"name": event["args"]["name"]}} for event in named] + [
        {key: event[key] for key in ("ph", "name", "tid", "ts", "dur")} for event in kept]


def _inside(launch: dict[str, Any], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    begin, end = launch["ts"], launch["ts"] + launch["dur"]
    return [event for event in events
            if event["ph"] == "X" and event is not launch and event["pid"] == launch["pid"]
            and begin <= event["ts"] and event["ts"] + event["dur"] <= end]


def main() -> None:
    if sys.argv[1:2] == ["--take"]:
        kept = take_launch(json.loads(Path(sys.argv[2]).read_text()))
        TIMELINE.write_text("[\n" + ",\n".join(map(json.dumps, kept)) + "\n]\n")
        return
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    pictures = {"flow": draw_flow(),
                "figures": draw_figures(json.loads((RESULTS / "gpu_steps.json").read_text())),
                "timeline": draw_timeline(json.loads(TIMELINE.read_text()))}
    for name, drawing in pictures.items():
        (folder / f"{name}.svg").write_text(str(drawing))


if __name__ == "__main__":
    main()
