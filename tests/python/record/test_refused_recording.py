# SPDX-License-Identifier: Apache-2.0
"""What becomes of a step whose recording the core refuses."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import torch
from stand_in_recording import stand_in_memory

from anabranch import config, errors
from anabranch._core.library import NativeError
from anabranch._record import attempt, refusals
from anabranch._record import recorder as recorder_module
from anabranch._record.refusals import Apart
from anabranch._record.rendezvous import Rendezvous
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.state.state import NO_STATE
from anabranch._record.trial.run import Run

pytestmark = pytest.mark.oldest

RACE = NativeError(201, "record: kernel 0 'a' writes what kernel 1 'b' reads, and the captured "
                        "graph has no path from kernel 0 'a' to kernel 1 'b' [E0201]")


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
        made = recorder_module.Recorder(call, config.resolve({"verify": False, **options}), "step",
                                        kind=CallableKind())
        step = SimpleNamespace(device=0, optimizers=(), objects=(), call=call, tensors=[], leaves=[1], is_noted=False,
                               numbers=None)
        monkeypatch.setattr(made, "_step", lambda spec, leaves: step)
        return made, seen

    stand_in_memory(monkeypatch)
    monkeypatch.setattr(recorder_module, "device_of", lambda leaves, tensors: None)
    monkeypatch.setattr(attempt, "capture_device", lambda ordinal: None)
    monkeypatch.setattr(attempt, "capture_twice",
                        lambda step, device, is_enough: SimpleNamespace(
                            noted=None, close=close, captures=[1, 2], draws=None))
    monkeypatch.setattr(attempt, "DiscoveredStep", refuse)
    return recorder


def run(recorder):
    return recorder.run("key", [1], NO_STATE, lambda: "int")


def test_a_step_whose_streams_race_runs_plainly_and_the_report_names_both_kernels(racing):
    recorder, seen = racing()
    with pytest.warns(errors.RecordWarning, match="E0201"):
        assert [run(recorder) for _ in range(4)] == [2] * 4
    assert seen.calls == 4 and seen.closed == 1
    [report] = recorder.specializations.reports()
    assert "kernel 0 'a' writes what kernel 1 'b' reads" in report.reason


def test_a_step_whose_streams_race_raises_under_strict(racing):
    recorder, _ = racing(strict=True)
    assert run(recorder) == 2
    for _ in range(2):
        with pytest.raises(errors.RecordError, match="E0201"):
            run(recorder)


class Trial:
    """Of a step that adds one to a counter in each run, where `memory` knows nothing of it."""

    copied_bytes, copied_to, let_go_bytes = 0, "GPU", 0

    def __init__(self, step, state, foreseen, on_callers_stream, is_plenty, kept):
        self.step = step
        self.log = self.step.log

    def run(self):
        return self.step.call([1]), "other"

    def look(self, answer, drawn):
        return Run(answer, None, {}, {}, has_history=self.step.has_history, drawn=drawn)

    def written_unforeseen(self, run):
        return set()

    def rewind_python(self):
        self.log.append("rewound for a capture")

    def give_up(self):
        self.log.append("rewound")

    def settle(self, run):
        self.log.append("settled")

    def close(self):
        pass


@pytest.mark.parametrize("has_history", [False, True])
def test_a_step_that_is_refused_has_run_once_unless_its_history_is_wanted(racing, monkeypatch,
                                                                          has_history):
    """What it counts where nobody looks would be one too many."""
    recorder, seen = racing(verify=True)
    log = []
    step = SimpleNamespace(device=0, optimizers=(), objects=(), call=recorder._call, log=log, has_history=has_history,
                           numbers=None, is_noted=False, tensors=[], leaves=[1])
    monkeypatch.setattr(recorder, "_step", lambda spec, leaves: step)
    monkeypatch.setattr(attempt, "Trial", Trial)
    monkeypatch.setattr(attempt, "check_run", lambda plain, leaving, step: leaving.check())
    assert [run(recorder) for _ in range(3)] == [2] * 3
    assert seen.calls == (4 if has_history else 3)
    assert log[-1] == ("rewound" if has_history else "settled")


def test_what_has_drawn_random_numbers_on_the_cpu_is_refused_and_has_drawn_once(
        racing, monkeypatch):
    recorder, seen = racing(verify=True)
    step = SimpleNamespace(device=0, optimizers=(), objects=(), call=recorder._call, log=[], has_history=False, is_noted=False,
                           numbers=None, tensors=[], leaves=[1])
    monkeypatch.setattr(recorder, "_step", lambda spec, leaves: step)
    monkeypatch.setattr(attempt, "Trial", Trial)
    assert [run(recorder) for _ in range(3)] == [2] * 3
    assert seen.calls == 3 and step.log[-1] == "settled"
    assert "random numbers on the CPU" in recorder.specializations.reports()[0].reason


def test_a_step_that_others_do_not_record_now_runs_once_whatever_is_wanted(racing, monkeypatch):
    """Nobody would take part in the collectives of a second run."""
    recorder, seen = racing(verify=True)
    log = []
    step = SimpleNamespace(device=0, optimizers=(), objects=(), call=recorder._call, log=log, has_history=True, is_noted=False,
                           numbers=None, tensors=[], leaves=[1])

    def meet(agreement, name):
        assert name == recorder.name
        raise Apart("they do not come")

    monkeypatch.setattr(recorder, "_step", lambda spec, leaves: step)
    monkeypatch.setattr(attempt, "Trial", Trial)
    monkeypatch.setattr(Rendezvous, "meet", meet)
    assert [run(recorder) for _ in range(3)] == [2] * 3
    assert seen.calls == 3 and log[-1] == "settled"
    assert "they do not come" in recorder.specializations.reports()[0].reason


def test_answers_on_the_cpu_are_refused_by_the_first_call(monkeypatch):
    """Whatever a capture would answer: some operators answer other tensors in one."""
    calls = []

    def call(leaves):
        calls.append(leaves)
        return leaves[0], {"seed": torch.zeros(2)}

    monkeypatch.setattr(recorder_module, "device_of", lambda leaves, state: 0)
    recorder = recorder_module.Recorder(call, config.resolve({}), "step", kind=CallableKind())
    for _ in range(3):
        assert run(recorder)[0] == 1
    [report] = recorder.specializations.reports()
    assert "a tensor on the CPU" in report.reason and report.calls == len(calls) == 3
    # Nothing on a GPU.
    monkeypatch.setattr(recorder_module, "device_of", lambda leaves, state: None)
    recorder = recorder_module.Recorder(call, config.resolve({}), "step", kind=CallableKind())
    run(recorder)
    assert recorder.specializations.reports()[0].reason is None


@pytest.mark.parametrize(("said", "hint"), [
    ("CUDA error: operation not permitted when stream is capturing\nSearch for", r"\.item\(\)"),
    ("Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is "
     "pinned.", "give what changes as an argument"),
    ("something else", "what raises")])
def test_what_torch_says_of_a_capture_comes_with_what_to_do(said, hint):
    why = refusals.reason_of(RuntimeError(said))
    assert re.search(hint, why.remedy) and "\n" not in why.text
    assert why.text == f"RuntimeError while it was captured: {said.splitlines()[0]}"


def test_what_stops_a_compiler_in_a_capture_is_told_and_not_its_name():
    error = RuntimeError("backend='inductor' raised:\nthe rest")
    error.inner_exception = ValueError("no such thing\nmore")
    assert refusals.reason_of(error).text == \
        "ValueError while it was compiled anew and captured: no such thing"
