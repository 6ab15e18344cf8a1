# SPDX-License-Identifier: Apache-2.0
"""The programs of the acceptance list that have a value to compare, by its numbers. `p` is a Place:
it has streams A, B and C, events E and F, and current()."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch


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
