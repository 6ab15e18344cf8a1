# SPDX-License-Identifier: Apache-2.0
"""Streams and events of torch inside compiled code: results are those of the steps one after the
other, and the streams are tied to both ends of the graph.

torch has streams of the CPU by name only; they are enough for Dynamo to trace what users write.
What is queued at the ends of a graph is noted by stand-ins for streams of a GPU.
"""

from __future__ import annotations

import functools
import struct
from types import SimpleNamespace

import pytest
import torch
from compare import compiled

import anabranch
from anabranch import _compat
from anabranch._compile.user_streams import extract
from anabranch._compile.user_streams import ties as ties_module
from anabranch._compile.user_streams.extract import NotUnderstood
from anabranch._compile.user_streams.ties import Ties
from anabranch._core.library import NativeError

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
        found.append((extract.take_out(gm), gm))
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
    table = _compat.streams.graph_bytecode_inputs
    stream = graph.call_function(table.get_external_object_by_index, (0,))
    graph.output(graph.call_method("query", (stream,)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    with pytest.raises(NotUnderstood, match="query"):
        extract.take_out(gm)
    assert len(gm.graph.nodes) == 3


class Gpu:
    """Streams and events of a GPU that write down what is queued, by name; with a library's ties,
    what these are asked for."""

    def __init__(self, monkeypatch, objects, current="D", captured=(), library=False):
        self.queued = []
        self.objects = {i: self._make(name) for i, name in objects.items()}
        self.current = self._make(current)
        monkeypatch.setattr(_compat, "object_of_graph", lambda i: self.objects[i])
        monkeypatch.setattr(ties_module, "ambient_stream", lambda device: self.current)
        monkeypatch.setattr(ties_module, "is_captured", lambda stream: stream.name in captured)
        monkeypatch.setattr(ties_module, "_library_ties", lambda *device: self if library else None)
        monkeypatch.setattr(ties_module, "_handle", lambda number, device: number)
        monkeypatch.setattr(ties_module, "_library_knot",
                            functools.lru_cache(ties_module._library_knot.__wrapped__))
        monkeypatch.setattr(_compat, "current_stream", lambda device: self.current.stream_id)
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: self.queued.append("host(*)"))


    def join(self, stream, others):
        self.queued.append(f"{chr(stream.value)} joined to {names(others)}")

    def fork(self, stream, others):
        self.queued.append(f"{names(others)} forked from {chr(stream.value)}")

    def _make(self, name):
        def queue(text):
            return lambda other: self.queued.append(text.format(name, other.name))

        return SimpleNamespace(
            name=name, device=torch.device("cuda", 0), device_type=1, device_index=0,
            stream_id=ord(name[0]),
            wait_stream=queue("{} waits for {}"), wait_event=queue("{} waits for {}"),
            record_event=queue("{} records {}"),
            synchronize=lambda: self.queued.append(f"host({name})"))

    def call(self, ties, *args):
        ties.around(lambda *args: self.queued.append("graph"))(*args)
        return self.queued


def names(addresses):
    return "".join(map(chr, struct.unpack(f"{len(addresses) // 8}Q", addresses)))


def made(**ties):
    return Ties(**{**ties, "streams": dict.fromkeys(ties.get("streams", ()))})


def test_a_graph_begins_behind_the_users_streams_and_they_go_on_behind_it(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A", 1: "B"})
    assert gpu.call(made(streams=[0, 1])) == [
        "D waits for A", "D waits for B", "graph", "A waits for D", "B waits for D"]


def test_events_are_awaited_before_and_recorded_behind_all_work(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A", 1: "e", 2: "f"})
    assert gpu.call(made(streams=[0], awaited={1: None}, recorded={2: 0})) == [
        "D waits for A", "D waits for e", "graph", "A waits for D", "D records f"]


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


def test_the_library_ties_the_streams_of_a_device_in_a_call_an_end(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A", 1: "D", 2: "B", 3: "e", 4: "f"}, library=True)
    ties = made(streams=[0, 1, 2], awaited={3: None}, recorded={4: 0}, barriers=[2])
    assert gpu.call(ties) == ["D joined to ADB", "D waits for e", "graph", "ADB forked from D",
                              "D records f", "host(D)"]


def test_each_device_has_ties_of_its_own(monkeypatch):
    gpu = Gpu(monkeypatch, {0: "A", 1: "B"}, library=True)
    gpu.objects[1].device_index = 1
    monkeypatch.setattr(_compat, "current_stream", lambda device: ord("DE"[device]))
    assert gpu.call(made(streams=[0, 1])) == [
        "D joined to A", "E joined to B", "graph", "A forked from D", "B forked from E"]


@pytest.mark.parametrize("library", [False, True])
def test_another_stream_at_the_same_place_of_the_table_is_noticed(monkeypatch, library):
    gpu = Gpu(monkeypatch, {0: "A"}, library=library)
    call = made(streams=[0]).around(lambda: None)
    call()
    before = list(gpu.queued)
    for name in ("B", "A"):
        gpu.objects[0] = gpu._make(name)
        gpu.queued.clear()
        call()
        assert gpu.queued == [text.replace("A", name) for text in before]


def test_the_ends_of_a_call_are_its_own_while_another_fills_the_table(monkeypatch):
    """A graph that is called inside, or by another thread meanwhile, has the table for itself."""
    gpu = Gpu(monkeypatch, {0: "A", 1: "e"}, library=True)
    inner = made(streams=[0]).around(lambda: gpu.queued.append("inner"))

    def call_another():
        gpu.objects = {0: gpu._make("B"), 1: gpu._make("f")}
        gpu.current = gpu._make("C")
        inner()
        gpu.current = gpu._make("D")

    made(streams=[0], recorded={1: 0}).around(call_another)()
    assert gpu.queued == ["D joined to A", "C joined to B", "inner", "B forked from C",
                          "A forked from D", "D records e"]


def test_without_a_driver_torch_ties_the_streams(monkeypatch):
    def no_driver(device):
        raise NativeError(305, "no driver")

    monkeypatch.setattr(ties_module, "capture_device", no_driver)
    assert ties_module._library_ties.__wrapped__(ties_module._CUDA, 0) is None


def test_streams_of_the_cpu_have_no_ties(monkeypatch):
    monkeypatch.setattr(_compat, "object_of_graph", {0: A, 1: EVENT, 2: B}.__getitem__)
    monkeypatch.setattr(ties_module, "_knot", lambda *device: pytest.fail("tied"))
    ties = made(streams=[0, 2], awaited={}, recorded={1: 0}, barriers=[2])
    assert ties.around(lambda x: x + 1)(1) == 2
