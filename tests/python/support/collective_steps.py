# SPDX-License-Identifier: Apache-2.0
"""What each process runs for test_collectives: steps with collectives, compiled against eager.

    python collective_steps.py <rank> <ranks> <file of the store>
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from compare import Tolerance, assert_same, compiled, observe

import anabranch
from anabranch import _compat

CALLS = 3
WIDTH = 8


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def shards(ranks, count, seed=0):
    """This process's part of some square weights."""
    return [normal(100 * (dist.get_rank() + 1) + seed + i, WIDTH // ranks, WIDTH)
            for i in range(count)]


def assert_follows(function, *inputs, train=False):
    call = compiled(function, options={"strict": True})
    for seed in range(CALLS):
        mine, theirs = ([x.clone().requires_grad_(train) for x in (normal(seed, 4, WIDTH), *inputs)]
                        for _ in range(2))
        assert_same(observe(call, None, tuple(mine), train=train),
                    observe(function, None, tuple(theirs), train=train), Tolerance())


def layers_in_order(ranks):
    """Each gathers its weights right before it uses them."""
    def step(x, *weights):
        with anabranch.overlap():
            for shard in weights:
                x = torch.tanh(x @ collectives.all_gather_tensor(shard, 0, dist.group.WORLD))
        return x

    assert_follows(step, *shards(ranks, 4))


def training(ranks):
    """Weights are gathered, and their gradients scattered."""
    def step(x, *weights):
        with anabranch.overlap(lanes=2):
            for shard in weights:
                weight = collectives.all_gather_tensor_autograd(shard, 0, dist.group.WORLD)
                x = torch.tanh(x @ weight)
        return x

    assert_follows(step, *shards(ranks, 3), train=True)


def on_two_named_streams(ranks):
    """Nothing else orders the collectives of one stream and those of the other."""
    def step(x, *weights):
        for shard in weights:
            with anabranch.stream("left"):
                left = collectives.all_reduce(x @ x.T, "sum", dist.group.WORLD)
            with anabranch.stream("right"):
                right = collectives.all_gather_tensor(shard, 0, dist.group.WORLD)
            x = torch.tanh(left @ x @ right)
        return x

    assert_follows(step, *shards(ranks, 4))


def two_groups(ranks):
    """Turns are of all groups."""
    other = dist.new_group(list(range(ranks)))

    def step(x, *weights):
        with anabranch.overlap():
            for i, shard in enumerate(weights):
                groups = (dist.group.WORLD, other) if i % 2 else (other, dist.group.WORLD)
                weight = collectives.all_gather_tensor(shard, 0, groups[0])
                x = torch.tanh(x @ weight)
                x = x + collectives.all_reduce(x.square(), "sum", groups[1])
        return x

    assert_follows(step, *shards(ranks, 4))


def all_kinds(ranks):
    """One of each, and several at once."""
    def step(x, *weights):
        world = dist.group.WORLD
        with anabranch.overlap():
            gathered = collectives.all_gather_into_tensor_coalesced(list(weights), world)
            product = gathered[0] @ gathered[1]
            scattered = collectives.reduce_scatter_tensor(product, "sum", 0, world)
            reduced = collectives.all_reduce_coalesced([scattered, x], "sum", world)
            sent = collectives.all_to_all_single(reduced[1], None, None, world)
            return torch.tanh(collectives.broadcast(sent, 0, world)), torch.tanh(reduced[0])

    assert_follows(step, *shards(ranks, 2))


def are_counted(ranks):
    """By which recordings of several processes know that they have to agree."""
    call = compiled(lambda x: collectives.all_reduce(x, "sum", dist.group.WORLD) + 1)
    call(normal(0, 4))
    before = _compat.collectives_so_far()
    call(normal(1, 4))
    assert (_compat.collectives_so_far() != before) == (ranks > 1)


STEPS = (layers_in_order, training, on_two_named_streams, two_groups, all_kinds, are_counted)


def main(rank, ranks, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank),
                            world_size=int(ranks))
    for step in STEPS:
        step(int(ranks))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
