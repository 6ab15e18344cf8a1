# SPDX-License-Identifier: Apache-2.0
"""Arguments on the CPU: what a step copies of them to the GPU is an argument of each launch, and
nothing that Python has seen of them is kept. The device without memory stands for the GPU where
captures are looked at; where launches are, tensors of integers stand for those on the CPU."""

from __future__ import annotations

import threading
import warnings
from types import SimpleNamespace

import numpy
import pytest
import torch
import torch.nn.functional as F
from stand_in_recording import IntegersOnTheHost, Launched, StandIn, hidden_list
from torch._subclasses.fake_tensor import FakeTensorMode

import anabranch
from anabranch._record.attempt import Attempt
from anabranch._record.capture import host_constants, host_tables
from anabranch._record.capture.host_constants import HostConstants
from anabranch._record.capture.host_tables import HostTables
from anabranch._record.launch.host_arguments import HostArguments
from anabranch._record.refusals import NotRecordable
from anabranch._record.signatures import specialization
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.signatures.signature import ARGUMENTS_ALONE
from anabranch._record.signatures.specialization import Specialization
from anabranch._record.state.state import NO_STATE

pytestmark = pytest.mark.oldest

GPU = "meta"
LENGTHS = [3, 1, 2, 2]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(host_tables, "_GPU", GPU)


def lengths():
    return torch.tensor(LENGTHS)


def captured(step, table):
    """Its answer in a capture whose twin is on the GPU, and what the capture noted."""
    tables = HostTables([(table, table.to(GPU))], [])
    with tables.captured():
        return step(table), tables


def of_offsets(table):
    made = torch.zeros(len(table) + 1, dtype=torch.int32)
    made[1:] = table.cumsum(0)
    return made


COPIES = {
    "to": lambda t: t.to(GPU),
    "of another type": lambda t: t.to(GPU, torch.int32),
    "narrowed before": lambda t: t.to(torch.int32).to(GPU),
    "floats": lambda t: t.float().to(GPU),
    "copy_": lambda t: torch.empty(len(t), device=GPU).copy_(t),
    "a part": lambda t: t[1:].to(GPU),
    "every second": lambda t: t[::2].to(GPU),
    "in another shape": lambda t: t.view(2, 2).t().to(GPU),
    "sums": lambda t: F.pad(t.cumsum(0), (1, 0)).to(GPU),
    "sums that are put": lambda t: of_offsets(t).to(GPU),
    "positions": lambda t: (torch.arange(8) % t.max()).to(GPU),
    "a mask of the CPU's": lambda t: (torch.arange(4)[None] < t[:, None]).to(GPU),
    "joined": lambda t: torch.cat([t, t + 1]).to(GPU),
    "pieces": lambda t: torch.stack([one for one in t.unbind()][::2]).to(GPU),
    "an index": lambda t: torch.empty(9, 2, device=GPU)[t],
    "an index of a column": lambda t: torch.empty(2, 9, device=GPU)[:, t],
    "bytes": lambda t: t.view(torch.int32).to(GPU),
}


def test_what_it_is_computed_with_comes_by_way_of_the_constants(gpu, monkeypatch):
    monkeypatch.setattr(host_constants, "_GPU", GPU)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    memory, table = torch.zeros(4096, dtype=torch.uint8), lengths()
    tables = HostTables([(table, table.to(GPU))], [])
    with HostConstants(memory, []).captured(), tables.captured():
        assert (torch.arange(1, 4)[None] < table[:, None]).to(GPU).shape == (4, 3)
        assert of_offsets(table).to(GPU).shape == (5,)
    assert memory.view(torch.int64)[:4].tolist() == [1, 2, 3, 0]


@pytest.mark.parametrize("step", COPIES.values(), ids=COPIES.keys())
def test_what_is_copied_comes_from_the_argument_of_the_launch(gpu, step):
    made, _ = captured(step, lengths())
    wanted = step(lengths())
    assert made.device.type == GPU
    assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)


def test_what_is_put_with_an_index_on_the_cpu_is_put_by_the_argument(gpu):
    def step(table):
        made = torch.empty(9, device=GPU, dtype=torch.long)
        made[table] = table
        return made

    assert captured(step, lengths())[0].shape == (9,)


def drawn(t):
    return torch.randint(0, 9, (4,)).add(t).to(GPU)


def written_numpy(t):
    return torch.from_numpy(numpy.asarray(t) + 1).to(GPU)


REFUSED = {
    "a number of it": (lambda t: torch.ones(3, device=GPU) * t[0].item(), "reads one there"),
    "a sum of it": (lambda t: torch.ones(int(t.sum()), device=GPU), "reads one there"),
    "an if": (lambda t: t.to(GPU) if t[0] > 2 else None, "reads one there"),
    "each of its numbers": (lambda t: [float(one) for one in t], "reads one there"),
    "a list": (lambda t: torch.ones(t.tolist(), device=GPU), r"\.tolist\(\)"),
    "numpy": (lambda t: t.numpy().sum(), r"\.numpy\(\)"),
    "numpy's array": (written_numpy, r"\.array\(\)"),
    "another tensor's number": (lambda t: torch.zeros(1).item(), "reads one there"),
    "floats": (lambda t: (t.float() * 0.1).to(GPU), "computes with it there"),
    "a mean": (lambda t: (t / 3).to(GPU), "computes with it there"),
    "integers of floats": (lambda t: t.float().long().to(GPU), "computes with it there"),
    "a mask for an index": (lambda t: torch.empty(4, device=GPU)[t > 1], "a mask on the CPU"),
    "where it is not zero": (lambda t: t.nonzero().to(GPU), "computes with it there"),
    "whether it is equal": (lambda t: torch.equal(t, t + 0), "computes with it there"),
    "written": (lambda t: t.add_(1).to(GPU), "computes with it there"),
    "written by a part": (lambda t: t[1:].zero_(), "computes with it there"),
    "an operand": (lambda t: torch.empty(3, device=GPU) + t.max(), "computes with it there"),
    "random numbers": (lambda t: torch.bernoulli(t, 0.5).to(GPU), "computes with it there"),
}


@pytest.mark.parametrize("step, reason", REFUSED.values(), ids=REFUSED.keys())
def test_what_python_sees_of_it_or_computes_otherwise_is_refused(gpu, step, reason):
    table = lengths()
    with pytest.raises(NotRecordable, match=reason):
        captured(step, table)
    assert table.tolist() == LENGTHS  # and it is what it was


def test_guarded_tensors_may_be_read_and_others_computed_with(gpu):
    count = torch.tensor(3)
    table = lengths()
    with HostTables([(table, table.to(GPU))], [count]).captured():
        assert count.item() == 3
        assert torch.ones(3).add(1).sum().shape == ()
        with pytest.raises(NotRecordable, match="computes with it there"):
            count.copy_(table.sum())  # no launch would write it
    assert count.item() == 3


def test_other_threads_read_their_tensors_meanwhile(gpu):
    table, found = lengths(), []
    with HostTables([(table, table.to(GPU))], []).captured():
        other = threading.Thread(target=lambda: found.append(table.tolist()))
        other.start()
        other.join()
    assert found == [LENGTHS]
    assert "tolist" not in vars(torch.Tensor) and table.numpy().sum() == 8


@pytest.mark.parametrize("waits", [True, False])
def test_what_the_step_waits_for_is_noted(gpu, waits):
    _, tables = captured(lambda t: t.to(GPU, non_blocking=not waits), lengths())
    assert tables.waited == ({0} if waits else set())
    _, tables = captured(lambda t: torch.empty(4, device=GPU).copy_(t, not waits), lengths())
    assert tables.waited == ({0} if waits else set())


def test_an_empty_argument_is_no_table(gpu):
    assert captured(lambda t: t.to(GPU), torch.zeros(0))[0].shape == (0,)


@pytest.mark.parametrize("leaf, why", [
    (torch.zeros(4)[::2], "not contiguous"), (torch.zeros(4, requires_grad=True), "a gradient"),
    (torch.zeros(2, dtype=torch.complex64).conj(), "not contiguous"),
    (torch.zeros(2, device="meta"), "another device"), (torch.eye(2).to_sparse(), "contiguous"),
])
def test_what_no_launch_can_be_given_is_refused(leaf, why):
    with pytest.raises(NotRecordable, match=why):
        HostArguments([leaf], [0], 0)


def test_what_is_no_memory_of_the_cpu_is_no_table(gpu):
    table = lengths()
    tables = HostTables([(table, table.to(GPU))], [])
    with FakeTensorMode():
        thought_of = torch.ones(4)
    for thing in (thought_of, torch.eye(2).to_sparse(), torch.ones(2, device="meta"), 3):
        assert not tables.is_table(thing)
    assert tables.is_table(table) and tables.is_table(table[1:])


@pytest.mark.parametrize("others, numbers, is_refused",
                         [(True, (0,), True), (True, (), False), (False, (0,), False)])
def test_steps_of_several_processes_have_no_arguments_on_the_cpu(others, numbers, is_refused):
    """A process whose bytes are the captured ones would not take part in the comparison."""
    attempt = Attempt.__new__(Attempt)
    attempt._agree = SimpleNamespace(has_others=others)
    attempt._step = SimpleNamespace(on_host=numbers)
    if is_refused:
        with pytest.raises(NotRecordable, match="other processes"):
            attempt._check_arguments()
    else:
        attempt._check_arguments()


def test_compiled_graphs_run_plainly_where_inputs_lie_on_the_cpu():
    with pytest.raises(NotRecordable, match="input 1 of a compiled graph"):
        Specialization("()", NO_STATE).step(len, [3, lengths()], 0, None, numbers=None,
                                            is_noted=False, kind=CallableKind())


def test_where_no_memory_can_be_pinned_arguments_are_sent_without():
    """No GPU can pin memory here. The CPU stands for the GPU."""
    arguments = HostArguments([lengths()], [0], 0)
    arguments._device = torch.device("cpu")
    assert torch.equal(arguments.sent([lengths()])[0], lengths())


def test_bytes_are_compared_once_with_others_than_were_captured():
    given = [torch.zeros(3), torch.tensor([float("nan")])]
    arguments = HostArguments(given, [0, 1], 0)
    assert arguments.are_as_compared(given)
    others = [torch.tensor([0.0, -0.0, 0.0]), given[1]]
    assert not arguments.are_as_compared(others)
    arguments.note_compared(others)
    assert arguments.are_as_compared([torch.ones(3), given[1]])
    assert not arguments.are_as_compared([torch.ones(3), torch.zeros(1)])
    arguments.trust()
    assert arguments.are_as_compared([torch.ones(3), torch.zeros(1)])


@pytest.fixture
def recorded(monkeypatch):
    """Records steps of a tensor and lengths, which lie on the CPU."""
    stand_in = StandIn(monkeypatch, arguments=2)
    monkeypatch.setattr(specialization, "HostArguments", IntegersOnTheHost)
    monkeypatch.setattr(Launched, "launch", lambda self, given, owners, objects, **how: self._run(
        [ARGUMENTS_ALONE, *given[:2]]))
    return stand_in


def test_bytes_that_change_are_launched_once_a_launch_was_compared(recorded):
    ran, note = hidden_list()

    def step(x, table):
        note(recorded.is_launching)
        return x * table

    call, x = anabranch.record(step, guards=False), torch.ones(4)
    for i in range(6):
        before = len(ran)
        assert torch.equal(call(x, lengths() + i), lengths() + i)
        plain = [one for one in ran[before:] if not one]
        # Plainly, recorded, compared with other bytes, and then launched.
        assert len(plain) == (1 if i < 3 else 0), i
    [report] = call.reports
    assert report.reason is None and report.plain_calls == 0


def test_the_bytes_that_were_captured_are_launched_at_once(recorded):
    ran, note = hidden_list()

    def step(x, table):
        note(recorded.is_launching)
        return x * table

    call, x = anabranch.record(step, guards=False), torch.ones(4)
    for _ in range(4):
        call(x, lengths())
    assert ran[-2:] == [True, True]


def test_a_step_that_has_seen_the_bytes_in_some_other_way_runs_plainly(recorded):
    seen, note = hidden_list()

    def step(x, table):
        note(table.tolist())
        return x * torch.tensor(note.__self__[1] if recorded.is_launching else table.tolist())

    call, x = anabranch.record(step, guards=False), torch.ones(4)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for i in range(6):
            assert torch.equal(call(x, lengths() + i), lengths() + i)
    assert any("with another tensor on the CPU a launch differs" in str(one.message)
               for one in warned)
    [report] = call.reports
    assert report.code == 326 and "Move it to the GPU before the call" in report.remedy
