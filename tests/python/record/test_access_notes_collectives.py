# SPDX-License-Identifier: Apache-2.0
"""What is noted of collectives: those that a process group's backend is known to queue are in turn,
with what they read and write, and waiting for one is nothing.

No second process is needed: torch's fake backend moves nothing and takes any number of ranks.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from noting import Marks, at, compiled, reads, writes
from torch.testing._internal.distributed.fake_pg import FakeStore

from anabranch._fx.schema import tensors_in
from anabranch._record.capture.access_notes import AccessNotes

pytestmark = pytest.mark.own
ops = torch.ops._c10d_functional
RANKS = 2


@pytest.fixture(params=["fake", "gloo"])
def backend(request, tmp_path):
    """A process group of this backend, by itself in the world where it is a real one."""
    if request.param == "fake":
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    else:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0,
                                world_size=1)
    yield request.param
    dist.destroy_process_group()


fake = pytest.mark.parametrize("backend", ["fake"], indirect=True)


def name():
    return dist.group.WORLD.group_name


def notes_of(run, *args):
    notes = AccessNotes(Marks(), "cpu", ["fake"])
    with notes.noted():
        result = run(*args)
    for tensor in tensors_in(result):
        ops.wait_tensor(tensor)
    return notes, result


FRESH = {
    "all_reduce": lambda x: ops.all_reduce(x, "sum", name()),
    "all_gather": lambda x: ops.all_gather_into_tensor(x, RANKS, name()),
    "reduce_scatter": lambda x: ops.reduce_scatter_tensor(x, "sum", RANKS, name()),
    "all_to_all": lambda x: ops.all_to_all_single(x, [2, 2], [2, 2], name()),
    "broadcast": lambda x: ops.broadcast(x, 0, name()),
}
COALESCED = {
    "all_reduce": lambda x, y: ops.all_reduce_coalesced([x, y], "sum", name()),
    "all_gather": lambda x, y: ops.all_gather_into_tensor_coalesced([x, y], RANKS, name()),
    "reduce_scatter":
        lambda x, y: ops.reduce_scatter_tensor_coalesced([x, y], "sum", RANKS, name()),
}


@fake
@pytest.mark.parametrize("collective", FRESH.values(), ids=FRESH)
def test_a_collective_reads_its_input_and_writes_a_result_of_its_own(backend, collective):
    x = torch.randn(4, 4)
    notes, y = notes_of(collective, x)
    (work,) = notes.works
    assert (reads(work), writes(work)) == (at(x), at(y))
    assert work.in_turn and not work.has_scratch and not work.independent


@fake
@pytest.mark.parametrize("collective", COALESCED.values(), ids=COALESCED)
def test_coalesced_collectives_are_one_work(backend, collective):
    x, y = torch.randn(4, 4), torch.randn(4)
    notes, results = notes_of(collective, x, y)
    (work,) = notes.works
    assert (reads(work), writes(work)) == (at(x, y), at(*results))
    assert work.in_turn


@fake
@pytest.mark.parametrize("collective", [
    lambda x, y: ops.all_reduce_(x, "sum", name()),
    lambda x, y: ops.broadcast_(x, 0, name()),
    lambda x, y: ops.all_reduce_coalesced_([x], "sum", name()),
    lambda x, y: ops.all_gather_into_tensor_out(y[:2], RANKS, name(), out=x),
    lambda x, y: ops.reduce_scatter_tensor_out(y, "sum", RANKS, name(), out=x)])
def test_what_a_collective_writes_in_place_is_written(backend, collective):
    x, y = torch.randn(4), torch.randn(4 * RANKS)
    notes, _ = notes_of(collective, x, y)
    (work,) = notes.works
    assert writes(work) == at(x) and reads(work) <= at(y) and work.in_turn


@fake
def test_waiting_for_a_collective_is_no_work_and_breaks_none(backend):
    x = torch.randn(4)
    marks = Marks()
    notes = AccessNotes(marks, "cpu", ["fake"])
    y = ops.all_reduce(x, "sum", name())
    with notes.noted():
        ops.wait_tensor(y)
        assert marks.count == 0
        y + 1
    assert [work.in_turn for work in notes.works] == [False]


@fake
def test_a_group_may_be_named_by_keyword(backend):
    notes, _ = notes_of(lambda x: ops.all_reduce(x, reduce_op="sum", group_name=name()),
                        torch.randn(4))
    assert [work.in_turn for work in notes.works] == [True]


@pytest.mark.parametrize("backend", ["gloo"], indirect=True)
def test_collectives_of_another_backend_are_unknown(backend):
    notes, _ = notes_of(lambda x: ops.wait_tensor(ops.all_reduce(x, "sum", name())),
                        torch.randn(4))
    assert not notes.works and notes._mark() > 1  # it was marked apart


@fake
def test_what_is_no_functional_collective_is_unknown(backend):
    notes, _ = notes_of(lambda x: dist.all_reduce(x), torch.randn(4))
    assert not notes.works and notes._mark() > 1


@fake
def test_a_collective_of_no_group_fails_as_ever_and_is_not_noted(backend):
    notes, given = AccessNotes(Marks(), "cpu", ["fake"]), torch.randn(4)
    with pytest.raises(RuntimeError), notes.noted():
        ops.all_reduce(given, "sum", "no such group")
    assert not notes.works and notes.has_raised


@fake
def test_a_compiled_graph_is_noted_with_its_collectives(backend):
    def layers(x, *shards):
        for shard in shards:
            weight = ops.wait_tensor(ops.all_gather_into_tensor(shard, RANKS, name()))
            x = torch.mm(x, weight)
        return ops.wait_tensor(ops.reduce_scatter_tensor(x, "sum", RANKS, name()))

    x, *shards = torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 8)
    call = compiled(layers)
    call(x, *shards)
    notes = AccessNotes(Marks(), "cpu", ["fake"])
    with notes.known_calls():
        call(x, *shards)
    in_turn = [work for work in notes.works if work.in_turn]
    products = [work for work in notes.works if work.has_scratch]
    assert len(in_turn) == 3 and len(products) == 2
    assert [reads(work) for work in in_turn[:2]] == [at(shard) for shard in shards]
    for gather, product in zip(in_turn, products, strict=False):
        assert writes(gather) <= reads(product)
    assert reads(in_turn[2]) <= writes(products[1])
