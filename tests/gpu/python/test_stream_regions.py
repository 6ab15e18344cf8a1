# SPDX-License-Identifier: Apache-2.0
"""Graphs of several streams without a recording: their regions run on streams of the GPU.

Streams are late where that may matter, and what is let go is overwritten at once by whatever is
allocated next. Numbers of random programs are small integers, so that eager's bits are asked for;
models are compared within rounding, since regions are fused otherwise than the whole.
"""

from __future__ import annotations

import concurrent.futures
import functools
import gc

import pytest
import torch
import torch.nn.functional as F
from compare import Tolerance, assert_same, compiled
from random_streams import Writer, function_of, inputs, seed_parts
from recordings import assert_follows, assert_launched, normal
from stream_places import compare_with_one_stream, gpu
from stream_programs import PROGRAMS
from stream_runs import SLOW, shown
from torch import nn
from zoo import Towers

import anabranch
from anabranch._compile.cuda_streams import instance

PLAIN = {"record": False, "strict": True}
CALLS = 5
RANDOM, AT_A_TIME = 20, 5
ROUNDING = Tolerance(1e-4, 1e-4)


@torch.library.custom_op("anabranch_regions::late", mutates_args=())
def late(x: torch.Tensor) -> torch.Tensor:
    """A copy, after some tenths of a millisecond."""
    torch.cuda._sleep(1_000_000)
    return x.clone()


@late.register_fake
def _(x):
    return torch.empty_like(x)


SEEN = []


@torch.library.custom_op("anabranch_regions::seen", mutates_args=())
def seen(x: torch.Tensor) -> torch.Tensor:
    """A copy; the stream and its priority are noted. Raises where it is told to."""
    if SEEN == ["raise"]:
        raise ZeroDivisionError("the region was told to fail")
    stream = torch.cuda.current_stream()
    SEEN.append((stream.cuda_stream, stream.priority))
    return x.clone()


@seen.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def nothing_seen():
    SEEN.clear()


def make_side_streams_late():
    for stream in list(instance._side_streams.values()):
        with torch.cuda.stream(stream):
            SLOW()


def overwrite_what_is_free(shape, dtype=torch.float32):
    """On the current stream and on those that regions have used."""
    for stream in (torch.cuda.current_stream(), *instance._side_streams.values()):
        with torch.cuda.stream(stream):
            blocks = [torch.empty(shape, device="cuda", dtype=dtype) for _ in range(8)]
            for block in blocks:
                block.fill_(77)


def is_split(call, *given):
    found = anabranch.explain(call, *given)
    assert found.graphs, found
    assert all(graph.streamed is not None for graph in found.graphs), found
    return str(found)


def integers(seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-2, 3, (64, 64), device="cuda", generator=generator).float()


# ---- against eager


def test_a_model_forward_and_backward():
    model = Towers(True, 64).to("cuda")
    call = compiled(model, options=PLAIN)
    for seed in range(CALLS):
        x, other = (normal(seed, 32, 64).requires_grad_() for _ in range(2))
        make_side_streams_late()
        found = observe_on_gpu(call, model, x)
        assert_same(found, observe_on_gpu(model, model, other), ROUNDING)
    text = is_split(lambda x: call(x).sum().backward(), x)
    assert "on the caller's stream and a, b" in text, text
    assert text.count("graph ") == 2


def observe_on_gpu(call, model, x):
    """Answer and gradients; what they were computed from is let go and overwritten meanwhile."""
    model.zero_grad(set_to_none=True)
    answer = call(x)
    overwrite_what_is_free(answer.shape)
    (answer * torch.linspace(-1, 1, answer.shape[-1], device="cuda")).sum().backward()
    overwrite_what_is_free(answer.shape)
    seen = {"answer": answer.detach(), "x": x.grad}
    return seen | {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seed_parts(RANDOM, AT_A_TIME), ids=str)
def test_random_programs_give_the_bits_of_one_stream(seeds):
    for seed in seeds:
        text = Writer(seed).text()
        function = function_of(text, f"program {seed}")
        call = compiled(function, options=PLAIN)
        make = functools.partial(inputs, device="cuda")
        pairs = []
        for i in range(CALLS):
            given, others = make(CALLS * seed + i), make(CALLS * seed + i)
            make_side_streams_late()
            with torch.no_grad():
                found = [*call(*given), *given]
            found = [tensor.clone() for tensor in found]
            overwrite_what_is_free((4, 4), found[0].dtype)
            pairs.append((found, [*function(*others), *others]))
        with shown(text):
            for found, wanted in pairs:
                assert all(map(torch.equal, found, wanted))
        torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_programs_over_torchs_streams(program):
    compare_with_one_stream(program, gpu(), {"record": False})


def test_random_numbers_are_those_of_one_stream():
    def dropouts(x):
        with anabranch.stream("a"):
            a = F.dropout(x, 0.5) @ x
        with anabranch.stream("b"):
            b = F.dropout(x, 0.25) @ x
        return F.dropout(a, 0.5), b

    x = integers(0)
    answers = []
    for options in (PLAIN, {"record": False, "streams": False}):
        call = compiled(dropouts, options=options)
        torch.manual_seed(5)
        answers.append([tensor for _ in range(CALLS) for tensor in call(x)])
        torch.compiler.reset()
    for found, wanted in zip(*answers, strict=True):
        assert torch.equal(found == 0, wanted == 0)
        torch.testing.assert_close(found, wanted)
    assert not torch.equal(answers[0][0], answers[0][2])


def test_sizes_may_change():
    def sides(x):
        with anabranch.stream("a"):
            a = x.relu() @ x.t()
        return a + (x @ x.t()).sum()

    call = compiled(sides, options=PLAIN, dynamic=True)
    for rows in (8, 16, 24, 8):
        x = torch.randint(-2, 3, (rows, 32), device="cuda").float()
        assert torch.equal(call(x), sides(x))


def test_a_number_of_the_host_may_be_an_input():
    def sides(x, scale):
        with anabranch.stream("a"):
            a = late(x) * scale
        return a + (x @ x)

    call = compiled(sides, options=PLAIN)
    for seed in range(CALLS):
        x = integers(seed)
        assert torch.equal(call(x, torch.tensor(2.0 + seed)), sides(x, torch.tensor(2.0 + seed)))
    is_split(call, x, torch.tensor(1.0))


# ---- order and memory


def late_sides(x, y):
    with anabranch.stream("late"):
        a = late(x) * 2
        y.add_(a)
    with anabranch.stream("other"):
        b = (late(a) - 1) @ x
    return a, b, (a + b) @ x, x @ x


def test_what_a_late_stream_reads_and_makes_is_there():
    call = compiled(late_sides, options=PLAIN)
    pairs = []
    for seed in range(2 * CALLS):
        given, others = ([integers(2 * seed), integers(2 * seed + 1)] for _ in range(2))
        found = [tensor.clone() for tensor in (*call(*given), given[1])]
        del given
        overwrite_what_is_free((64, 64))
        pairs.append((found, [*late_sides(*others), others[1]]))
    for found, wanted in pairs:
        for tensor, other in zip(found, wanted, strict=True):
            assert torch.equal(tensor, other)
    assert is_split(call, *others).count("waits for") >= 2


def test_memory_does_not_grow():
    model = Towers(True, 256).to("cuda")
    call = compiled(model, options=PLAIN)

    def step(seed):
        x = normal(seed, 512, 256).requires_grad_()
        model.zero_grad(set_to_none=True)
        call(x).sum().backward()

    def used():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    for i in range(200):
        step(i)
        if i == 20:
            before = used()
        torch.cuda.synchronize()
    allocated, reserved = used()
    assert allocated == before[0]
    assert reserved <= before[1] + (32 << 20)  # a segment of the allocator's, not half a MiB a call


def test_threads_on_one_stream_and_on_their_own():
    call = compiled(late_sides, options=PLAIN)

    def given(seed):
        return integers(2 * seed), integers(2 * seed + 1)

    def task(stream, seeds):
        with torch.cuda.stream(stream):
            found = []
            for seed in seeds:
                x, y = given(seed)
                found.append([tensor.clone() for tensor in (*call(x, y), y)])
            stream.synchronize()
            return found

    current = torch.cuda.current_stream()
    call(*given(0))
    streams = [current, current, torch.cuda.Stream(), torch.cuda.Stream()]
    ranges = [range(10 * i, 10 * (i + 1)) for i in range(len(streams))]
    with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
        answers = list(pool.map(task, streams, ranges))
    for found, seeds in zip(answers, ranges, strict=True):
        for tensors, seed in zip(found, seeds, strict=True):
            x, y = given(seed)
            assert all(map(torch.equal, tensors, [*late_sides(x, y), y]))


def failing_sides(x, y):
    with anabranch.stream("late"):
        y.add_(late(x))
    with anabranch.stream("fails"):
        a = seen(x + 1)
    return a + y


def test_a_failing_region_joins_the_others():
    call = compiled(failing_sides, options=PLAIN)
    x, y = torch.ones(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    for _ in range(CALLS):
        call(x, y)
        SEEN[:] = ["raise"]
        before, current = y.clone(), torch.cuda.current_stream()
        with pytest.raises(ZeroDivisionError):
            call(x, y)
        SEEN.clear()
        assert torch.cuda.current_stream() == current
        changed = y.clone()  # behind the late write, if it was queued
        overwrite_what_is_free((64, 64))
        assert torch.equal(changed, before + 1) or torch.equal(changed, before)
        torch.cuda.synchronize()
        assert torch.equal(changed, y)


# ---- streams


def test_streams_have_the_priorities_that_were_asked_for():
    least, greatest = torch.cuda.Stream.priority_range()

    def sides(x):
        with anabranch.stream("most", priority=-100):
            a = seen(x) * 2
        with anabranch.stream("more", priority=-1):
            b = seen(x + 1) * 3
        with anabranch.stream("least", priority=100):
            c = seen(x + 2) * 4
        return a + b + c

    call = compiled(sides, options=PLAIN)
    x = torch.ones(64, device="cuda")
    current = torch.cuda.current_stream().cuda_stream
    for _ in range(CALLS):
        SEEN.clear()
        assert torch.equal(call(x), x * 9 + 11)
        assert sorted(priority for _, priority in SEEN) == sorted([greatest, -1, least])
        streams = {stream for stream, _ in SEEN}
        assert len(streams) == 3 and current not in streams
    assert "more of priority -1" in is_split(call, x)


def test_a_call_can_be_captured():
    model = Towers(True, 64).to("cuda")
    call = compiled(model, options=PLAIN)
    x = normal(0, 32, 64)
    with torch.no_grad():
        for _ in range(3):
            call(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first = call(x)
            second = call(first)
        for seed in range(CALLS):
            x.copy_(normal(seed, 32, 64))
            graph.replay()
            torch.testing.assert_close(first, model(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(second, model(model(x)), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_recorded_step_may_have_such_calls():
    model = Towers(True, 64).to("cuda")
    call = compiled(model, options=PLAIN)
    with torch.no_grad():
        call(normal(0, 32, 64))
        step = assert_follows(lambda x: call(x) * 2, lambda seed: (normal(seed, 32, 64),))
    assert_launched(step)


def urgent_sides(x):
    with anabranch.stream("urgent", priority=-1):
        a = seen(x) * 2
    with anabranch.stream("other"):
        b = seen(x + 1) @ x
    return a + b


def test_a_recording_of_streams_with_priorities_is_captured_on_them():
    call = compiled(urgent_sides, options={"strict": True})
    for seed in range(2 * CALLS):
        found, x = call(integers(seed)), integers(seed)
        assert torch.equal(found, x * 2 + (x + 1) @ x)
    assert {priority for _, priority in SEEN} == {-1, 0}
    explanation = anabranch.explain(call, integers(0))
    [graph] = explanation.graphs
    assert graph.streamed is not None and graph.unrecorded is None, explanation
    assert any(report.launched for report in graph.recordings), explanation
    assert "urgent of priority -1" in str(explanation), explanation


def test_without_priorities_a_recording_is_of_the_whole_graph():
    call = compiled(lambda x: late_sides(x, x.clone()), options={"strict": True})
    for seed in range(CALLS):
        call(integers(seed))
    [graph] = anabranch.explain(call, integers(0)).graphs
    assert graph.streamed is None and graph.recordings


class SavesForTheBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        with anabranch.stream("left"):
            left = torch.tanh(self.left(late(x)))
        with anabranch.stream("right"):
            right = torch.sigmoid(self.right(x))
        return left * right


late.register_autograd(lambda context, gradient: late(gradient))


def test_the_backward_runs_on_the_stream_of_its_forward():
    model = SavesForTheBackward().to("cuda")
    call = compiled(model, options=PLAIN)
    for seed in range(CALLS):
        own = torch.cuda.Stream()
        with torch.cuda.stream(own):
            x, other = (normal(seed, 32, 64).requires_grad_() for _ in range(2))
            found = observe_on_gpu(call, model, x)
            wanted = observe_on_gpu(model, model, other)
        torch.cuda.current_stream().wait_stream(own)
        assert_same(found, wanted, ROUNDING)
        own.synchronize()
