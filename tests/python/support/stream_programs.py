# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams that lack no sync: eager cannot race at them, so that compiled code
must give the same bits as eager on one stream, and nothing may be told of them.

Here those of syncs, shapes and placement; see stream_places.
"""

from __future__ import annotations

import stream_programs_host  # noqa: F401 - adds its own
import stream_programs_memory  # noqa: F401 - and so does this
import torch
from stream_places import PROGRAMS, program

import anabranch

__all__ = ["PROGRAMS"]


# ---- forms of syncs


@program()
def joined_forth_and_back(x, A, D):
    z = x + x
    A.wait_stream(D)
    with A:
        w = z * 2
    D.wait_stream(A)
    return w + 1


@program()
def events_forth_and_back(x, A, D, E, F):
    z = x + x
    E.record(D)
    E.wait(A)
    with A:
        w = z * 2
        F.record(A)
    F.wait(D)
    return w + x


@program()
def streams_wait_for_events(x, A, D, E, F):
    z = x - 1
    E.record(D)
    A.wait_event(E)
    with A:
        a = z * z
    F.record(A)
    D.wait_event(F)
    return a + z


@program("record_event")
def streams_record_events(x, A, D, E, F):
    z = x + 2
    D.record_event(E)
    A.wait_event(E)
    with A:
        a = z * 3
    A.record_event(F)
    D.wait_event(F)
    return a - z


@program("made by a record")
def a_record_makes_its_event(x, A, D):
    z = x + 2
    begin = D.record_event()
    A.wait_event(begin)
    with A:
        a = z * 3
    end = A.record_event()
    D.wait_event(end)
    return a - z


@program()
def recorded_and_awaited_under_contexts(x, A, B, D, E):
    A.wait_stream(D)
    with A:
        a = x * 3
        E.record()
    with B:
        E.wait()
        b = a + 1
    D.wait_stream(B)
    return b


@program()
def side_streams_join_each_other(x, A, B, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    B.wait_stream(A)
    with B:
        b = a * 2
    D.wait_stream(B)
    return b - x


@program()
def entered_by_name_of_the_device(x, A, B, D, cuda):
    A.wait_stream(D)
    with cuda.stream(A):
        a = x * 2
    B.wait_stream(A)
    with cuda.stream(B):
        b = a - x
    D.wait_stream(B)
    return b


@program()
def the_current_stream_is_asked_for(x, A, current):
    z = x * 2
    A.wait_stream(current())
    with A:
        a = z + 3
    current().wait_stream(A)
    return a * z


@program("an accelerator")
def the_current_stream_of_the_accelerator_is_asked_for(x, A, accelerator):
    z = x * 2
    A.wait_stream(accelerator.current_stream())
    with A:
        a = z - 3
    accelerator.current_stream().wait_stream(A)
    return a * z


@program()
def a_record_covers_what_lies_before_an_earlier_one(x, w, A, B, D, E, F):
    A.wait_stream(D)
    with A:
        a = x @ w
        E.record(A)
        F.record(A)
    F.wait(B)
    with B:
        b = torch.relu(a)
    D.wait_stream(B)
    return b


@program()
def the_last_record_counts(x, A, B, C, D, E):
    A.wait_stream(D)
    with A:
        a = x + 1
        E.record(A)
    E.wait(B)
    with B:
        b = a * 2
        E.record(B)
    E.wait(C)
    with C:
        c = b + a
    D.wait_stream(C)
    return c


@program()
def a_second_wait_adds_nothing(x, A, D):
    A.wait_stream(D)
    A.wait_stream(D)
    with A:
        a = x + 5
    D.wait_stream(A)
    D.wait_stream(A)
    return a * a


@program()
def waits_without_work(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(A)
    D.wait_stream(B)
    return x + 1


@program()
def two_streams_wait_for_one_event(x, A, B, D, E):
    z = x * 2
    E.record(D)
    E.wait(A)
    E.wait(B)
    with A:
        a = z + 1
    with B:
        b = z - 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a * b


@program()
def an_event_of_before_is_awaited(x, A, D, E):
    E.wait(A)  # of the caller, who recorded it behind what made x
    with A:
        a = x + 7
    D.wait_stream(A)
    return a


# ---- shapes


@program()
def diamond(x, A, B, D):
    y = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = y + 1
    with B:
        b = y - 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a * b


@program()
def diamond_joined_aside(x, A, B, C, D):
    y = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = y + 1
    with B:
        b = torch.relu(y)
    C.wait_stream(A)
    C.wait_stream(B)
    with C:
        c = a - b
    D.wait_stream(C)
    return c


@program()
def fan_out_to_three(x, w, A, B, C, D):
    y = x @ w
    parts = []
    for number, stream in enumerate((A, B, C)):
        stream.wait_stream(D)
        with stream:
            parts.append(y * number + 1)
    for stream in (A, B, C):
        D.wait_stream(stream)
    return parts[0] + parts[1] - parts[2]


@program()
def to_a_side_and_back_and_there_again(x, A, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    D.wait_stream(A)
    d = a * 2
    A.wait_stream(D)
    with A:
        again = d - a
    D.wait_stream(A)
    return again


@program()
def three_in_a_row(x, A, B, C, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    B.wait_stream(A)
    with B:
        b = a * 2
    C.wait_stream(B)
    with C:
        c = b - 1
    D.wait_stream(C)
    return c


@program()
def three_turns_with_one_event(x, A, D, E):
    for _ in range(3):
        A.wait_stream(D)
        with A:
            x = x * 2
            E.record(A)
        E.wait(D)
        x = x + 1
    return x


@program()
def nested_contexts(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x + 1
        with B:
            b = x * 3
        again = x - 2
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b + again


@program()
def ping_pong(x, w, A, B, D, E, F):
    A.wait_stream(D)
    for _ in range(2):
        with A:
            x = torch.relu(x @ w)
            E.record(A)
        E.wait(B)
        with B:
            x = x - 1
            F.record(B)
        F.wait(A)
    D.wait_stream(A)
    return x


@program()
def a_pipeline_of_two_stages(x, A, B, D, E):
    A.wait_stream(D)
    found = []
    for row in x.split(2):
        with A:
            first = row * 2
            E.record(A)
        E.wait(B)
        with B:
            found.append(first + 1)
    D.wait_stream(B)
    return torch.cat(found)


@program()
def two_rounds_of_forks(x, A, B, D):
    for factor in (2, 3):
        A.wait_stream(D)
        B.wait_stream(D)
        with A:
            a = x * factor
        with B:
            b = x + factor
        D.wait_stream(A)
        D.wait_stream(B)
        x = a - b
    return x


@program()
def a_side_stream_forks(x, A, B, C, D):
    A.wait_stream(D)
    with A:
        a = x + 3
    B.wait_stream(A)
    C.wait_stream(A)
    with B:
        b = a * 2
    with C:
        c = a - 2
    A.wait_stream(B)
    A.wait_stream(C)
    with A:
        a = b * c
    D.wait_stream(A)
    return a


@program()
def unrelated_work_beside_each_other(x, y, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x * 2
    with B:
        b = y + 3
    D.wait_stream(A)
    D.wait_stream(B)
    return a, b


# ---- fusion and placement


@program()
def two_chains_and_a_join(x, y, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = torch.relu(x + 1) * 2
    with B:
        b = torch.relu(y - 1) * 3
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b


@program()
def a_chain_at_home_then_one_aside(x, A, D):
    z = torch.relu(x + 1) - 2
    A.wait_stream(D)
    with A:
        a = torch.relu(z * 2) + 1
    D.wait_stream(A)
    return a


@program()
def four_pointwise_on_one_side(x, A, D):
    A.wait_stream(D)
    with A:
        a = torch.relu((x + 1) * 2) - x
    D.wait_stream(A)
    return a


@program()
def equal_work_on_both_sides(x, y, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = torch.relu(x) + 1
    with B:
        b = torch.relu(y) + 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a, b


@program()
def every_other_column_is_copied_elsewhere(x, A, B, D):
    A.wait_stream(D)
    with A:
        a = x + 1
    B.wait_stream(A)
    with B:
        b = a[:, ::2].contiguous()
    D.wait_stream(B)
    return b, a


@program()
def a_reduction_aside(x, A, D):
    y = x * 2
    A.wait_stream(D)
    with A:
        total = y.sum(0)
    home = y + 1
    D.wait_stream(A)
    return home - total


@program()
def products_on_two_streams(x, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x @ w
    with B:
        b = w @ x
    D.wait_stream(A)
    D.wait_stream(B)
    return a - b


@program()
def a_named_stream_within_torchs(x, w, A, D):
    A.wait_stream(D)
    with A:
        a = x @ w
        with anabranch.stream("named"):
            b = torch.relu(x)
        c = a - b
    D.wait_stream(A)
    return c


@program()
def a_named_stream_beside_torchs(x, w, A, D):
    A.wait_stream(D)
    with A:
        a = x @ w
    with anabranch.stream("named"):
        b = torch.relu(x) + 1
    D.wait_stream(A)
    return a * b
