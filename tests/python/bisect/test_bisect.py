# SPDX-License-Identifier: Apache-2.0
"""What is told of programs that are right, or wrong by themselves, and that nothing of the user's is
changed by asking."""

from __future__ import annotations

import copy
import json
import queue
import random

import pytest
import torch
from bisect_mutants import as_operators
from torch import nn

import anabranch
from anabranch import _compat
from anabranch._bisect import rungs
from anabranch._bisect.compare import Tolerance, distances
from anabranch._bisect.graphs import GraphCall
from anabranch._bisect.run import clone_as
from anabranch._bisect.snapshot import Snapshot, random_states

pytestmark = [pytest.mark.own, pytest.mark.oldest]


@pytest.fixture(autouse=True)
def no_inductor(monkeypatch):
    """Nothing here is about Inductor's code."""
    monkeypatch.setattr(_compat, "compile_fx_inner", as_operators)


class Net(nn.Module):
    """Writes a buffer, draws random numbers, counts its calls, and writes into its input."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x, scale=1.0):
        self.calls += 1
        x += 1
        with anabranch.stream("side"):
            left = nn.functional.dropout(self.left(x), 0.5)
        return {"sum": self.norm(left + self.right(x)) * scale, "none": None, "pair": (left, 2)}


def state_of(model, optimizer=None):
    grads = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
    return copy.deepcopy([model.state_dict(), grads, model.calls, torch.get_rng_state(),
                          random.getstate(), optimizer and optimizer.state_dict()])


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_right_model_is_blamed_for_nothing_and_left_as_it_was():
    model, x = Net(), torch.randn(3, 4)
    model(x.clone())["sum"].sum().backward()
    before, given = state_of(model), x.clone()
    verdict = anabranch.bisect(model, x, scale=2.0)
    assert verdict.rung is None and verdict.is_deterministic, str(verdict)
    assert {rung.status for rung in verdict.rungs} == {"agrees"}, str(verdict)
    assert [rung.name for rung in verdict.rungs[:4]] == [
        "eager", "aot_eager", "inductor", "anabranch, one stream"]
    assert "all agree with eager" in str(verdict)
    assert json.loads(json.dumps(verdict.to_dict()))["rung"] is None
    assert_same(before, state_of(model))
    assert torch.equal(x, given)


def test_a_training_step_is_left_as_it_was():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x)["sum"].square().sum()
        loss.backward()
        optimizer.step()
        random.random()
        return loss

    x = torch.randn(3, 4)
    before = state_of(model, optimizer)
    verdict = anabranch.bisect(step, x)
    assert verdict.rung is None, str(verdict)
    assert_same(before, state_of(model, optimizer))
    assert not optimizer.state


def test_what_rounding_alone_changes_is_no_fault(monkeypatch):
    """The sign of what is zero but for rounding, as in a first step of Adam: compiled code that
    rounds otherwise answers the other one."""
    def sign(x):
        return torch.sign((x + 1).sum() - x.sum() - x.numel())

    def other_sums(module, example_inputs, **keywords):
        return as_operators(lambda *given: [-result for result in module(*given)], None)

    monkeypatch.setattr(_compat, "compile_fx_inner", other_sums)
    with torch.no_grad():
        x = torch.rand(1000)
        assert sign(x) != 0
        assert anabranch.bisect(sign, x).rung is None
        assert anabranch.bisect(lambda x: torch.sign(x), x).rung == "inductor"


def test_what_is_compiled_already_is_looked_at_as_it_was_written():
    seen = queue.SimpleQueue()  # a list would be put back

    def program(x):
        seen.put(torch.compiler.is_compiling())
        return x * 2

    compiled = torch.compile(program, backend="eager")
    verdict = anabranch.bisect(compiled, torch.ones(3))
    assert verdict.rung is None and [seen.get_nowait() for _ in range(2)] == [False, False], str(
        verdict)


def test_a_model_that_is_not_deterministic_sets_the_tolerance_itself():
    noise = iter(range(1000))

    def program(x):
        return x + next(noise) * 1e-3

    with torch.no_grad():
        verdict = anabranch.bisect(torch.compiler.disable(program), torch.ones(3))
    assert not verdict.is_deterministic and "result 0" in verdict.spread, str(verdict)
    assert verdict.rungs[0].status == "differs from itself"
    assert "differ from one another: result 0" in str(verdict)


def test_what_raises_is_told_and_changes_nothing():
    model = Net()

    def program(x):
        model.left.weight.data.zero_()
        raise ValueError("no such thing")

    before = state_of(model)
    verdict = anabranch.bisect(program, torch.ones(3))
    assert verdict.rung == "eager" and verdict.rungs[0].status == "raises"
    assert "ValueError: no such thing" in str(verdict)
    assert_same(before, state_of(model))


def test_what_raises_only_when_compiled_is_told_with_its_rung(monkeypatch):
    def fail(*given, **keywords):
        raise ValueError("no such kernel")

    monkeypatch.setattr(_compat, "compile_fx_inner", fail)
    verdict = anabranch.bisect(lambda x: x + 1, torch.ones(3))
    assert verdict.rung == "inductor" and verdict.tensor is None, str(verdict)
    assert "is the first that raises" in str(verdict) and "no such kernel" in str(verdict)


@pytest.mark.parametrize(("faulty", "rung", "is_ours_right"), [
    ((0,), "aot_eager", True), ((0, 1), "aot_eager", True), ((1,), "inductor", True),
    ((1, 2), "inductor", False), ((0, 2), "anabranch, one stream", False)], ids=str)
def test_what_is_wrong_in_torchs_rungs_and_right_in_ours_ends_no_search(
        faulty, rung, is_ours_right, monkeypatch):
    original = rungs.rungs_of_model

    def wrong(function):
        return lambda x: function(x) + 1

    def with_faults(*given):
        return [rung._replace(compile=wrong) if i in faulty else rung
                for i, rung in enumerate(original(*given))]

    monkeypatch.setattr(rungs, "rungs_of_model", with_faults)
    verdict = anabranch.bisect(torch.sin, torch.ones(3))
    differing = [i - 1 for i, one in enumerate(verdict.rungs) if one.status == "differs"]
    assert tuple(differing) == faulty and verdict.rung == rung, str(verdict)
    assert ("anabranch is right" in str(verdict)) == is_ours_right
    assert (len(verdict.rungs) == 8) == is_ours_right


def test_arguments_that_a_graph_does_not_write_may_hold_anything_afterwards():
    def body(x, y):
        torch.ops.aten.copy_.default(y, x * 2)
        return (x + 1,)

    gm = torch.fx.symbolic_trace(body)
    for node in gm.graph.nodes:
        node.meta["val"] = torch.ones(2)

    def run(args):
        args[1].copy_(args[0] * 2)
        result = args[0] + 1
        args[0].zero_()
        return (result,)

    call = GraphCall("backward", gm, run, [torch.ones(2), torch.zeros(2)], random_states())
    assert call.difference(Tolerance()) is None
    call.run = lambda args: (args[0] + 1,)
    assert call.difference(Tolerance()).name == "argument 1 afterwards"


def test_what_is_bound_and_moved_is_put_back():
    model = Net()
    model.register_buffer("cache", torch.zeros(2))
    cache, weight = model.cache, model.left.weight.data_ptr()
    snapshot = Snapshot([model], [])
    model.cache = torch.ones(3)
    model.extra = torch.ones(1)
    model.left.weight.data = torch.ones(4, 4)
    model.right.weight.requires_grad_(False)
    model.right.bias.grad = torch.ones(4)
    version = model.right.bias._version
    snapshot.put_back()
    assert model.cache is cache and not hasattr(model, "extra")
    assert model.left.weight.data_ptr() == weight
    assert model.right.weight.requires_grad and model.right.bias.grad is None
    assert model.right.bias._version == version


def test_elements_that_share_memory_are_copied_as_they_lie():
    row = torch.arange(3.0).expand(4, 3)
    copied = clone_as(row)
    assert copied.stride() == row.stride() and torch.equal(copied, row)
    assert copied.data_ptr() != row.data_ptr()


@pytest.mark.parametrize(("found", "wanted", "is_within"), [
    ([1.0, 1000.0], [1.05, 1000.0], True),  # of the largest element a ten-thousandth
    ([1.0, 1000.0], [1.0, 1001.0], False),
    ([0.0], [5e-6], True),
    ([float("nan")], [float("nan")], True),
    ([float("nan")], [0.0], False),
    ([float("inf"), 0.0], [float("inf"), 0.0], True),
    ([float("inf"), 1.0], [float("inf"), 0.0], False),
])
def test_the_bound_is_a_share_of_the_largest_element(found, wanted, is_within):
    difference = Tolerance().compare({"a": torch.tensor(found)}, {"a": torch.tensor(wanted)})
    assert (difference is None) == is_within


def test_numbers_of_the_caller_and_runs_in_eager_set_the_bound():
    one, other = {"a": torch.zeros(2)}, {"a": torch.full((2,), 0.5)}
    assert Tolerance(atol=0.4).compare(one, other).largest == 0.5
    assert Tolerance(atol=0.6, rtol=0.0).compare(one, other) is None
    assert Tolerance(spread={"a": 0.06}).compare(one, other) is None
    assert Tolerance(rounding={"a": 0.06}).compare(one, other) is None
    assert distances(one, other) == {"a": 0.5}


def test_another_shape_a_lack_and_another_text_are_differences():
    wanted = {"a": torch.zeros(2), "b": "text", "c": torch.arange(3)}
    for change in ({"a": torch.zeros(3)}, {"a": None}, {"b": "other"},
                   {"c": torch.tensor([0, 1, 3])}, {"a": torch.zeros(2).double()}):
        assert Tolerance().compare({**wanted, **change}, wanted).name == next(iter(change))


@pytest.mark.parametrize("number", [-1.0, "much"])
def test_a_tolerance_is_a_number(number):
    with pytest.raises(anabranch.errors.WrongArgument, match=r"bisect: atol is .* \[E0611\]"):
        anabranch.bisect(torch.sin, torch.ones(1), atol=number)


def test_two_do_not_watch_at_once():
    def program(x):
        with pytest.raises(anabranch.errors.CompileError, match="E0615"):
            anabranch.explain(torch.sin, x)
        return x

    verdict = anabranch.bisect(torch.compiler.disable(program), torch.ones(1))
    assert verdict.rung is None, str(verdict)
