# SPDX-License-Identifier: Apache-2.0
"""Kernels of recorded launches in a trace of torch.profiler get the lines that queued them."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from timed_steps import node, timing
from torch.profiler import ProfilerActivity, profile

import anabranch
from anabranch._explain import profiles
from anabranch.errors import PlanFileError, WrongArgument

pytestmark = [pytest.mark.oldest, pytest.mark.own]
SUM = "void at::native::sum<4, float>(int, float*)"


@pytest.fixture(autouse=True)
def recordings(monkeypatch):
    """What is alive: a step of four nodes, and one of two others."""
    step = timing(node(5, name=SUM, line=1, operator="aten::sum"), node(5, [0], name="mul", line=2),
                  node(5, [1], kind="fill"), node(5, [2], name=SUM, line=3, operator="aten::sum"))
    other = timing(node(5, name="mul", line=8), node(5, [0], name="mul", line=9))
    monkeypatch.setattr(profiles, "named_recordings", lambda: [("other", other), ("step", step)])


def event(name, ts, correlation=1, cat="kernel"):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": 1,
            "args": {"correlation": correlation, "stream": 7}}


LAUNCH = [event("anabranch_repoint", 0), event(SUM.replace(", ", ","), 1), event("mul", 2),
          event("Memset (Device)", 3, cat="gpu_memset"), event(SUM, 4)]


def labelled(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "schemaVersion": 1}))
    count = anabranch.label_profile(path)
    trace = json.loads(path.read_text())
    assert trace["schemaVersion"] == 1
    return count, [one.get("args", {}) for one in trace["traceEvents"]]


def test_each_kernel_of_a_launch_gets_its_line_operator_lane_and_number(tmp_path):
    count, args = labelled(tmp_path, LAUNCH[::-1])  # in any order
    assert count == 4
    assert [(one.get("node"), one.get("source"), one.get("operator")) for one in args] == [
        (3, "model.py:3 line 3", "aten::sum"), (2, None, "aten::add"),
        (1, "model.py:2 line 2", "aten::add"), (0, "model.py:1 line 1", "aten::sum"),
        (None, None, None)]
    assert args[0]["step"] == "step" and args[0]["lane"] == 0 and args[0]["stream"] == 7


def test_each_launch_is_matched_by_itself(tmp_path):
    again = [event(one["name"], one["ts"] + 100, 2, one["cat"]) for one in LAUNCH]
    other = [event("mul", 200, 3), event("mul", 201, 3)]
    count, args = labelled(tmp_path, LAUNCH + again + other)
    assert count == 10 and [one["step"] for one in args[-2:]] == ["other", "other"]


def test_what_is_no_launch_of_ours_stays_as_it_was(tmp_path):
    strange = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}}, {"ph": "i"},
        event("mul", 0, 9),  # of a plain launch
        *(event(one["name"], one["ts"], 4, one["cat"]) for one in LAUNCH[:-1]),  # a kernel less
        *(event(one["name"], one["ts"], 5, one["cat"]) for one in (*LAUNCH, LAUNCH[-1]))]
    count, args = labelled(tmp_path, strange)
    assert count == 0 and args == [one.get("args", {}) for one in strange]


def test_a_trace_as_torch_writes_it_is_taken_and_a_packed_one_stays_packed(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as taken:
        torch.ones(2).sum()
    source, packed = tmp_path / "trace.json", tmp_path / "labelled.json.gz"
    taken.export_chrome_trace(str(source))
    before = source.read_bytes()
    assert anabranch.label_profile(source, packed) == 0 and source.read_bytes() == before
    events = json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"]
    assert any(one.get("name") == "aten::sum" for one in events)
    assert anabranch.label_profile(packed) == 0


@pytest.mark.parametrize("text", [b"", b"{}", b'{"traceEvents": 1}', b"[1]", b"\x1f\x8b", b"no"])
def test_a_file_that_is_no_trace_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_bytes(text)
    with pytest.raises(WrongArgument, match="export_chrome_trace"):
        anabranch.label_profile(path)
    assert path.read_bytes() == text


def test_a_place_that_cannot_be_written_is_an_error_of_the_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(PlanFileError):
        anabranch.label_profile(path, tmp_path / "not there" / "trace.json")
