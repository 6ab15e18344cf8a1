# SPDX-License-Identifier: Apache-2.0
"""Collectives in compiled code on the CPU: they run beside what does not need them, and all
processes begin them in one order. And `anabranch.overlap`, by which they are asked to.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from compare import compiled
from processes import run_processes
from torch.testing._internal.distributed.fake_pg import FakeStore

import anabranch

pytestmark = pytest.mark.own
RANKS = 2
WIDTH = 8


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.oldest
def test_steps_with_collectives_answer_what_eager_does(ranks, tmp_path):
    run_processes("collective_steps.py", ranks, tmp_path / "store")


# What becomes of a graph needs no second process.


@pytest.fixture
def group():
    """Of two, of which the other is made up: nothing is moved."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield dist.group.WORLD
    dist.destroy_process_group()


def gathered(shard):
    return collectives.all_gather_tensor(shard, 0, dist.group.WORLD)


def layers(x, *shards):
    for shard in shards:
        x = torch.tanh(x @ gathered(shard))
    return x


def overlapped(x, *shards):
    with anabranch.overlap():
        return layers(x, *shards)


def inputs(count=3, train=False):
    shards = [torch.randn(WIDTH // RANKS, WIDTH, requires_grad=train) for _ in range(count)]
    return torch.randn(4, WIDTH), *shards


def graphs_of(function, *args):
    call = torch.compile(function, backend=anabranch.backend, fullgraph=True, dynamic=False)
    return anabranch.explain(call, *args)


def plan_of(graph):
    return graph.streamed.last.plan


def streams_of(graph):
    return [region.stream for region in graph.streamed.last.graph.regions()] \
        if graph.streamed else []


def test_without_overlap_a_graph_with_collectives_is_inductors(group):
    (graph,) = graphs_of(layers, *inputs()).graphs
    assert graph.reason is None and not streams_of(graph)


def test_with_overlap_each_gather_is_a_region_before_the_layer_that_reads_it(group):
    (graph,) = graphs_of(overlapped, *inputs()).graphs
    assert sorted(streams_of(graph)) == ["ambient"] * 3 + ["communication"] * 3, graph.reason
    # A gather waits for nothing, and each layer for its own.
    assert len(plan_of(graph).waits) == 3


def test_the_backward_scatters_beside_what_it_needs_not(group):
    def step(x, *shards):
        with anabranch.overlap(lanes=2):
            for shard in shards:
                weight = collectives.all_gather_tensor_autograd(shard, 0, dist.group.WORLD)
                x = torch.tanh(x @ weight)
        return x

    call = torch.compile(step, backend=anabranch.backend, fullgraph=True, dynamic=False)
    args = inputs(train=True)
    graphs = anabranch.explain(lambda: call(*args).sum().backward()).graphs
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    for graph in graphs:
        assert "communication" in streams_of(graph), graph.reason


def test_collectives_keep_their_order_whatever_stream_they_are_written_on(group):
    def step(x, *shards):
        for i, shard in enumerate(shards):
            with anabranch.stream(f"side {i % 2}"):
                weight = gathered(shard)
            x = torch.tanh(x @ weight)
        return x

    (graph,) = graphs_of(step, *inputs(4)).graphs
    begun = [node.args[0].name for region in graph.streamed.last.graph.regions()
             for node in region.nodes if "all_gather" in str(node.target)]
    assert streams_of(graph).count("communication") == 4 and begun == sorted(begun, key=len)
    assert set(streams_of(graph)) == {"ambient", "communication"}


def test_a_collective_begins_before_work_written_behind_it(group):
    """And the wait for it, though written before that work as well, is the reader's."""
    def step(x, shard):
        with anabranch.overlap():
            weight = gathered(shard)
            y = x @ x.T
            return torch.tanh(y @ x @ weight), y

    (graph,) = graphs_of(step, *inputs(1)).graphs
    assert streams_of(graph) == ["communication", "ambient", "ambient"]
    assert plan_of(graph).waits == [(2, 0)]


def test_a_collective_and_what_waits_for_it_are_one_region(group):
    """Also where other collectives begin in between."""
    def step(x, *shards):
        with anabranch.overlap():
            weights = [torch.ops._c10d_functional.all_gather_into_tensor(
                shard, RANKS, dist.group.WORLD.group_name) for shard in shards]
            for weight in weights:
                x = torch.tanh(x @ torch.ops._c10d_functional.wait_tensor(weight))
            return x

    (graph,) = graphs_of(step, *inputs()).graphs
    for region in graph.streamed.last.graph.regions():
        begun = {node for node in region.nodes if "all_gather" in str(node.target)}
        waits = {node.args[0] for node in region.nodes if "wait_tensor" in str(node.target)}
        assert begun == waits


@pytest.mark.parametrize("step", [
    lambda x: torch.ops._c10d_functional.wait_tensor(x) + 1,
    lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", dist.group.WORLD.group_name)],
    ids=["a wait for another graph's", "one that nothing waits for"])
def test_a_collective_that_crosses_the_graphs_border_is_left_to_inductor(group, step):
    def with_streams(x):
        with anabranch.stream("side"):
            y = torch.tanh(x @ x)
        return step(x), y

    (graph,) = graphs_of(with_streams, torch.randn(4, 4)).graphs
    assert graph.streamed is None and "waits for" in graph.reason


# anabranch.overlap itself.


def test_overlap_does_nothing_in_eager_and_under_other_compilers():
    def step(x):
        with anabranch.overlap(lanes=3):
            return x * 2

    x = torch.randn(4)
    assert torch.equal(step(x), x * 2)
    assert torch.equal(torch.compile(step, backend="aot_eager", fullgraph=True)(x), x * 2)


@pytest.mark.oldest
def test_overlap_without_collectives_leaves_a_graph_on_the_cpu_as_it_is():
    def step(x):
        with anabranch.overlap(lanes=3):
            return (x @ x).sin()

    x = torch.randn(4, 4)
    call = compiled(step, options={"strict": True})
    torch.testing.assert_close(call(x), step(x))
    (graph,) = anabranch.explain(call, x).graphs
    assert graph.streamed is None and graph.reason is None


def test_what_parts_of_a_graph_ask_for_is_how_many_lanes_its_recording_has():
    from anabranch import config
    from anabranch._compile import backend
    from anabranch._compile.asked import AskedStreams

    lanes = []

    def note(gm, inputs):
        lanes.extend(
            (backend._asked_lanes(chosen, asked),
             backend._lanes(chosen, backend._asked_lanes(chosen, asked)))
            for overlap in (1, 4) for streams in (True, False)
            for chosen in [config.resolve({"max_parallel_kernels": overlap, "streams": streams})]
            for asked in [AskedStreams(gm)])
        return gm

    def step(x):
        with anabranch.overlap(lanes=2):
            x = x * 2
        with anabranch.overlap(lanes=3), anabranch.stream("side"):
            return x + 1

    torch.compile(step, backend=note, fullgraph=True)(torch.randn(4))
    assert lanes == [(3, 3), (1, 1), (3, 4), (1, 4)]


@pytest.mark.parametrize("lanes", [1, 0, -2, True, 2.0, "4", None], ids=repr)
@pytest.mark.oldest
def test_lanes_that_are_none_are_refused(lanes):
    with pytest.raises(anabranch.errors.CompileError, match="E0601") as caught:
        anabranch.overlap(lanes=lanes)
    assert repr(lanes) in str(caught.value)


def test_lanes_that_are_none_are_refused_when_compiled():
    def step(x):
        with anabranch.overlap(lanes=1):
            return x + 1

    with pytest.raises(anabranch.errors.CompileError, match="E0601"):
        compiled(step)(torch.randn(3))
