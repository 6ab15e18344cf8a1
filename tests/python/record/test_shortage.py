# SPDX-License-Identifier: Apache-2.0
"""Memory that runs out while a step is recorded, or when it is launched, wherever that is: the step
runs as it would have without us, and is recorded when there is more."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys

import pytest
import torch
from stand_in_recording import GIB, SAID, StandIn

from anabranch import config, errors
from anabranch._record import attempt
from anabranch._record import recorder as recorder_module
from anabranch._record.memory import shortage
from anabranch._record.memory.shortage import Short, is_out_of_memory, wanted_of
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.state.state import State
from anabranch._record.trial import copies

pytestmark = pytest.mark.oldest

CALLS = 7


class Training:
    """A step over what it is given: it writes its weights in place, draws random numbers, counts on
    the CPU, sets a gradient, and answers a loss. ``allocate()`` is called in the middle of it."""

    def __init__(self, allocate=lambda: None):
        self.generator = torch.Generator().manual_seed(3)
        self.allocate = allocate
        x = torch.linspace(-1, 1, 5000)
        self.leaves = [x, torch.ones(5000, requires_grad=True), torch.zeros(5000)]

    def step(self, leaves):
        x, w, moment = leaves
        w.grad = None
        loss = ((x + torch.rand(5000, generator=self.generator) - w * x) ** 2).sum()
        loss.backward()
        self.allocate()
        with torch.no_grad():
            moment.mul_(0.9).add_(w.grad)
            self.allocate()
            w.sub_(moment, alpha=1e-3)
        return loss.detach()

    def after(self):
        x, w, moment = self.leaves
        return [w.detach().clone(), w.grad.clone(), moment.clone(), self.generator.get_state()]


def eager(calls=CALLS):
    training = Training()
    return [[training.step(training.leaves), *training.after()] for _ in range(calls)]


def recorder_of(training, **options):
    return recorder_module.Recorder(training.step,
                                    config.resolve({"max_parallel_kernels": 1, **options}), "step",
                                    kind=CallableKind(takes_gradients=True))


def run(recorder, training, calls=CALLS, key="key"):
    """What each call answers and leaves."""
    state = State((training.generator,))
    return [[recorder.run(key, training.leaves, state, lambda: "step"), *training.after()]
            for _ in range(calls)]


def assert_like_eager(found):
    for i, (mine, theirs) in enumerate(zip(found, eager(len(found)), strict=True)):
        assert all(map(torch.equal, mine, theirs)), i


@pytest.fixture
def stand_in(monkeypatch):
    return StandIn(monkeypatch, arguments=3)


def test_what_has_no_memory_for_lanes_is_recorded_again_in_that_of_the_plain_step(stand_in):
    """A launch that takes more than the plain step for its lanes runs out of memory."""
    training = Training()
    recorder = recorder_of(training)
    found = run(recorder, training, 4)
    spec = recorder.specializations["key"]
    spec.note(parallel_bytes=1 << 20)
    stand_in.fail_at = len(stand_in.taken) + 1
    found += run(recorder, training, 5)  # short, plain, recorded, launched twice
    assert_like_eager(found)
    assert stand_in.taken[stand_in.fail_at - 1] == "a later launch"
    assert recorder.specializations["key"] is not spec and not recorder._earlier.has_slack
    dropped, report = sorted(recorder.specializations.reports(), key=lambda one: not one.dropped)
    assert "bytes were free" in dropped.shortage and dropped.launched == 2
    assert report.reason is None and not report.shortage and report.launched == 2


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_without_a_failure_the_step_is_recorded_and_like_eager(stand_in):
    training = Training()
    recorder = recorder_of(training)
    assert_like_eager(run(recorder, training))
    [report] = recorder.specializations.reports()
    assert report.reason is None and report.launched == CALLS - 2 and report.verified == "bitwise"
    assert report.recording.copied_to == "host" and report.recording.copied >= 2 * 5000 * 4
    assert (report.launch_peak_bytes, report.answered_bytes) == (1 << 20, 1 << 10)
    assert [*report.phase_seconds] == [
        "copies", "plain run", "checksums", "captures", "discovery", "executables",
        "captures given back", "copies put back", "comparison"]
    assert all(seconds >= 0 for seconds in report.phase_seconds.values())


def test_a_later_signature_is_copied_to_a_gpu_that_has_plenty(stand_in, monkeypatch):
    monkeypatch.setattr(attempt, "is_plentiful", lambda device, used: True)
    training = Training()
    recorder = recorder_of(training)
    found = [each for key in "ab" for each in run(recorder, training, key=key)]
    assert_like_eager(found)
    first, later = recorder.specializations.reports()
    assert (first.recording.copied_to, later.recording.copied_to) == ("host", "GPU")
    assert later.launched == CALLS - 2 and later.verified == "bitwise"


def test_what_a_recorded_call_answers_is_the_callers_alone(stand_in, no_collection):
    """Autograd adds up gradients in place if nobody else has them, and copies them otherwise."""
    leaves = [torch.ones(5000), torch.ones(5000), torch.ones(5000)]
    recorder = recorder_module.Recorder(
        lambda given: (given[0] * given[1], given[1] + given[2]),
        config.resolve({"max_parallel_kernels": 1}), "step", kind=CallableKind())
    for _ in range(3):
        answer = recorder.run("key", leaves, State(()), lambda: "step")
        held = [sys.getrefcount(answer[0]), sys.getrefcount(answer[1])]
        assert held == [2, 2]  # by the answer, and by whoever counts
    [report] = recorder.specializations.reports()
    assert report.launched


def test_a_forward_graph_that_saves_what_another_graph_has_made_is_recorded(stand_in):
    """Of a model that Dynamo cuts in two: what it is given has a history, and so has what it saves
    of that, which is the same tensor."""
    stand_in.arguments = 2
    recorder = recorder_module.Recorder(
        lambda given: (given[0] * given[1], given[0]),
        config.resolve({"max_parallel_kernels": 1}), "step", kind=CallableKind(saved_from=1))
    weight = torch.ones(5000, requires_grad=True)
    for i in range(4):
        made = torch.full((5000,), i + 1.0, requires_grad=True) * 2
        with torch.no_grad():
            answer, saved = recorder.run("key", [made, weight], State(()), lambda: "step")
        assert torch.equal(answer, made.detach()) and saved is made and saved.grad_fn is not None
    [report] = recorder.specializations.reports()
    assert report.reason is None and report.launched == 2


def test_what_a_step_gives_a_history_to_is_refused(stand_in):
    """It is given it, and writes it in place."""
    stand_in.arguments = 1
    weight = torch.ones(5000, requires_grad=True)
    recorder = recorder_module.Recorder(
        lambda given: given[0].mul_(weight), config.resolve({"max_parallel_kernels": 1}), "step",
        kind=CallableKind(takes_gradients=True))
    for _ in range(3):
        assert recorder.run("key", [torch.ones(5000)], State(()), lambda: "step").grad_fn is not None
    [report] = recorder.specializations.reports()
    assert "answers tensors that require gradients" in report.reason


@pytest.mark.parametrize("granted", [0, GIB], ids=["copies on the host", "copies on the GPU"])
def test_whichever_allocation_fails_the_step_is_eagers_and_is_recorded_later(stand_in, granted):
    """For every n until recording gets through; of the step's own allocations too."""
    phases = set()
    for n in itertools.count(1):
        stand_in.taken, stand_in.fail_at, stand_in.granted, stand_in.free = [], None, granted, GIB
        training = Training()
        recorder = recorder_of(training)
        found = run(recorder, training, 1)  # of which failures are the step's own
        stand_in.taken, stand_in.fail_at = [], n
        training.allocate = lambda: stand_in.take("the step")
        found += run(recorder, training, 3)
        [report] = recorder.specializations.reports()
        if len(stand_in.taken) < n:
            break
        failed = stand_in.taken[n - 1]
        phases.add(failed)
        if report.launched == 0:
            assert " bytes of the GPU's memory, of which " in report.shortage, (n, failed)
            assert report.reason == (report.shortage if failed != "a later launch" else None)
        stand_in.fail_at, stand_in.free = None, 100 * GIB  # more than was missing
        found += run(recorder, training, 4)
        assert_like_eager(found)
        [report] = recorder.specializations.reports()
        assert report.launched >= 1 and report.reason is None, (n, failed)
    assert phases >= {"Copies", "checksums", "the step", "the first capture", "the second capture",
                      "an executable", "the memory of a launch", "a launch", "a later launch"}


def test_what_failed_is_not_tried_in_every_call_but_when_more_is_free(stand_in):
    training = Training()
    recorder = recorder_of(training)
    run(recorder, training, 1)
    stand_in.fail_at = len(stand_in.taken) + 3
    run(recorder, training, 1)
    tried = len(stand_in.taken)
    [report] = recorder.specializations.reports()
    assert report.reason and "it is tried again when" in report.reason
    run(recorder, training, 5)
    stand_in.free += (2 << 30) - GIB - 1  # one byte less than was missing
    run(recorder, training, 2)
    assert len(stand_in.taken) == tried
    stand_in.free += 1
    run(recorder, training, 3)
    [report] = recorder.specializations.reports()
    assert len(stand_in.taken) > tried and report.reason is None and report.launched


def test_what_a_try_gives_back_itself_is_no_reason_for_another(stand_in, monkeypatch):
    """Workspaces were there when it began, and are not when it has failed."""
    def clear():
        stand_in.free = 3 * GIB

    monkeypatch.setattr(attempt._compat, "clear_workspaces", clear)
    training = Training()
    recorder = recorder_of(training)
    run(recorder, training, 1)
    stand_in.fail_at = len(stand_in.taken) + 6  # behind the plain run
    run(recorder, training, 1)
    tried = len(stand_in.taken)
    run(recorder, training, 3)
    assert len(stand_in.taken) == tried


def test_plain_calls_of_one_callable_are_all_on_one_stream(stand_in, monkeypatch):
    """What one stream's calls leave the other's would have to allocate anew."""
    aside, plenty = [], iter([True, False])
    monkeypatch.setattr(recorder_module, "is_plentiful", lambda device, used: next(plenty))

    @contextlib.contextmanager
    def on_capture_stream(device):
        aside.append(device)
        yield

    monkeypatch.setattr(recorder_module, "on_capture_stream", on_capture_stream)
    training = Training()
    recorder = recorder_of(training)
    for key in ("no moments yet", "moments"):
        state = State((training.generator,))
        recorder.run(key, list(training.leaves), state, lambda: "(x, w, moment)")
    assert len(aside) == 2 and not any(spec.is_short_of_memory
                                       for spec in recorder.specializations.values())


def test_a_launch_without_memory_runs_plainly_until_there_is_more(stand_in):
    training = Training()
    recorder = recorder_of(training)
    found = run(recorder, training, 3)
    [report] = recorder.specializations.reports()
    launched = report.launched
    stand_in.fail_at = len(stand_in.taken) + 1
    stand_in.free = 0
    found += run(recorder, training, 3)
    [report] = recorder.specializations.reports()
    assert report.launched == launched and report.plain_calls == 3
    assert "the results of a launch wanted 1048576 bytes" in str(report)
    stand_in.free = GIB
    found += run(recorder, training, 2)
    assert recorder.specializations.reports()[0].launched == launched + 2
    assert_like_eager(found)


def test_what_the_plain_step_cannot_have_is_torchs_own_error(stand_in):
    training = Training()
    recorder = recorder_of(training)
    run(recorder, training, 1)

    def allocate():
        raise torch.OutOfMemoryError(SAID)

    training.allocate = allocate
    before = training.leaves[1].detach().clone()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(recorder, training, 1)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert torch.equal(training.leaves[1], before)


def test_strict_raises_for_want_of_memory_with_the_state_of_before(stand_in):
    training = Training()
    recorder = recorder_of(training, strict=True)
    run(recorder, training, 1)
    stand_in.fail_at = len(stand_in.taken) + 6
    before = training.leaves[1].detach().clone()
    with pytest.raises(errors.RecordError, match="wanted 2147483648 bytes"):
        run(recorder, training, 1)
    assert torch.equal(training.leaves[1], before)


def test_a_step_that_writes_what_it_was_not_known_to_write_is_recorded_a_call_later(stand_in):
    """By a kernel that torch knows nothing of, and counts no version for."""
    training = Training()
    original = training.step

    def step(leaves):
        answer = original(leaves)
        leaves[0].data.mul_(0.5)
        return answer

    recorder = recorder_module.Recorder(step, config.resolve({"max_parallel_kernels": 1}), "step",
                                        kind=CallableKind(takes_gradients=True))
    found = run(recorder, training, 6)
    twin = Training()
    wanted = []
    for _ in range(6):
        answer = twin.step(twin.leaves)
        twin.leaves[0].data.mul_(0.5)
        wanted.append([answer, *twin.after()])
    assert all(torch.equal(a, b) for mine, theirs in zip(found, wanted, strict=True)
               for a, b in zip(mine, theirs, strict=True))
    [report] = recorder.specializations.reports()
    assert report.reason is None and report.launched == 3


@pytest.mark.parametrize(("free", "where"), [(0, "host"), (40_000, "host")])
def test_a_host_without_room_for_copies_is_said(stand_in, monkeypatch, free, where):
    monkeypatch.setattr(copies, "host_free_bytes", lambda: free)
    training = Training()
    recorder = recorder_of(training)
    assert_like_eager(run(recorder, training, 4))
    [report] = recorder.specializations.reports()
    assert f"of the {where}'s memory, of which {free} bytes were free" in report.reason


def test_what_says_that_memory_has_run_out_is_known_and_what_does_not_is_not():
    for said in (SAID, "CUDA driver error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED when "
                                                           "calling",
                 "DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes"):
        assert is_out_of_memory(RuntimeError(said)), said
    assert is_out_of_memory(MemoryError()) and not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert wanted_of(RuntimeError(SAID)) == 2 << 30 and wanted_of(MemoryError()) == 0
    assert wanted_of(RuntimeError("Tried to allocate 512.00 KiB")) == 512 << 10


def test_tries_that_fail_want_ever_more():
    short = Short("an executable", 0, 5)
    more = [shortage.Shortage(short, 0, 0, tries).more for tries in (1, 2, 3)]
    assert more == [32 << 20, 64 << 20, 128 << 20] and "wanted more of" in str(short)

