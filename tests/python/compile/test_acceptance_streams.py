# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams that compilers have got wrong, by the numbers of the page on
streams that this project keeps: here those that need no GPU. Each means what its steps mean one
after the other; random delays before every step bring out an order that is missing.

The streams are torch's streams of the CPU, which Dynamo traces and nothing else uses: what is
marked with one runs on a lane of its own.
"""

from __future__ import annotations

import gc

import pytest
import torch
from compare import compiled
from test_user_streams import EVENT, OTHER, A, B, without_streams
from torch._dynamo.output_graph import OutputGraph

from anabranch import _compat

pytestmark = [pytest.mark.own, pytest.mark.oldest]
ROUNDS = 20
WEIGHT = torch.linspace(-1, 1, 64).reshape(8, 8)


def t1_write_to_an_input(x):
    with A:
        x += 1
    B.wait_stream(A)
    return WEIGHT.sum() + 1


def t2_write_through_a_flat_view(x):
    with A:
        x.view(-1)[3:].add_(1)
        EVENT.record(A)
    EVENT.wait(B)
    with B:
        return x * 2


def t2_cache_in_place_then_branches(x):
    with A:
        x[:4] += 1
        EVENT.record(A)
        a = x[:4] @ WEIGHT
    with B:
        EVENT.wait(B)
        b = x @ WEIGHT
    A.wait_stream(B)
    return torch.cat([a, b])


def t3_misaligned_input_of_two_streams(x):
    odd = x.view(-1)[1:50].reshape(7, 7)
    with A:
        p = odd @ WEIGHT[:7, :7]
        EVENT.record(A)
    with B:
        q = odd @ WEIGHT[1:, 1:]
        OTHER.record(B)
    return p + q


def t4_syncs_without_data_between(x):
    with A:
        a = x @ WEIGHT
        EVENT.record(A)
        EVENT.record(A)  # covers a though nothing lies between
    EVENT.wait(B)
    with B:
        b = a.relu()
        EVENT.record(B)  # the last record is the one
    EVENT.wait(A)
    with A:
        return b + a


def t5_joins_order_without_shared_data(x):
    y = x * 2
    with A:
        b = y + 1
    B.wait_stream(A)
    with B:
        c = x + 3
    A.wait_stream(B)
    return b, c


def t6_change_in_place_with_the_users_edge(x):
    with A:
        h = x * 1
        shared = h @ WEIGHT
        EVENT.record(A)
    with B:
        EVENT.wait(B)
        h.mul_(3)
        return shared + h


def t7_event_across_a_graph_break(x):
    with A:
        heavy = x @ WEIGHT @ WEIGHT
        EVENT.record(A)
    torch._dynamo.graph_break()
    EVENT.wait(B)
    with B:
        return heavy + 1


def t9_ping_pong(x):
    for _ in range(3):
        with A:
            x = x @ WEIGHT
            EVENT.record(A)
        EVENT.wait(B)
        with B:
            x = x.tanh()
            OTHER.record(B)
        OTHER.wait(A)
    return x


def t10_break_inside_a_context(x):
    with A:
        a = x + 1
        torch._dynamo.graph_break()
        b = a @ WEIGHT
    return b - x


def t10_record_break_wait(x):
    y = x * 3
    EVENT.record(A)
    torch._dynamo.graph_break()
    EVENT.wait(B)
    with B:
        return y + x


def t18_forward_syncs_stay_out_of_the_backward(x):
    with A:
        h = x @ WEIGHT
        EVENT.record(A)
    EVENT.wait(B)
    return h


def t25_a_view_used_last_elsewhere(x):
    t = x * 2
    view = t[1:].t()
    with A:
        a = view @ WEIGHT[:7]
    other = x * 5  # may lie where t did, once A has read it
    return a.sum() + other


def t26_used_aside_then_at_home(x):
    t = x.cos()
    with A:
        a = t @ WEIGHT
    home = t + 1
    again = home.sin() @ WEIGHT
    return a + again


def t27_two_side_streams(x):
    t = x.exp()
    with A:
        a = t @ WEIGHT @ WEIGHT
    with B:
        b = t * 2
    after = (x + 7).relu()
    return a + b + after


def t32_a_gradient_from_two_streams(x):
    with A:
        a = x @ WEIGHT
    with B:
        b = x + 3
    return a * b


def t33_read_before_a_change_in_place(x):
    with A:
        t = x * 1
        a = t * 3
        EVENT.record(A)
    EVENT.wait(B)
    with B:
        t.add_(1)
        return a + t


def older_print_then_join(x):
    y = x + 2
    print(end="")  # breaks the graph
    A.wait_stream(B)
    with A:
        return y.relu()


def older_two_streams_in_a_row(x):
    with A:
        y = x + 2
    B.wait_stream(A)
    with B:
        return y + 3


WITH_GRADIENTS = [
    t3_misaligned_input_of_two_streams, t4_syncs_without_data_between,
    t5_joins_order_without_shared_data, t6_change_in_place_with_the_users_edge,
    t7_event_across_a_graph_break, t9_ping_pong, t10_break_inside_a_context,
    t10_record_break_wait, t18_forward_syncs_stay_out_of_the_backward,
    t25_a_view_used_last_elsewhere, t26_used_aside_then_at_home, t27_two_side_streams,
    t32_a_gradient_from_two_streams, t33_read_before_a_change_in_place, older_print_then_join,
    older_two_streams_in_a_row]
WITHOUT = [t1_write_to_an_input, t2_write_through_a_flat_view, t2_cache_in_place_then_branches]


def compare(function, takes_gradients):
    call = compiled(function, options={"delay_seed": 3})
    plain = without_streams(function)
    for seed in range(ROUNDS):
        torch.manual_seed(seed)
        mine = torch.randn(8, 8, requires_grad=takes_gradients)
        theirs = mine.detach().clone().requires_grad_(takes_gradients)
        found, wanted = call(mine), plain(theirs)
        torch.testing.assert_close(found, wanted)
        if takes_gradients:
            for answer in (found, wanted):
                sum(part.sum() for part in torch.utils._pytree.tree_leaves(answer)).backward()
            torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("function", WITH_GRADIENTS, ids=lambda function: function.__name__)
def test_forward_and_backward_mean_their_steps_in_order(function):
    compare(function, takes_gradients=True)


@pytest.mark.parametrize("function", WITHOUT, ids=lambda function: function.__name__)
def test_inputs_that_are_written_are_right_behind_the_call(function):
    compare(function, takes_gradients=False)


def test_t2_other_backends_are_refused_where_torch_refuses_them_and_nowhere_else():
    call = torch.compile(t2_write_through_a_flat_view, backend="eager")
    refused = "event was recorded on a stream where a graph input"
    with pytest.raises(RuntimeError) as error:
        call(torch.ones(8, 8))  # where it is traced, torch has no events of the CPU to run it with
    assert (refused in str(error.value)) == hasattr(OutputGraph, _compat.streams._REFUSAL)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_t8_t9_events_order_without_gradients_as_with_them(mode):
    with mode():
        compare(t9_ping_pong, takes_gradients=False)


def test_t15_a_region_without_kernels_still_has_its_syncs():
    def function():
        A.wait_stream(B)
        return [1]

    assert compiled(function)() == [1]


def test_t21_temporary_streams_on_every_call():
    def function(x):
        with torch.Stream(device="cpu"):
            y = x + 1
        return y * 2

    call = compiled(function)
    for seed in range(100):
        x = torch.full((4,), float(seed))
        torch.testing.assert_close(call(x), (x + 1) * 2)
        if seed % 10 == 0:
            gc.collect()
