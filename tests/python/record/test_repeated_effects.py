# SPDX-License-Identifier: Apache-2.0
"""What a step's Python leaves behind is left by launches, too, or the step is not launched. A
launch replays a tape here, and runs none of the step's Python."""

from __future__ import annotations

import collections
import copy
import itertools
from types import SimpleNamespace

import pytest
import torch
from stand_in_recording import hidden_list
from tape_recording import OnTape
from torch import nn

import anabranch
from anabranch import errors

COUNT, TABLE = 0, {"n": 0}
CALLS = 8


@pytest.fixture(autouse=True, name="tape")
def on_tape(monkeypatch):
    return OnTape(monkeypatch)


class Counting:
    total = 0


def state_of(holder):
    kept = {name: value for name, value in vars(holder).items() if name != "items"}
    return copy.deepcopy({"holder": kept, "global": (COUNT, TABLE),
                          "class": Counting.total})


def run(change, wrap, calls=CALLS):
    """The answers, Python's state after each call, how often the step's Python ran, and the step."""
    global COUNT
    COUNT, Counting.total = 0, 0
    TABLE.clear()
    TABLE["n"] = 0
    holder = SimpleNamespace(
        n=0, flag=False, text="", rows=[1, 2, 3], log=[], table={"a": 1}, seen=set(), last=None,
        recent=collections.deque([1, 2, 3], maxlen=3), counter=collections.Counter(), ema=0.5,
        items=iter(range(1000)), loss=None)
    ran, note = hidden_list()

    def step(x):
        note(x)
        return change(holder, x)

    made, found = wrap(step), []
    for i in range(calls):
        answer = made(torch.full((3,), float(i)))
        found.append((answer.clone(), state_of(holder)))
    return found, len(ran), made


def add(holder, x):
    holder.n += 1
    return x * 2


def add_by_three(holder, x):
    holder.n = holder.n + 1
    holder.n += 2
    return x * 2


def add_to_items(holder, x):
    holder.table["a"] += 2
    holder.rows[1] += 1
    return x * 2


def count_in_a_counter(holder, x):
    holder.counter.update(["a", "b", "a"])
    return x * 2


def add_to_a_class(holder, x):
    Counting.total += 1
    return x * 2


def add_to_a_global(holder, x):
    global COUNT
    COUNT += 1
    TABLE["n"] -= 1
    return x * 2


def assign(holder, x):
    holder.flag, holder.text, holder.last = True, "called", (1, "two")
    holder.table["new"] = [1, 2]
    return x * 2


def append(holder, x):
    holder.log.append("called")
    holder.log.extend([1, 2.5])
    holder.recent.append(7)
    holder.seen.add("x")
    return x * 2


def append_a_tensor(holder, x):
    holder.loss = x.sum()
    holder.log.append(holder.loss)
    return x * 2


def drop(holder, x):
    holder.log.append(1)
    holder.log.append(2)
    holder.log.pop()
    return x * 2


REPEATED = [add, add_by_three, add_to_items, count_in_a_counter, add_to_a_class, add_to_a_global,
            assign, append, append_a_tensor, drop]


def same(found, wanted):
    return all(torch.equal(a, b) and repr(left) == repr(should)
               for (a, left), (b, should) in zip(found, wanted, strict=True))


@pytest.mark.parametrize("change", REPEATED, ids=lambda change: change.__name__)
def test_what_a_launch_can_repeat_it_does(change, tape):
    wanted, _, _ = run(change, lambda step: step)
    found, runs, step = run(change, anabranch.record)
    assert same(found, wanted)
    assert tape.launches >= CALLS - 4 and [report.code for report in step.reports][-1] is None


def branch(holder, x):
    holder.n += 1
    return x * 3 if holder.n % 4 == 0 else x * 2


def feeds_a_kernel(holder, x):
    holder.n += 1
    return x * holder.n


def feeds_arithmetic(holder, x):
    holder.n += 1
    return x / (1 - 0.9 ** holder.n)


def averages(holder, x):
    holder.ema = 0.9 * holder.ema + 0.1
    return x * 2


def length_decides(holder, x):
    holder.log.append(1)
    return x * len(holder.log)


def logs_its_count(holder, x):
    holder.n += 1
    holder.log.append(holder.n)
    return x * 2


def shuffles(holder, x):
    holder.rows.reverse()
    return x * holder.rows[0]


def collects_objects(holder, x):
    holder.log.append(SimpleNamespace(a=holder.log[-1:] and 1))
    return x * 2


def takes_the_next(holder, x):
    return x * next(holder.items)


def takes_some(holder, x):
    for number in holder.items:
        if number % 3 == 2:
            return x * number
    return x


PLAIN = [takes_the_next, takes_some, branch, feeds_a_kernel, feeds_arithmetic, averages, length_decides, logs_its_count, shuffles,
         collects_objects]


@pytest.mark.parametrize("change", PLAIN, ids=lambda change: change.__name__)
@pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")
def test_what_it_cannot_keeps_the_step_plain_and_right(change, tape):
    wanted, _, _ = run(change, lambda step: step)
    found, _, step = run(change, anabranch.record)
    assert same(found, wanted)
    assert tape.launches == 0


@pytest.mark.parametrize("made", [
    lambda: iter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0] * 2), lambda: iter(range(1, 20)), lambda: itertools.count(1),
    lambda: enumerate([5] * 20), lambda: zip(range(9), range(3, 12), strict=True),
    lambda: map(float, range(20)), lambda: itertools.cycle([1, 2, 3]), lambda: reversed(range(30)),
    lambda: itertools.chain([1, 2], range(20)), lambda: (i * 2 for i in range(20)),
    lambda: itertools.islice(itertools.count(), 30), lambda: iter(dict.fromkeys(range(20), 0))])
@pytest.mark.filterwarnings("ignore::anabranch.RecordWarning")
def test_what_a_step_takes_from_an_iterator_is_taken_once_a_call(made, tape):
    def results(wrap):
        items, kept = made(), {}
        kept["items"] = items

        def step(x):
            item = next(kept["items"])
            return x * (item if isinstance(item, (int, float)) else item[0] + item[1])

        step = wrap(step)
        return [step(torch.ones(2)) for _ in range(7)], next(items), step

    wanted, after, _ = results(lambda step: step)
    found, left, step = results(anabranch.record)
    assert all(map(torch.equal, found, wanted)) and left == after
    assert 341 not in [report.code for report in step.reports]


def test_the_line_that_reads_a_count_is_told():
    with pytest.warns(errors.RecordWarning) as told:
        run(branch, anabranch.record)
    assert "its Python changes holder.n, and decides or computes by it" in str(told[0].message)
    assert "in branch [E0334]" in str(told[0].message)


def test_where_a_program_sets_back_what_a_step_sets_launches_set_it_again(tape):
    holder = SimpleNamespace(flag=False)

    def step(x):
        y = x * 2 if holder.flag else x * 3
        holder.flag = True
        return y

    recorded, x = anabranch.record(step), torch.ones(2)
    for _ in range(6):
        holder.flag = False
        assert torch.equal(recorded(x), x * 3) and holder.flag is True
    launches = tape.launches
    assert launches >= 4 and torch.equal(recorded(x), x * 2)


def test_an_optimizer_of_ones_own_that_counts_is_as_in_eager():
    def trained(wrap):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)

        class Own(torch.optim.Optimizer):
            def __init__(self):
                super().__init__(model.parameters(), {})
                self.t = 0

            @torch.no_grad()
            def step(self):
                self.t += 1
                for p in model.parameters():
                    p.add_(p.grad, alpha=-0.1 / (1 - 0.9 ** self.t))

        optimizer = Own()

        @wrap
        def step(x):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for i in range(6):
            step(torch.full((2, 3), float(i)))
        return [*model.parameters(), torch.tensor(optimizer.t)]

    with pytest.warns(errors.RecordWarning):
        assert all(map(torch.equal, trained(lambda step: step), trained(anabranch.record)))


def test_hooks_that_collect_leave_as_many_entries_as_calls(tape):
    def collected(wrap):
        torch.manual_seed(0)
        model, norms, features = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), [], {}
        model[0].register_forward_hook(lambda module, args, out: norms.append(out.detach().norm()))
        model[1].register_forward_hook(
            lambda module, args, out: features.__setitem__("relu", out.detach()))
        step = wrap(model)
        with torch.no_grad():
            answers = [step(torch.full((2, 3), float(i))).clone() for i in range(CALLS)]
        return [*answers, *norms, *features.values()]

    wanted = collected(lambda model: model)
    found = collected(anabranch.record)
    assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))
    assert tape.launches >= CALLS - 4
