# SPDX-License-Identifier: Apache-2.0
"""What each process runs for test_parallel: trainings under DDP and FSDP2, compiled against eager.

    python parallel_steps.py <rank> <ranks> <file of the store>
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from clients import Decoder, cross_entropy, tokens
from compare import Tolerance, assert_same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anabranch


def in_parallel(model):
    return DistributedDataParallel(model)


def sharded(model):
    """Each block is sharded by itself, and the rest as a whole."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def trained(distribute, compile):
    """Losses of this process, and the weights of all. Adam would divide the gradient of the keys'
    bias, which is nothing but rounding, by itself."""
    model = Decoder()
    compile(model)
    model = distribute(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        seed = 10 * step + dist.get_rank()
        loss = cross_entropy(model(tokens(seed)), tokens(seed + 100))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses),
            **{name: whole(parameter.detach()) for name, parameter in model.named_parameters()}}


def compile_blocks(model):
    for block in model.layers.values():
        block.compile(backend=anabranch.backend)


def compile_whole(model):
    model.compile(backend=anabranch.backend)


def as_it_is(model):
    pass


def main(rank, ranks, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank),
                            world_size=int(ranks))
    for distribute, compile in ((in_parallel, compile_whole), (sharded, compile_blocks)):
        assert_same(trained(distribute, compile), trained(distribute, as_it_is),
                    Tolerance(1e-4, 1e-5))
        torch.compiler.reset()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
