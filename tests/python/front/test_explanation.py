# SPDX-License-Identifier: Apache-2.0
"""What explain answers: JSON's types, text as wide as a terminal, artefacts for torch's own tools."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import anabranch
from anabranch._compile.report import GraphReport, contents_of_recording
from anabranch._core.abi import CaptureCounts
from anabranch._core.trace import EVENT_LAUNCH, EVENT_STEP, EVENT_WAIT
from anabranch._explain import text
from anabranch._explain.contents import VERSION, last_launch
from anabranch._explain.reasons import reasons_of
from anabranch._record.report import RecordingReport
from anabranch._record.signatures.specializations import Specializations
from anabranch._record.state.state import State
from anabranch.errors import PlanFileError, WrongArgument

pytestmark = [pytest.mark.oldest, pytest.mark.own]


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
def compiled(keep_compiled):
    return torch.compile(Branches(), backend="anabranch")


@pytest.fixture(scope="module")
def first(compiled):
    """Of a model that was never compiled before."""
    x = torch.randn(4, 8)
    return anabranch.explain(lambda: compiled(x).sum().backward())


def test_graphs_of_one_call_stand_in_the_timeline_where_they_ran(first, tmp_path):
    events = json.loads(first.save_timeline(tmp_path / "t.json").read_text())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert list(names.values()) == ["graph 0: forward", "graph 1: backward"]
    forward, backward = ([one for one in events if one["pid"] == pid and "ts" in one]
                         for pid in names)
    assert min(one["ts"] for one in forward) == 0
    assert max(one["ts"] + one.get("dur", 0) for one in forward) \
        <= min(one["ts"] for one in backward)


def test_a_model_that_was_never_compiled_is_told_of_in_json(first):
    told = first.to_dict()
    assert json.loads(json.dumps(told)) == told and told["version"] == VERSION
    assert [graph["kind"] for graph in told["graphs"]] == ["forward", "backward"]
    forward = told["graphs"][0]
    regions = {region["stream"]: region for region in forward["regions"]}
    assert set(regions) == {"left", "right", "ambient"} and forward["operators"] >= 5
    line = regions["left"]["lines"][0]
    assert line["file"] == __file__ and line["text"] == "a = torch.tanh(self.left(x))"
    assert {on for _, on in forward["waits"]} == {regions[s]["name"] for s in ("left", "right")}
    assert forward["memory"]["outputs_bytes"] >= 4 * 8 * 4 and forward["recordings"] == []
    assert {"regions", "Inductor", "plan"} == set(forward["phase_seconds"])
    assert sum(forward["phase_seconds"].values()) <= forward["compile_seconds"]


def test_the_last_launch_has_a_time_for_each_step(first):
    for graph in first.to_dict()["graphs"]:
        launch = graph["launch"]
        assert sorted(step for step, *_ in launch["steps"]) == list(range(len(graph["regions"])))
        assert all(0 <= begin <= end <= launch["took_ns"] for *_, begin, end in launch["steps"])


def test_a_live_model_is_told_of_without_compiling_it_again(first, compiled):
    with torch.no_grad():
        compiled(torch.randn(4, 8))
        told = anabranch.explain(compiled, torch.randn(4, 8)).to_dict()
    assert told["title"] == "Branches" and len(told["graphs"]) == 1
    assert told["graphs"][0]["kind"] == "inference" and told["graphs"][0]["launch"]["launches"] == 1


def test_a_dict_is_the_callers_own(first):
    first.to_dict()["graphs"].clear()
    assert len(first.to_dict()["graphs"]) == 2


def test_text_names_lines_memory_and_phases(first):
    told = str(first)
    assert re.search(r"left\.\d +\d+ operators   native, \d+ calls   test_explanation\.py:\d+", told)
    assert "beside the arena: outputs" in told and re.search(r"\(regions .* s, Inductor", told)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", ["40", "72", "90"])
def test_text_is_as_wide_as_the_terminal(first, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    whole = str(first)
    assert max(map(len, whole.splitlines())) > 90, "there is no terminal: lines stay whole"
    monkeypatch.setattr(sys, "stdout", Terminal())
    lines = str(first).splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert whole.split() == " ".join(lines).split(), "wrapping loses nothing"
    monkeypatch.setattr(sys, "stdout", None)
    assert str(first) == whole


def test_a_long_reason_is_wrapped_under_itself():
    assert text.fit("  reason: " + "word " * 20, 40).splitlines()[1].startswith("      word")


@pytest.mark.parametrize("to, no_colour, has_colour", [
    (Terminal, "", True), (Terminal, "1", False), (io.StringIO, "", False)])
def test_colours_are_for_terminals_alone(first, monkeypatch, to, no_colour, has_colour):
    monkeypatch.setenv("NO_COLOR", no_colour)
    monkeypatch.setattr(sys, "stdout", to())
    first.print()
    said = sys.stdout.getvalue()
    assert ("\x1b[" in said) == has_colour and "\x1b" not in str(first)
    assert re.sub(r"\x1b\[\d+m", "", said) == f"{first}\n"


def test_a_page_is_written_as_a_timeline_is(first, tmp_path):
    assert first.html(str(tmp_path / "it.html")) == tmp_path / "it.html"
    assert "@ANABRANCH_DATA@" not in (tmp_path / "it.html").read_text("utf-8")
    with pytest.raises(PlanFileError, match=r"write page .*No such file.*E0501"):
        first.html(tmp_path / "no" / "it.html")
    with pytest.raises(WrongArgument, match="html: the path"):
        first.html(3)


def test_an_explanation_of_nothing_has_a_page_too(tmp_path):
    told = anabranch.explain(lambda: None)
    assert told.to_dict()["graphs"] == [] and told.html(tmp_path / "it.html").stat().st_size > 0


def event(kind, begin, end, step=0, lane=0, other=0):
    return SimpleNamespace(kind=kind, step=step, lane=lane, other=other, begin_ns=begin, end_ns=end)


def test_of_several_launches_the_last_is_told_of():
    events = [event(EVENT_LAUNCH, 0, 10), event(EVENT_STEP, 1, 5), event(EVENT_STEP, 102, 105, 1, 1),
              event(EVENT_WAIT, 101, 102, 1, 0, 4), event(EVENT_LAUNCH, 100, 110)]
    assert last_launch(events) == {"launches": 2, "took_ns": 10, "steps": [[1, 1, 2, 5]],
                                   "waits": [[1, 4, 1, 2]]}
    assert last_launch([]) is None


def test_what_does_not_run_as_it_could_has_a_reason_and_a_remedy():
    plain = RecordingReport("(float32[4])", reason="it looks at a value", code=311,
                            place="at train.py:3 in step", remedy="Look at it behind the step.")
    short = RecordingReport("(float32[8])", nodes=1, shortage="its launches", why_in_order="no gain")
    graph = {"name": "graph 0", "reason": "mul is torch.complex64", "unrecorded": "record=False",
             "code": None, "place": "", "remedy": "", "recordings": [],
             "regions": [{"name": "a.0", "reason": "native_regions=False"},
                         {"name": "a.1", "reason": "an argument of type str"},
                         {"name": "a.2", "reason": None}]}
    rows = reasons_of({
        "graphs": [graph], "lost_streams": ["m.py:1: stream('a') has no effect"],
        "callables": [{"name": "step", "recordings": [
            contents_of_recording(report) for report in (plain, short)]}]})
    by_why = {row["why"]: row for row in rows}
    assert len(rows) == 8 and all(row["remedy"] for row in rows)
    assert by_why["record=False"]["remedy"] == "It is switched off: set record=True."
    assert by_why["native_regions=False"]["where"] == "graph 0, a.0"
    assert by_why["mul is torch.complex64"]["code"] == "E0602"
    looks = by_why["it looks at a value (at train.py:3 in step)"]
    assert (looks["code"], looks["remedy"]) == ("E0311", "Look at it behind the step.")
    assert by_why["m.py:1: stream('a') has no effect"]["code"] == "E0613"


def test_recordings_that_were_dropped_are_told_apart():
    known = Specializations(1, 1 << 30, lambda key, keys: [])
    for key in ("a", "b"):
        spec, _ = known.admit(key, lambda: key, State())
        spec.recording = SimpleNamespace(
            timing=None, counts=CaptureCounts(nodes=3, launched_from_host=2))
        spec.note(launch_peak_bytes=3 << 20, answered_bytes=1 << 19)
        if key == "a":
            known.retire(key)
    reports = known.reports()
    assert [report.dropped for report in reports] == [True, False]
    told = text.with_recordings("step", reports)
    assert "recordings: 2 made, launched 4 times, 1 dropped; a launch takes 3.00 MiB at its peak" \
        in told and "answers 0.50 MiB" in told
    assert told.count("dropped since, for others") == 1


def test_an_artefact_that_cannot_be_built_stops_no_compilation(monkeypatch):
    built = []

    def fails(self):
        built.append(self)
        raise AssertionError("a region without a name")

    monkeypatch.setattr(GraphReport, "to_dict", fails)
    logger = logging.getLogger("torch.__trace")
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    compiled = torch.compile(lambda x: x + 1, backend=anabranch.backend)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0)) and built


def test_an_artefact_is_built_only_when_somebody_asks(monkeypatch):
    def fails(self):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(GraphReport, "to_dict", fails)
    # pytest's own handlers, which are somebody
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "handlers", [])
    torch.compile(lambda x: x + 1, backend=anabranch.backend)(torch.ones(3))


PROGRAM = """
import torch
import anabranch

def model(x):
    with anabranch.stream("left"):
        a = torch.tanh(x)
    with anabranch.stream("right"):
        b = torch.sin(x)
    return a + b

torch.compile(model, backend="anabranch")(torch.randn(4, 4))
"""


def test_torchs_own_switches_turn_on_our_logs_and_artefacts(run_python, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    told = run_python("import program", TORCH_LOGS="+anabranch", TORCH_TRACE=str(tmp_path / "traces"))
    assert told.returncode == 0, told.stderr
    assert re.search(r"regions on 3 streams", told.stderr), told.stderr
    assert re.search(r"region left\.0: 1 nodes", told.stderr), told.stderr
    (log,) = (tmp_path / "traces").glob("*.log")
    payload = re.search(r'"artifact": \{"name": "anabranch_inference".*\n((?:\t.*\n)+)',
                        log.read_text())[1]
    graph = json.loads(payload)
    assert graph["kind"] == "inference" and len(graph["plan"]["steps"]) == 3
    assert graph["regions"][0]["lines"][0]["text"] == "a = torch.tanh(x)"


def test_dynamos_own_explanation_is_unharmed(compiled):
    model = Branches()
    told = torch._dynamo.explain(model)(torch.randn(4, 8))
    assert (told.graph_count, told.graph_break_count) == (1, 0)
    x = torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="anabranch")(x), model(x))
