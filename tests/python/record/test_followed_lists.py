# SPDX-License-Identifier: Apache-2.0
"""Lists of integers that change between calls are followed by one recording where torch alone makes
tensors of them, and recorded by themselves where the step looks at them."""

from __future__ import annotations

import copy
import itertools
import operator
import pickle
import warnings

import pytest
import torch
from stand_in_recording import IntegersOnTheHost, Launched, StandIn, hidden_list

import anabranch
from anabranch._record.capture import host_tables
from anabranch._record.capture.host_tables import HostTables
from anabranch._record.capture.noted_lists import noted
from anabranch._record.refusals import NotRecordable
from anabranch._record.signatures import specialization
from anabranch._record.signatures.lists import FollowedLists, Listed, with_lists
from anabranch._record.signatures.signature import unpack

pytestmark = pytest.mark.oldest

GPU = "meta"
NUMBERS = [3, 1, 2, 2]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(host_tables, "_GPU", GPU)


def captured(step):
    table = torch.tensor([*NUMBERS, 7])  # the list is a part of what all lists are in
    with HostTables([(table, table.to(GPU))], []).captured():
        return step(noted(table[:4]))


MADE = {
    "tensor": lambda p: torch.tensor(p, device=GPU),
    "of another type": lambda p: torch.tensor(p, dtype=torch.int32, device=GPU),
    "as_tensor": lambda p: torch.as_tensor(p, device=GPU),
    "new_tensor": lambda p: torch.zeros(1, device=GPU).new_tensor(p),
    "that wants a gradient": lambda p: torch.tensor(p, dtype=torch.float32, device=GPU,
                                                    requires_grad=True),
    "there before": lambda p: torch.tensor(p).to(GPU),
    "rows": lambda p: torch.tensor([p, p], device=GPU),
    "sums": lambda p: torch.tensor(p).cumsum(0).to(GPU),
    "an index": lambda p: torch.zeros(9, 2, device=GPU)[p],
    "an index of columns": lambda p: torch.zeros(2, 9, device=GPU)[:, p],
    "as long as it is": lambda p: torch.zeros(len(p), device=GPU),
}


@pytest.mark.parametrize("step", MADE.values(), ids=MADE.keys())
def test_what_torch_makes_of_a_list_is_made_of_the_table(gpu, step):
    made, wanted = captured(step), step(NUMBERS)
    assert made.device.type == GPU
    assert (made.shape, made.stride(), made.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
    assert made.requires_grad == wanted.requires_grad


LOOKS = {
    "an item": lambda p: p[0],
    "each": lambda p: [one + 1 for one in p],
    "the most": max,
    "the sum": sum,
    "sorted": sorted,
    "unpacked": lambda p: print(*p),
    "copied": list,
    "a tuple of it": tuple,
    "a slice": lambda p: p[1:],
    "more": lambda p: p + [0],
    "behind others": lambda p: [0] + p,
    "equal": lambda p: p == NUMBERS,
    "inside": lambda p: 3 in p,
    "a size": lambda p: torch.zeros(p, device=GPU),
    "dimensions": lambda p: torch.zeros(1, 1, 1, 1, device=GPU).permute(p),
    "numpy's": lambda p: __import__("numpy").array(p) + 1,
    "a text": str,
    "bytes": lambda p: torch.tensor(p, dtype=torch.uint8, device=GPU),
    "beside numbers": lambda p: torch.tensor([p, [1, 2, 3, 4]], device=GPU),
    "a list of lists as an index": lambda p: torch.zeros(9, 9, device=GPU)[[p, p]],
}


@pytest.mark.parametrize("step", LOOKS.values(), ids=LOOKS.keys())
def test_what_python_sees_of_a_list_is_refused(gpu, step):
    with pytest.raises((NotRecordable, TypeError)):
        captured(step)


CHANGES = {
    "append": lambda p: p.append(1), "sort": lambda p: p.sort(), "pop": lambda p: p.pop(),
    "an item": lambda p: p.__setitem__(0, 1), "more": lambda p: p.__iadd__([1]),
    "another compares": lambda p: operator.eq([3, 1], p),
    "with itself": lambda p: operator.eq(p, p),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_list_that_is_changed_or_compared_is_refused(gpu, change):
    with pytest.raises(NotRecordable, match="looks at the numbers of a list"):
        captured(change)


def test_who_looks_sees_the_numbers_of_the_call_and_the_capture_is_refused_at_its_end(gpu):
    seen = []
    with pytest.raises(NotRecordable):
        captured(lambda p: seen.append((p[0], [*p], 2 in p, p == NUMBERS)))
    assert seen == [(3, NUMBERS, True, True)]


@pytest.mark.parametrize("breaks", [False, True])
def test_a_list_that_somebody_keeps_is_an_ordinary_one_behind_the_capture(gpu, breaks):
    kept = []

    def step(positions):
        kept.append(positions)
        if breaks:
            raise ValueError("broken")

    if breaks:
        with pytest.raises(ValueError, match="broken"):
            captured(step)
    else:
        captured(step)
    [found] = kept
    assert found == NUMBERS == [*found] and found + [1] == [*NUMBERS, 1]
    assert torch.zeros(9)[found].shape == torch.tensor(found).shape == (4,)
    found.append(5)
    found += [6]
    assert copy.deepcopy(found) == pickle.loads(pickle.dumps(found)) == [*NUMBERS, 5, 6]


def flat(*args, **kwargs):
    leaves = [None]
    leaves[0] = unpack((args, kwargs), leaves)
    return leaves


def key_of(leaves):
    guards = [(type(leaf), leaf) if not isinstance(leaf, torch.Tensor) else leaf.shape
              for leaf in leaves]
    return None, None, tuple(guards), 0, None


def arguments(a, b, c=5):
    return (1, [*a], {"deep": (2.0, ([*b],)), "flags": [True]}), {"more": [c, 9], "none": []}


def test_arguments_come_back_as_they_were():
    lists, given = FollowedLists(), arguments([1, 2, 3], [4, 5])
    first, other = flat(*given[0], **given[1]), flat(*arguments([1, 2, 4], [4, 6])[0], **given[1])
    assert not lists.has_any and lists.taken_from(first) == first
    assert lists.begin(key_of(other), [key_of(first)]) and lists.has_any
    taken = lists.taken_from(first)
    assert isinstance(taken[0], Listed) and taken[-1].tolist() == [1, 2, 3, 4, 5]
    assert taken[1:-1] == [1, 2.0, True, 5, 9]
    assert with_lists(taken) == given
    # Another list changes: it is followed, too.
    more = lists.taken_from(flat(*given[0], **arguments([], [], c=6)[1]))
    assert lists.begin(key_of(more), [key_of(taken)])
    taken = lists.taken_from(first)
    assert taken[-1].tolist() == [1, 2, 3, 4, 5, 5, 9] and with_lists(taken) == given
    assert not lists.begin(key_of(taken), [key_of(taken)])


@pytest.mark.parametrize("numbers", [[1.0, 2], [True, 2], [1 << 31, 2], [1 << 80, 2], [None, 2]])
def test_what_are_no_integers_of_four_bytes_stay_as_they_are(numbers):
    lists = FollowedLists()
    assert lists.begin(key_of(flat([1, 2])), [key_of(flat([1, 3]))])
    assert lists.taken_from(flat(numbers)) == flat(numbers)
    assert lists.taken_from(flat([-1 << 31, 2]))[-1].tolist() == [-1 << 31, 2]


@pytest.mark.parametrize("one, other", [
    ([1, 2], [1, 2, 3]), ([1, 2], (1, 3)), ((1, 2), (1, 3)), ([1, 2], [1, 2]), ([1.0, 2], [1.0, 3]),
    ({"a": 1}, {"a": 2}), ([True], [False]), ([], [])])
def test_what_else_differs_tells_signatures_apart(one, other):
    assert not FollowedLists().begin(key_of(flat(one)), [key_of(flat(other))])


def test_what_leads_to_the_state_is_no_list_of_integers():
    told = key_of(flat([1, 2], [3]))
    leading = (*told[:2], (told[2][0], object, *told[2][2:]), *told[3:])
    assert not FollowedLists().begin(leading, [told])
    assert FollowedLists().begin(key_of(flat([1, 2], [4])), [leading, told])


def test_once_refused_no_list_is_followed():
    lists = FollowedLists()
    assert lists.begin(key_of(flat([1, 2])), [key_of(flat([1, 3]))])
    lists.refuse()
    assert not lists.begin(key_of(flat([1, 2])), [key_of(flat([1, 3]))])
    assert lists.taken_from(flat([1, 2])) == flat([1, 2])


@pytest.fixture
def recorded(monkeypatch):
    """Records steps of a tensor and a list, whose table lies on the CPU."""
    stand_in = StandIn(monkeypatch, arguments=2)
    monkeypatch.setattr(specialization, "HostArguments", IntegersOnTheHost)
    monkeypatch.setattr(Launched, "launch", lambda self, given, owners, objects, **how: self._run(
        [self.containers, *given[:2]]))
    original = Launched.__init__

    def init(self, stand_in, step, lanes):
        original(self, stand_in, step, lanes)
        self.containers = step.leaves[0]

    monkeypatch.setattr(Launched, "__init__", init)
    return stand_in


def test_a_list_that_changes_is_followed_by_one_recording(recorded):
    (ran, note), x = hidden_list(), torch.ones(4)

    def step(x, positions):
        note(recorded.is_launching)
        return x * torch.tensor(positions)

    call = anabranch.record(step, guards=False)
    for i in range(9):
        positions = [i, 1, 2, i * i]
        assert torch.equal(call(x, positions), torch.tensor(positions).float()), i
    assert ran[-3:] == [True] * 3
    served = [report for report in call.reports if report.nodes]
    assert len(served) == 1 and not any(report.reason for report in call.reports)


def test_a_list_that_the_step_looks_at_is_recorded_by_itself(recorded, monkeypatch):
    """As it was before: one recording a value, and what to write instead in a warning."""
    def capture(step, device, is_enough=None):
        if step.on_host:
            raise NotRecordable("it looks at the numbers of a list in Python")
        return recorded._capture(step, device, is_enough)

    monkeypatch.setattr("anabranch._record.attempt.capture_twice", capture)
    monkeypatch.setattr(Launched, "launch", lambda self, given, owners, objects, **how: self._run(
        [self.containers, given[0], *self.numbers]))
    original = Launched.__init__

    def init(self, stand_in, step, lanes):
        original(self, stand_in, step, lanes)
        self.numbers = step.leaves[2:]

    monkeypatch.setattr(Launched, "__init__", init)
    call, x = anabranch.record(lambda x, dims: x * sum(dims), guards=False), torch.ones(4)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for i in itertools.chain(*[[0, 1, 2, 3]] * 4):
            assert torch.equal(call(x, [i, 2]), x * (i + 2)), i
    assert any("Lists of integers are not followed: it looks at the numbers" in str(one.message)
               for one in warned)
    assert sum(report.nodes > 0 for report in call.reports) == 4
    assert not any(report.reason for report in call.reports)
