# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams that lack no sync, as in stream_programs: here those of objects,
memory, views, changes in place, and of what matters in the backward.
"""

from __future__ import annotations

import torch
from stream_places import SIZE, program

# ---- objects


@program()
def a_stream_made_inside(x, D, new_stream):
    side = new_stream()
    side.wait_stream(D)
    with side:
        a = x * 2
    D.wait_stream(side)
    return a + 1


@program()
def an_event_made_inside(x, A, D, new_event):
    event = new_event()
    A.wait_stream(D)
    with A:
        a = x * 4
        event.record(A)
    event.wait(D)
    return a


@program()
def streams_of_a_table(x, A, B, D):
    table = {"left": A, "right": B}
    found = {}
    for name, stream in table.items():
        stream.wait_stream(D)
        with stream:
            found[name] = x * len(name)
    for stream in table.values():
        D.wait_stream(stream)
    return found["left"] - found["right"]


def _beside(stream, home, work, *inputs):
    stream.wait_stream(home)
    with stream:
        found = work(*inputs)
    home.wait_stream(stream)
    return found


@program()
def a_helper_takes_streams(x, A, B, D):
    a = _beside(A, D, torch.relu, x)
    b = _beside(B, D, lambda left, right: left * right, a, x)
    return b


@program()
def the_current_stream_of_a_context(x, A, D, E, cuda):
    A.wait_stream(D)
    with A:
        a = x + 9
        E.record(cuda.current_stream())
    E.wait(D)
    return a


@program()
def the_current_stream_is_entered(x, A, D):
    with D:
        z = x + 1
    A.wait_stream(D)
    with A:
        a = z * z
    D.wait_stream(A)
    with D:
        return a - z


@program()
def one_stream_by_two_names(x, A, D):
    other = A
    A.wait_stream(D)
    with A:
        a = x + 1
    with other:
        b = a * 2
    D.wait_stream(other)
    return b


@program()
def work_goes_on_behind_a_context_that_is_left_early(x, A, D):
    def inner(t):
        with A:
            if t.shape[0] == SIZE:
                return t + 1
            return t

    A.wait_stream(D)
    a = inner(x)
    D.wait_stream(A)
    return a * 2


# ---- memory


@program("record_stream")
def an_intermediate_is_told_of_its_stream(x, A, D):
    y = x + 1
    A.wait_stream(D)
    y.record_stream(A)
    with A:
        z = y * 2
    D.wait_stream(A)
    return z


@program("record_stream")
def an_input_is_told_of_its_stream(x, A, D):
    A.wait_stream(D)
    with A:
        z = x * 2
    x.record_stream(A)
    D.wait_stream(A)
    return z


@program()
def dropped_after_use_on_several_streams(x, w, A, B, D):
    t = x * 2
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = t @ w
    with B:
        b = t + 1
    D.wait_stream(A)
    D.wait_stream(B)
    del t
    again = x * 5
    return a + b - again


@program()
def one_event_chains_four_streams(x, A, B, C, D, E):
    y = x + 1
    found = []
    E.record(D)
    for number, stream in enumerate((A, B, C)):
        E.wait(stream)
        with stream:
            found.append(y * number)
            E.record(stream)
    E.wait(D)
    return tuple(found)


@program()
def used_aside_then_at_home_then_elsewhere(x, w, A, D):
    t = x - 3
    A.wait_stream(D)
    with A:
        a = t @ w
    home = t + 1
    D.wait_stream(A)
    other = torch.relu(home)
    return a + other


# ---- views


@program()
def columns_apart_are_changed_beside_each_other(x, A, D):
    y = x * 2
    A.wait_stream(D)
    with A:
        y[:, ::2].add_(1)
    y[:, 1::2].add_(2)
    D.wait_stream(A)
    return y


@program()
def rows_apart_are_written_beside_each_other(x, A, B, D):
    y = torch.zeros_like(x)
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        y[:4].copy_(x[4:])
    with B:
        y[4:].copy_(x[:4])
    D.wait_stream(A)
    D.wait_stream(B)
    return y + 0


@program()
def a_view_is_read_aside(x, A, D):
    t = x * 2
    flat = t.view(-1)
    A.wait_stream(D)
    with A:
        a = flat[1::2].sum()
    home = t.t() + 1
    D.wait_stream(A)
    return home * a


@program()
def views_of_an_input_on_two_streams(x, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x.t() @ w
    with B:
        b = x[1:5].sum(1)
    D.wait_stream(A)
    D.wait_stream(B)
    return a, b


@program()
def broadcast_aside(x, A, D):
    column = x.sum(1, keepdim=True)
    A.wait_stream(D)
    with A:
        a = column.expand(SIZE, SIZE) - x
    D.wait_stream(A)
    return a


@program()
def a_misaligned_view_on_two_streams(x, w, A, B, D):
    odd = x.view(-1)[1:50].view(7, 7)
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        p = odd @ w[:7, :7]
    with B:
        q = odd @ w[1:, 1:]
    D.wait_stream(A)
    D.wait_stream(B)
    return p + q


# ---- changes in place


@program()
def changed_aside(x, A, D):
    y = x * 3
    A.wait_stream(D)
    with A:
        y.add_(1)
    D.wait_stream(A)
    return y * 2


@program()
def changed_when_its_reader_is_done(x, w, A, D):
    h = x * 2
    A.wait_stream(D)
    with A:
        shared = h + w
    D.wait_stream(A)
    h.add_(1)
    return shared + h


@program()
def changed_on_two_streams_in_turn(x, A, B, D, E):
    y = x + 1
    A.wait_stream(D)
    with A:
        y.mul_(2)
        E.record(A)
    E.wait(B)
    with B:
        y.sub_(3)
    D.wait_stream(B)
    return y


@program()
def overwritten_aside(x, y, A, D):
    z = x * 1
    kept = z + y
    A.wait_stream(D)
    with A:
        z.copy_(y)
        z.mul_(2)
    D.wait_stream(A)
    return z - kept


@program()
def zeroed_then_added_to(x, A, B, D):
    total = x * 1
    A.wait_stream(D)
    with A:
        total.zero_()
    B.wait_stream(A)
    with B:
        total.add_(x * 2)
    D.wait_stream(B)
    return total


@program(gradients=False)
def an_input_is_changed_aside(x, A, D):
    A.wait_stream(D)
    with A:
        x.add_(1)
    D.wait_stream(A)
    return x.sum()


@program(gradients=False)
def an_input_is_changed_through_a_view(x, A, B, D, E):
    A.wait_stream(D)
    with A:
        x.view(-1)[3:].add_(1)
        E.record(A)
    E.wait(B)
    with B:
        b = x * 2
    D.wait_stream(B)
    return b


@program(gradients=False)
def a_cache_is_filled_then_read_by_branches(x, w, A, B, D, E):
    w[:2] = x[:2]
    E.record(D)
    E.wait(A)
    E.wait(B)
    with A:
        a = x @ w
    with B:
        b = w[:2].sum(0)
    D.wait_stream(A)
    D.wait_stream(B)
    return a - b


@program(gradients=False)
def an_input_is_read_aside_then_changed_at_home(x, A, D):
    A.wait_stream(D)
    with A:
        a = x * 2
    D.wait_stream(A)
    x.sub_(a)
    return x + a


# ---- what matters in the backward


@program()
def gradients_of_one_input_from_two_streams(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x * 2
    with B:
        b = x + 3  # leaves no node in the backward
    D.wait_stream(A)
    D.wait_stream(B)
    return a * b


@program()
def all_of_the_forward_aside(x, w, A, D):
    A.wait_stream(D)
    with A:
        h = torch.relu(x @ w)
    D.wait_stream(A)
    return h


@program()
def a_weight_of_two_streams(x, y, w, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = torch.relu(x @ w)
    with B:
        b = torch.relu(y @ w)
    D.wait_stream(A)
    D.wait_stream(B)
    return a - b


@program()
def what_is_saved_comes_from_two_streams(x, y, A, B, D, E):
    A.wait_stream(D)
    with A:
        a = x + y
        E.record(A)
    E.wait(B)
    with B:
        b = a * x
    D.wait_stream(B)
    return b * a


@program()
def detached_aside(x, A, D):
    y = x * 2
    A.wait_stream(D)
    with A:
        gate = (y.detach() > 0).float()
    D.wait_stream(A)
    return y * gate


@program()
def one_input_used_three_times(x, A, B, D):
    A.wait_stream(D)
    B.wait_stream(D)
    with A:
        a = x * x
    with B:
        b = x * 3
    d = x - 1
    D.wait_stream(A)
    D.wait_stream(B)
    return a + b + d
