# SPDX-License-Identifier: Apache-2.0
"""What is found from a step, and what of it may be another object in a later call.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import collections
import copy
import itertools
from types import SimpleNamespace

import anabranch
import pytest
import torch
from anabranch import _record, _recorder
from anabranch._state import State
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Tensors say that they are on one, and a signature's second call is recorded."""
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(_record, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_recorder, "_device_of", lambda leaves, tensors: None)
    monkeypatch.setattr(_recorder, "_give_back_memory", lambda: None)

    def record(recorder, entry, leaves):
        entry.know(entry.state.tensors())
        entry.arguments = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        answer = recorder._call(leaves)
        used = [i for i, tensor in enumerate(entry.known) if id(tensor) in map(id, answer)]
        recorded = SimpleNamespace(
            uses=[len(entry.arguments) + i for i in used], needs_gradients=False,
            fits=lambda given: True, counts=SimpleNamespace(nodes=1, launched_unchanged=0,
                                                            launched_from_host=0,
                                                            launched_from_device=0))
        # In the order in which the step answered them.
        order = [next(i for i in used if entry.known[i] is tensor) for tensor in answer]
        recorded.launch = lambda given, owners: Launched(
            [given[len(entry.arguments) + i] for i in order])
        entry.set_recorded(recorded)
        return answer

    monkeypatch.setattr(_recorder.Recorder, "_record", record)


class Launched(list):
    """The tensors that a launch was given."""


def recorded(step):
    """The step, recorded: it answers the tensors that it uses."""
    made = anabranch.record(step)
    for _ in range(2):
        assert not isinstance(made(X), Launched)
    assert_launches(made, step)
    return made


X = torch.ones(2)


def assert_launches(made, step):
    """One launch, with what the step would use now."""
    answer = made(X)
    assert isinstance(answer, Launched)
    assert [id(tensor) for tensor in answer] == [id(tensor) for tensor in step(X)]


def assert_recorded_anew(made, step):
    for i in range(4):
        answer = made(X)
        assert i > 0 or not isinstance(answer, Launched)
        assert [id(tensor) for tensor in answer] == [id(tensor) for tensor in step(X)]
    assert_launches(made, step)


class Net(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, eps=eps))
        self.head = nn.Linear(2, 2)


def mutations():
    """By name: what is done to a holder whose ``net`` the step uses, and whether the recording serves
    what is there then."""

    def replace_net(holder):
        holder.net = Net()

    def replace_with_a_copy(holder):
        holder.net = copy.deepcopy(holder.net)

    def replace_with_other_numbers(holder):
        holder.net = Net(eps=0.1)

    def replace_a_child(holder):
        holder.net.head = nn.Linear(2, 2)

    def replace_in_a_sequential(holder):
        holder.net.inner[0] = nn.Linear(2, 2)

    def replace_by_another_kind(holder):
        holder.net.head = nn.Bilinear(1, 2, 2)

    def append_a_layer(holder):
        holder.net.inner.append(nn.Linear(2, 2))

    def replace_a_parameter(holder):
        holder.net.head.weight = nn.Parameter(torch.ones(2, 2))

    def replace_the_function(holder):
        holder.net.head.activation = torch.tanh
        holder.net.head = copy.copy(holder.net.head)
        holder.net.head.activation = torch.relu

    return [(replace_net, True), (replace_with_a_copy, True), (replace_with_other_numbers, False),
            (replace_a_child, True), (replace_in_a_sequential, True),
            (replace_by_another_kind, False), (append_a_layer, False), (replace_a_parameter, True),
            (replace_the_function, False)]


@pytest.mark.parametrize("mutate, serves", mutations(), ids=lambda value: getattr(
    value, "__name__", None))
@pytest.mark.parametrize("where", ["attribute", "closure"])
def test_what_stands_in_a_modules_place_is_what_a_launch_is_given(mutate, serves, where):
    holder = SimpleNamespace(net=Net())
    net = holder.net

    def from_attribute(x):
        return list(holder.net.parameters())

    def from_closure(x):
        return list(net.parameters())

    step = from_attribute if where == "attribute" else from_closure
    made = recorded(step)
    mutate(holder)
    net = holder.net
    (assert_launches if serves else assert_recorded_anew)(made, step)
    assert_launches(made, step)


def test_modules_that_take_turns_share_a_recording_where_they_are_alike():
    pairs = [(Net(), Net(), 1), (Net(), Net(eps=0.1), 2)]
    for first, second, recordings in pairs:
        now = first

        def step(x):
            return list(now.parameters())  # noqa: B023

        made = recorded(step)
        for now in itertools.islice(itertools.cycle([second, first]), 8):
            answer = made(X)
            assert [id(tensor) for tensor in answer] == [id(tensor) for tensor in step(X)]
        assert isinstance(answer, Launched)
        assert len(made._recorder.entries) == len(made._states) == recordings


@pytest.mark.parametrize("kind", [dict, list, SimpleNamespace, collections.OrderedDict])
def test_a_batch_that_is_another_object_in_each_call_is_found_in_each(kind):
    def make():
        tensor = torch.randn(3)
        return {"x": tensor} if issubclass(kind, dict) else [tensor] if kind is list else \
            kind(x=tensor)

    batch = make()

    def step(x):
        return [batch[0] if kind is list else batch.x if kind is SimpleNamespace else batch["x"]]

    made = recorded(step)
    for _ in range(20):
        batch = make()
        assert_launches(made, step)
    assert len(made._states) == 1


def test_an_objects_numbers_tell_it_from_another():
    batch = SimpleNamespace(x=torch.ones(3), scale=1.0)

    def step(x):
        return [batch.x]

    made = recorded(step)
    batch = SimpleNamespace(x=torch.ones(3), scale=2.0)
    assert_recorded_anew(made, step)
    for scale in range(100):  # nobody's memory grows with it
        batch = SimpleNamespace(x=torch.ones(3), scale=scale)
        made(X)
    assert len(made._states) <= made._chosen.max_recordings
    assert sum(entry.state is not _recorder.NO_STATE
               for entry in made._recorder.entries.values()) <= made._chosen.max_recordings


def test_a_function_with_another_number_in_its_closure_is_another_one():
    def make(alpha, weight):
        def scaled(x):
            return [weight] if alpha else []

        return scaled

    use = make(1.0, torch.ones(2))

    def step(x):
        return use(x)

    made = recorded(step)
    use = make(1.0, torch.ones(2))
    assert_launches(made, step)
    use = make(2.0, torch.ones(2))
    assert_recorded_anew(made, step)


def with_an_optimizer():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)

    def step(x):
        return [tensor for p in model.parameters()
                for tensor in (p, optimizer.state[p]["momentum_buffer"])]

    model(X).sum().backward()
    optimizer.step()
    return model, optimizer, step


def test_a_state_that_an_optimizer_loads_is_what_a_launch_is_given():
    model, optimizer, step = with_an_optimizer()
    made = recorded(step)
    saved = copy.deepcopy(optimizer.state_dict())
    for _ in range(20):
        optimizer.load_state_dict(copy.deepcopy(saved))
        assert_launches(made, step)
    assert len(made._states) == 1 and len(made._recorder.entries) == 1


def test_an_optimizers_state_that_was_cleared_is_not_launched_with():
    model, optimizer, step = with_an_optimizer()
    made = recorded(step)
    before = dict(optimizer.state)
    optimizer.state.clear()
    for p, state in before.items():
        optimizer.state[p] = {name: value.clone() for name, value in state.items()}
    assert_launches(made, step)


def test_a_tensor_in_two_places_may_move_and_may_not_become_two():
    tied = SimpleNamespace(embedding=torch.ones(2), head=None)
    tied.head = tied.embedding

    def step(x):
        return [tied.embedding, tied.head]

    made = recorded(step)
    tied.embedding = tied.head = torch.zeros(2)
    assert_launches(made, step)
    tied.head = torch.ones(2)
    assert_recorded_anew(made, step)


def test_a_parameter_that_the_optimizer_does_not_know_is_not_launched_with():
    model, optimizer, step = with_an_optimizer()

    def both(x):
        return [*model.parameters(), *optimizer.param_groups[0]["params"]]

    made = recorded(both)
    model.weight = nn.Parameter(torch.ones(2, 2))
    assert_recorded_anew(made, both)


def test_what_python_counts_and_collects_beside_it_changes_nothing():
    net = Net()
    net.calls, history, log = 0, [], SimpleNamespace(steps=0)

    def step(x):
        net.calls += 1
        log.steps += 1
        return [net.head.weight, *history[:0]]

    made = recorded(step)
    for _ in range(5):
        history.append(torch.ones(1))
        net.calls += 1
        assert_launches(made, step)


def test_objects_that_name_each_other_are_walked_once():
    class Node:
        pass

    a, b = Node(), Node()
    a.other, b.other, a.self = b, a, a
    a.weight, b.items = torch.ones(1), [torch.ones(2)]
    b.items.append(b.items)
    state = State([lambda: a])
    assert len(state.places) == 2 and state.is_current()
    assert State([lambda: a]).leads_as(state) and State([lambda: a]).has_form_of(state)
    b.items = list(b.items)
    assert not state.is_current()


def test_large_constants_are_compared_as_objects():
    net = Net()
    net.vocabulary = {str(i): i for i in range(1000)}
    first = State([lambda: net])
    other = copy.copy(net)
    net, other = other, net
    assert State([lambda: net]).has_form_of(first)
    net.vocabulary = dict(other.vocabulary)
    assert not State([lambda: net]).has_form_of(first)
