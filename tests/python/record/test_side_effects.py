# SPDX-License-Identifier: Apache-2.0
"""Side effects of a run are found, put back between the runs of a recording, and repeated by
launches."""

from __future__ import annotations

import collections
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch._core.abi import CaptureCounts
from anabranch._record import attempt as attempt_module
from anabranch._record import recorded_callable, recorder
from anabranch._record.effects.side_effects import SideEffects, bind_mutations
from anabranch._record.refusals import NotRecordable
from anabranch._record.signatures import specialization
from anabranch._record.signatures.specialization import BoundState
from anabranch._record.state.state import State

pytestmark = pytest.mark.oldest


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True), raising=False)


def new():
    return torch.randn(2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", new())
        self.aux = None
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.aux = x * 2
        self.mean = self.mean * 0.5
        return self.layer(x)


def effects_of(step, roots, is_first_plain=True):
    return SideEffects(step, State(roots), is_first_plain=is_first_plain)


def bound(effects, state):
    return BoundState(state, [], [], [], 0, effects.mutations,
                      bind_mutations(state, effects.mutations))


def made_holders():
    """By name: a holder that a step reaches, how a run changes it, and its mutations' names."""
    def attribute(holder):
        holder.hidden = new()

    def item(holder):
        holder["hidden"] = new()

    def element(holder):
        holder[1] = new()

    def nested(holder):
        holder.state = (new(), {"c": new()})

    def swap(holder):
        holder.a, holder.b = holder.b, holder.a

    def removed(holder):
        del holder.hidden

    def to_none(holder):
        holder.hidden = None

    def module(holder):
        holder(new())

    def inner(holder):
        holder["list"][0] = new()

    class Slotted:
        __slots__ = ("hidden", "w")

        def __init__(self):
            self.w = new()

    space = SimpleNamespace
    return {
        "slotted": (Slotted(), attribute, ["hidden"]),
        "attribute": (space(hidden=new()), attribute, ["hidden"]),
        "attribute, new": (space(hidden=None, w=new()), attribute, ["hidden"]),
        "attribute, missing": (space(w=new()), attribute, ["hidden"]),
        "attribute of nothing else": (space(), attribute, ["hidden"]),
        "item": ({"hidden": new()}, item, ["hidden"]),
        "item of a defaultdict": (collections.defaultdict(dict, w=new()), item, ["hidden"]),
        "element": ([new(), new()], element, ["1"]),
        "nested": (space(state=(new(), {"c": new()})), nested, ["state"]),
        "swap": (space(a=new(), b=new()), swap, ["a", "b"]),
        "removed": (space(hidden=new(), w=new()), removed, ["hidden"]),
        "to none": (space(hidden=new()), to_none, ["hidden"]),
        "module": (Net(), module, ["buffers.mean", "aux", "calls"]),
        "inside": ({"list": [new()]}, inner, ["list.0"]),
    }


def shallow(holder):
    """Everything that the tests bind, by identity."""
    items = vars(holder) if hasattr(holder, "__dict__") and not isinstance(holder, dict) else \
        dict(enumerate(holder)) if isinstance(holder, list) else dict(holder) \
        if isinstance(holder, dict) else {name: getattr(holder, name) for name in holder.__slots__
                                          if hasattr(holder, name)}
    if isinstance(holder, nn.Module):
        items = {**items, **holder._buffers}
    return {key: [id(x) for x in value] if isinstance(value, list) else id(value)
            for key, value in items.items()}


@pytest.mark.parametrize("name", made_holders())
def test_what_a_run_leaves_is_answered_and_put_back(name):
    holder, change, names = made_holders()[name]

    def step(leaves):
        change(holder)
        return leaves[0]

    before = shallow(holder)
    effects = effects_of(step, [lambda: holder])
    for _ in range(3):
        answer, left = effects([5])
        assert answer == 5 and shallow(holder) == before
        assert [str(mutation).removeprefix("holder.") for mutation in effects.mutations] == names
    effects.check()
    assert bound(effects, State([lambda: holder])).apply((7, left)) == 7
    assert all(mutation.get() is value or value in (("set", mutation.get()), ("added", 1))
               for mutation, value in zip(effects.mutations, left, strict=True))


def test_whatever_python_changes_is_put_back_after_each_run():
    net = Net()
    effects = effects_of(lambda leaves: net(leaves[0]), [lambda: net])
    for _ in range(3):
        _, left = effects([new()])
        assert net.calls == 0 and net.aux is None
    bound(effects, State([lambda: net])).apply((None, left))
    assert net.calls == 1 and isinstance(net.aux, Tensor)


def test_closures_and_globals_are_holders_too():
    hidden = new()

    def step(leaves):
        nonlocal hidden
        global LEFT
        hidden, LEFT = hidden * 2, new()
        return leaves

    before = hidden
    effects = effects_of(step, [step])
    _, left = effects([])
    assert hidden is before and "LEFT" not in globals()
    assert sorted(map(str, effects.mutations)) == ["hidden", f"{__name__}.LEFT"]
    for mutation, value in zip(effects.mutations, left, strict=True):
        mutation.put(value)
    assert {id(hidden), id(LEFT)} == set(map(id, left))
    effects._holders.put_back()
    assert "LEFT" not in globals()


def test_an_optimizers_first_step_leaves_its_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(leaves):
        model(leaves[0]).sum().backward()
        optimizer.step()
        return []

    effects = effects_of(step, [step])
    _, left = effects([new()])
    assert not any(optimizer.state.values()) and len(effects.mutations) == 2
    for mutation, value in zip(effects.mutations, left, strict=True):
        mutation.put(value)
    assert all("momentum_buffer" in optimizer.state[p] for p in model.parameters())


def test_what_raises_is_put_back():
    holder = SimpleNamespace(hidden=new())

    def step(leaves):
        holder.hidden = new()
        raise KeyError("in the middle")

    before = holder.hidden
    with pytest.raises(KeyError):
        effects_of(step, [lambda: holder])([])
    assert holder.hidden is before


class Box:
    def __init__(self):
        self.tensor = new()


def refused():
    def shorten(holder):
        holder.history.pop()

    def put_an_object(holder):
        holder.out = Box()

    def replace_a_module(holder):
        holder.net = nn.Linear(2, 2)

    return [(shorten, "a list of tensors shorter .*history"),
            (put_an_object, "a Box with tensors in .*out"),
            (replace_a_module, "a Linear with tensors in .*net")]


@pytest.mark.parametrize("change, reason", refused(), ids=lambda value: getattr(
    value, "__name__", None))
def test_what_a_launch_cannot_leave_is_refused_with_its_place(change, reason):
    holder = SimpleNamespace(history=[new(), new()], out=None, net=nn.Linear(2, 2))
    before = shallow(holder)

    def step(leaves):
        change(holder)

    effects = effects_of(step, [step, holder])
    effects([])
    assert shallow(holder) == before and effects.mutations == []
    with pytest.raises(NotRecordable, match=reason):
        effects.check()
    with pytest.raises(NotRecordable, match=reason):
        effects_of(step, [step, holder], is_first_plain=False)([])
    assert shallow(holder) == before


def test_what_is_appended_is_appended_by_launches():
    history, last = [new()], {"pairs": []}

    def step(leaves):
        history[0] = new()
        history.append(new())
        history.extend([new(), 5])
        last["pairs"].append((leaves[0], {"x": new()}))
        return leaves

    before = list(history)
    effects = effects_of(step, [step])
    for _ in range(2):
        x = new()
        _, left = effects([x])
        assert len(history) == 1 and history[0] is before[0] and last["pairs"] == []
        assert sorted(map(str, effects.mutations)) == ["history", "history.0", "last.pairs"]
    history.append(7)  # the user's
    bound(effects, State([step])).apply(([], left))
    assert len(history) == 5 and history[1] == 7 and history[4] == 5
    assert history[0] is not before[0] and isinstance(history[2], Tensor)
    [(given, inner)] = last["pairs"]
    assert given is x and isinstance(inner["x"], Tensor)


def test_objects_that_are_as_those_before_are_no_mutations():
    holder = SimpleNamespace(w=new(), when=object(), table={"a": 1}, inner=SimpleNamespace(b=2))

    def step(leaves):
        holder.when, holder.table, holder.inner = object(), {"a": 1}, SimpleNamespace(b=2)
        holder.w = holder.w  # the same

    effects = effects_of(step, [step])
    effects([])
    effects.check()
    assert effects.mutations == []


def test_where_python_would_go_another_way_the_recording_does_not_serve():
    holder = SimpleNamespace(hidden=new())

    def step(leaves):
        holder.hidden = new()

    effects = effects_of(step, [step])
    effects([])
    state = State([step])
    view = bound(effects, state)
    assert view.tensors(state) == []
    for other in (None, (new(),)):
        holder.hidden = other
        assert view.tensors(state) is None
    del holder.hidden
    assert view.tensors(state) is None


def test_mutations_are_found_in_the_objects_that_stand_there_later():
    holder = SimpleNamespace(inner=SimpleNamespace(hidden=new()))

    def step(leaves):
        holder.inner.hidden = new()

    effects = effects_of(step, [step])
    effects([])
    holder.inner = SimpleNamespace(hidden=new())
    value = new()
    bind_mutations(State([step]), effects.mutations).put([value])
    assert holder.inner.hidden is value
    holder.inner = None
    assert bind_mutations(State([step]), effects.mutations) is None


def test_tensors_of_wrapping_classes_are_left_to_their_libraries():
    from torch.testing._internal.two_tensor import TwoTensor

    holder = SimpleNamespace(w=TwoTensor(new(), new()))

    def step(leaves):
        holder.w = TwoTensor(new(), new())

    effects, before = effects_of(step, [step]), holder.w
    effects([])
    assert effects.mutations == [] and holder.w is not before


@pytest.fixture
def launching(monkeypatch):
    """Callables are recorded without a GPU: what a launch computes of the tensors that it is given,
    by their names, the test says."""
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(recorder, "device_of", lambda leaves, tensors: 0)
    monkeypatch.setattr(recorder, "capture_stream", lambda device: None)
    monkeypatch.setattr(specialization, "_check_argument", lambda index, leaf, device: None)
    monkeypatch.setattr(recorder, "give_back_memory", lambda: None)
    monkeypatch.setattr(recorder, "is_plentiful", lambda device, used: False)
    monkeypatch.setattr(attempt_module, "free_bytes", lambda device: 0)
    monkeypatch.setattr(attempt_module, "slack_bytes", lambda device: 0)
    monkeypatch.setattr(attempt_module, "is_plentiful", lambda device, used: False)

    def recorded(step, compute, uses):
        made, launched = anabranch.record(step, verify=False), []

        def launch(given, owners, objects, **how):
            launched.append(given)
            return compute(*given)

        def record(attempt):
            answer = attempt._step.call(attempt._step.leaves)
            return answer, SimpleNamespace(
                uses=list(range(uses)), objects=[], launch=launch, needs_gradients=False,
                layout=None, has_overlaps=False, direct_or_none=lambda: None,
                has_words=False, counts=CaptureCounts(nodes=1), timing=None)

        monkeypatch.setattr(attempt_module.Attempt, "record", record)
        return made, launched

    return recorded


def test_a_hidden_state_goes_on_from_launch_to_launch(launching):
    holder = SimpleNamespace(hidden=torch.zeros(2))

    def step(x):
        holder.hidden = holder.hidden * 2 + x
        return holder.hidden.sum()

    def compute(x, hidden):
        return (hidden * 2 + x).sum(), [hidden * 2 + x]

    made, launched = launching(step, compute, uses=2)
    wanted = torch.zeros(2)
    for i in range(10):
        x = torch.full((2,), float(i))
        if i == 7:  # another one than the launch before has left
            wanted = holder.hidden = torch.ones(2)
        wanted = wanted * 2 + x
        assert made(x) == wanted.sum() and torch.equal(holder.hidden, wanted), i
    assert len(launched) == 8


def test_an_object_that_is_only_left_to_may_be_another_one_in_each_call(launching):
    """It leads to no tensor before the call, so that no tensor's lookup passes it."""
    log = SimpleNamespace(loss=None)

    def step(x):
        log.loss = x * 3
        return x + 1

    made, launched = launching(step, lambda x: (x + 1, [x * 3]), uses=1)
    for i in range(6):
        log = SimpleNamespace(loss=None)
        x = torch.full((2,), float(i))
        assert torch.equal(made(x), x + 1) and torch.equal(log.loss, x * 3), i
    assert len(launched) == 4


def test_what_was_recorded_from_a_tensor_is_not_launched_from_nothing(launching):
    holder = SimpleNamespace(last=None)

    def step(x):
        before, holder.last = holder.last, x * 3
        return x if before is None else x + before

    def compute(x, last):
        return x + last, [x * 3]

    made, launched = launching(step, compute, uses=2)
    for i in range(6):
        if i == 4:
            holder.last = None
        x, before = torch.full((2,), float(i)), holder.last
        assert torch.equal(made(x), x if before is None else x + before)
        assert torch.equal(holder.last, x * 3)
    assert [int(x[0]) for x, _ in launched] == [3]


def test_a_step_that_leaves_nothing_answers_alone(launching):
    weight = torch.ones(2)
    made, launched = launching(lambda x: x + weight, lambda x, w: (x + w, []), uses=2)
    for _ in range(4):
        assert torch.equal(made(torch.ones(2)), torch.full((2,), 2.0))
    assert len(launched) == 2
