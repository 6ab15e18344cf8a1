# SPDX-License-Identifier: Apache-2.0
"""Streams and events of torch inside compiled code: results are those of the steps one after the
other, and the streams are tied to both ends of the graph.

torch has streams of the CPU by name only; they are enough for Dynamo to trace what users write.
What is queued at the ends of a graph is noted by stand-ins for streams of a GPU.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from compare import compiled

import anabranch
from anabranch import _compat, _user_streams
from anabranch._user_streams import NotUnderstood, Ties

pytestmark = [pytest.mark.own, pytest.mark.oldest]

A, B = torch.Stream(device="cpu"), torch.Stream(device="cpu")
EVENT, OTHER = torch.Event(device="cpu"), torch.Event(device="cpu")


def fork_and_join(x):
    with A:
        a = x + 1
        EVENT.record()
    B.wait_stream(A)
    with B:
        b = a * 2
    A.wait_stream(B)
    return b - x


def write_an_input(x):
    with A:
        x += 1
        EVENT.record()
    with B:
        EVENT.wait(B)
        return x * 2


def nest(x):
    with A:
        a = x + 1
        with B:
            b = a * 3
            with anabranch.stream("named"):
                c = torch.relu(b)
        d = a - c
    return d.sum() + b


def loop(x):
    for stream in (A, B, A):
        with stream:
            x = x * 2
            EVENT.record()
        OTHER.wait(B)
        B.synchronize()
    return x


def without_streams(function):
    """The same function with streams that do nothing."""
    class Nothing:
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return None

        def __getattr__(self, name):
            return lambda *args: None

    scope = {**function.__globals__, **dict.fromkeys(("A", "B", "EVENT", "OTHER"), Nothing())}
    return type(function)(function.__code__, scope)


def traced(function, *inputs):
    """The ties of the one graph that a function has, and the graph."""
    found = []

    def backend(gm, example_inputs):
        found.append((_user_streams.take_out(gm), gm))
        return gm.forward

    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    (ties, gm), = found
    return ties, gm


@pytest.mark.parametrize(("function", "takes_gradients"), [
    (fork_and_join, False), (write_an_input, False), (nest, False), (loop, False),
    (fork_and_join, True), (nest, True), (loop, True)])
def test_results_are_those_of_the_steps_one_after_the_other(function, takes_gradients):
    call = compiled(function)
    for seed in range(3):
        torch.manual_seed(seed)
        mine = torch.randn(4, 4, requires_grad=takes_gradients)
        theirs = mine.detach().clone().requires_grad_(takes_gradients)
        found, wanted = call(mine), without_streams(function)(theirs)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(mine, theirs)
        if takes_gradients:
            found.sum().backward()
            wanted.sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad)


def test_work_of_torchs_streams_runs_beside_each_other():
    def branches(x):
        with A:
            a = x @ x
        with B:
            b = x @ x.T
        return a + b

    call = compiled(branches)
    report = anabranch.explain(call, torch.randn(8, 8))
    streams = {region.stream for region in report.graphs[0].streamed.last.reports}
    assert len(streams) >= 2, str(report)


def test_streams_and_syncs_are_taken_out_of_the_graph():
    ties, gm = traced(fork_and_join, torch.ones(3))
    assert {node.op for node in gm.graph.nodes} == {"placeholder", "call_function", "output"}
    assert not any(_compat.is_object_of_graph(node) or _compat.stream_operation(node)
                   for node in gm.graph.nodes)
    assert all("stream" not in node.meta.get("custom", {}) for node in gm.graph.nodes)
    assert len(ties.streams) == 2 and len(ties.recorded) == 1 and not ties.awaited


def test_a_graph_without_streams_is_left_alone():
    ties, _ = traced(lambda x: x + 1, torch.ones(3))
    assert ties is None


def test_an_event_of_before_is_awaited_and_one_of_the_graph_is_not():
    ties, _ = traced(loop, torch.ones(3))
    assert len(ties.awaited) == 1 and len(ties.recorded) == 1
    assert set(ties.awaited).isdisjoint(ties.recorded)
    ties, _ = traced(write_an_input, torch.ones(3))
    assert not ties.awaited


def test_the_last_record_of_an_event_is_the_one():
    def twice(x):
        with A:
            x = x + 1
            EVENT.record()
            OTHER.record()
        with B:
            x = x * 2
            EVENT.record()
        return x

    ties, _ = traced(twice, torch.ones(3))
    first, second = ties.streams
    assert list(ties.recorded.values()) == [first, second]  # OTHER on A, then EVENT on B


def test_what_has_no_meaning_at_the_ends_is_left_to_inductor_or_refused():
    graph = torch.fx.Graph()
    stream = graph.call_function(_compat.graph_bytecode_inputs.get_external_object_by_index, (0,))
    graph.output(graph.call_method("query", (stream,)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(NotUnderstood, match="query"):
        _user_streams.take_out(gm)
    assert len(gm.graph.nodes) == 3


class Gpu:
    """Streams and events of a GPU that write down what is queued, by name."""

    def __init__(self, monkeypatch, objects, current="D", captured=()):
        self.queued = []
        self.objects = {i: self._make(name) for i, name in objects.items()}
        self.current = self._make(current)
        monkeypatch.setattr(_compat, "object_of_graph", self.objects.__getitem__)
        monkeypatch.setattr(_user_streams, "ambient_stream", lambda device: self.current)
        monkeypatch.setattr(_user_streams, "_is_captured",
                            lambda stream: stream.name in captured)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: self.queued.append("host(*)"))

    def _make(self, name):
        def queue(text):
            return lambda other: self.queued.append(text.format(name, other.name))

        return SimpleNamespace(
            name=name, device=torch.device("cuda", 0), stream_id=ord(name[0]),
            wait_stream=queue("{} waits for {}"), wait_event=queue("{} waits for {}"),
            record_event=queue("{} records {}"),
            synchronize=lambda: self.queued.append(f"host({name})"))

    def call(self, ties, *args):
        ties.around(lambda *args: self.queued.append("graph"))(*args)
        return self.queued


def made(**ties):
    return Ties(**{**ties, "streams": dict.fromkeys(ties.get("streams", ()))})


def test_a_graph_begins_behind_the_users_streams_and_they_go_on_behind_it(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A", 1: "B"})
    assert gpu.call(made(streams=[0, 1])) == [
        "D waits for A", "D waits for B", "graph", "A waits for D", "B waits for D"]


def test_events_are_awaited_before_and_recorded_behind_all_work(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A", 1: "e", 2: "f"})
    assert gpu.call(made(streams=[0], awaited={1: None}, recorded={2: 0})) == [
        "D waits for A", "D waits for e", "graph", "A waits for D", "A records f"]


def test_the_current_stream_is_tied_to_nothing(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "D", 1: "e"})
    assert gpu.call(made(streams=[0], recorded={1: 0})) == ["graph", "D records e"]


def test_a_host_that_waits_inside_has_waited_at_the_end(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A"})
    assert gpu.call(made(streams=[0], barriers=[0]))[-1] == "host(D)"
    gpu.queued.clear()
    assert gpu.call(made(streams=[0], barriers=[None]))[-1] == "host(*)"


def test_an_argument_used_on_a_stream_is_not_freed_before_that(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A"})
    argument = SimpleNamespace(record_stream=lambda s: gpu.queued.append(f"used on {s.name}"))
    assert gpu.call(made(streams=[0], used_on=[(1, 0)]), None, argument)[-1] == "used on A"


def test_a_capture_is_tied_to_the_streams_that_are_in_it(monkeypatch):
    objects = {0: "A", 1: "B", 2: "e", 3: "f"}
    ties = made(streams=[0, 1], awaited={2: None}, recorded={3: 1})
    gpu = Gpu(monkeypatch, objects, captured=("D", "A"))
    assert gpu.call(ties) == ["D waits for A", "graph", "A waits for D", "D records f"]


def test_an_exception_leaves_the_streams_as_they_were(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A"})

    def fails():
        raise ValueError

    with pytest.raises(ValueError):
        made(streams=[0]).around(fails)()
    assert gpu.queued == ["D waits for A"]
