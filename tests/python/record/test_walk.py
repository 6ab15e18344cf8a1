# SPDX-License-Identifier: Apache-2.0
"""What is found from a step, and what of it may be another object in a later call.

A recording is stood in for: it says with which tensors it was launched.
"""

from __future__ import annotations

import collections
import copy
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch._core.abi import CaptureCounts
from anabranch._record import recorded_callable
from anabranch._record import recorder as recorder_module
from anabranch._record.state.state import NO_STATE, State

pytestmark = pytest.mark.oldest


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Tensors say that they are on one, and a signature's second call is recorded."""
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda tensor: True), raising=False)
    monkeypatch.setattr(recorded_callable, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(recorder_module, "device_of", lambda leaves, tensors: None)
    monkeypatch.setattr(recorder_module, "give_back_memory", lambda: None)

    def record(recorder, key, spec, leaves):
        known = spec.state.tensors()
        spec.arguments = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        answer = recorder._call(leaves)
        used = [i for i, tensor in enumerate(known) if id(tensor) in ids(answer)]
        given = [*(leaves[i] for i in spec.arguments), *known]
        # In the order in which the step answered them.
        order = [next(i for i, one in enumerate(given) if one is thing) for thing in answer
                 if isinstance(thing, Tensor)]
        arguments, objects = len(spec.arguments), spec.state.objects()
        spec.object_paths = list(objects)
        spec.set_recording(SimpleNamespace(
            uses=[arguments + i for i in used], needs_gradients=False, has_overlaps=False,
            objects=[i for i, thing in enumerate(objects.values()) if id(thing) in ids(answer)],
            counts=CaptureCounts(nodes=1), timing=None,
            direct_or_none=lambda: None, has_words=False, layout=None, launch=lambda given, owners, held, **how: Launched(
                [*(given[i] for i in order), *held])),
            known, None)
        return answer

    monkeypatch.setattr(recorder_module.Recorder, "_record", record)


class Launched(list):
    """The tensors that a launch was given, and the objects that it answers."""


X = torch.ones(2)


def recorded(step, *objects):
    """The step, recorded: it answers the tensors that it uses."""
    made = anabranch.record(step)
    assert not any(isinstance(made(*objects, X), Launched) for _ in range(2))
    for _ in range(4):  # as often as calls take to be like the one before in all that is looked at
        assert_launches(made, step, *objects)
    return made


def ids(tensors):
    return [id(tensor) for tensor in tensors]


def assert_launches(made, step, *objects):
    """One launch, with what the step would use now."""
    answer = made(*objects, X)
    assert isinstance(answer, Launched)
    assert ids(answer) == ids(step(*objects, X))


def assert_recorded_anew(made, step, *objects):
    for i in range(4):
        answer = made(*objects, X)
        assert i > 0 or not isinstance(answer, Launched)
        assert ids(answer) == ids(step(*objects, X))
    assert_launches(made, step, *objects)


def step_of(net, x):
    """That of a test whose network is an argument."""
    return list(net.parameters())


class Net(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, eps=eps))
        self.head = nn.Linear(2, 2)


def mutations():
    """By name: what is done to a holder whose ``net`` the step uses, and whether the recording
    serves what is there then."""

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
        model = first

        def step(x):
            return list(model.parameters())

        made = recorded(step)
        for model in [second, first] * 4:
            answer = made(X)
            assert ids(answer) == ids(step(X))
        assert isinstance(answer, Launched)
        assert len(made._recorder.specializations) == recordings


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
    assert len(made._recorder.specializations) == 1


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
    assert len(made._states._fingerprints) <= made._chosen.max_recordings
    assert sum(spec.state is not NO_STATE
               for spec in made._recorder.specializations.values()) <= made._chosen.max_recordings


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
    assert len(made._recorder.specializations) == 1


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


@pytest.mark.parametrize("found_first", ["net", "trainer"])
def test_what_is_found_by_two_ways_is_followed_by_both(found_first):
    net = Net()
    a = trainer = SimpleNamespace(inner=SimpleNamespace(net=net, scale=net.head.bias))
    b = net

    def by_names(x):
        return list((a, b)[0].inner.net.parameters())

    def the_other_way(x):
        c, d = b, a
        return list(d.inner.net.parameters())

    step = by_names if found_first == "trainer" else the_other_way
    made = recorded(step)
    trainer.inner.net = Net()
    assert_recorded_anew(made, step)
    trainer.inner = SimpleNamespace(net=net, scale=net.head.bias)
    assert_launches(made, step)  # as it was recorded first


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
        history.append("called")
        return [net.head.weight]

    made = recorded(step)
    for _ in range(5):
        history.append(0)
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
    assert State([lambda: a]).leads_as(state)
    assert State([lambda: a]).fingerprint == state.fingerprint
    b.items = list(b.items)
    assert not state.is_current()


def test_large_constants_are_compared_as_objects():
    net = Net()
    net.vocabulary = {str(i): i for i in range(1000)}
    first = State([lambda: net])
    other = copy.copy(net)
    net, other = other, net
    assert State([lambda: net]).fingerprint == first.fingerprint
    net.vocabulary = dict(other.vocabulary)
    assert State([lambda: net]).fingerprint != first.fingerprint


def test_modules_that_are_arguments_are_looked_up_as_those_of_a_closure():
    net = Net()
    made = recorded(step_of, net)
    net.head = nn.Linear(2, 2)
    assert_launches(made, step_of, net)
    net.head.weight = nn.Parameter(torch.ones(2, 2))
    assert_launches(made, step_of, net)
    net.head = nn.Bilinear(1, 2, 2)
    assert_recorded_anew(made, step_of, net)


def test_many_modules_of_one_make_share_a_recording():
    nets = [Net() for _ in range(48)]
    made = recorded(step_of, nets[0])
    for net in [*nets, *reversed(nets)]:
        assert_launches(made, step_of, net)
    assert len(made._recorder.specializations) == 1
    assert_recorded_anew(made, step_of, Net(eps=0.5))
    for net in nets:
        assert_launches(made, step_of, net)


def test_threads_with_models_of_their_own_get_what_is_theirs():
    nets = [Net() for _ in range(4)]
    made = recorded(step_of, nets[0])

    def call(net):
        wanted = ids(step_of(net, X))
        return all(ids(made(net, X)) == wanted for _ in range(500))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as at_once:
            assert all(at_once.map(call, nets))
    finally:
        sys.setswitchinterval(switch)
    assert len(made._recorder.specializations) == 1


def test_the_make_of_an_argument_itself_counts():
    class Scaled(nn.Linear):
        scale = 1.0

    def step(layer, x):
        return [layer.weight]

    first, other, of_another_class = Scaled(2, 2), Scaled(2, 2), nn.Linear(2, 2)
    made = recorded(step, first)
    other.scale = 2.0
    for layer in (other, of_another_class):
        assert_recorded_anew(made, step, layer)
    assert_launches(made, step, first)


def test_optimizers_and_batches_may_be_arguments():
    def make():
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)
        model(X).sum().backward()
        optimizer.step()
        return model, optimizer

    def step(model, optimizer, batch, x):
        return [*model.parameters(), batch.x,
                *(state["momentum_buffer"] for state in optimizer.state.values())]

    pair, other = make(), make()
    made = recorded(step, *pair, SimpleNamespace(x=torch.ones(3)))
    for _ in range(4):
        assert_launches(made, step, *pair, SimpleNamespace(x=torch.ones(3)))
        assert_launches(made, step, *other, SimpleNamespace(x=torch.ones(3)))
    # Not this model's parameters.
    assert_recorded_anew(made, step, pair[0], other[1], SimpleNamespace(x=torch.ones(3)))


def test_a_method_is_recorded_once_for_all_objects_of_one_make():
    class Trainer:
        def __init__(self, eps=1e-5):
            self.net = Net(eps)

        @anabranch.record
        def step(self, x):
            return list(self.net.parameters())

        def plain(self, x):
            return list(self.net.parameters())

    trainers = [Trainer() for _ in range(3)]
    for trainer in (*trainers, *trainers):
        assert ids(trainer.step(X)) == ids(trainer.plain(X))
    for trainer in trainers:
        assert_launches(trainer.step, trainer.plain)
        assert len(trainer.step.reports) == 1
    other = Trainer(eps=0.5)
    assert_recorded_anew(other.step, other.plain)
    assert Trainer.step.name.endswith("Trainer.step") and len(Trainer.step.reports) == 2


def test_objects_that_lead_nowhere_are_told_by_what_they_are():
    class Mode:
        pass

    first, second, weight = Mode(), Mode(), torch.ones(2)

    def step(mode, x):
        return [weight]

    made = recorded(step, first)
    assert_recorded_anew(made, step, second)
    assert_launches(made, step, first)
    assert_recorded_anew(made, step, torch.float16)
    assert len(made._recorder.specializations) == 3


class Slotted:
    __slots__ = ("__weakref__", "hidden", "x")

    def __init__(self):
        self.x = torch.ones(3)


class AlsoADictionary(Slotted):
    def __init__(self):
        super().__init__()
        self.y = torch.ones(2)


@pytest.mark.parametrize("kind", [Slotted, AlsoADictionary])
def test_objects_with_slots_are_looked_into(kind):
    def step(given, x):
        return [given.x, *([given.y] if kind is AlsoADictionary else [])]

    given = kind()
    made = recorded(step, given)
    given.x = torch.zeros(3)
    assert_launches(made, step, given)
    for _ in range(4):
        assert_launches(made, step, kind())
    del given.x
    assert len(State([], [given]).places) == (kind is AlsoADictionary)


def test_no_more_than_the_last_batch_is_held():
    class Batch:
        def __init__(self):
            self.x = torch.ones(3)

    def step(net, batch, x):
        return [batch.x, *net.parameters()]

    nets, held = [Net(), Net()], []
    made = recorded(step, nets[0], Batch())
    for i in range(40):
        batch = Batch()
        held.append(weakref.ref(batch.x))
        assert_launches(made, step, nets[i % 2], batch)
    del batch
    gc.collect()
    assert sum(ref() is not None for ref in held) <= 3  # one of each network, and the recording's
    assert len(made._states._used) <= 2


def test_a_recorded_callable_inside_another_is_looked_into():
    weight = torch.ones(2)
    inner = anabranch.record(lambda x: [weight])

    def step(x):
        return inner._function(x)

    made = recorded(step)
    weight = torch.zeros(2)
    assert_launches(made, step)


def test_containers_among_a_modules_attributes_are_looked_into_and_objects_are_not():
    net, trainer = Net(), SimpleNamespace(data=torch.ones(4))
    net.cache, net.trainer = [(torch.ones(2), {"v": torch.ones(2)})], trainer
    net.hidden_layers, net.scale = [nn.Linear(2, 2)], torch.ones(3)

    def step(x):
        (k, rest), *_ = net.cache
        return [k, rest["v"], net.scale, *net.hidden_layers[0].parameters()]

    made = recorded(step)
    found = {id(place.get()) for place in State([step]).places}
    assert id(trainer.data) not in found
    net.cache = [(torch.zeros(2), {"v": torch.zeros(2)})]
    assert_launches(made, step)
    net.hidden_layers[0] = nn.Linear(2, 2)
    assert_launches(made, step)
    net = copy.deepcopy(net)  # with another trainer, of which nobody knows what it is to the step
    assert_recorded_anew(made, step)
    other = copy.deepcopy(net)
    other.trainer, net = net.trainer, other
    assert_launches(made, step)
    net.hidden_layers = [nn.Bilinear(1, 2, 2)]
    assert_recorded_anew(made, step)


def test_arguments_that_are_given_no_more_are_let_go():
    kept, gone = Net(), Net()
    made = recorded(step_of, gone)
    weight, net = weakref.ref(gone.head.weight), weakref.ref(gone)
    del gone
    for _ in range(600):
        assert_launches(made, step_of, kept)
    gc.collect()
    assert weight() is None and net() is None


def test_what_was_replaced_is_let_go_at_once():
    """On a GPU it would take memory until Python looks for cycles."""
    net = SimpleNamespace(now=Net())
    step = lambda x: list(net.now.parameters())  # noqa: E731
    made = recorded(step)
    gc.disable()
    try:
        for _ in range(5):
            gone = [weakref.ref(parameter) for parameter in net.now.parameters()]
            net.now = Net()
            assert_launches(made, step)
            assert not any(parameter() is not None for parameter in gone)
    finally:
        gc.enable()
