# SPDX-License-Identifier: Apache-2.0
"""What each of two processes runs for test_recorded_collectives, under torchrun: steps recorded
side by side against the same compiled code unrecorded, bit for bit.

    python -m torch.distributed.run --standalone --nproc-per-node=2 collective_recordings.py <step>
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/support"))

from recordings import CALLS, assert_launched, normal, told

import anabranch
from anabranch._fx import bucket_gathers
from anabranch._record import rendezvous
from anabranch._record.trial import overlap

LANES = 4
WIDTH, LAYERS = 256, 8


class Sharded(nn.Module):
    """Layers whose weights are spread over a group, and gathered right before they are used."""

    def __init__(self, *groups):
        super().__init__()
        self.groups = groups
        rows = WIDTH // dist.get_world_size()
        self.shards = nn.ParameterList(
            normal(1000 * dist.get_rank() + i, rows, WIDTH) / WIDTH**0.5 for i in range(LAYERS))

    def forward(self, x):
        gather = collectives.all_gather_tensor_autograd if torch.is_grad_enabled() \
            else collectives.all_gather_tensor
        for i, shard in enumerate(self.shards):
            x = torch.tanh(x @ gather(shard, 0, self.groups[i % len(self.groups)]))
        return x


def assert_follows(make_step):
    """Two equal steps, one recorded: what they answer, and the gradients, are equal."""
    (step, model), (reference, other) = make_step(), make_step()
    recorded = anabranch.record(step, max_parallel_kernels=LANES)
    for i in range(CALLS):
        x = normal(100 * dist.get_rank() + i, 64, WIDTH)
        found, wanted = recorded(x), reference(x)
        assert torch.equal(found, wanted), f"call {i}\n{told(recorded)}"
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert mine.grad is theirs.grad or torch.equal(mine.grad, theirs.grad), f"call {i}"
    assert_launched(recorded)
    report = recorded.reports[-1]
    assert report.lanes >= 2 and report.known, told(recorded)
    return report


def inference(*groups):
    def make_step():
        model = Sharded(*groups)
        call = torch.compile(model, dynamic=False)

        def step(x):
            with torch.no_grad():
                return call(x)

        return step, model

    return make_step


def layers_in_order():
    report = assert_follows(inference(dist.group.WORLD))
    # The gathers are known, with NCCL's events around each. Between processes on one GPU each has a
    # function of the host, too, which is not.
    unknown = LAYERS if torch.cuda.device_count() < dist.get_world_size() else LAYERS - 1
    assert report.known >= report.nodes - unknown, report


def gradients(model, call):
    """A step that leaves those of `call`, which is the model compiled."""
    def step(x):
        model.zero_grad(set_to_none=True)
        loss = call(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def gradients_are_scattered():
    def make_step():
        model = Sharded(dist.group.WORLD)
        return gradients(model, torch.compile(model, dynamic=False)), model

    assert_follows(make_step)


def two_groups():
    assert_follows(inference(dist.group.WORLD, dist.new_group(list(range(dist.get_world_size())))))


def all_kinds():
    world = dist.group.WORLD

    def layers(x):
        gathered = collectives.all_gather_into_tensor_coalesced([x, x * 2], world)
        total = collectives.all_reduce(gathered[0] @ gathered[1].T, "sum", world)
        part = collectives.reduce_scatter_tensor(total.contiguous(), "sum", 0, world)
        sent = collectives.all_to_all_single(part, None, None, world)
        return torch.tanh(collectives.broadcast(sent, 0, world) + x.sum())

    call = torch.compile(layers, dynamic=False)
    assert_follows(lambda: (call, nn.Module()))


def a_process_with_a_kernel_more():
    """Its schedule is another one; the collectives come in the same order."""
    def make_step():
        model = Sharded(dist.group.WORLD)

        def layers(x):
            more = torch.sin(x @ x.T).sum() if dist.get_rank() == 0 else x.new_zeros(())
            return model(x) + more

        call = torch.compile(layers, dynamic=False)

        def step(x):
            with torch.no_grad():
                return call(x)

        return step, model

    assert_follows(make_step)


def asked_by_overlap():
    """Of a compiled graph that is recorded by the backend, though the option says one lane."""
    model = Sharded(dist.group.WORLD)

    def layers(x):
        with anabranch.overlap(lanes=LANES):
            return model(x)

    call = torch.compile(layers, backend=anabranch.backend, options={"max_parallel_kernels": 1}, dynamic=False)
    plain = torch.compile(model, dynamic=False)
    with torch.no_grad():
        for i in range(CALLS):
            x = normal(i, 64, WIDTH)
            assert torch.equal(call(x), plain(x)), i
        (graph,) = anabranch.explain(call, normal(0, 64, WIDTH)).graphs
    (report,) = graph.recordings
    assert report.reason is None and report.launched and report.lanes >= 2, report


def gathers_in_groups():
    """Four calls for eight gathers, forward and backward, and gradients as without."""
    def make_step(backend):
        model = Sharded(dist.group.WORLD)

        def layers(x):
            with anabranch.overlap(lanes=LANES):
                return model(x)

        return gradients(model, torch.compile(layers, backend=backend, dynamic=False)), model

    called = []
    begin = bucket_gathers._begin_together

    def counting(gm, group):
        called.append(len(group.members))
        begin(gm, group)

    bucket_gathers._begin_together = counting
    (step, model), (reference, other) = make_step(anabranch.backend), make_step("inductor")
    for i in range(CALLS):
        x = normal(100 * dist.get_rank() + i, 64, WIDTH)
        assert torch.equal(step(x), reference(x)), f"call {i}"
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad), f"call {i}"
    assert called[:2] == [2, 4], called


def processes_that_see_other_shapes():
    """One comes to record in a call in which the other does not. It waits for a moment, no longer,
    and all is as unrecorded."""
    rendezvous._PATIENCE = datetime.timedelta(seconds=2)

    def make_step():
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, WIDTH, device="cuda")
        differentiate = gradients(model, model)

        def step(x):
            loss = differentiate(x)
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter -= 0.01 * parameter.grad
            return loss

        return step, model

    (step, model), (reference, other) = make_step(), make_step()
    recorded = anabranch.record(step)
    for i in range(CALLS):
        rows = 32 if dist.get_rank() and i % 2 else 64
        x = normal(100 * dist.get_rank() + i, rows, WIDTH)
        assert torch.equal(recorded(x), reference(x)), f"call {i}\n{told(recorded)}"
        assert torch.equal(model.weight, other.weight), f"call {i}"
    assert "in the same call" in told(recorded), told(recorded)


class Layers(nn.Module):
    """As many as fill some buckets."""

    def __init__(self, has_buffers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.norm = nn.BatchNorm1d(WIDTH) if has_buffers else nn.Identity()

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.norm(x)


def distributed(compiled=None, stream=None, has_buffers=True, gathers=False, **options):
    """A training step of a model of torch's DDP, the same without its optimizer, and the model. The
    step may gather the gradients of a batch before."""
    torch.manual_seed(0)
    net = Layers(has_buffers).cuda()
    if compiled is not None:
        net.compile(dynamic=False, **compiled)
    with torch.cuda.stream(stream or torch.cuda.Stream()):
        model = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()],
                                        bucket_cap_mb=1, **options)
    torch.cuda.synchronize()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def accumulate(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    def train(x):
        if gathers:
            with model.no_sync():
                accumulate(x + 1)
        loss = accumulate(x)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train, accumulate, model


def assert_trains_as_plainly(calls=CALLS, accumulates=False, **how):
    """What a recorded step leaves in a model of DDP's, and what the plain one does. A batch before
    may be accumulated in a recorded step of its own."""
    (train, accumulate, model), (plain, gather, other) = distributed(**how), distributed(**how)
    train, accumulate = anabranch.record(train), anabranch.record(accumulate)
    for i in range(calls):
        x = normal(100 * dist.get_rank() + i, 64, WIDTH)
        if accumulates:
            with model.no_sync(), other.no_sync():
                assert torch.equal(accumulate(x), gather(x)), f"call {i}"
        assert torch.equal(train(x), plain(x)), f"call {i}\n{told(train)}"
        for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(),
                                strict=True):
            assert torch.equal(mine, theirs), f"call {i}"
    return train


def gradients_are_averaged_by_ddp():
    for how in ({}, {"static_graph": True}, {"find_unused_parameters": True}, {"compiled": {}},
                {"compiled": {"backend": anabranch.backend}}, {"gathers": True},
                {"accumulates": True, "has_buffers": False}):
        assert_launched(assert_trains_as_plainly(**how), CALLS - 4)


def steps_under_ddp_that_stay_plain():
    """For longer than until torch takes times again, of the hundredth iteration."""
    for how, reason in (({"stream": torch.cuda.current_stream()}, "DistributedDataParallel(model)"),
                        ({"gradient_as_bucket_view": True}, "gradient_as_bucket_view=False"),
                        ({"accumulates": True}, "broadcast_buffers=False")):
        assert reason in told(assert_trains_as_plainly(110, **how)), how


STEPS = {step.__name__: step for step in (
    layers_in_order, gradients_are_scattered, two_groups, all_kinds, a_process_with_a_kernel_more,
    asked_by_overlap, gathers_in_groups, processes_that_see_other_shapes,
    gradients_are_averaged_by_ddp, steps_under_ddp_that_stay_plain)}


def main(name):
    # Whether side by side is faster is for the benchmarks: here it is kept in any case.
    overlap._LEAST_GAIN = 0.0
    anabranch.config.parallel_bytes = 1 << 40
    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    if gpus < int(os.environ["WORLD_SIZE"]):  # NCCL takes processes of one GPU for several hosts
        os.environ.update(NCCL_HOSTID=f"host {rank}", NCCL_SOCKET_IFNAME="lo")
    torch.cuda.set_device(rank % gpus)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank % gpus))
    with torch._inductor.config.patch(allow_buffer_reuse=False):
        STEPS[name]()
    torch.cuda.synchronize()
    dist.barrier()
    print("done", flush=True)
    os._exit(0)  # graphs with collectives go before their communicator, and here both just go


if __name__ == "__main__":
    main(*sys.argv[1:])
