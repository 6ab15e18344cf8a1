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
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compare import assert_same, compiled, tensors_of
from recordings import DEVICE, assert_launched, told
from stream_places import gpu, nowhere

import anabranch

ROUNDS = 20
SIZE = 512
LONG = 5_000_000  # cycles: some milliseconds
SIDES = ("A", "B", "D")


@dataclasses.dataclass(frozen=True)
class Case:
    function: Callable[..., Any]
    gradients: bool  # to inputs
    records: bool  # whether eager code of it can be captured

    @property
    def name(self) -> str:
        return self.function.__name__


CASES: list[Case] = []


def case(*, gradients: bool = True, records: bool = True) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(function, gradients, records))
        return function

    return add


# ---- the programs; `p` has streams A, B, C, events E, F, and current()


@case(gradients=False)
def t1_a_write_to_an_input_is_covered_by_the_users_join(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        x += 1
    p.current().wait_stream(p.A)
    return w[:2] + 1


@case(gradients=False)
def t2_a_write_through_a_flat_view_then_an_event(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        x.view(-1)[3:].add_(1)
        p.E.record(p.A)
    p.B.wait_event(p.E)
    with p.cuda.stream(p.B):
        y = x * 2
    p.current().wait_stream(p.B)
    return y


@case(gradients=False)
def t2_a_cache_in_place_then_branches(p, x, w):
    x[:4] += 1
    p.E.record(p.current())
    p.A.wait_event(p.E)
    p.B.wait_event(p.E)
    with p.cuda.stream(p.A):
        a = x[:4] @ w
    with p.cuda.stream(p.B):
        b = x[4:] @ w
    p.current().wait_stream(p.A)
    p.current().wait_stream(p.B)
    return torch.cat([a, b])


@case()
def t3_a_misaligned_input_of_two_streams(p, x, w):
    odd = x.view(-1)[1:1 + 500 * 500].reshape(500, 500)
    p.A.wait_stream(p.current())
    p.B.wait_stream(p.current())
    with p.cuda.stream(p.A):
        one = odd @ w[:500, :500]
        p.E.record(p.A)
    with p.cuda.stream(p.B):
        other = odd @ w[12:, 12:]
        p.F.record(p.B)
    p.current().wait_event(p.E)
    p.current().wait_event(p.F)
    return one + other


@case()
def t4_the_last_of_two_records_without_work_between_is_the_one(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = x @ w
        p.E.record(p.A)
        p.E.record(p.A)
    p.B.wait_event(p.E)
    with p.cuda.stream(p.B):
        b = a.remainder(3)
        p.E.record(p.B)
    p.current().wait_event(p.E)
    return b + 1


@case(records=False)
def t4_a_host_that_waits_holds_up_later_launches_on_every_stream(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = x @ w
    p.A.synchronize()
    with p.cuda.stream(p.B):
        b = a * 2
    p.B.synchronize()
    return b + a


@case()
def t5_joins_order_without_shared_data(p, x, w):
    a = x * 2
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        b = w + 1
    p.current().wait_stream(p.A)
    return a, b


@case(gradients=False)
def t6_a_change_in_place_behind_the_users_edge(p, x, w):
    h = x * 1
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        shared = h @ w
        p.E.record(p.A)
    p.current().wait_event(p.E)
    h.mul_(3)
    return shared + h


@case()
def t7_an_event_across_a_break(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        heavy = (x @ w).remainder(5) @ w
        p.E.record(p.A)
    torch._dynamo.graph_break()
    p.current().wait_event(p.E)
    return heavy + 1


@case()
def t9_ping_pong_over_two_events(p, x, w):
    p.A.wait_stream(p.current())
    for _ in range(2):
        with p.cuda.stream(p.A):
            x = (x @ w).remainder(5)
            p.E.record(p.A)
        p.B.wait_event(p.E)
        with p.cuda.stream(p.B):
            x = x * 2 - 1
            p.F.record(p.B)
        p.A.wait_event(p.F)
    p.current().wait_stream(p.B)
    p.current().wait_stream(p.A)
    return x


@case()
def t10_a_break_inside_a_context(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = x + 1
        torch._dynamo.graph_break()
        b = a @ w
    p.current().wait_stream(p.A)
    return b - x


@case()
def t12_the_current_stream_is_that_of_the_call(p, x, w):
    p.E.record(p.current())
    p.A.wait_event(p.E)
    with p.cuda.stream(p.A):
        z = 2 * x
        p.F.record(p.A)
    p.current().wait_event(p.F)
    return z + w


@case()
def t16_entering_the_stream_that_is_current_changes_nothing(p, x, w):
    with p.cuda.stream(p.current()):
        y = x @ w
    return y + x


@case()
def t18_syncs_of_the_forward_stay_out_of_the_backward(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        h = x @ w
        p.E.record(p.A)
    p.current().wait_event(p.E)
    return h


@case()
def t19_memory_of_two_streams(p, x, w):
    p.E.record(p.current())
    p.A.wait_event(p.E)
    with p.cuda.stream(p.A):
        a = (torch.ones_like(x) + x) @ w
        p.F.record(p.A)
    other = torch.full_like(x, 3.0) - x
    p.current().wait_event(p.F)
    return a + other


@case()
def t21_a_stream_of_this_call_and_memory_recorded_on_it(p, x, w):
    stream = p.new_stream()
    stream.wait_stream(p.current())
    with p.cuda.stream(stream):
        y = x @ w
    x.record_stream(stream)
    p.current().wait_stream(stream)
    return y


@case()
def t25_a_view_that_is_used_last_on_another_stream(p, x, w):
    t = x * 2
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = t[1:].t() @ w[1:]
    t.record_stream(p.A)
    del t
    other = x * 5
    p.current().wait_stream(p.A)
    return a + other


@case()
def t26_used_aside_then_at_home(p, x, w):
    t = x + 3
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = t @ w
    home = (t + 1) @ w
    t.record_stream(p.A)
    del t
    more = x * 7
    p.current().wait_stream(p.A)
    return a + home + more


@case()
def t27_read_by_two_side_streams(p, x, w):
    t = x + 2
    p.A.wait_stream(p.current())
    p.B.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = (t @ w).remainder(5) @ w
    with p.cuda.stream(p.B):
        b = t * 2
    t.record_stream(p.A)
    t.record_stream(p.B)
    del t
    after = x + 7
    p.current().wait_stream(p.B)
    p.current().wait_stream(p.A)
    return a + b + after


@case()
def t32_a_gradient_from_two_streams(p, x, w):
    p.A.wait_stream(p.current())
    p.B.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = x @ w
    with p.cuda.stream(p.B):
        b = x + 3
    p.current().wait_stream(p.A)
    p.current().wait_stream(p.B)
    return a + b


@case(gradients=False)
def t33_read_before_a_change_in_place(p, x, w):
    t = x * 1
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        a = t @ w
        p.E.record(p.A)
    p.current().wait_event(p.E)
    t += 1
    return a, t


@case(gradients=False)
def t34_weights_are_copied_out_behind_their_update(p, x, w):
    w.add_(x)
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        copied = w.double()
    p.current().wait_stream(p.A)
    return copied


@case(gradients=False)
def t36_a_buffer_is_reloaded_behind_those_that_read_it(p, x, w):
    used = x @ w
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        x.copy_(w * 2)
    p.current().wait_stream(p.A)
    return used + x


@case(gradients=False)
def t38_each_load_is_joined_both_ways(p, x, w):
    y, found = x.clone(), []
    for factor in (2, 3):
        p.A.wait_stream(p.current())
        with p.cuda.stream(p.A):
            x.copy_(y * factor)
        p.current().wait_stream(p.A)
        found.append(x @ w)
    return found[0] - found[1]


@case()
def older_a_print_then_a_join(p, x, w):
    y = x + 2
    print(end="")  # breaks the graph
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        z = y @ w
    p.current().wait_stream(p.A)
    return z


@case()
def older_two_streams_in_a_row(p, x, w):
    p.A.wait_stream(p.current())
    with p.cuda.stream(p.A):
        y = x + 2
    p.B.wait_stream(p.A)
    with p.cuda.stream(p.B):
        z = y @ w
    p.current().wait_stream(p.B)
    return z


# ---- what they are compared with


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
    assert all(report.reason for report in step.report if report.calls > 1) or \
        torch.equal(step(*given), (given[0] * 2) @ given[1] - 1), told(step)
