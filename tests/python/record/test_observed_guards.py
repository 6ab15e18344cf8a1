# SPDX-License-Identifier: Apache-2.0
"""What a step's Python was seen to read is guarded, also in libraries and in torch: a launch happens
only where it stands as it stood. What was not read tells nothing apart."""

from __future__ import annotations

import _thread
import collections
import contextlib
import contextvars
import ctypes
import io
import operator
import os
import queue
import random
import sys
import textwrap
import threading
import time
import types

import pytest
import torch
import torch.nn.functional as F
from tape_recording import OnTape
from torch import nn
from torch._dynamo.callback import CallbackTrigger, callback_handler

import anabranch
from anabranch import errors
from anabranch._record.observe.observer import Observer

WINDOW = contextvars.ContextVar("window", default=1.0)
UNSET = contextvars.ContextVar("unset")
X = torch.full((3,), 2.0)

library = types.ModuleType("a_library")
library.__file__ = "/somewhere/site-packages/a_library.py"
exec("""
FACTOR, other = 2.0, 1.0
def doubled(x): return x * FACTOR
def halved(x): return x / FACTOR
class Registry:
    functions = {"double": doubled, "halve": halved}
    def chosen(self, name): return Registry.functions[name]
registry = Registry()
def applied(x): return registry.chosen("double")(x)
""", vars(library))


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_library", library)
    return OnTape(monkeypatch)


def launches(step, tape, *args):
    """How many launches a call is: 1 or 0."""
    before = tape.launches
    step(*args)
    return tape.launches - before


def recorded(function, *args, **options):
    step = anabranch.record(function, **options)
    for _ in range(3):
        step(*args)
    return step


def attended(x):
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


CHANGES = {
    "a function of torch": (lambda x: F.gelu(x), F, "gelu", torch.relu),
    "a function that torch's Python calls": (nn.SiLU(), F, "silu",
                                         lambda x, inplace: x * 3),
    "a method of torch's": (nn.ReLU(), nn.ReLU, "forward", lambda self, x: x * 3),
    "a method that tensors inherit": (lambda x: x.exp(), torch.Tensor, "exp", lambda x: x * 3),
    "a builtin": (lambda x: x * abs(-2), "builtins", "abs", lambda x: 7),
    "a library's number": (lambda x: library.applied(x), library, "FACTOR", 5.0),
    "a library's object": (lambda x: library.applied(x), library, "registry",
                           types.SimpleNamespace(chosen=lambda name: library.halved)),
    "a library's method": (lambda x: library.applied(x), library.Registry, "chosen",
                           lambda self, name: library.halved),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_step_reads_anywhere_is_guarded(name, tape, monkeypatch):
    function, holder, key, other = CHANGES[name]
    holder = sys.modules[holder] if isinstance(holder, str) else holder
    step = recorded(function, X)
    assert launches(step, tape, X) == 1
    with monkeypatch.context() as changed:
        changed.setattr(holder, key, other, raising=False)
        assert launches(step, tape, X) == 0
        assert torch.equal(step(X), function(X))
    assert launches(step, tape, X) == 1 and torch.equal(step(X), function(X))


def test_an_entry_of_a_librarys_table_is_guarded(tape, monkeypatch):
    step = recorded(lambda x: library.applied(x), X)
    monkeypatch.setitem(library.Registry.functions, "double", library.halved)
    assert launches(step, tape, X) == 0 and torch.equal(step(X), X / 2)


def test_what_a_step_does_not_read_tells_nothing_apart(tape, monkeypatch):
    step = recorded(lambda x: F.gelu(library.applied(x)), X)
    monkeypatch.setattr(library, "other", 5.0)
    monkeypatch.setattr(library, "new", 5.0, raising=False)
    monkeypatch.setattr(F, "celu", None)
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    monkeypatch.setitem(library.Registry.functions, "third", library.halved)
    token = UNSET.set(1)
    assert launches(step, tape, X) == 1 and len(step.reports) == 1
    UNSET.reset(token)


@contextlib.contextmanager
def set_to(variable, value):
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def test_a_context_variable_that_is_read_is_guarded(tape):
    step = recorded(lambda x: x * WINDOW.get() * UNSET.get(1.0), X)
    assert launches(step, tape, X) == 1
    for variable in (WINDOW, UNSET):
        with set_to(variable, 3.0):
            assert torch.equal(step(X), X * 3)
    assert launches(step, tape, X) == 1 and torch.equal(step(X), X)


def test_a_variable_of_the_environment_that_is_read_is_guarded(tape, monkeypatch):
    def step(x):
        return x * int(os.environ.get("TIMES", "1")) * int(os.getenv("OTHER_TIMES", "1"))

    made = recorded(step, X)
    for name in ("TIMES", "OTHER_TIMES"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "3")
            assert torch.equal(made(X), X * 3)
    assert launches(made, tape, X) == 1


HIDDEN = {
    "a clock": lambda x: x * (time.perf_counter() > 0),
    "random numbers": lambda x: x * (random.Random(3).random() < 2),
    "a file": lambda x: x * (len(os.listdir("/")) > 0),
    "a queue": lambda x: x * 2 if QUEUE.put(1) or QUEUE.get() else x,
}
QUEUE = queue.Queue()
FILES = {
    "readlines": lambda file: file.readlines(), "read": lambda file: file.read(),
    "readline": lambda file: file.readline(), "writelines": lambda file: file.writelines([]),
    "seek": lambda file: file.seek(0)}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("mode", ["r+", "rb+"])
def test_whatever_is_done_with_a_file_is_no_guard(name, mode, tmp_path):
    """Also by what it has from a base."""
    (tmp_path / "some").write_text("one\n")
    with (tmp_path / "some").open(mode) as file, \
            pytest.warns(errors.RecordWarning, match="takes in a file"):
        recorded(lambda x: x * 2 if FILES[name](file) != 5 else x, X)


@pytest.mark.parametrize("what", HIDDEN)
def test_what_no_guard_can_hold_runs_plainly_and_says_where(what):
    with pytest.warns(errors.RecordWarning) as told:
        step = recorded(HIDDEN[what], X)
    assert [report.code for report in step.reports] == [341]
    assert f"takes in {what}" in str(told[0].message) and "test_observed" in str(told[0].message)


def test_what_is_allowed_is_launched_all_the_same(tape):
    step = recorded(HIDDEN["a clock"], X, allow=["E0341"])
    assert launches(step, tape, X) == 1


def test_what_libraries_read_clocks_and_write_texts_for_is_no_input(tape, monkeypatch):
    monkeypatch.setattr(library, "timed", None, raising=False)
    exec("import time\ndef timed(x):\n  time.time()\n  return x * 2", vars(library))
    monkeypatch.setattr("anabranch._record.observe.inputs.is_users", lambda name: name == __name__)
    step = recorded(lambda x: library.timed(x) if print("", end="", file=io.StringIO()) is None else x,
                    X)
    assert launches(step, tape, X) == 1


@pytest.mark.parametrize("found", [
    "importlib.util.find_spec('somebodys_package')", "importlib.metadata.version('torch')"])
def test_what_libraries_look_for_packages_by_is_no_input(found, tape, monkeypatch):
    monkeypatch.setattr(library, "looked", None, raising=False)
    exec(f"import importlib.metadata, importlib.util\ndef looked(x):\n  {found}\n  return x * 2",
         vars(library))
    step = recorded(lambda x: library.looked(x), X)
    assert launches(step, tape, X) == 1


def observed_on_a_thread(name, function):
    """The names of the code of others that an observer sees where a thread that is none of Python's
    own, of this name, runs that."""
    named, begun, done = (threading.Event() for _ in range(3))

    def run():
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)  # PR_SET_NAME
        named.set()
        begun.wait(60)
        function()
        done.set()

    _thread.start_new_thread(run, ())
    assert named.wait(60)
    observer = Observer()
    observer.begin()
    begun.set()
    assert done.wait(60)
    observer.end()
    assert observer.is_complete
    return {code.co_name for code in observer.ran}, observer.inputs.taken


@pytest.mark.skipif(sys.version_info < (3, 12), reason="other threads are not observed")
def test_what_a_backward_is_compiled_by_on_autograds_thread_is_not_observed():
    def backward():
        with callback_handler.install_callbacks(CallbackTrigger.LAZY_BACKWARD, "0"):
            library.halved(X)
        library.doubled(X)

    ran, _ = observed_on_a_thread(b"pt_autograd_0", backward)
    assert "doubled" in ran and "halved" not in ran


def test_what_runs_while_something_is_compiled_is_not_observed():
    """Until something else calls it, too."""
    compilers = types.ModuleType("torch._dynamo.convert_frame")
    exec("import os, textwrap\ndef compiled(variable): return textwrap.indent('a', ' '), "
         "variable.get(), os.stat('/')", vars(compilers))
    observer = Observer()
    observer.begin()
    compilers.compiled(WINDOW)
    before = {*observer.ran, *observer.inputs.variables, *observer.inputs.taken}
    textwrap.indent("a", " ")
    WINDOW.get()
    observer.end()
    assert WINDOW not in before and WINDOW in observer.inputs.variables
    assert not observer.inputs.taken
    assert textwrap.indent.__code__ not in before and textwrap.indent.__code__ in observer.ran


def test_what_a_thread_of_somebody_elses_does_is_not_observed():
    def reading():
        library.doubled(X)
        with open(os.devnull) as file:
            file.read()

    ran, taken = observed_on_a_thread(b"receiver", reading)
    assert "doubled" not in ran and not taken


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="sys.monitoring is what observes")
def test_under_a_profiler_calls_are_plain_and_afterwards_recorded(tape):
    step = anabranch.record(lambda x: x * 2)
    sys.setprofile(lambda *event: None)
    with pytest.warns(errors.RecordWarning, match="profiler"):
        assert [launches(step, tape, X) for _ in range(4)] == [0] * 4
    sys.setprofile(None)
    assert [launches(step, tape, X) for _ in range(4)] == [0, 0, 1, 1] or \
        [launches(step, tape, X) for _ in range(4)][-1] == 1


class Compiled(nn.Module):
    def forward(self, x):
        return attended(x) * WINDOW.get() + self.scaled(x)

    def scaled(self, x):
        return library.doubled(x)


def called(inner):
    return lambda x: inner(x)


@pytest.mark.parametrize("compiled", [
    lambda: called(torch.compile(Compiled(), backend="eager")),
    lambda: called(torch.compile(Compiled().forward, backend="eager")),
    lambda: called(nn.Sequential(torch.compile(Compiled(), backend="eager"))),
    lambda: torch.compile(Compiled(), backend="eager"),
    lambda: torch.compile(lambda x: Compiled()(x), backend="eager")],
    ids=["module", "method", "child", "itself", "function"])
def test_what_compiled_code_reads_is_guarded_though_it_runs_no_more(compiled, tape, monkeypatch):
    torch.compiler.reset()  # of what other tests have compiled
    step = recorded(compiled(), X)
    assert launches(step, tape, X) == 1, [one.differs for one in step.reports]
    with set_to(WINDOW, 3.0):
        assert torch.equal(step(X), Compiled()(X))
    with monkeypatch.context() as changed:
        changed.setattr(library, "FACTOR", 5.0)
        assert torch.equal(step(X), Compiled()(X))
    with monkeypatch.context() as changed:
        changed.setattr(F, "scaled_dot_product_attention", lambda q, k, v: v * 7)
        assert torch.equal(step(X), Compiled()(X))
    assert [launches(step, tape, X) for _ in range(4)][-1] == 1


class Lazy:
    """As modules that are imported when something of them is asked for."""

    def __getattr__(self, name):
        raise ImportError(f"no module for {name}")


def test_what_is_made_when_it_is_asked_for_is_not_asked(tape):
    lazy = {"module": Lazy(), "factor": 2.0}
    step = recorded(lambda x: x * lazy["factor"], X)
    assert launches(step, tape, X) == 1


@pytest.mark.parametrize("read", [
    operator.attrgetter("scale"), lambda config: getattr(config, config.named),
    lambda config: operator.attrgetter(config.path)(config)], ids=["getter", "getattr", "path"])
def test_attributes_whose_names_are_values_are_guarded(read, tape):
    config = types.SimpleNamespace(scale=2.0, named="scale", path="inner.scale",
                                   inner=types.SimpleNamespace(scale=2.0))
    step = recorded(lambda x: x * read(config), X)
    assert launches(step, tape, X) == 1
    config.scale = config.inner.scale = 5.0
    assert torch.equal(step(X), X * 5)


@pytest.mark.parametrize("changed", [
    lambda queue: queue.rotate(1), lambda queue: queue.appendleft(queue.pop()),
    lambda queue: queue.reverse()], ids=["rotated", "last comes first", "reversed"])
def test_a_queue_whose_order_a_step_changes_is_as_eager_leaves_it(changed, tape):
    queue, other = (collections.deque([1, 2, 3, 4]) for _ in range(2))

    def step(x):
        changed(queue)
        return x * 2

    step = anabranch.record(step)
    for _ in range(7):
        step(X)
        changed(other)
        assert queue == other
