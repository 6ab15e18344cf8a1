# SPDX-License-Identifier: Apache-2.0
"""Timed recordings in reports: as dict, text, page and timeline."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace

import browser
import pytest
import torch
from timed_steps import contents, node, report, timing

import anabranch
from anabranch._compile import report as report_module
from anabranch._core.abi import CaptureCounts
from anabranch._explain.page import page_of
from anabranch._explain.stalls import stalls_of
from anabranch._explain.timelines import chrome_events_of, timelines_of
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.state import State

pytestmark = [pytest.mark.oldest, pytest.mark.own]
STEP = timing(node(20, line=1), node(90, name="late", lane=3, line=2), node(40, [0, 1], line=3),
              idle_us=60)


def test_a_timed_recording_is_laid_out_by_lane_on_its_times():
    [timeline] = timelines_of(contents(report(STEP)))
    plan, launch = timeline["plan"], timeline["launch"]
    assert [stream["name"] for stream in plan["streams"]] == ["lane 0", "lane 3"]
    assert [step["stream"] for step in plan["steps"]] == [0, 1, 0]
    assert plan["steps"][1]["source"] == "model.py:2 line 2" and plan["waits"] == [[2, 1]]
    assert launch["steps"] == [[0, 0, 0, 20_000], [1, 3, 0, 90_000], [2, 0, 90_000, 130_000]]
    assert launch["took_ns"] == 130_000 and timeline["name"] == (
        "timed launch of step, (float32[4])")


def test_recordings_that_are_not_timed_have_no_timeline():
    assert timelines_of(contents(dataclasses.replace(report(STEP), timing=None))) == []


def test_perfetto_gets_a_thread_a_lane_with_the_lines():
    events = chrome_events_of(timelines_of(contents(report(STEP)))[0])
    slices = [event for event in events if event.get("cat") == "step"]
    assert [(event["tid"], event["ts"], event["dur"]) for event in slices] == [
        (0, 0.0, 20.0), (1, 0.0, 90.0), (0, 90.0, 40.0)]
    assert slices[1]["name"] == "late (aten::add)" and slices[1]["args"]["source"] == "model.py:2 line 2"


def test_perfetto_gets_counters_of_nodes_and_of_the_arena():
    timed = report(STEP, arena_bytes=4096)
    counters = [event for event in chrome_events_of(timelines_of(contents(timed))[0])
                if event["ph"] == "C"]
    running = [(event["ts"], event["args"]["nodes"]) for event in counters
               if event["name"] == "nodes running"]
    assert running == [(0, 1), (0, 2), (20, 1), (90, 0), (90, 1), (130, 0)]
    assert [(event["ts"], event["args"]["bytes"]) for event in counters
            if event["name"] == "arena"] == [(0, 4096), (130, 0)]


class Recording:
    """In the place of one on a GPU: timed while somebody asks."""

    device, is_timed = 0, False

    def __init__(self):
        self.counts, self.timing, self.calls = CaptureCounts(nodes=3), None, []

    def time(self, every):
        self.calls.append(every)

    def time_no_more(self):
        self.calls.append("no more")
        self.timing = None


@pytest.fixture
def recorded(monkeypatch):
    """A callable with a recording, which is launched by hand."""
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    step = anabranch.record(torch.tanh)
    spec = Specialization("(float32[4])", State())
    spec.recording = Recording()
    step._recorder.specializations["key"] = spec
    # Other tests' may be alive, with stand-ins that nobody times.
    monkeypatch.setattr(report_module, "recordings_of_callables",
                        lambda: [("step", one) for one in step._recordings()])

    def call():
        spec.other_calls += 1
        spec.recording.timing = STEP

    return SimpleNamespace(step=step, recording=spec.recording, call=call, waits=waits)


def test_explain_times_the_launches_of_its_call_and_no_others(recorded, tmp_path):
    told = anabranch.explain(recorded.call, timing=True)
    assert recorded.recording.calls == [1, "no more"] and recorded.waits == [0]
    [one] = told.to_dict()["callables"][0]["recordings"]
    assert one["timing"]["launches"] == 3 and len(one["timing"]["nodes"]) == 3
    assert "timed in 3 launches" in str(told) and "model.py:2  line 2" in str(told)
    assert "what held the timed steps up:\n  most of the time is one line's: 0.090 ms in 1 of 3" in (
        str(told))
    assert [row["took_ns"] for row in told.to_dict()["stalls"]] == [90_000, 70_000, 60_000, 0]
    events = json.loads(told.save_timeline(tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1}
    assert [event["cat"] for event in events if event["ph"] == "X"] == ["launch", *["step"] * 3]


def test_explain_without_it_times_nothing(recorded):
    anabranch.explain(lambda: None)
    assert not recorded.recording.calls


def test_a_call_that_raises_leaves_nothing_timed(recorded):
    def fail():
        raise ValueError("of the user's")

    with pytest.raises(ValueError, match="of the user's"):
        anabranch.explain(fail, timing=True)
    assert recorded.recording.calls == [1, "no more"]


def test_recordings_that_are_timed_already_are_left_alone(recorded):
    recorded.recording.is_timed = True
    with report_module.timed() as wait:
        wait()
    assert not recorded.recording.calls


@pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium: make test-page installs it")
def test_the_page_draws_the_step_on_its_times_and_says_what_held_it_up(tmp_path):
    shown = {"title": "step", **contents(report(STEP))}
    shown["timelines"], shown["stalls"] = timelines_of(shown), stalls_of(shown)
    path = tmp_path / "page.html"
    path.write_text(page_of(shown))
    found = browser.opened(path)
    assert 'data-ready="yes"' in found.dom and not found.said, found.said
    assert "Timeline of the last launch" in found.dom and "lane 3" in found.dom
    assert "What held the timed steps up" in found.dom and "model.py:2" in found.dom
    assert re.search(r"begins at [\d.]+ .s, takes [\d.]+ .s, lane 0", found.dom)
