# SPDX-License-Identifier: Apache-2.0
"""What becomes of a step whose recording the core refuses."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from anabranch import _recorder, config, errors
from anabranch._native import NativeError
from anabranch._state import NO_STATE

pytestmark = pytest.mark.oldest

RACE = NativeError(201, "record: kernel 0 'a' writes what kernel 1 'b' reads, and the captured graph "
                        "has no path from kernel 0 'a' to kernel 1 'b' [E0201]")


@pytest.fixture
def racing(monkeypatch):
    """Makes recorders whose captures race; `closed` counts the captures that were given back."""
    seen = SimpleNamespace(calls=0, closed=0)

    def close():
        seen.closed += 1

    def refuse(*args):
        raise RACE

    def call(leaves):
        seen.calls += 1
        return leaves[0] + 1

    def recorder(**options):
        made = _recorder.Recorder(call, config.resolve({"verify": False, **options}), "step",
                                  takes_gradients=False)
        step = SimpleNamespace(device=0)
        monkeypatch.setattr(made, "_step", lambda entry, leaves: (step, []))
        return made, seen

    monkeypatch.setattr(_recorder, "capture_device", lambda ordinal: None)
    monkeypatch.setattr(_recorder, "capture_twice",
                        lambda step, device: SimpleNamespace(noted=None, close=close))
    monkeypatch.setattr(_recorder, "Recorded", refuse)
    return recorder


def run(recorder):
    return recorder.run("key", [1], NO_STATE, lambda: "int")


def test_a_step_whose_streams_race_runs_plainly_and_the_report_names_both_kernels(racing, caplog):
    recorder, seen = racing()
    assert [run(recorder) for _ in range(4)] == [2] * 4
    assert seen.calls == 4 and seen.closed == 1
    [report] = recorder.reports()
    assert "kernel 0 'a' writes what kernel 1 'b' reads" in report.reason
    assert "E0201" in caplog.text


def test_a_step_whose_streams_race_raises_under_strict(racing):
    recorder, _ = racing(strict=True)
    assert run(recorder) == 2
    for _ in range(2):
        with pytest.raises(errors.RecordError, match="E0201"):
            run(recorder)
