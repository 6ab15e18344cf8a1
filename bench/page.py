# SPDX-License-Identifier: Apache-2.0
"""Reports: how large is the page of 5,000 kernels, how soon does it show, how long does a frame of it
take, and what does explain cost on a compiled model?

    python bench/page.py [--quick]

The page is that of a plan of 5,000 steps on 8 streams with the times of a launch of it on the host.
It is opened in Chromium without a window, a fresh process each time. Counted is from the start of
navigation until its script has drawn (`performance.now()`), and then each of 40 frames while it is
scrolled and zoomed: from the call that draws until it returns, with the layout that it causes. The
model is a transformer of 16 layers on two streams, on the CPU: `explain` with its text, its dict and
its page, against the same call alone.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch_common import BUSY, LOAD_BEFORE, ROOT, arguments, machine, results_folder, spread

import anabranch
from anabranch._explain.page import page_of

sys.path.insert(0, str(ROOT / "tests" / "python" / "support"))
import browser
from long_plans import contents_of_plan, launched, long_plan

LAYERS, WIDTH = 16, 64
REACH = {"page_bytes": 3 << 20, "open_ms": 1000.0, "explain_s": 1.0}
# Frames are drawn when they are asked for, so that each can be timed.
BEFORE = """<script>
  const frames = [];
  window.requestAnimationFrame = (draw) => {
    const start = performance.now();
    draw();
    document.body.offsetHeight;
    frames.push(performance.now() - start);
    return 0;
  };
</script>"""
BEHIND = """<script>
  const drawn = performance.now();
  const view = document.querySelector(".scroller");
  const zoom = (name) => document.querySelector(`[aria-label='${name}']`).click();
  for (let i = 0; i < 40; ++i) {
    if (i % 10 === 5) zoom("Zoom in");
    view.scrollLeft = (i / 40) * view.scrollWidth;
    view.dispatchEvent(new Event("scroll"));
  }
  document.body.dataset.measured = JSON.stringify({drawn, frames,
    nodes: document.querySelectorAll("*").length});
</script>"""


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        with anabranch.stream("attention"):
            a = self.attention(y, y, y, need_weights=False)[0]
        with anabranch.stream("feed"):
            b = self.down(nn.functional.gelu(self.up(y)))
        return x + a + b


def open_page(path):
    """Milliseconds until it is drawn and of each frame, and how many nodes it has."""
    done, _ = browser.run("--window-size=1200,900", "--dump-dom", f"file://{path}")
    return json.loads(re.search(r'data-measured="([^"]*)"', done)[1].replace("&quot;", '"'))


def measure_page(rounds):
    plan = long_plan()
    page = page_of(contents_of_plan(plan, launched(plan)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(page.replace("<head>", f"<head>{BEFORE}") + BEHIND, "utf-8")
        opened = [open_page(path) for _ in range(rounds)]
    return {"steps": len(plan.order), "page_bytes": len(page.encode()),
            "open_ms": [round(one["drawn"], 1) for one in opened],
            "frame_ms": [round(ms, 2) for one in opened for ms in one["frames"]],
            "nodes": opened[-1]["nodes"]}


def measure_explain(rounds):
    model = torch.compile(nn.Sequential(*(Layer() for _ in range(LAYERS))), backend="anabranch")
    x = torch.randn(2, 32, WIDTH)
    times = {"call_s": [], "explain_s": [], "text_s": [], "page_s": []}
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        model(x)
        for _ in range(rounds):
            report = None

            def timed(name, call):
                start = time.perf_counter()
                answer = call()
                times[name].append(round(time.perf_counter() - start, 4))
                return answer

            timed("call_s", lambda: model(x))
            report = timed("explain_s", lambda: anabranch.explain(model, x))
            timed("text_s", lambda: str(report))
            timed("page_s", lambda: report.html(Path(folder) / "page.html"))
    (graph,) = report.to_dict()["graphs"]
    return {"layers": LAYERS, "regions": len(graph["regions"]), "operators": graph["operators"],
            **times}


def main():
    chosen = arguments(__doc__)
    if browser.CHROMIUM is None:
        print("skipped: there is no chromium (scripts/need_packages.sh page)")
        return 0
    found = {"page": measure_page(3 if chosen.quick else 9),
             "explain": measure_explain(chosen.rounds)}
    folder = results_folder(chosen.backend, chosen.quick)
    folder.mkdir(parents=True, exist_ok=True)
    chromium, _ = browser.run("--version")
    (folder / "page.json").write_text(json.dumps(
        {"question": " ".join(__doc__.split("\n\n")[0].split()), "machine": machine(),
         "chromium": chromium.strip(), "reach": REACH, **found}, indent=1) + "\n")
    page, explained = found["page"], found["explain"]
    print(f"page of {page['steps']} steps: {page['page_bytes']} bytes, {page['nodes']} nodes")
    for name, values in [("open_ms", page["open_ms"]), ("frame_ms", page["frame_ms"]),
                         *((name, explained[name]) for name in explained if name.endswith("_s"))]:
        print(f"  {name:<10} median {statistics.median(values):.4g}, iqr {spread(values):.2g}, "
              f"most {max(values):.4g}")
    if LOAD_BEFORE > BUSY:
        print(f"The machine was busy before this began (load {LOAD_BEFORE:.1f}): these are too high.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
