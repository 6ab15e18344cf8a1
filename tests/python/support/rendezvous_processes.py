# SPDX-License-Identifier: Apache-2.0
"""What each process runs for test_rendezvous.

    python rendezvous_processes.py <rank> <ranks> <store> <what>
"""

from __future__ import annotations

import datetime
import sys
import time

import torch
import torch.distributed as dist

from anabranch import _compat
from anabranch._record import rendezvous
from anabranch._record.capture.untracked import UntrackedTensors
from anabranch._record.refusals import Apart, NotRecordable
from anabranch._record.rendezvous import Rendezvous

CPU = torch.device("cpu")


def after_collectives(*groups):
    """Of a step that has one in each of these."""
    before = _compat.collectives_so_far()
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    return Rendezvous.since(before, CPU)


def is_apart(agreement, name):
    try:
        agreement.meet(name)
    except Apart as error:
        assert "in the same call" in str(error)
        return True
    return False


def raised_by(agreement, make):
    try:
        agreement.make(make)
    except NotRecordable as error:
        return type(error), str(error)
    return None


def fails_with(error):
    raise error


def nothing_in_common(rank, ranks):
    """A step without collectives waits for nobody."""
    agreement = after_collectives()
    if rank == 0:
        agreement.meet("alone")
        assert agreement.on(True) and not agreement.on(False)


def all_come(rank, ranks):
    agreement = after_collectives(dist.group.WORLD)
    for _ in range(3):  # some steps are recorded for several signatures
        time.sleep(0.2 * rank)
        agreement.meet("step")
        for one in range(ranks):
            assert agreement.on(rank == one)
        assert not agreement.on(False)
        assert agreement.make(lambda: 5) == 5
        found = raised_by(agreement, lambda: fails_with(NotRecordable("mine")) if rank else 5)
        assert found == (NotRecordable, "mine" if rank else "another process could not record it")
        there = UntrackedTensors([torch.ones(2)])
        assert raised_by(agreement, lambda: fails_with(there)) == (UntrackedTensors, str(there))
        found = raised_by(agreement, lambda: fails_with(there if rank else NotRecordable("no")))
        assert found == (NotRecordable, str(there) if rank else "no")


def some_do_not_come(rank, ranks):
    """The others go on, and nobody waits for them again; steps of another name are as before."""
    rendezvous._PATIENCE = datetime.timedelta(seconds=1)
    agreement = after_collectives(dist.group.WORLD)
    if rank != ranks - 1:
        assert is_apart(agreement, "some come")
    dist.barrier()
    rendezvous._PATIENCE = datetime.timedelta(seconds=100)
    for _ in range(3):
        assert is_apart(agreement, "some come")
    assert not is_apart(agreement, "all come")


def who_knows_tells_those_that_wait(rank, ranks):
    """One that finds the mark lets go whoever has begun to wait before there was one."""
    rendezvous._PATIENCE = datetime.timedelta(seconds=100)
    agreement = after_collectives(dist.group.WORLD)
    store = _compat.store_of(dist.group.WORLD)
    if rank == 0:
        while store.add("anabranch/told/1/come", 0) < ranks - 1:
            time.sleep(0.05)
        store.set("anabranch/told/apart", "no")
    start = time.monotonic()
    assert is_apart(agreement, "told") and time.monotonic() - start < 60


def who_comes_late(rank, ranks):
    """Finds that the others have gone, though it is the last that they waited for."""
    rendezvous._PATIENCE = datetime.timedelta(seconds=1)
    agreement = after_collectives(dist.group.WORLD)
    if rank == 0:
        time.sleep(3)
    assert is_apart(agreement, "late")


def groups_that_cross(rank, ranks):
    """Rows and columns of processes: what one finds all of them know, though it meets few."""
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    agreement = after_collectives(rows[rank // 2], columns[rank % 2])
    for one in range(ranks):
        assert agreement.on(rank == one)
    assert not agreement.on(False)
    assert not is_apart(agreement, "all come")
    rendezvous._PATIENCE = datetime.timedelta(seconds=2)
    if rank != 3:
        assert is_apart(agreement, "three come")


def groups_in_a_row(rank, ranks):
    """0 with 1, 1 with 2, 2 with 3: what an end finds, the other one knows."""
    pairs = [dist.new_group([i, i + 1]) for i in reversed(range(ranks - 1))]
    agreement = after_collectives(*(pair for pair in pairs
                                    if pair != dist.GroupMember.NON_GROUP_MEMBER))
    for one in (0, ranks - 1):
        assert agreement.on(rank == one)
    rendezvous._PATIENCE = datetime.timedelta(seconds=2)
    if rank != 0:
        assert is_apart(agreement, "all but one come")


def the_largest_group_speaks_for_others(rank, ranks):
    dist.new_group([0, 1])
    other = dist.new_group(list(range(ranks)))
    agreement = after_collectives(other, dist.group.WORLD)
    assert agreement._turns == [dist.group.WORLD]
    before = _compat.collectives_so_far()
    assert agreement.on(rank == 0)
    after = _compat.collectives_so_far()
    assert [after[group] - before[group] for group in (dist.group.WORLD, other)] == [1, 0]


def main(rank, ranks, store, *whats):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank),
                            world_size=int(ranks))
    for what in whats:
        globals()[what](int(rank), int(ranks))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
