# SPDX-License-Identifier: Apache-2.0
"""A GPU's part of recordings on the CPU: its memory, captures and launches. A launch runs the
step's own Python, so that what recording does around it is all there is to see."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import torch

from anabranch._core.abi import CaptureCounts
from anabranch._record import attempt, kept_calls, launches, recorded_callable, recorder
from anabranch._record.launch.host_arguments import HostArguments
from anabranch._record.memory import gpu
from anabranch._record.memory.gpu import Peaks
from anabranch._record.signatures import specialization
from anabranch._record.trial import copies, kept_capture, old_gradients, stages, trial, values

GIB = 1 << 30
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 1.00 GiB"


def stand_in_memory(monkeypatch, free=lambda: GIB):
    """torch.cuda's memory as recordings ask for it: nothing is taken, and so much is free."""
    class Meter:
        highest, phase = Peaks(0, 0), ""

        def __init__(self, device):
            self.skip = self.close = lambda: None

        def note(self, phase, addresses=0):
            return Peaks(0, 0)

    for module in (attempt, launches, recorder, kept_calls, trial, kept_capture, gpu):
        for name, answer in (("free_bytes", lambda device: free()),
                             ("slack_bytes", lambda device: free() // 8),
                             ("is_plentiful", lambda device, used: False),
                             ("give_back", lambda device: None),
                             ("taken", lambda device: Peaks(0, 0)), ("Meter", Meter),
                             ("no_limit", lambda device: contextlib.nullcontext()),
                             ("empty_cache", lambda: None),
                             ("close_abandoned", lambda: None)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, answer)
    monkeypatch.setattr(attempt._compat, "clear_workspaces", lambda: None)
    monkeypatch.setattr(attempt._compat, "memory_history", lambda device: contextlib.nullcontext(
        lambda: SimpleNamespace(events=[])))
    monkeypatch.setattr("anabranch._record.memory.shortage.free_bytes", lambda device: free())
    for module in (trial, values):
        monkeypatch.setattr(module, "grantable_bytes", lambda *asked: free() // 4)


class Launched:
    """In the place of a recording: its launches run the step."""

    needs_gradients, device, slot_count = False, 0, 1
    launch_bytes = peak_bytes = 1 << 20
    answered_bytes = 1 << 10
    has_overlaps = False
    undefined, objects, layout, ahead_bytes = frozenset(), (), None, 0
    timing, is_timed, has_words = None, False, False

    def __init__(self, stand_in, step, lanes):
        self._stand_in, self._call = stand_in, step.call
        self.uses = list(range(len(step.tensors)))
        self.random = None
        self.counts = CaptureCounts(nodes=2, lanes=1, arena_bytes=100)

    def exchange(self):
        return False

    def direct_or_none(self):
        return None

    def reserve(self):
        self._stand_in.take("the memory of a launch")

    def launch_as_captured(self, step, poison=None):
        self._stand_in.take("a launch")
        return self._run(step.leaves)

    def launch(self, given, owners, objects, **how):
        self._stand_in.take("a later launch")
        self.counts.launched_unchanged += 1
        return self._run(given[:self._stand_in.arguments])

    def _run(self, leaves):
        """A launch has allocated all of its memory by now."""
        self._stand_in.is_launching = True
        try:
            return self._call(list(leaves))
        finally:
            self._stand_in.is_launching = False

    def fits(self, given, places=None):
        return True


def hidden_list():
    """A list and what appends to it, by which a step tells a test of its runs: nothing looks behind
    a method of C for what the step changes."""
    made = []
    return made, made.append


def arguments_on_the_gpu(leaves, arguments, device):
    """In the place of HostArguments: all lie there."""
    return SimpleNamespace(numbers=[])


class IntegersOnTheHost(HostArguments):
    """In the place of HostArguments: tensors of integers stand for those on the CPU."""

    def __init__(self, leaves, arguments, device):
        super().__init__([torch.zeros(1) if leaves[i].dtype == torch.long
                          else SimpleNamespace(is_cuda=True) for i in arguments],
                         range(len(arguments)), device)
        self._captured = {number: leaves[arguments[number]].clone() for number in self.numbers}

    def _sent(self, tensor, is_waited_for):
        return tensor.clone()


def no_discovery(*_):
    """In the place of DiscoveredStep, under recordings that are stood in for themselves."""
    return SimpleNamespace(close=lambda: None, teach=lambda layouts: None, first=SimpleNamespace(
        result=[], shape=None, gradients={}, mutated=[]))


class StandIn:
    """Counts what recordings allocate by what each is for, and lets the n-th fail (``fail_at``)."""

    def __init__(self, monkeypatch, arguments=1):
        self.taken, self.fail_at, self.free, self.arguments = [], None, GIB, arguments
        self.is_launching = False
        stand_in_memory(monkeypatch, lambda: self.free)
        monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.zeros(1))
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
        monkeypatch.setattr(torch.cuda, "Event", lambda **how: SimpleNamespace(
            record=lambda: None, synchronize=lambda: None))
        monkeypatch.setattr(recorder, "device_of", lambda leaves, tensors: 0)
        monkeypatch.setattr(specialization, "_check_argument", lambda index, leaf, device: None)
        monkeypatch.setattr(specialization, "HostArguments", arguments_on_the_gpu)
        monkeypatch.setattr(recorder.Recorder, "_check_answer",
                            lambda self, spec, answer, device: None)
        monkeypatch.setattr(recorder, "capture_stream", lambda device: None)
        monkeypatch.setattr(recorder, "give_back_memory", lambda: None)
        monkeypatch.setattr(trial, "_SMALL_BYTES", 0)
        for module in (trial, values):
            monkeypatch.setattr(module, "grantable_bytes", lambda *asked: self.granted)
        for module in (copies, stages):
            monkeypatch.setattr(module, "STAGE_BYTES", 1 << 12)
        self.granted = 0  # copies are in the host's memory
        for module, name in ((trial, "checksums"), (old_gradients, "checksums"),
                             (trial, "Copies"), (values, "Copies")):
            self._count(monkeypatch, module, name)
        monkeypatch.setattr(attempt, "capture_device", lambda device: None)
        monkeypatch.setattr(attempt, "make_rng_graph", lambda graph, device, stream: None)
        monkeypatch.setattr(attempt, "check_all_tracked", lambda *given: None)
        monkeypatch.setattr(attempt, "capture_twice", self._capture)
        monkeypatch.setattr(attempt, "DiscoveredStep", no_discovery)
        monkeypatch.setattr(attempt, "StepRecording", self._made)

    def _count(self, monkeypatch, module, name):
        original = getattr(module, name)

        def counting(*given):
            self.take(name)
            return original(*given)

        monkeypatch.setattr(module, name, counting)

    def take(self, what):
        if self.is_launching:
            return
        self.taken.append(what)
        if len(self.taken) == self.fail_at:
            raise torch.OutOfMemoryError(SAID)

    def _capture(self, step, device, is_enough=None):
        for number in ("first", "second"):
            self.take(f"the {number} capture")
        return SimpleNamespace(noted=None, close=lambda: None, first=SimpleNamespace(
            graph=None, asked_lanes=1), captures=[1, 2], draws=None)

    def _made(self, step, discovered, verify, lanes, ahead_bytes, parallel_bytes):
        self.take("an executable")
        return Launched(self, step, lanes)
