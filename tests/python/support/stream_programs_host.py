# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams that lack no sync, as in stream_programs: here those in which the
host waits, and those with breaks of the graph.
"""

from __future__ import annotations

import torch
from stream_places import program

# ---- the host


@program()
def the_host_waits_for_a_stream(x, A, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    A.synchronize()
    return a * 2


@program()
def the_host_waits_for_an_event(x, A, D, E):
    A.wait_stream(D)
    with A:
        a = x + 1
        E.record(A)
    E.synchronize()
    return a * 2


@program("the device")
def the_host_waits_for_the_device(x, A, B, D, cuda):
    A.wait_stream(D)
    with A:
        a = x + 1
    cuda.synchronize()
    with B:
        b = a * 2
    D.wait_stream(B)
    return b


@program()
def the_host_waits_for_whatever_device(x, A, D, accelerator):
    A.wait_stream(D)
    with A:
        a = x * 3
    accelerator.synchronize()
    return a - x


@program()
def the_host_waits_where_no_stream_is_named(x, accelerator):
    y = x * 3
    accelerator.synchronize()
    return y - x


@program()
def the_host_asks(x, A, D, E, is_done):
    A.wait_stream(D)
    with A:
        a = x + 1
        E.record(A)
    if is_done(E):  # breaks the graph
        return a * 2
    E.synchronize()
    return a + a


@program()
def the_host_waits_first(x, A, D):
    z = x * 2
    D.synchronize()
    with A:
        a = z + 1
    D.wait_stream(A)
    return a


@program()
def the_host_orders_streams_that_do_not_wait(x, A, B, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    A.synchronize()
    with B:
        b = a + 1
    B.synchronize()
    return b - a


@program()
def the_host_waits_in_every_turn(x, A, D):
    for _ in range(3):
        A.wait_stream(D)
        with A:
            x = x + 2
        A.synchronize()
    return x


# ---- breaks of the graph


@program()
def recorded_before_a_break_and_awaited_behind_it(x, w, A, B, D, E):
    A.wait_stream(D)
    with A:
        a = x @ w
        E.record(A)
    torch._dynamo.graph_break()
    E.wait(B)
    with B:
        b = torch.relu(a)
    D.wait_stream(B)
    return b


@program()
def home_is_recorded_before_a_break(x, A, D, E):
    y = x * 3
    E.record(D)
    torch._dynamo.graph_break()
    E.wait(A)
    with A:
        a = y + x
    D.wait_stream(A)
    return a


@program()
def work_goes_on_aside_behind_a_break(x, w, A, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    torch._dynamo.graph_break()
    with A:
        b = a @ w
    D.wait_stream(A)
    return b - x


@program()
def joined_behind_a_break(x, A, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    torch._dynamo.graph_break()
    D.wait_stream(A)
    return a + 1
