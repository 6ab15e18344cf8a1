# SPDX-License-Identifier: Apache-2.0
"""Why something runs unrecorded: each code of docs/errors.md is provoked by the example of its
section, which is the user's file train.py here, and says what the section shows.

A stand-in for the GPU captures: what torch and the driver refuse in a capture, it refuses with
their words.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import random
import re
import sys
import types
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch
from stand_in_recording import SAID, IntegersOnTheHost, Launched, StandIn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import anabranch
from anabranch import _compat, config, errors
from anabranch._compile.cuts import find_cuts
from anabranch._compile.report import GraphReport
from anabranch._explain.text import describe_graph
from anabranch._record import attempt, recorded_callable, refusals, rendezvous
from anabranch._record.capture.compare import open_answers
from anabranch._record.capture.host_constants import HostConstants
from anabranch._record.capture.host_tables import HostTables
from anabranch._record.capture.untracked import UntrackedTensors
from anabranch._record.memory.shortage import is_out_of_memory, short_of
from anabranch._record.recorder import Recorder
from anabranch._record.refusals import Cause, NotRecordable, reason_of
from anabranch._record.rendezvous import Rendezvous
from anabranch._record.signatures import specialization
from anabranch._record.signatures.signature import ARGUMENTS_ALONE

PAGE = (Path(__file__).parents[3] / "docs/errors.md").read_text()
OURS = [code for code in errors.CODES if code < 400]
# A warning about something that is recorded, or that no call raises.
ALONE = {327, 333, 335, 336, 339, 342}
OF_GRAPHS = {335, 336, 339}  # what torch.compile has made; tests/python/offload has the last
aten = torch.ops.aten
CHECK_ANSWER, CHECK_ARGUMENT = Recorder._check_answer, specialization._check_argument
# What is refused in a capture: an operator, and the words.
WORDS = {
    311: (aten._local_scalar_dense.default,
          "CUDA error: operation not permitted when stream is capturing\nCUDA kernel errors"),
    313: (aten.ones_like.default, "CUDA error: operation would make the legacy stream depend on a "
                                  "capturing blocking stream"),
    314: (aten.lerp_.Scalar, "Attempting CUDA graph capture of step() for an instance of Adam but "
                             "param_groups' capturable is False."),
}
ENDS = {315: RuntimeError("CUDA error: capturing stream has unjoined work"),
        331: torch.OutOfMemoryError(SAID)}


def section(code):
    return re.search(rf"^## E0{code} .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[0]


def block(code, language):
    return re.search(rf"^```{language}\n(.*?)\n```", section(code), re.MULTILINE | re.DOTALL)[1]


class Capturing(_compat.TorchDispatchMode):
    def __init__(self, code):
        super().__init__()
        self.operator, self.words = WORDS.get(code, (None, ""))
        self.has_constants = code == 312

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is self.operator:
            raise RuntimeError(self.words)
        if self.has_constants and function is aten.copy_.default:
            HostConstants(torch.zeros(64, dtype=torch.uint8), [])._on_gpu(
                args[1], args[0].dtype, args[0].device)
        return function(*args, **kwargs or {})


def captured(code, step):
    """The answer of a capture, whose tensors lie elsewhere."""
    leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
              for leaf in step.leaves]
    tables = [(leaf, leaf.clone()) for leaf in leaves
              if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.long]
    try:
        with pytest.MonkeyPatch.context() as patch, Capturing(code), \
                HostTables(tables, []).captured() if tables else contextlib.nullcontext():
            if code == 316:
                patch.setattr(torch.cuda, "set_rng_state", refuse_state)
            answer = step.call(leaves)
        if code in ENDS:
            raise ENDS[code]
    except NotRecordable:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise short_of("a capture", error, 0) from error
        raise NotRecordable(reason_of(error)) from error
    return SimpleNamespace(answer=answer)


def refuse_state(*given):
    raise RuntimeError("Please ensure to utilize the CUDAGeneratorImpl::set_state_index method "
                       "during capturing.")


@pytest.fixture
def train(monkeypatch):
    """Runs the example of a code on the stand-in; answers the warnings."""
    stand_in = StandIn(monkeypatch)
    monkeypatch.setattr(refusals, "_NOT_USERS", refusals._NOT_USERS | {  # as frames of ours
        __name__, "stand_in_recording"})
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *given: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *given: torch.zeros(1))
    monkeypatch.setattr(
        Launched, "launch", lambda self, given, owners, objects, **how: self._run(
            [ARGUMENTS_ALONE, *given[:stand_in.arguments]]))

    def run(code, **options):
        def capture_twice(step, device, is_enough=None):
            made = [captured(code, step) for _ in range(2)]
            open_answers(SimpleNamespace(object_numbers={}), made)
            return SimpleNamespace(noted=None, close=lambda: None, captures=made,
                                   first=SimpleNamespace(graph=None, asked_lanes=1), draws=None)

        monkeypatch.setattr(attempt, "capture_twice", capture_twice)
        given = {"__name__": "train", "anabranch": anabranch, "torch": torch, "random": random,
                 "numpy": numpy, "batches": [torch.ones(4)] * 4, **prepare(code)}
        with warnings.catch_warnings(record=True) as found, config.patch(**options):
            warnings.simplefilter("always")
            exec(compile(block(code, "python"), "/home/you/train.py", "exec"), given)
        return [str(one.message) for one in found
                if issubclass(one.category, errors.RecordWarning)], given

    def prepare(code):
        return PREPARED[code](monkeypatch, stand_in) or {} if code in PREPARED else {}

    return run


def on_a_gpu(monkeypatch, stand_in):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True), raising=False)


def adam(monkeypatch, stand_in):
    on_a_gpu(monkeypatch, stand_in)
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    optimizer = torch.optim.Adam([weight], foreach=False)
    optimizer.step()
    return {"optimizer": optimizer}


def broken_discovery(monkeypatch, stand_in):
    def fail(*given):
        raise KeyError("kernel 3")

    monkeypatch.setattr(attempt, "DiscoveredStep", fail)


def checked_answers(monkeypatch, stand_in):
    monkeypatch.setattr(Recorder, "_check_answer", CHECK_ANSWER)


def scheduled(monkeypatch, stand_in):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def checked_arguments(monkeypatch, stand_in):
    on_a_gpu(monkeypatch, stand_in)
    monkeypatch.setattr(specialization, "_check_argument", lambda index, leaf, device:
                        CHECK_ARGUMENT(index, leaf, leaf.device.index))


def integers_on_the_host(monkeypatch, stand_in):
    stand_in.arguments = 2
    monkeypatch.setattr(specialization, "HostArguments", IntegersOnTheHost)


def no_gpu(monkeypatch, stand_in):
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: False)


def hidden(monkeypatch, stand_in):
    table = torch.ones(4)

    def check(step, capture, device, ours, has_reducer):
        raise UntrackedTensors([table])

    monkeypatch.setattr(attempt, "check_all_tracked", check)
    return {"library_table": itertools.repeat(table).__next__}


def frozen_counter(monkeypatch, stand_in):
    """Where nothing looks."""
    following, there = itertools.count(1).__next__, weakref.ref(stand_in)
    return {"calls": lambda: 1 if there().is_launching else following()}


def other_processes(monkeypatch, stand_in):
    """Which do not come."""
    others = Rendezvous.__new__(Rendezvous)
    others._device, others._turns = torch.device("cuda", 0), [None]
    monkeypatch.setattr(Rendezvous, "since", lambda before, device: others)
    monkeypatch.setattr(rendezvous, "_Meeting", lambda group, name: SimpleNamespace(
        join=lambda: False))


def fake_transformers(monkeypatch, stand_in):
    class Trainer:
        def __init__(self):
            self.args = SimpleNamespace(parallel_mode="not_parallel")
            self.accelerator = SimpleNamespace(distributed_type="NO")

        def training_step(self, model, inputs, num_items_in_batch=None):
            pass

    module = types.ModuleType("transformers")
    module.Trainer = Trainer
    monkeypatch.setitem(sys.modules, "transformers", module)
    importlib.import_module("anabranch.integrations.transformers")
    return {"Trainer": Trainer}


def plugged_in(monkeypatch, stand_in):
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")


PREPARED = {340: plugged_in, 314: adam, 323: on_a_gpu, 318: broken_discovery, 319: checked_answers, 324: scheduled,
            325: checked_arguments, 326: integers_on_the_host, 327: no_gpu, 328: hidden,
            329: frozen_counter, 330: other_processes, 337: fake_transformers,
            321: lambda *_: {"weight": torch.ones(4, requires_grad=True)},
            313: lambda *_: {"weight": torch.ones(4, requires_grad=True)}}


@pytest.mark.oldest
@pytest.mark.parametrize("code", [code for code in OURS if code not in OF_GRAPHS])
def test_the_example_of_a_code_says_what_its_section_shows(train, code):
    told, _ = train(code)
    assert told == [block(code, "text")] and told[0].count("\n") <= 2


@pytest.mark.oldest
@pytest.mark.parametrize("code", [335, 336])
def test_explain_names_the_code_of_a_graph_that_is_recorded_in_parts(code):
    given = {"torch": torch}
    exec(block(code, "python"), given)
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(4, 4, device=torch.device("cuda", 0))
    why = find_cuts(make_fx(given["forward"])(x)).reasons[0]
    report = GraphReport("inference", 1, None, why.text, why.code, why.place, why.remedy, 0.0, {}, [],
                         lambda: None)
    assert block(code, "text") in describe_graph("graph 0: inference", report, report.to_dict())


@pytest.mark.oldest
@pytest.mark.parametrize("code", [code for code in OURS if code not in ALONE])
def test_under_strict_a_code_raises_unless_it_is_allowed(train, code):
    with pytest.raises(errors.RecordError) as raised:
        train(code, strict=True)
    assert raised.value.code == code and f'allow=["E0{code}"]' in raised.value.remedy
    assert block(code, "text").splitlines()[0].partition("unrecorded: ")[2] in str(raised.value)
    told, _ = train(code, strict=True, allow=[f"E0{code}"])
    assert not told


@pytest.mark.oldest
def test_every_code_has_a_cause_with_a_remedy_of_the_same_name():
    causes = {cause.value: cause for cause in Cause if cause >= 311}
    assert list(causes) == OURS
    for code, (name, _) in [(code, errors.CODES[code]) for code in OURS]:
        assert causes[code].name.replace("_", "").lower() == name.lower()
        assert causes[code].remedy.endswith(".")


@pytest.mark.oldest
def test_one_failure_is_told_once_and_reports_count_the_rest(train):
    told, given = train(311)
    with warnings.catch_warnings(record=True) as more:
        warnings.simplefilter("always")
        steps = given["step"], anabranch.record(given["step"].__wrapped__)
        for step in steps:
            for _ in range(3):
                step(torch.ones(5))
    assert len(told) == 1 and not more
    reports = [report for step in steps for report in step.reports]
    assert [report.times for report in reports] == [3, 3, 3]
    assert all((report.code, report.place) == (311, "at train.py:3 in step") for report in reports)
    assert "at train.py:3 in step [E0311], 3 times so far\n" in str(reports[0])


def test_at_exit_a_line_for_each_cause_is_printed_where_it_is_asked_for(run_python):
    program = """
import anabranch, torch, warnings
warnings.simplefilter("ignore")
for _ in range(3):
    anabranch.record(lambda x: x)(torch.ones(2))
"""
    asked = run_python(program, ANABRANCH_SUMMARY="1", CUDA_VISIBLE_DEVICES="")
    assert asked.stderr.endswith(
        "anabranch: what did not run as planned\n  3 times E0327 <lambda> runs as it is: torch finds "
        "no GPU, and nothing else is recorded (on this machine)\n"), asked.stderr
    assert "planned" not in run_python(program, CUDA_VISIBLE_DEVICES="").stderr
