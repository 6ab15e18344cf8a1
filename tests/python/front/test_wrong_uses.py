# SPDX-License-Identifier: Apache-2.0
"""Wrong uses of the Python API, a line each: the class, the code and the words of the refusal.

Left are the statements as a user might write them, with the names of `scene` below; nothing is
compiled by Inductor. What needs a GPU, a compiler or a process of its own has tests elsewhere;
those of arguments, E0611 and E0612, are all here.
"""

from __future__ import annotations

import functools
import importlib.util
import pickle
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import anabranch
from anabranch import _requirements, config, errors
from anabranch._compile import report
from anabranch._compile.streamed_graph import StreamedGraph
from anabranch._core.library import Core, _find_library
from anabranch._core.program import ROLE_INPUT, ROLE_OUTPUT, ProgramBuilder
from anabranch.errors import CompileError, ConfigError, PlanFileError, WrongArgument

pytestmark = [pytest.mark.oldest, pytest.mark.own]

USES = [
    # anabranch.record: what is recorded
    ("record(3)", WrongArgument, 611, r"the function is 3 \(int\), and it must be something that "
                                      r"can"),
    ("record('f')", WrongArgument, 611, r"the function is 'f' "
                                        r"\(str\).*\n.*anabranch\.record\(step\)"),
    ("record(x)", WrongArgument, 611, r"the function is of the type torch\.Tensor, and"),
    ("record([step])", WrongArgument, 611, r"the function is \[<function .*\(list\)"),
    ("record()(3)", WrongArgument, 611, r"the function is 3 \(int\)"),
    ("record()(None)", WrongArgument, 611, r"the function is None \(NoneType\)"),
    ("record(strict=True)(model(x))", WrongArgument, 611, r"of the type torch\.Tensor"),
    ("record(classmethod(3))", WrongArgument, 611, r"the function is 3 \(int\)"),
    ("record(staticmethod(yielding))", WrongArgument, 612, r"yielding is a generator function"),
    ("record(property(step))", WrongArgument, 611, r"(?s)\(property\).*stands below @property"),
    ("record(functools.cached_property(step))", WrongArgument, 611, r"stands below @property"),
    ("record(nn.Linear)", WrongArgument, 611, r"(?s)a model and not its class.*object of it: "
                                              r"Linear\("),
    ("record(waiting)", WrongArgument, 612, r"record: .*waiting is an async function, which "
                                            r"returns"),
    ("record(yielding)", WrongArgument, 612, r"record: .*yielding is a generator function, which"),
    ("record(both)", WrongArgument, 612, r"both is an async generator function.*\nGive a plain "
                                         r"function"),
    ("record(lambda: (yield))", WrongArgument, 612, r"<lambda> is a generator function"),
    ("record(functools.partial(yielding, 3))", WrongArgument, 612, r"partial is a generator "
                                                                   r"function"),
    ("record(Caller())", WrongArgument, 612, r"Caller is an async function"),
    ("record(Caller().__call__)", WrongArgument, 612, r"__call__ is an async function"),
    ("record(Streaming())", WrongArgument, 612, r"Streaming is a generator function"),
    # anabranch.record: static and options
    ("record(step, state=model)", WrongArgument, 611,
     r"state is of the type torch\.nn.*Linear, and it must be a list or "
     r"tuple.*\n.*state=\(model,\)"),
    ("record(step, state=nn.Sequential(model))", WrongArgument, 611, r"state is .*Sequential, "
                                                                      r"and"),
    ("record(step, state=x)", WrongArgument, 611, r"state is of the type torch\.Tensor, and it "
                                                   r"must"),
    ("record(step, state=optimizer)", WrongArgument, 611, r"state is of the type "
                                                           r"torch\.optim.*SGD"),
    ("record(step, state='model')", WrongArgument, 611, r"state is 'model' \(str\), and it must "
                                                         r"be"),
    ("record(step, state={'m': model})", WrongArgument, 611, r"state is .*\(dict\), and it must "
                                                              r"be"),
    ("record(step, state=None)", WrongArgument, 611, r"state is None \(NoneType\), and it must "
                                                      r"be"),
    ("record(step, state=3)", WrongArgument, 611, r"state is 3 \(int\), and it must be a list"),
    ("record(step, state=[model, 'w'])", WrongArgument, 611, r"state\[1\] is 'w' \(str\), and "
                                                              r"it"),
    ("record(state=model)", WrongArgument, 611, r"state is of the type torch\.nn.*Linear"),
    ("record(step, options='strict')", ConfigError, 702, r"options is 'strict' \(str\), and it "
                                                         r"must be"),
    ("record(step, options=[('strict', True)])", ConfigError, 702, r"options is .*\(list\), and "
                                                                   r"it"),
    ("record(step, options={3: True})", ConfigError, 701, r"options names no option: 3 \(int\)"),
    ("record(step, options={'strcit': 1})", ConfigError, 701, r"'strcit'.*\nNearest: strict"),
    ("record(step, strcit=True)", ConfigError, 701, r"'strcit'.*\nNearest: strict"),
    ("record(step, verify='yes')", ConfigError, 702, r"'yes' \(str\), the option wants bool\."),
    ("record(step, strict=1)", ConfigError, 702, r"is 1 \(int\), the option wants bool"),
    ("record(step, max_recordings=0)", ConfigError, 703, r"is 0, the least possible is 1"),
    ("record(step, max_recordings=2.5)", ConfigError, 702, r"2\.5 \(float\), the option wants "
                                                           r"int, 1"),
    ("record(step, max_parallel_kernels=2**32)", ConfigError, 703,
     r"4294967296, the most possible is 1024"),
    ("record(step, activation_memory=1.5)", ConfigError, 703, r"1\.5, and a share is from 0\.0 to"),
    ("record(step, activation_memory=nan)", ConfigError, 703, r"nan, and a share is from 0\.0 to"),
    ("record(step, activation_memory=-1)", ConfigError, 703, r"is -1, the least possible is 0"),
    ("record(step, activation_memory='some')", ConfigError, 703, r"the only word is 'fit'"),
    ("record(step, activation_memory=True)", ConfigError, 702, r"True \(bool\), the option wants"),
    ("record(max_recordings=0)", ConfigError, 703, r"is 0, the least possible is 1"),
    # anabranch.stream and anabranch.overlap
    ("stream(3)", CompileError, 601, r"the name 3 is int, and it must be a string"),
    ("stream(None)", CompileError, 601, r"the name None is NoneType"),
    ("stream(b'side')", CompileError, 601, r"the name b'side' is bytes"),
    ("stream('')", CompileError, 601, r"the name '' is str, and it must be a string that is not "
                                      r"empty"),
    ("stream('a\\0b')", CompileError, 601, r"the name 'a\\x00b' is str, .* without NUL"),
    ("stream('\\ud800')", CompileError, 601, r"the name '\\ud800' is str, .* of UTF-8"),
    ("stream(step)", CompileError, 601, r"the name <function .* is function"),
    ("stream('s', priority='high')", CompileError, 608, r"the priority 'high' is str"),
    ("stream('s', priority=True)", CompileError, 608, r"the priority True is bool"),
    ("stream('s', priority=0.5)", CompileError, 608, r"the priority 0\.5 is float"),
    ("stream('s', priority=2**31)", CompileError, 608, r"2147483648 is int, and it must be .* 32 "
                                                       r"bits"),
    ("overlap(1)", CompileError, 601, r"lanes=1 is int, and it must be an int from 2 to 1024"),
    ("overlap(-3)", CompileError, 601, r"lanes=-3 is int"),
    ("overlap(True)", CompileError, 601, r"lanes=True is bool"),
    ("overlap(nan)", CompileError, 601, r"lanes=nan is float"),
    ("overlap('4')", CompileError, 601, r"lanes='4' is str"),
    ("overlap(2**32)", CompileError, 601, r"lanes=4294967296 is int, and it must be an int from 2 "
                                          r"to"),
    ("overlap(step)", CompileError, 601, r"lanes=<function .* is function"),
    # anabranch.explain and what it answers
    ("explain(3)", WrongArgument, 611, r"the function is 3 \(int\).*\n.*explain\(model, x\)"),
    ("explain(model(x))", WrongArgument, 611, r"(?s)of the type torch\.Tensor.*arguments: "
                                              r"explain\("),
    ("explain(nn.Linear, 2, 2)", WrongArgument, 611, r"a model and not its class"),
    ("explain(waiting, x)", WrongArgument, 612, r"explain: .*waiting is an async function"),
    ("explain(yielding, x)", WrongArgument, 612, r"explain: .*yielding is a generator function"),
    ("explain(explain, step, x)", CompileError, 615, r"another call of explain or bisect is running"),
    ("report.save_plan(3)", WrongArgument, 611, r"save_plan: the path is 3 \(int\), and it must "
                                                r"be"),
    ("report.save_plan('')", WrongArgument, 611, r"the path is '' \(str\).* not empty"),
    ("report.save_plan(b'it.plan')", WrongArgument, 611, r"the path is b'it\.plan' \(bytes\)"),
    ("report.save_plan('it\\0.plan')", WrongArgument, 611, r"the path is 'it\\x00\.plan' \(str\)"),
    ("report.save_plan(folder)", PlanFileError, 501, r"Is a directory"),
    ("report.save_plan(folder / 'no' / 'it.plan')", PlanFileError, 501, r"no/it\.plan.*No such "
                                                                        r"file"),
    ("report.save_plan('/dev/full')", PlanFileError, 501, r"write plan.*'/dev/full': No space "
                                                          r"left"),
    ("report.save_plan('\\ud800')", WrongArgument, 611, r"the path is '\\ud800' \(str\)"),
    ("report.html(None)", WrongArgument, 611, r"html: the path is None"),
    ("report.html(folder / 'no' / 'it.html')", PlanFileError, 501, r"no/it\.html': No such file"),
    ("report.html('/dev/full')", PlanFileError, 501, r"write page '/dev/full': No space left"),
    ("report.save_timeline(None)", WrongArgument, 611, r"save_timeline: the path is None"),
    ("report.save_timeline('it\\0.json')", WrongArgument, 611, r"without NUL"),
    ("report.save_timeline(folder)", PlanFileError, 501, r"write trace '.*': Is a directory"),
    ("report.save_timeline(folder / 'no' / 'it.json')", PlanFileError, 501, r"no/it\.json': No "
                                                                            r"such"),
    ("report.save_timeline('/dev/full')", PlanFileError, 501, r"'/dev/full': No space left"),
    # torch.compile and the backend
    ("backend(model, [x])", WrongArgument, 611, r"(?s)the graph is "
                                                r".*Linear.*torch\.compile\(model"),
    ("backend(None, [], mode='reduce-overhead')", ConfigError, 704, r"mode='reduce-overhead' is "
                                                                    r"Indu"),
    ("compiled(step, options='strict')", ConfigError, 702, r"options is 'strict' \(str\), and it "
                                                           r"must"),
    ("compiled(step, options=3)", ConfigError, 702, r"options is 3 \(int\), and it must be a dict"),
    ("compiled(step, options={'strem': 1})", ConfigError, 701, r"'strem'.*\nNearest: streams"),
    ("compiled(step, options={3: 1})", ConfigError, 701, r"options names no option: 3"),
    ("compiled(step, options={'max_threads': 2**32})", ConfigError, 703, r"the most possible is "
                                                                       r"1024"),
    ("compiled(step, mode='max-autotune')", ConfigError, 704, r"'max-autotune' is Inductor's"),
    ("compiled(two_priorities)", CompileError, 608,
     r"'side' has the priority -1 at test_wrong_uses\.py:\d+, and 0 at test_wrong_uses\.py:\d+\."),
    # anabranch.config
    ("config.strcit = True", ConfigError, 701, r"'strcit'.*\nNearest: strict"),
    ("config.strcit", ConfigError, 701, r"'strcit'.*\nNearest: strict"),
    ("del config.strcit", ConfigError, 701, r"'strcit'"),
    ("config.strict = None", ConfigError, 702, r"config\.strict is None .*, the option wants bool"),
    ("config.spin_us = nan", ConfigError, 702, r"is nan \(float\), the option wants int, 0 to "
                                               r"3600000000"),
    ("config.spin_us = inf", ConfigError, 702, r"is inf \(float\)"),
    ("config.spin_us = True", ConfigError, 702, r"is True \(bool\)"),
    ("config.spin_us = -1", ConfigError, 703, r"is -1, the least possible is 0"),
    ("config.spin_us = 10**30", ConfigError, 703, r"the most possible is 3600000000"),
    ("config.spin_us = 10**9999", ConfigError, 703, r"a number of \d+ bits, the most possible"),
    ("config.delay_seed = 2**64", ConfigError, 703, r"the most possible is 2\^64 - 1"),
    ("config.max_threads = x", ConfigError, 702, r"is of the type torch\.Tensor, the option wants "
                                               r"int"),
    ("config.library_path = 'a\\0b'", ConfigError, 703, r"'a\\x00b', and no path has a NUL"),
    ("config.library_path = b'a'", ConfigError, 702, r"b'a' \(bytes\), the option wants str"),
    ("config.patch(strict='on')", ConfigError, 702, r"patch\(strict=\.\.\.\) is 'on' \(str\)"),
    ("config.patch(strcit=True)", ConfigError, 701, r"'strcit'"),
    ("config.patch(strict=True)(3)", WrongArgument, 611, r"config\.patch: the function is 3 "
                                                         r"\(int\)"),
    ("config.patch(strict=True)(yielding)", WrongArgument, 612, r"yielding is a generator "
                                                                r"function"),
    ("config.patch(strict=True)(waiting)", WrongArgument, 612, r"waiting is an async function"),
    ("config.resolve(3)", ConfigError, 702, r"options is 3 \(int\), and it must be a dict"),
    ("variable('MAX_THREADS', '+-+3')", ConfigError, 702,
     r"ANABRANCH_MAX_THREADS is '\+-\+3' \(str\)"),
    ("variable('MAX_THREADS', str(2**32))", ConfigError, 703,
     r"MAX_THREADS is 4294967296, the most"),
    ("variable('FORCE_MAX_PARALLEL_KERNELS', '0')", ConfigError, 703,
     r"ANABRANCH_FORCE_MAX_PARALLEL_KERNELS is 0, the "
                                                         r"least"),
    ("variable('SPIN_US', 'nan')", ConfigError, 702, r"ANABRANCH_SPIN_US is 'nan'"),
    ("variable('DELAY_SEED', '-1')", ConfigError, 703,
     r"ANABRANCH_DELAY_SEED is -1, the least possible "
                                                   r"is 0"),
    ("variable('STRICT', '2')", ConfigError, 702, r"ANABRANCH_STRICT is '2' \(str\), .* wants "
                                                  r"bool"),
    # what must be there
    ("with_torch('2.10.0')", CompileError, 603, r"torch 2\.10\.0 was found, and 2\.11 or newer"),
    ("with_torch(None)", CompileError, 604, r"torch is not installed.*\nInstall it"),
    ("with_library('/no/library.so')", CompileError, 606, r"/no/library\.so.*\nInstall the "
                                                          r"package"),
    ("with_older_library()", CompileError, 610, r"old\.so has no anabranch_last_error_code: it is "
                                                r"of"),
]


async def waiting(x):
    return x


def yielding(x):
    yield x


async def both(x):
    yield x


class Caller:
    async def __call__(self, x):
        return x


class Streaming(nn.Module):
    def forward(self, x):
        yield x


class Collected(Streaming):
    def __call__(self, x):
        return list(self.forward(x))


def step(x):
    return x + 1


def two_priorities(x):
    with anabranch.stream("side", priority=-1):
        y = x + 1
    with anabranch.stream("side"):
        return y * 2


def compiled(function, **keywords):
    """What torch wraps the error of a backend in is taken off."""
    try:
        torch.compile(function, backend=anabranch.backend, **keywords)(torch.ones(2))
    except Exception as error:
        raise getattr(error, "inner_exception", error) from error


def report_of_a_plan():
    """An explanation of a graph with a plan, of which nothing need be compiled."""
    builder = ProgramBuilder()
    a = builder.add_buffer("a", ROLE_INPUT, 4)
    b = builder.add_buffer("b", ROLE_OUTPUT, 4)
    builder.copy(0, b, a)
    collector = report.Collector()
    streamed = StreamedGraph.__new__(StreamedGraph)
    streamed.regions = []
    streamed.last = SimpleNamespace(plan=builder.build().make_plan(), reports=[], has_arena=True,
                                    summary=lambda: "a copy")
    collector.ran.append(report.GraphReport("inference", 1, None, None, None, "", "", 0.0, {}, [],
                                            weakref.ref(streamed)))
    return anabranch.Explanation(collector)


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """The names that USES may use."""
    def variable(name, text):
        monkeypatch.setenv(f"ANABRANCH_{name}", text)
        config.resolve()

    def with_torch(version):
        if version is None:
            monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(torch, "__version__", version)
        _requirements.require_torch()

    def with_library(path):
        with config.patch(library_path=path):
            _find_library()

    model = nn.Linear(2, 2)
    return {
        **{name: getattr(anabranch, name) for name in anabranch.__all__}, "nn": nn, "torch": torch,
        "functools": functools, "Mock": Mock, "nan": float("nan"), "inf": float("inf"),
        "folder": tmp_path,
        "model": model, "optimizer": torch.optim.SGD(model.parameters()), "x": torch.ones(2),
        "report": report_of_a_plan(), "variable": variable, "with_torch": with_torch,
        "with_library": with_library, "compiled": compiled, "step": step, "waiting": waiting,
        "yielding": yielding, "both": both, "Caller": Caller, "Streaming": Streaming,
        "Collected": Collected, "two_priorities": two_priorities,
        "with_older_library": lambda: Core(SimpleNamespace(_name="old.so")),
    }


@pytest.mark.parametrize("statement, family, code, words", USES, ids=[use[0] for use in USES])
def test_a_wrong_use_is_refused_at_once(scene, statement, family, code, words):
    before = dict(config._Config._assigned)
    with pytest.raises(family, match=words) as caught:
        exec(statement, scene)
    error = caught.value
    assert error.code == code and isinstance(error, errors.family_of(code)), repr(error)
    assert f"[{errors.code_text(code)}]" in str(error) and len(str(error)) < 500
    assert isinstance(error, TypeError) == (code in (611, 612))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert config._Config._assigned == before and not list(scene["folder"].iterdir())


def test_every_code_of_python_that_can_be_raised_here_is_in_the_table():
    elsewhere = {602, 605, 607, 613, 614, 616}  # are logged, or need Inductor
    raised = {code for code in errors.CODES if code >= 600}
    assert {code for _, _, code, _ in USES if code >= 600} == raised - elsewhere


RIGHT_USES = [
    "record(step)", "record(model)", "record(model.forward)", "record(functools.partial(step))",
    "record()(step)", "record(strict=False)(step)", "record(staticmethod(step))",
    "record(classmethod(step))",
    "record(record(step))",
    "record(step, state=[model, optimizer, x, None])", "record(step, state=model.parameters())",
    "record(step, state=(layer for layer in [model]))", "record(step, state={model})",
    "record(step, state=nn.ModuleList([model]))", "record(step, options={}, max_recordings=2**31 "
                                                   "- 1)",
    "record(torch.compile(model))", "record(Collected())", "record(Mock())",
    "record(nn.DataParallel(model))",
    "record(lambda x: x)", "record(torch.relu)", "record(print)",
    "record(step, state=[[model], {'a': x}])", "stream('ü🙂\\n')", "stream('s', priority=-2**31)",
    "overlap(1024)", "explain(print)", "explain(step, x)", "explain(dict, a=x)",
    "config.patch(strict=True)(step)", "config.patch(strict=True)(print)",
]


@pytest.mark.parametrize("statement", RIGHT_USES)
def test_a_right_use_is_none(scene, statement):
    exec(statement, scene)


def test_a_recorded_callable_says_what_it_is():
    recorded = anabranch.record(step)
    assert repr(recorded) == "<anabranch.record of step: 0 signatures, 0 recorded>"
