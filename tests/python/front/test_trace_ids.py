# SPDX-License-Identifier: Apache-2.0
"""Reports belong to the trace of whoever asks for them: W3C's trace context."""

from __future__ import annotations

import json

import pytest

import anabranch
from anabranch._explain.trace_ids import child_of

pytestmark = [pytest.mark.oldest, pytest.mark.own]
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_report_is_a_span_of_its_own_in_the_callers_trace(tmp_path):
    with anabranch.config.patch(traceparent=PARENT):
        first, second = (anabranch.explain(lambda: None) for _ in range(2))
    version, trace, span, flags = first.traceparent.split("-")
    assert (version, trace, flags) == ("00", TRACE, "01") and len(span) == 16
    assert span not in (SPAN, second.traceparent.split("-")[2])
    assert first.to_dict()["traceparent"] == first.traceparent
    written = json.loads(first.save_timeline(tmp_path / "t.json").read_text())
    assert written["otherData"] == {"traceparent": first.traceparent}


def test_without_a_trace_there_is_no_id(tmp_path):
    told = anabranch.explain(lambda: None)
    assert told.traceparent is None and told.to_dict()["traceparent"] is None
    assert "otherData" not in json.loads(told.save_timeline(tmp_path / "t.json").read_text())


@pytest.mark.parametrize("parent", [
    None, "", "no", PARENT.upper(), f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01", f"{PARENT}-more", PARENT[:-1]])
def test_what_is_no_id_counts_as_none(parent):
    assert child_of(parent) is None


def test_ids_of_later_versions_are_taken_as_far_as_they_are_known():
    assert child_of(f"01-{TRACE}-{SPAN}-00-more").startswith(f"00-{TRACE}-")
    assert child_of(f" {PARENT} ").endswith("-01")
