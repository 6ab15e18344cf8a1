# SPDX-License-Identifier: Apache-2.0
"""Further programs over streams that compilers have got wrong, as far as they mean something
without a GPU. Each docstring has the number on the page of streams that this project keeps.

Regions run as torch's own operators, as in test_random_streams, and each step is delayed by a seed.
Streams of a GPU are stood in for by ones that write down what is queued.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from compare import compiled
from stream_places import Program, compare_with_one_stream, host
from stream_reports import check_graphs
from test_random_streams import graphs  # noqa: F401
from test_user_streams import Gpu, made, traced

import anabranch
from anabranch import _compat
from anabranch._compile.graph import AMBIENT
from anabranch._compile.user_streams import extract
from anabranch._compile.user_streams import ties as ties_module
from anabranch._core.library import NativeError
from anabranch._core.program import (
    KIND_SYNCHRONIZE,
    READ,
    ROLE_CONSTANT,
    ROLE_OUTPUT,
    ROLE_TEMPORARY,
    WRITE,
    Plan,
    ProgramBuilder,
)

pytestmark = [pytest.mark.own, pytest.mark.oldest]

A, B = torch.Stream(device="cpu"), torch.Stream(device="cpu")
EVENT = torch.Event(device="cpu")
ROUNDS = 10


def same_as_eager(function, *, rounds=ROUNDS, gradients=False):
    """With named streams, which eager ignores: results, inputs afterwards and gradients."""
    call = compiled(function, options={"delay_seed": 11, "native_regions": False})
    for seed in range(rounds):
        program = Program(function, frozenset(), gradients)
        mine, theirs = program.inputs(seed), program.inputs(seed)
        found, wanted = call(*mine), function(*theirs)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


# ---- streams are objects


def test_a_stream_is_known_by_its_device_and_number(monkeypatch):
    """T11: a stream of the second GPU has the number of one of the first."""
    gpu = Gpu(monkeypatch, {0: "A", 1: "A"}, current="D")
    gpu.objects[1] = SimpleNamespace(**{**vars(gpu.objects[0]), "name": "A of cuda:1",
                                        "device": torch.device("cuda", 1), "device_index": 1})
    others = {0: gpu.current, 1: gpu._make("D of cuda:1")}
    monkeypatch.setattr(ties_module, "ambient_stream", lambda device: others[device.index])
    monkeypatch.setattr(gpu.objects[1], "wait_stream",
                        lambda other: gpu.queued.append(f"A of cuda:1 waits for {other.name}"))
    assert gpu.call(made(streams=[0, 1])) == [
        "D waits for A", "D of cuda:1 waits for A of cuda:1", "graph",
        "A waits for D", "A of cuda:1 waits for D of cuda:1"]


def test_two_streams_of_one_name_are_refused_and_not_made_one():
    """T11, in the core."""
    builder = ProgramBuilder()
    assert builder.add_stream("s") != builder.add_stream("s")
    with pytest.raises(NativeError, match="both named 's'"):
        builder.build()


def test_the_current_stream_is_that_of_the_call_and_not_of_the_trace(monkeypatch):
    """T12"""
    gpu = Gpu(monkeypatch, {0: "A", 1: "e"})
    ties = made(streams=[0], recorded={1: 0})
    gpu.call(ties)
    gpu.queued.clear()
    gpu.current = gpu._make("C")
    assert gpu.call(ties) == ["C waits for A", "graph", "A waits for C", "C records e"]
    gpu.queued.clear()
    gpu.current = gpu.objects[0]
    assert gpu.call(ties) == ["graph", "A records e"]


def test_an_event_is_awaited_behind_a_break():
    """T7: made inside, recorded in one part, awaited in the other. torch 2.11 makes a new event for
    the other part; the value is right all the same, since each part begins behind the one before.
    """
    seen = []

    def function(x):
        event = torch.Event(device="cpu")
        with A:
            heavy = x @ x
            event.record(A)
        torch._dynamo.graph_break()
        event.wait(B)
        with B:
            return heavy + 1

    def backend(gm, example_inputs):
        ties = extract.take_out(gm)
        events = [*ties.recorded, *ties.awaited] if ties else []

        def run(*args):
            seen.extend(map(_compat.object_of_graph, events))
            return gm.forward(*args)

        return run

    for _ in range(2):
        found = torch.compile(function, backend=backend)(torch.eye(3))
        assert torch.equal(found, torch.eye(3) + 1)
    assert len(seen) == 4 and seen[0] is not seen[2]
    if _compat.version >= (2, 15):
        assert seen[0] is seen[1] and seen[2] is seen[3]


def test_an_event_of_torch_cuda_is_recorded_itself():
    """T13"""
    event, found = torch.cuda.Event(), []

    def function(x):
        with A:
            x = x + 1
            event.record(A)
        return x

    def backend(gm, example_inputs):
        ties = extract.take_out(gm)
        found.extend(_compat.object_of_graph(number) for number in ties.recorded)
        return gm.forward

    torch.compile(function, backend=backend, fullgraph=True)(torch.ones(3))
    assert found == [event]


def test_numbers_of_streams_are_those_of_eager(graphs):  # noqa: F811
    """T14: a handle is a value of the run, whatever context it is asked in."""
    def function(x):
        with B:
            inside = A.stream_id
        return x + 1, inside, B.stream_id

    call = compiled(function, options={"native_regions": False})
    for _ in range(2):
        _, inside, other = call(torch.ones(3))
        assert (inside, other) == (A.stream_id, B.stream_id)


def test_a_hook_that_enters_a_stream_changes_nothing(graphs):  # noqa: F811
    """T16: a saved tensor is copied under a stream, in the backward too."""
    def pack(tensor):
        with A:
            return tensor.clone()

    def function(x, w):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            return (x @ w).relu() * x

    compare_with_one_stream(Program(function, frozenset(), True), host(), {"native_regions": False})


def test_no_stream_is_no_stream_or_refused_by_torch():
    """T17: a Dynamo that cannot trace it says so, and nothing runs wrongly in silence."""
    def function(x):
        with torch.cuda.stream(None):
            return x + 1

    try:
        found = compiled(function)(torch.ones(3))
    except torch._dynamo.exc.InternalTorchDynamoError as error:
        assert "ConstantVariable" in str(error)
    else:
        assert torch.equal(found, torch.full((3,), 2.0))


def test_streams_of_another_device_are_tied_to_its_current_one(monkeypatch):
    """T20: the device layer supplies the current stream of a device that torch has no name for."""
    gpu = Gpu(monkeypatch, {0: "A"})
    monkeypatch.undo()
    monkeypatch.setattr(_compat, "object_of_graph", gpu.objects.__getitem__)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: gpu.current)
    for stream in (gpu.objects[0], gpu.current):
        stream.device = torch.device("privateuseone", 0)
    assert gpu.call(made(streams=[0])) == ["D waits for A", "graph", "A waits for D"]


# ---- what a plan keeps


def test_each_operator_keeps_the_stream_that_it_was_written_under(graphs):  # noqa: F811
    """T22: as eager would launch them, in the forward and in the backward."""
    def function(x, w):
        with A:
            a = x @ w
        with B:
            b = torch.relu(x)
        return a + b

    ties, _ = traced(function, torch.ones(8, 8), torch.ones(8, 8))
    first, second = (f"stream {number}" for number in ties.streams)
    x, w = Program(function, frozenset(), True).inputs(0)
    compiled(function, options={"native_regions": False})(x, w).sum().backward()
    forward, backward = ({(node.target.name().split("::")[1].split(".")[0], stream)
                          for node, stream in graph.graph.streams.items()} for graph in graphs)
    assert {("mm", first), ("relu", second), ("add", AMBIENT)} <= forward
    assert ("mm", first) in backward and ("mm", second) not in backward


def test_a_plan_file_has_all_syncs_and_is_told_of_alike():
    """T23: what runs without Python is ordered alike."""
    def function(x, A, B, D, E):
        A.wait_stream(D)
        with A:
            a = x + 1
            E.record(A)
        E.wait(B)
        with B:
            b = a * 2
        A.synchronize()
        return b

    place = host()
    program = Program(function, frozenset(), False)
    found = []
    make = ProgramBuilder.build
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgramBuilder, "build",
                      lambda self: found.append(make(self)) or found[-1])
        check_graphs(program.at(place), program.inputs(0), place)
    given = found[0]
    read = Plan.from_bytes(given.make_plan().to_bytes()).program

    def steps(program):
        return [(s.kind, s.stream, s.name, s.event, s.access_count) for s in program.steps]

    assert KIND_SYNCHRONIZE in {kind for kind, *_ in steps(read)}
    assert steps(read) == steps(given) and read.origins == given.origins
    assert read.find_reports() == given.find_reports() != []


def test_what_is_allocated_aside_lies_in_the_arena_and_all_streams_end_joined(graphs):  # noqa: F811
    """T19"""
    def function(x, w):
        EVENT.record(B)
        EVENT.wait(A)
        with A:
            ones = torch.ones(8, 8) + x
            a = ones @ w
            EVENT.record(A)
        with B:
            other = torch.full((8, 8), 3.0) - x
            b = other @ w
        return a * b

    call = compiled(function, options={"native_regions": False, "delay_seed": 1})
    x, w = Program(function, frozenset(), False).inputs(3)
    found = call(x, w)
    assert torch.equal(found, ((x + 1) @ w) * ((3 - x) @ w))
    plan = graphs[0].last.plan
    program = plan.program
    steps, roles = program.steps, [buffer.role for buffer in program.buffers]
    inner = [i for i, role in enumerate(roles) if role == ROLE_TEMPORARY]
    assert inner and all(plan.offset(i) < plan.arena_bytes for i in inner)
    awaited = {on for _, on in plan.waits} | set(plan.exits)
    last = {step.stream: i for i, step in enumerate(steps)}
    assert {i for stream, i in last.items() if stream} <= awaited


# ---- what a backend derives


def test_an_input_is_right_on_a_stream_that_does_not_wait_for_it(graphs):  # noqa: F811
    """T24"""
    def function(x, w, A):
        with A:
            return (x @ w) - 1

    compare_with_one_stream(Program(function, frozenset(), True), host(), {"native_regions": False,
                                                                           "delay_seed": 2})


def test_memory_of_the_forward_goes_on_behind_all_its_readers(graphs):  # noqa: F811
    """T28: out of scope while slow streams still read; the arena is smaller than all it holds."""
    def function(x, w):
        total = x
        for _ in range(4):
            t = total * 2
            with anabranch.stream("slow"):
                a = (t @ w).remainder(5)
            with anabranch.stream("fast"):
                b = t.remainder(3)
            home = (t + 1).remainder(7)
            del t
            total = a + b - home
        return total

    with torch.no_grad():
        same_as_eager(function)
    plan = graphs[0].last.plan
    assert plan.arena_bytes < plan.arena_naive_bytes


def test_home_does_not_wait_for_a_slow_reader_before_it_needs_the_bytes():
    """T29"""
    builder = ProgramBuilder()
    slow = builder.add_stream("slow")
    t = builder.add_buffer("t", ROLE_TEMPORARY, 1 << 20)
    read = builder.add_buffer("read", ROLE_OUTPUT, 64)
    made_ = [builder.add_buffer(f"y{i}", ROLE_OUTPUT, 64) for i in range(8)]
    builder.compute(0, "make", [(WRITE, t)])
    reader = builder.compute(slow, "read", [(READ, t), (WRITE, read)])
    for buffer in made_:
        builder.compute(0, "work", [(WRITE, buffer)])
    again = builder.compute(0, "again", [(WRITE, t)])
    waits = builder.build().make_plan().waits
    assert [step for step, on in waits if on == reader] == [again]


@pytest.mark.parametrize("seed", range(3))
def test_gradients_come_in_and_go_out_on_any_stream(graphs, seed):  # noqa: F811
    """T30, T31: what comes in is made by other compiled code, what goes out is read at once."""
    def function(x, w):
        with A:
            return torch.relu(x @ w)

    def head(h):
        with B:
            return (h * h).sum()

    options = {"native_regions": False, "delay_seed": seed}
    inner, outer = compiled(function, options=options), compiled(head, options=options)
    program = Program(function, frozenset(), True)
    for number in range(ROUNDS):
        mine, theirs = program.inputs(number), program.inputs(number)
        outer(inner(*mine)).backward()
        (torch.relu(theirs[0] @ theirs[1]) ** 2).sum().backward()
        for one, other in zip(mine, theirs, strict=True):
            assert torch.equal(one.grad, other.grad)


def t34_weights_are_copied_out_behind_their_update(x, w):
    w.add_(x)
    with anabranch.stream("copy"):
        copied = w.double()
    return copied


def t35_a_reloaded_buffer_lives_until_its_last_use(x, y):
    with anabranch.stream("copy"):
        t = (y + 1).relu()
    used = t @ x
    del t
    with anabranch.stream("copy"):
        other = (y * 3).relu()  # as large
    return used @ x, other @ y


def t36_a_buffer_is_reloaded_behind_those_that_read_it(x, y):
    used = x @ y
    with anabranch.stream("copy"):
        x.copy_(y * 2)
    return used + x


def t37_moved_weights_are_dropped_behind_their_use(x, w):
    total = x
    for turn in range(3):
        with anabranch.stream("copy"):
            moved = (w + turn).remainder(4)
        total = (total @ moved).remainder(5)
    return total


def t38_each_load_is_joined_both_ways(x, y, w):
    found = []
    for factor in (2, 3):
        with anabranch.stream("copy"):
            w.copy_(y * factor)
        found.append(x @ w)
    return found[0] - found[1]


@pytest.mark.parametrize("function", [
    t34_weights_are_copied_out_behind_their_update, t35_a_reloaded_buffer_lives_until_its_last_use,
    t36_a_buffer_is_reloaded_behind_those_that_read_it,
    t37_moved_weights_are_dropped_behind_their_use, t38_each_load_is_joined_both_ways],
    ids=lambda function: function.__name__)
def test_moves_of_weights_need_no_sync_on_named_streams(function, graphs):  # noqa: F811
    """T34 to T38"""
    same_as_eager(function)
    assert {step.stream for step in graphs[0].last.program.steps} == {0, 1}


def test_chains_that_share_nothing_wait_for_nothing():
    """T39: a plan has the order of streams, and none of how they were written among each other."""
    builder = ProgramBuilder()
    streams = [builder.add_stream(name) for name in ("compute", "communicate")]
    x = builder.add_buffer("x", ROLE_CONSTANT, 64)
    latest = [x, x]
    for turn in range(5):
        for i, stream in enumerate(streams):
            role = ROLE_OUTPUT if turn == 4 else ROLE_TEMPORARY
            new = builder.add_buffer(f"{i} {turn}", role, 64)
            builder.compute(stream, "f", [(READ, latest[i]), (WRITE, new)])
            latest[i] = new
    plan = builder.build().make_plan()
    assert plan.waits == [] and sorted(plan.exits) == [8, 9]


def test_a_start_keeps_its_place_before_work_that_is_written_behind_it():
    """T40"""
    builder = ProgramBuilder()
    communicate = builder.add_stream("communicate")
    x, w = (builder.add_buffer(name, ROLE_CONSTANT, 64) for name in "xw")
    reduced, product, y = (builder.add_buffer(name, ROLE_OUTPUT, 64)
                           for name in ("reduced", "product", "y"))
    start = builder.compute(communicate, "all_reduce", [(READ, x),
                                                        (WRITE, reduced)])
    gemm = builder.compute(0, "gemm", [(READ, w), (WRITE, product)])
    use = builder.compute(0, "use", [(READ, reduced), (READ, product),
                                     (WRITE, y)])
    plan = builder.build().make_plan()
    assert plan.order == [start, gemm, use] and plan.waits == [(use, start)]
