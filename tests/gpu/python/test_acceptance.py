# SPDX-License-Identifier: Apache-2.0
"""The acceptance list of programs over streams, by its numbers: on the device, where a wait that is
missing shows.

Each runs twenty times with nothing in the way, and twenty times with long work at the head of each
stream, compiled and recorded, compiled and not recorded, and as a recorded step of eager code on
the user's own streams. What it leaves is copied at once, on the stream that is current, and
compared bit for bit with the same steps on one stream. Numbers are whole, so that every order of
additions gives the same.
"""

from __future__ import annotations

import dataclasses
import gc

import pytest
import torch
from acceptance_programs import CASES
from compare import assert_same, compiled, tensors_of
from recordings import DEVICE, assert_launched, told
from stream_places import gpu, nowhere

import anabranch

ROUNDS = 20
SIZE = 512
LONG = 5_000_000  # cycles: some milliseconds
SIDES = ("A", "B", "D")


def inputs(case, seed):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return tuple(torch.randint(-2, 3, (SIZE, SIZE), generator=generator, device=DEVICE).float()
                 .requires_grad_(case.gradients) for _ in range(2))


def with_backward(function, case):
    """The same as a whole step: its results are seen by the backward at once."""
    def step(x, w):
        out = function(x, w)
        if case.gradients:
            parts = [part for part in torch.utils._pytree.tree_leaves(out) if part.requires_grad]
            torch.autograd.backward(parts, [part.detach().remainder(5) for part in parts])
        return torch.utils._pytree.tree_map(torch.Tensor.detach, out)

    return step


def left_by(step, given):
    """All that there is afterwards, copied as soon as the call returns."""
    left = dict(tensors_of(step(*given), "answer"))
    for name, tensor in zip("xw", given, strict=True):
        left[name] = tensor
        if tensor.grad is not None:
            left[f"gradient of {name}"] = tensor.grad
    return {name: tensor.detach().clone() for name, tensor in left.items()}


def queue_long_work(place, side):
    if side is None:
        return
    stream = place.current() if side == "D" else getattr(place, side)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)


def compare(case, place, step):
    plain = with_backward(lambda x, w: case.function(nowhere(), x, w), case)
    wanted = [left_by(plain, inputs(case, seed)) for seed in range(ROUNDS)]
    for side in (None, *SIDES):
        for seed in range(ROUNDS):
            given = inputs(case, seed)
            torch.cuda.synchronize()
            queue_long_work(place, side)
            found = left_by(step, given)
            torch.cuda.synchronize()
            try:
                assert_same(found, wanted[seed])
            except AssertionError as error:
                raise AssertionError(f"round {seed}, long work on {side}: {error}") from None


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
@pytest.mark.parametrize("record", [True, False], ids=["recorded", "not recorded"])
def test_compiled_programs_mean_their_steps_in_order(case, record):
    place = gpu()
    call = compiled(lambda x, w: case.function(place, x, w), options={"record": record})
    compare(case, place, with_backward(call, case))


@pytest.mark.parametrize("case", [case for case in CASES if case.records],
                         ids=lambda case: case.name)
def test_recorded_steps_mean_their_steps_in_order(case):
    place = gpu()
    step = anabranch.record(with_backward(lambda x, w: case.function(place, x, w), case))
    compare(case, place, step)
    assert_launched(step, 4 * ROUNDS - 3)


# ---- what has no value to compare, or no right one


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_t9_events_order_without_gradients_as_with_them(mode):
    place = gpu()
    ping_pong = next(case for case in CASES if case.name == "t9_ping_pong_over_two_events")
    case = dataclasses.replace(ping_pong, gradients=False)
    with mode():
        compare(case, place, compiled(lambda x, w: case.function(place, x, w)))


def test_t13_an_event_of_torch_cuda_is_recorded_behind_what_came_before_it():
    event, side = torch.cuda.Event(), torch.cuda.Stream()

    def function(x):
        y = x @ x
        event.record()
        return y + 1

    call = compiled(function)
    for seed in range(ROUNDS):
        x = inputs(CASES[0], seed)[0]
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG)
        found = call(x)
        side.wait_event(event)
        with torch.cuda.stream(side):
            seen = found.clone()
        torch.cuda.synchronize()
        assert torch.equal(seen, x @ x + 1)


def test_t14_handles_of_streams_are_those_of_the_run():
    A, B = torch.cuda.Stream(), torch.cuda.Stream()

    def function(x):
        with torch.cuda.stream(B):
            handle = A.cuda_stream
        return x + 1, handle

    call = compiled(function)
    for _ in range(3):
        assert call(torch.ones(4, device=DEVICE))[1] == A.cuda_stream


def test_t15_a_region_without_kernels_waits():
    side = torch.cuda.Stream()

    def function():
        torch.cuda.current_stream().wait_stream(side)
        return [1]

    x = torch.zeros(1 << 20, device=DEVICE)
    call = compiled(function)
    for seed in range(ROUNDS):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            x.fill_(seed)
        assert call() == [1]
        seen = x.clone()
        torch.cuda.synchronize()
        assert torch.equal(seen, x)


def test_t17_no_stream_is_no_stream_or_refused_by_torch():
    def function(x):
        with torch.cuda.stream(None):
            return x + 1

    try:
        found = compiled(function)(torch.ones(3, device=DEVICE))
    except torch._dynamo.exc.InternalTorchDynamoError as error:
        assert "ConstantVariable" in str(error)
    else:
        assert torch.equal(found, torch.full((3,), 2.0, device=DEVICE))


def test_t21_temporary_streams_on_every_call():
    def function(x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return y * 2

    call = compiled(function)
    for seed in range(100):
        x = torch.full((4,), float(seed), device=DEVICE)
        assert torch.equal(call(x), (x + 1) * 2)
        if seed % 10 == 0:
            gc.collect()


# ---- races: what the page says is told, and a result that is not left to chance


def test_t5_a_branch_that_nobody_joins_is_joined_and_told(caplog):
    place = gpu()

    def function(x, w):
        a = x * 2
        with torch.cuda.stream(place.A):
            b = a + 1
        return b

    with caplog.at_level("WARNING", "anabranch"):
        call = compiled(function)
        for seed in range(ROUNDS):
            x, w = inputs(CASES[0], seed)
            torch.cuda.synchronize()
            queue_long_work(place, "D")
            found = call(x, w).clone()
            torch.cuda.synchronize()
            assert torch.equal(found, x * 2 + 1)
    assert "race-flow" in caplog.text and "wait_stream" in caplog.text


def test_t6_a_change_in_place_that_nothing_orders_is_refused_with_both_orders():
    A = torch.cuda.Stream()

    def function(x, w):
        h = x * 1
        A.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(A):
            shared = h @ w
        h.mul_(3)
        torch.cuda.current_stream().wait_stream(A)
        return shared + h

    with pytest.raises(Exception, match="race-mutation") as refused:
        compiled(function)(*inputs(CASES[0], 0))
    assert "E0203" in str(refused.value) and str(refused.value).count("wait_stream") >= 2


def test_t24_an_input_that_the_side_stream_does_not_wait_for_is_right_and_told(caplog):
    place = gpu()

    def function(x, w):
        with torch.cuda.stream(place.A):
            y = x @ w
        torch.cuda.current_stream().wait_stream(place.A)
        return y

    with caplog.at_level("WARNING", "anabranch"):
        call = compiled(function)
        for seed in range(ROUNDS):
            given = inputs(CASES[0], seed)
            torch.cuda.synchronize()
            torch.cuda._sleep(LONG)
            x = given[0] + 1  # made on the ambient stream, behind long work
            found = call(x, given[1]).clone()
            torch.cuda.synchronize()
            assert torch.equal(found, x @ given[1])
    assert "race-flow" in caplog.text


@pytest.mark.parametrize("forgotten", ["fork", "join"])
def test_a_captured_step_that_forgets_a_wait_is_refused_or_right(forgotten):
    """Its streams are the user's own: eager races as well, and nothing is derived."""
    place = gpu()

    def function(x, w):
        a = x * 2
        if forgotten != "fork":
            place.A.wait_stream(place.current())
        with torch.cuda.stream(place.A):
            b = a @ w
        if forgotten != "join":
            place.current().wait_stream(place.A)
        return b - 1

    step = anabranch.record(function)
    for seed in range(4):
        given = inputs(CASES[0], seed)
        torch.cuda.synchronize()
        step(*given)
        torch.cuda.synchronize()
    assert all(report.reason for report in step.reports if report.calls > 1) or \
        torch.equal(step(*given), (given[0] * 2) @ given[1] - 1), told(step)
