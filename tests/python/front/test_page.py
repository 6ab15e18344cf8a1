# SPDX-License-Identifier: Apache-2.0
"""The page of a report, in a real browser: what it shows, how it is used, and what it refuses."""

from __future__ import annotations

import html
import json
import re

import browser
import pytest
import torch
from long_plans import contents_of_plan, launched, long_plan
from torch import nn

import anabranch
from anabranch._core.program import READ, ROLE_INPUT, ROLE_TEMPORARY, WRITE, ProgramBuilder
from anabranch._explain.page import page_of

pytestmark = [
    pytest.mark.own,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium: make test-page installs it")]
EVIL = "</script><img src=x onerror=\"document.title='taken'\"><b>&amp;"


def small_plan(name="join"):
    """Two steps side by side and one behind them, which has this name."""
    builder = ProgramBuilder()
    side = builder.add_stream(f"side {name}")
    x = builder.add_buffer("x", ROLE_INPUT, 64)
    up, down, out = (builder.add_buffer(f"{text} {name}", ROLE_TEMPORARY, 256, 64)
                     for text in ("up", "down", "out"))
    builder.compute(0, "up", [(READ, x), (WRITE, up)], source="model.py:7")
    builder.compute(side, "down", [(READ, x), (WRITE, down)], source="model.py:8")
    builder.compute(0, name, [(READ, up), (READ, down), (WRITE, out)])
    return builder.build().make_plan()


def shown(tmp_path, contents, script="", **how):
    """The page, and behind it a script of the test's own, which has what the page has."""
    path = tmp_path / "page.html"
    path.write_text(page_of(contents) + f"<script>{script}</script>")
    found = browser.opened(path, **how)
    assert 'data-ready="yes"' in found.dom and not found.said, found.said
    return found


def answered(found):
    """What the test's script has written."""
    return json.loads(html.unescape(re.search(r'data-answer="([^"]*)"', found.dom)[1]))


ANSWER = "const answer = (value) => { document.body.dataset.answer = JSON.stringify(value); };"


@pytest.fixture(scope="module")
def of_a_plan(tmp_path_factory):
    return shown(tmp_path_factory.mktemp("plan"), contents_of_plan(small_plan()))


def test_a_plan_without_times_shows_its_order_streams_waits_and_arena(of_a_plan):
    assert "The plan's order, without times" in of_a_plan.dom
    assert of_a_plan.count(r'<text class="lane"[^>]*>(?:ambient|side join)<') == 2
    assert re.search(r'<path class="arrow path" d="M', of_a_plan.dom)
    assert re.search(r'<path class="path" d="M', of_a_plan.dom)
    assert "arena, 768 bytes" in of_a_plan.dom
    blocks = re.findall(r'<path class="block-\d" d="([^"]*)"', of_a_plan.dom)
    assert [block.count("M") for block in blocks] == [1, 1, 1]
    assert "2 of 3 steps" in of_a_plan.dom
    assert "model.py:8" in of_a_plan.dom and ">down</button>" in of_a_plan.dom


def test_a_measured_launch_shows_times(tmp_path):
    plan = small_plan()
    found = shown(tmp_path, contents_of_plan(plan, launched(plan)))
    assert "Timeline of the last launch" in found.dom
    assert re.search(r"begins at [\d.]+ .s, takes [\d.]+ .s, lane 0", found.dom)


def test_names_of_the_users_are_never_markup(tmp_path):
    contents = contents_of_plan(small_plan(EVIL), title=EVIL)
    contents["reasons"] = [dict.fromkeys(("where", "what", "why", "remedy", "code"), EVIL)]
    contents["callables"] = [{"name": EVIL, "recordings": []}]
    contents["graphs"][0]["regions"] = [
        {"name": EVIL, "operators": 1, "runs_as": EVIL,
         "lines": [{"file": f"/{EVIL}#?", "line": 1, "function": EVIL, "text": EVIL}]}]
    found = shown(tmp_path, contents, f"{ANSWER} answer([document.images.length, document.title, "
                  "[...document.links].map((one) => one.protocol)]);")
    images, title, protocols = answered(found)
    assert images == 0 and title == f"{EVIL} - Anabranch" and set(protocols) == {"file:"}
    assert "<b>&amp;amp;" not in found.dom and "<img" not in found.dom


def test_what_is_not_known_is_left_out(tmp_path):
    """A plan without an arena of ours, a launch of another plan, a name that is half a character."""
    plan = small_plan()
    contents = contents_of_plan(plan, launched(plan))
    graph = contents["graphs"][0]
    graph["plan"]["arena"] = None
    graph["launch"]["steps"] += [[77, 0, 1, 2]]
    graph["launch"]["waits"] += [[77, 0, 1, 2]]
    graph["regions"] = [{"name": "up", "operators": 1, "runs_as": "native",
                         "lines": [{"file": "/\ud800.py", "line": 1, "function": "", "text": ""}]}]
    found = shown(tmp_path, contents)
    assert "Timeline of the last launch" in found.dom and "arena, " not in found.dom
    assert "file:///%EF%BF%BD.py#L1" in found.dom


def test_nothing_is_fetched():
    page = page_of(contents_of_plan(small_plan()))
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_steps_are_reached_by_keyboard_and_the_focus_is_seen(tmp_path):
    script = ANSWER + """
      const cursor = document.querySelector(".cursor"), said = [];
      const press = (key) => {
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true,
          cancelable: true}));
        said.push(document.activeElement.getAttribute("aria-label").split(" on ")[0]);
      };
      cursor.focus();
      ["End", "ArrowLeft", "ArrowDown", "ArrowDown", "ArrowUp", "Home", "+", "0"].forEach(press);
      const look = getComputedStyle(cursor);
      answer([said, document.activeElement === cursor, cursor.tabIndex, look.strokeWidth,
              document.querySelector("[aria-live]").textContent]);"""
    found = shown(tmp_path, contents_of_plan(small_plan()), script)
    said, is_focused, tab, width, told = answered(found)
    assert said == ["join", "up", "down", "down", "up", "up", "up", "up"]
    assert is_focused and tab == 0 and float(width.removesuffix("px")) >= 3
    assert told.startswith("up on ambient")


def test_every_control_has_a_name(of_a_plan):
    for button in re.findall(r"<button[^>]*>[^<]*</button>", of_a_plan.dom):
        assert "aria-label=" in button or re.search(r">[^<]+<", button) or "hidden" in button
    assert of_a_plan.count(r'role="listbox" aria-label="Timeline') == 1


def in_turn(launch):
    """As if each step had taken 4 us of its own: on a busy machine a launch takes seconds, in which no
    step is wide enough for its name."""
    steps = [[step, lane, 5000 * i, 5000 * i + 4000]
             for i, (step, lane, _, _) in enumerate(launch["steps"])]
    waits = [[step, lane, 5000 * i, 5000 * i + 9000]
             for i, (step, lane, _, _) in enumerate(launch["waits"])]
    return {**launch, "took_ns": 5000 * len(steps), "steps": steps, "waits": waits}


@pytest.fixture(scope="module")
def long_page(tmp_path_factory):
    plan = long_plan()
    folder = tmp_path_factory.mktemp("long")
    contents = contents_of_plan(plan, in_turn(launched(plan)))
    assert len(page_of(contents)) <= 3 << 20
    script = ANSWER + """
      window.requestAnimationFrame = (draw) => setTimeout(draw, 10);
      const count = () => document.querySelectorAll("*").length;
      const scroller = document.querySelector(".scroller"), counts = [count()];
      (async () => {
        for (let i = 0; i < 9; ++i) document.querySelector("[aria-label='Zoom in']").click();
        for (const part of [0.2, 0.5, 1]) {
          scroller.scrollLeft = part * scroller.scrollWidth;
          scroller.dispatchEvent(new Event("scroll"));
          await new Promise((done) => setTimeout(done, 50));
          counts.push(count());
        }
        answer([counts, document.querySelectorAll("svg .label").length,
                scroller.scrollWidth / scroller.clientWidth]);
      })();"""
    return shown(folder, contents, script)


def test_of_five_thousand_steps_is_drawn_what_is_in_view(long_page):
    counts, labels, zoomed = answered(long_page)
    assert zoomed > 100 and 0 < labels < 400
    assert max(counts) < 5000, "a node for each step, or its row"
    assert "Show all 5,000" in long_page.dom


@pytest.mark.parametrize("flags", [
    (), ("--blink-settings=preferredColorScheme=0",)], ids=["light", "dark"])
def test_text_has_enough_contrast(tmp_path, flags):
    """4.5 to 1 for all text, by WCAG's formula."""
    script = ANSWER + """
      const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
      const light = (hex) => [1, 3, 5].map((i) => parseInt(hex.trim().slice(i, i + 2), 16) / 255)
        .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
      const ratio = (a, b) => { const [x, y] = [light(style(a)), light(style(b))].sort((p, q) => q - p);
        return (x + 0.05) / (y + 0.05); };
      answer({ground: style("--ground"), ratios: ["--text", "--quiet", "--link", "--warn"].flatMap(
        (one) => [ratio(one, "--ground"), ratio(one, "--panel")]).concat(
        ratio("--step-text", "--step"))});"""
    path = tmp_path / "page.html"
    path.write_text(page_of(contents_of_plan(small_plan())) + f"<script>{script}</script>")
    found = answered(browser.opened(path, *flags))
    assert found["ground"] == ("#14181f" if flags else "#ffffff")
    assert min(found["ratios"]) >= 4.5


def test_it_fits_a_phone(tmp_path):
    """In a frame as wide as one: the browser's own window cannot be so narrow."""
    (tmp_path / "inner.html").write_text(page_of(contents_of_plan(small_plan())))
    outer = tmp_path / "outer.html"
    outer.write_text(f"""<iframe src="inner.html" width="390" height="800"></iframe><script>{ANSWER}
      onload = () => setTimeout(() => {{ const page = frames[0].document;
        answer([page.documentElement.scrollWidth, page.querySelector("svg").clientWidth]); }}, 500);
      </script>""")
    width, drawn = answered(browser.opened(outer, "--allow-file-access-from-files"))
    assert width <= 390 and 300 < drawn <= 390


def test_on_paper_it_has_all_graphs(tmp_path):
    contents = contents_of_plan(small_plan())
    contents["graphs"] = [{**contents["graphs"][0], "name": f"graph {i}"} for i in range(5)]
    path = tmp_path / "page.html"
    path.write_text(page_of(contents))
    browser.run("--virtual-time-budget=5000", f"--print-to-pdf={tmp_path / 'page.pdf'}",
                "--no-pdf-header-footer", f"file://{path}")
    pages = re.search(rb"/Type\s*/Pages.*?/Count (\d+)|/Count (\d+).*?/Type\s*/Pages",
                      (tmp_path / "page.pdf").read_bytes(), re.S)
    assert 2 <= int(pages[1] or pages[2]) <= 6


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with anabranch.stream("left"):
            a = torch.tanh(self.left(x))
        with anabranch.stream("right"):
            b = torch.sin(self.right(x))
        return a + b


@pytest.fixture(scope="module")
def report():
    call = torch.compile(Branches(), backend="anabranch", options={"record": False})
    return anabranch.explain(call, torch.randn(4, 8))


def test_the_page_of_a_report_names_regions_by_their_lines(report, tmp_path):
    path = report.html(tmp_path / "report.html")
    found = browser.opened(path)
    assert not found.said and path == tmp_path / "report.html"
    assert "<h1>Branches</h1>" in found.dom and "Timeline of the last launch" in found.dom
    assert "a = torch.tanh(self.left(x))" in found.dom
    assert re.search(r'href="file:///[^"]*test_page.py#L\d+"', found.dom)


def test_a_notebook_shows_the_page_in_a_frame(report, tmp_path):
    """It may run its script, and reach nothing of the notebook."""
    path = tmp_path / "cell.html"
    frame = report._repr_html_().replace("build();\n", "build(); parent.postMessage("
                                         "document.querySelector('h1').textContent, '*');\n")
    path.write_text(f"""<script>{ANSWER} onmessage = (event) => {{
      let reached = "nothing";
      try {{ reached = frames[0].document.title; }} catch {{}}
      answer([event.data, reached]); }};</script>{frame}""")
    assert answered(browser.opened(path)) == ["Branches", "nothing"]
