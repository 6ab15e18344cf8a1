# SPDX-License-Identifier: Apache-2.0
"""Which gathers of a graph are put into one call, and that they bring what they brought. Two GPUs
run such graphs in tests/gpu/python/collective_recordings.py."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch._fx.bucket_gathers import bucket_gathers
from anabranch.streams import OVERLAP

pytestmark = pytest.mark.oldest
c10d = torch.ops._c10d_functional
SHARD = 4 * 8 * 4  # bytes; two processes have it
MOST = 1 << 30


def gather(shard, group="0"):
    return c10d.all_gather_into_tensor(shard, 2, group)


def layers(*more):
    """Of weights that are gathered right before they are used; `more` runs between the second and
    the third."""
    def function(x, *shards):
        for i, shard in enumerate(shards):
            if i == 2:
                for each in more:
                    x = each(x)
            x = torch.tanh(x @ c10d.wait_tensor(gather(shard)))
        return x

    return function


def shards(count):
    torch.manual_seed(0)
    return [torch.randn(8, 8), *(torch.randn(4, 8) for _ in range(count))]


def traced(function, inputs, annotate=lambda node: True, tracing="fake"):
    gm = make_fx(function, tracing_mode=tracing)(*inputs)
    for node in gm.graph.nodes:
        if annotate(node):
            node.meta["custom"] = {OVERLAP: 4}
    return gm


class AsTwo(torch.fx.Interpreter):
    """Runs a graph as if the other process had the same shards. `begun` has the size of each
    call."""

    def __init__(self, gm):
        super().__init__(gm)
        self.begun = []

    def call_function(self, target, args, kwargs):
        if target is c10d.all_gather_into_tensor.default:
            self.begun.append(1)
            return torch.cat([args[0]] * 2)
        if target is c10d.all_gather_into_tensor_coalesced.default:
            self.begun.append(len(args[0]))
            return [torch.cat([one] * 2) for one in args[0]]
        if target in (c10d.wait_tensor.default, c10d.all_reduce.default):
            return args[0]
        return super().call_function(target, args, kwargs)


def begun(function, inputs, most=MOST, **more):
    """How many gathers each call brings, once what the graph answers was found to be as before."""
    gm = traced(function, inputs, **more)
    wanted = AsTwo(gm).run(*inputs)
    count = bucket_gathers(gm, most)
    after = AsTwo(gm)
    assert torch.equal(after.run(*inputs), wanted)
    assert count == sum(size > 1 for size in after.begun)
    return after.begun


def test_each_call_brings_up_to_twice_as_much_as_the_one_before():
    assert begun(layers(), shards(16)) == [1, 2, 4, 8, 1]


def test_no_call_brings_more_than_is_said():
    assert begun(layers(), shards(10), 2 * SHARD * 2) == [1, 2, 2, 2, 2, 1]
    assert begun(layers(), shards(4), 2 * SHARD) == [1] * 4
    assert begun(layers(), shards(4), 0) == [1] * 4


def test_gathers_that_nobody_marked_are_left_alone():
    assert begun(layers(), shards(4), annotate=lambda node: False) == [1] * 4


def test_what_is_gathered_may_be_computed_first():
    """As in mixed precision, where each shard is rounded right before."""
    def function(x, *shards):
        for shard in shards:
            x = x.bfloat16() @ c10d.wait_tensor(gather(shard.bfloat16() * 2))
        return x

    assert begun(function, shards(7)) == [1, 2, 4]


def test_what_is_gathered_may_not_come_from_what_is_computed_with_an_earlier_one():
    def function(x, *shards):
        for shard in shards:
            x = torch.tanh(x @ c10d.wait_tensor(gather(shard + x[:4])))
        return x

    assert begun(function, shards(4)) == [1] * 4


def test_random_numbers_are_drawn_in_the_order_they_were():
    def function(x, *shards):
        for shard in shards:
            x = x @ c10d.wait_tensor(gather(torch.rand_like(shard)))
        return x

    gm = traced(function, shards(4))
    assert bucket_gathers(gm, MOST) == 0


def test_collectives_stay_in_their_order():
    """The third gather comes behind the sum of the second layer."""
    sum_up = layers(lambda x: c10d.wait_tensor(c10d.all_reduce(x, "sum", "0")))
    assert begun(sum_up, shards(6)) == [1, 1, 1, 2, 1]


def test_gathers_of_several_groups_are_calls_of_their_own():
    def function(x, *shards):
        for i, shard in enumerate(shards):
            x = torch.tanh(x @ c10d.wait_tensor(gather(shard, str(i % 2))))
        return x

    assert begun(function, shards(4)) == [1] * 4


def test_sizes_that_are_not_known_are_left_alone():
    gm = traced(layers(), shards(4), tracing="symbolic")
    assert any(isinstance(size, torch.SymInt) for node in gm.graph.nodes
               if isinstance(node.meta.get("val"), torch.Tensor) for size in node.meta["val"].shape)
    assert bucket_gathers(gm, MOST) == 0
