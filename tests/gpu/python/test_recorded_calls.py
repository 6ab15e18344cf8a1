# SPDX-License-Identifier: Apache-2.0
"""Who calls, from where, and what happens to a step that cannot be recorded."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from recordings import (
    CALLS,
    DEVICE,
    assert_follows,
    assert_launched,
    assert_plain,
    launches,
    normal,
    told,
)
from torch import nn

import anabranch
from anabranch._record import recorder
from anabranch.errors import RecordError

LONG_WAIT_S = 20  # for another thread, which answers at once where all is well
SLEEP_CYCLES = 20_000_000  # some ten milliseconds of the GPU


def affine(x, w):
    return torch.relu(x @ w * 2 + 1)


def pair(seed, rows=64):
    return normal(seed, rows, 64), normal(seed + 500, 64, 64)


def capturing():
    """By another name than that at which a step is told that nothing is captured."""
    return torch.cuda.graphs.is_current_stream_capturing()


# Threads.


def follow_on_a_stream(step, function, inputs, calls):
    """Calls both on a stream of this thread's own; answers pairs to compare later."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pairs = []
        for i in range(calls):
            given = inputs(i)
            pairs.append((step(*given), function(*given)))
    stream.synchronize()
    return pairs


@pytest.mark.parametrize("recorded_before", [True, False], ids=["recorded", "new"])
def test_two_threads_on_streams_of_their_own_call_one_recording(recorded_before):
    step = anabranch.record(affine)
    if recorded_before:
        for seed in range(3):
            step(*pair(seed))
        torch.cuda.synchronize()
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(follow_on_a_stream, step, affine,
                               lambda i, first=first: pair(first + i), 60)
                   for first in (1000, 2000)]
        pairs = [pair for each in running for pair in each.result()]
    assert all(torch.equal(found, wanted) for found, wanted in pairs)
    assert_launched(step, 100)


@pytest.mark.parametrize("rows", [8, 12], ids=["a launch", "a first call"])
def test_a_call_sees_the_real_parameters_while_another_thread_records(rows):
    """Captures put stand-ins in the place of a step's parameters; another thread's call must not
    be given one, nor become part of the capture. It may wait for the capture's end, or not."""
    model = nn.Linear(16, 16).to(DEVICE)
    begun, called = threading.Event(), threading.Event()

    @anabranch.record
    def step(x):
        with torch.no_grad():
            if x.shape[0] == 32 and capturing():
                begun.set()
                called.wait(1)
            return model(x)

    small, other, large = normal(0, 8, 16), normal(1, rows, 16), normal(2, 32, 16)
    with torch.no_grad():
        wanted_other, wanted_large = model(other), model(large)
    for _ in range(4):
        step(small)
    torch.cuda.synchronize()

    def call():
        assert begun.wait(LONG_WAIT_S)
        with torch.cuda.stream(torch.cuda.Stream()):
            found = step(other)
            called.set()
            torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call)
        found_large = [step(large) for _ in range(4)]
        found_other = calling.result()
    assert torch.equal(found_other, wanted_other), told(step)
    assert all(torch.equal(found, wanted_large) for found in found_large), told(step)
    assert_launched(step, 2)


# Streams.


def test_a_call_on_a_side_stream_follows_the_users_waits():
    step = anabranch.record(affine)
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    for seed in range(CALLS):
        x, w = (torch.full((64, 64), float("nan"), device=DEVICE) for _ in range(2))
        given = pair(seed)
        torch.cuda._sleep(SLEEP_CYCLES)
        x.copy_(given[0])
        w.copy_(given[1])
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = step(x, w)
            torch.cuda._sleep(SLEEP_CYCLES)
            last = found + 0
        main.wait_stream(side)
        assert torch.equal(last, affine(*given))
        for tensor in (x, w, found, last):
            tensor.record_stream(side)
    assert_launched(step)


@pytest.mark.parametrize("before", range(5))
def test_a_stream_that_a_step_makes_may_be_the_one_of_captures(before):
    """Torch has 32 and gives them out in turn: so many are made before that one."""
    ours = recorder.capture_stream(0)
    while torch.cuda.Stream() != ours:
        pass
    for _ in range(31 - before):
        torch.cuda.Stream()

    def forked(x):
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            y = x @ x
        z = x + 1
        current.wait_stream(side)
        y.record_stream(current)
        return y + z

    assert_launched(assert_follows(forked, lambda seed: (normal(seed, 64, 64),)))


def test_launches_of_one_recording_on_two_streams_at_once_do_not_meet():
    step = anabranch.record(affine)
    for seed in range(3):
        step(*pair(seed))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3)]
    given = [pair(seed) for seed in range(60)]
    wanted = [affine(*each) for each in given]
    torch.cuda.synchronize()
    found = []
    for i, each in enumerate(given):
        with torch.cuda.stream(streams[i % 3]):
            if i % 3 == 0:
                torch.cuda._sleep(SLEEP_CYCLES // 100)  # so that they overlap
            found.append(step(*each))
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, wanted))
    assert_launched(step, 60)


def test_a_call_leaves_the_current_stream_as_it_was():
    step = anabranch.record(affine)
    side = torch.cuda.Stream()
    for seed in range(4):
        with torch.cuda.stream(side):
            step(*pair(seed))
            assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.cuda.synchronize()


@pytest.mark.parametrize("calls_before", [0, 1, 3], ids=["new", "called once", "recorded"])
def test_a_call_inside_a_capture_of_the_users_becomes_part_of_that_graph(calls_before):
    step = anabranch.record(lambda x: torch.relu(x * 2 + 1).cumsum(0))
    x = normal(0, 32, 32)
    for _ in range(calls_before):
        step(x)
    count = launches(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step(x)
    for seed in range(1, 4):
        x.copy_(normal(seed, 32, 32))
        graph.replay()
        assert torch.equal(y, torch.relu(x * 2 + 1).cumsum(0))
    assert launches(step) == count, told(step)
    for seed in range(4):  # and outside of it the step is recorded as ever
        x = normal(seed, 32, 32)
        assert torch.equal(step(x), torch.relu(x * 2 + 1).cumsum(0))
    assert_launched(step, 2)


# What cannot be recorded.


def assert_torch_is_usable():
    """Allocator, generator, streams and captures of the process work as before."""
    assert not capturing()
    state = torch.cuda.get_rng_state()
    first = torch.rand(1000, device=DEVICE)
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(1000, device=DEVICE))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert (first @ first).item() > 0
    gc.collect()  # what exceptions held may go at any time
    before = torch.cuda.memory_allocated()
    large = torch.empty(1 << 22, dtype=torch.uint8, device=DEVICE).fill_(7)
    assert int(large.max()) == 7
    del large
    assert torch.cuda.memory_allocated() == before
    graph, x = torch.cuda.CUDAGraph(), torch.ones(8, device=DEVICE)
    with torch.cuda.graph(graph):
        y = F.dropout(x, 0.5) * 0 + x * 3
    graph.replay()
    assert y.tolist() == [3.0] * 8


def asks_for_a_value(x):
    return x * x.sum().item()


def prints_a_value(x):
    assert str(x)
    return x * 2


def branches_on_a_value(x):
    return x * 2 if x.sum() > 0 else x * 3


def copies_to_the_host(x):
    x.cpu()
    return x * 2


def has_a_shape_that_depends_on_values(x):
    return x[x > 0] * 2


def waits_for_the_device(x):
    y = x * 2
    torch.cuda.synchronize()
    return y


def forks_a_stream_that_never_joins(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x * 3
    return x * 2


CANNOT = [asks_for_a_value, prints_a_value, branches_on_a_value, copies_to_the_host,
          has_a_shape_that_depends_on_values, waits_for_the_device,
          forks_a_stream_that_never_joins]


@pytest.mark.parametrize("function", CANNOT, ids=lambda function: function.__name__)
def test_a_step_that_no_capture_takes_runs_plainly_with_the_reason(function):
    step = anabranch.record(function)
    with pytest.warns(anabranch.RecordWarning) as warned:
        for seed in range(4):
            x = normal(seed, 50)
            found, wanted = step(x), function(x)
            for a, b in zip(*(each if isinstance(each, tuple) else (each,)
                              for each in (found, wanted)), strict=True):
                assert torch.equal(a, b)
    assert_plain(step, "while it was captured")
    assert len([one for one in warned if "runs unrecorded" in str(one.message)]) == 1
    assert_torch_is_usable()


def test_an_answer_on_the_cpu_runs_plainly_with_the_reason():
    step = anabranch.record(lambda x: (x * 2, x.cpu()))
    for seed in range(4):
        x = normal(seed, 50)
        double, copy = step(x)
        assert torch.equal(double, x * 2) and torch.equal(copy, x.cpu())
    assert_plain(step, "it answers a tensor on the CPU")


def test_a_tensor_on_the_cpu_runs_plainly_with_the_reason():
    step = anabranch.record(lambda x, scale: x * scale)
    for seed in range(4):
        x, scale = normal(seed, 50), torch.tensor(float(seed))
        assert torch.equal(step(x, scale), x * scale)
    assert_plain(step, "computes with it there")


def test_a_result_that_wants_gradients_runs_plainly_and_keeps_its_history():
    model = nn.Linear(16, 4).to(DEVICE)
    step = anabranch.record(lambda x: model(x))
    for seed in range(4):
        model.zero_grad()
        x = normal(seed, 8, 16)
        step(x).sum().backward()
        torch.testing.assert_close(model.weight.grad, x.sum(0).expand(4, 16))
    assert_plain(step, "require gradients")


@pytest.mark.parametrize("function", CANNOT[:2], ids=lambda function: function.__name__)
def test_strict_raises_every_time(function):
    step = anabranch.record(function, strict=True)
    x = normal(0, 50)
    step(x)  # a first call is always a plain one
    for _ in range(2):
        with pytest.raises(RecordError, match="cannot be recorded") as raised:
            step(x)
        assert raised.value.code == 311
    assert_torch_is_usable()


@pytest.mark.parametrize("error", [RuntimeError, ValueError, KeyError, AssertionError])
def test_an_exception_in_the_capture_alone_makes_the_step_plain(error):
    model = nn.Linear(16, 16).to(DEVICE)
    weight = model.weight.detach().clone()

    def function(x):
        with torch.no_grad():
            y = F.dropout(model(x), 0.25)
            if capturing():
                raise error("not while capturing")
            model.bias += 1
            return y

    step = anabranch.record(function)
    torch.manual_seed(5)
    found = [step(normal(seed, 8, 16)) for seed in range(5)]
    bias = model.bias.detach().clone()
    with torch.no_grad():
        model.bias -= 5
    torch.manual_seed(5)
    wanted = [function(normal(seed, 8, 16)) for seed in range(5)]
    assert torch.equal(model.weight, weight) and torch.equal(model.bias, bias)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, wanted, strict=True))
    assert_plain(step, "not while capturing")
    assert_torch_is_usable()


def test_an_exception_of_the_step_itself_reaches_the_caller():
    @anabranch.record
    def step(x):
        if x.shape[0] == 3:
            raise ValueError("three")
        return x * 2

    for _ in range(3):
        with pytest.raises(ValueError, match="three"):
            step(normal(0, 3))
        assert torch.equal(step(normal(0, 4)), normal(0, 4) * 2)
    assert_torch_is_usable()


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "unverified"])
def test_tensors_that_a_step_keeps_for_itself_are_kept_by_launches(verify):
    kept = {}

    def function(x):
        kept["last"] = x * 3
        return x * 2

    step = anabranch.record(function, verify=verify)
    for seed in range(CALLS):
        x = normal(seed, 20)
        assert torch.equal(step(x), x * 2) and torch.equal(kept["last"], x * 3)
    assert_launched(step)


def test_tensors_that_a_step_keeps_where_nobody_finds_them_make_it_plain():
    kept = iter_of_kept()
    next(kept)

    def function(x):
        kept.send(x * 3)
        return x * 2

    step = anabranch.record(function)
    for seed in range(4):
        x = normal(seed, 20)
        assert torch.equal(step(x), x * 2)
    assert launches(step) == 0 and any(report.reason for report in step.reports), told(step)
    assert_torch_is_usable()


def iter_of_kept():
    """Holds what it is sent in a generator's frame."""
    last = None
    while True:
        last = yield last


def test_a_step_that_differs_between_its_captures_runs_plainly():
    counter = iter(range(1, 100))

    def function(x):
        return x * float(counter.__next__())

    step = anabranch.record(function)
    x = normal(0, 20)
    ratios = {round(float((step(x) / x).mean())) for _ in range(5)}
    assert len(ratios) == 5, ratios  # every call counted on
    assert launches(step) == 0 and step.reports[0].reason, told(step)


def test_record_switched_off_runs_everything_as_it_is():
    step = anabranch.record(affine, record=False)
    for seed in range(4):
        given = pair(seed)
        assert torch.equal(step(*given), affine(*given))
    assert step.reports == []


def test_without_verification_the_answers_are_the_same():
    # A product alone: kernels that pad what they are given are recorded only with verification.
    step = anabranch.record(lambda x, y: x @ y, verify=False)
    for seed in range(CALLS):
        x, y = pair(seed)
        assert torch.equal(step(x, y), x @ y)
    assert_launched(step)
    assert step.reports[0].verified == "no" and step.reports[0].verify_seconds == 0.0


def test_the_report_tells_what_a_recording_is_and_how_it_was_launched():
    step = anabranch.record(affine)
    for seed in range(CALLS):
        step(*pair(seed))
    report = step.reports[0]
    assert report.calls == CALLS and report.plain_calls == 0
    assert report.nodes >= 3 and report.sites >= report.slots >= 3
    assert report.arena_bytes >= report.arena_lower_bound_bytes > 0
    assert report.verified == "bitwise"
    assert "float32[64, 64]" in report.inputs and "captured in" in str(report)


def test_a_compiled_step_that_is_given_a_tensor_twice_is_recorded():
    """As a language model is, whose labels are its input. Dynamo guards on it."""
    compiled = torch.compile(lambda a, b: (a * 2 + b).relu())
    step = anabranch.record(compiled)
    for i in range(CALLS):
        x = normal(i, 16, 16)
        assert torch.equal(step(x, x), (x * 2 + x).relu()), told(step)
    assert_launched(step, CALLS - 3)
    y = normal(99, 16, 16)
    assert torch.equal(step(x, y), (x * 2 + y).relu()), told(step)
