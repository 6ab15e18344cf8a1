# SPDX-License-Identifier: Apache-2.0
"""Other objects in the place of those that a recorded step was captured with: what is launched is
what eager would run. Where a step cannot tell them from those of before, by the same recording."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from recordings import (
    DEVICE,
    assert_launched,
    assert_plain,
    batch,
    launches,
    mlp,
    normal,
    told,
    train_both,
    training,
)
from torch import Tensor, nn

import anabranch


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def assert_follows_changes(step, changes, recordings=1, calls=5):
    """Before each change, and after the last, calls give what plain ones do."""
    recorded = anabranch.record(step)
    for change in (*changes, lambda: None):
        for seed in range(calls):
            x = normal(seed, 8, 16)
            with torch.no_grad():
                found, wanted = recorded(x), step(x)
            assert torch.equal(found, wanted), told(recorded)
        change()
    assert sum(report.nodes > 0 for report in recorded.reports) == recordings, told(recorded)
    plain = 2 * recordings  # those that warm up, and that record
    assert launches(recorded) >= calls * (len(changes) + 1) - plain, told(recorded)


def nets():
    torch.manual_seed(0)
    return SimpleNamespace(online=mlp(), target=mlp(), other=mlp(nn.Dropout(0.5).eval()))


def test_networks_that_change_places_share_a_recording():
    net = nets()

    def swap():
        net.online, net.target = net.target, net.online

    assert_follows_changes(lambda x: net.online(x), [swap] * 4)


def test_hooks_that_come_and_go_do_their_work():
    net, handles = nets(), []

    def register():
        handles.append(net.online[0].register_forward_hook(
            lambda module, given, answer: answer * 2))

    assert_follows_changes(lambda x: net.online(x), [register, lambda: handles[0].remove()],
                           recordings=2)


def test_a_copy_of_a_network_serves_as_the_network():
    net = nets()

    def copied():
        net.online = copy.deepcopy(net.online)
        with torch.no_grad():
            net.online[0].weight.mul_(0.5)

    assert_follows_changes(lambda x: net.online(x), [copied] * 2)


def test_a_network_of_another_make_is_recorded_anew():
    net = nets()

    def swap():
        net.online, net.other = net.other, net.online

    assert_follows_changes(lambda x: net.online(x), [swap] * 4, recordings=2)


def test_a_name_that_is_bound_to_another_network_is_followed():
    net = nets()
    bound = net.online

    def rebind():
        nonlocal bound
        bound = net.target

    assert_follows_changes(lambda x: bound(x), [rebind])


def test_layers_may_be_replaced_and_appended():
    net = nets().online

    def replace():
        net[0] = nn.Linear(16, 32, device=DEVICE)

    def append():
        net.append(nn.Linear(4, 4, device=DEVICE))

    assert_follows_changes(lambda x: net(x), [replace, append, replace], recordings=2)


def test_a_batch_of_the_closure_may_be_another_object_in_each_call():
    net = nets().online
    now = {"x": normal(0, 8, 16)}
    recorded = anabranch.record(lambda: net(now["x"]))
    with torch.no_grad():
        for seed in range(10):
            now = {"x": normal(seed, 8, 16)}
            assert torch.equal(recorded(), net(now["x"]))
    assert_launched(recorded, 8)


def test_weights_that_were_one_may_become_two():
    torch.manual_seed(0)
    first, second = (nn.Linear(16, 16, bias=False, device=DEVICE) for _ in range(2))
    second.weight = first.weight

    def untie():
        second.weight = nn.Parameter(normal(3, 16, 16))

    assert_follows_changes(lambda x: second(torch.relu(first(x))), [untie], recordings=2)


@pytest.mark.parametrize("how", ["cleared", "loaded", "made anew"])
def test_an_optimizers_state_may_be_other_objects(how):
    saved = {}

    def between(i, model, optimizer):
        if i == 3:
            saved["now"] = copy.deepcopy(optimizer.state_dict())
        if i not in (6, 9, 12):
            return
        if how == "cleared":
            optimizer.state.clear()
        elif how == "loaded":
            optimizer.load_state_dict(copy.deepcopy(saved["now"]))
        else:
            for parameter, state in list(optimizer.state.items()):
                optimizer.state[parameter] = {"momentum_buffer": torch.ones_like(parameter)}

    def make():
        model = mlp()
        optimizer = momentum(model.parameters())
        return model, optimizer, training(model, optimizer)

    step = train_both(make, between=between, calls=17)
    # Steps that make the optimizer's state are of another signature.
    assert sum(report.nodes > 0 for report in step.reports) == 1 + (how == "cleared"), told(step)
    assert_launched(step, 6)


def test_a_layer_may_be_replaced_while_training():
    def between(i, model, optimizer):
        if i in (5, 9):
            torch.manual_seed(i)
            model[2] = nn.Linear(32, 4, device=DEVICE)
            optimizer.param_groups[0]["params"][2:] = model[2].parameters()

    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, training(model, optimizer)

    assert_launched(train_both(make, between=between, calls=14), 5)


def test_what_was_replaced_is_let_go():
    net = SimpleNamespace(now=nn.Linear(1024, 1024, device=DEVICE))  # 4 MiB
    recorded = anabranch.record(lambda x: net.now(x))
    x, held = normal(0, 8, 1024), []
    with torch.no_grad():
        for _ in range(24):
            net.now = nn.Linear(1024, 1024, device=DEVICE)
            recorded(x)
            held.append(torch.cuda.memory_allocated() >> 20)
    assert_launched(recorded, 20)
    assert held[-1] <= held[4] + 4, held


def test_threads_may_call_while_another_one_replaces_objects():
    net, failures = nets(), []
    recorded = anabranch.record(lambda x: net.online(x))
    x = batch(0)[0]
    with torch.no_grad():
        allowed = [net.online(x), net.target(x)]
        for _ in range(3):
            recorded(x)

    def call():
        with torch.no_grad():
            for _ in range(200):
                found = recorded(x)
                if not any(torch.equal(found, one) for one in allowed):
                    failures.append(found)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        net.online, net.target = net.target, net.online
    for thread in threads:
        thread.join()
    assert not failures, told(recorded)


def run_both(make, calls=9, between=lambda i, holder: None):
    """``make()`` answers a holder, a step and what to look at in the holder after each call, which
    is the same for the recorded step and the plain one."""
    histories = []
    for is_recorded in (False, True):
        torch.manual_seed(0)
        holder, step, look = make()
        call = anabranch.record(step) if is_recorded else step
        history = []
        for i in range(calls):
            between(i, holder)
            answer = call(normal(i, 8, 16))
            history.append([answer.clone(), *(tensor.clone() for tensor in look())])
        histories.append(history)
    for i, (wanted, found) in enumerate(zip(*histories, strict=True)):
        assert len(wanted) == len(found)
        assert all(map(torch.equal, wanted, found)), f"call {i}\n{told(call)}"
    return call


def with_hidden_state(kind):
    cell = (nn.LSTMCell if kind is tuple else nn.GRUCell)(16, 32, device=DEVICE)
    first = torch.zeros(8, 32, device=DEVICE)
    holder = SimpleNamespace(hidden=(first, first.clone()) if kind is tuple else first)

    def step(x):
        with torch.no_grad():
            holder.hidden = cell(x, holder.hidden)
            return (holder.hidden[0] if kind is tuple else holder.hidden).sum()

    return holder, step, lambda: holder.hidden if kind is tuple else [holder.hidden]


@pytest.mark.parametrize("kind", [Tensor, tuple], ids=["a tensor", "a tuple"])
def test_a_hidden_state_goes_on_from_call_to_call(kind):
    assert_launched(run_both(lambda: with_hidden_state(kind)), 7)


def test_a_hidden_state_may_be_set_by_the_user_between_calls():
    def between(i, holder):
        if i == 5:
            holder.hidden = torch.ones(8, 32, device=DEVICE)

    assert_launched(run_both(lambda: with_hidden_state(Tensor), between=between), 7)


def test_a_hidden_state_that_starts_from_nothing_is_not_gone_on_with():
    """The branch that starts it is another recording than the one that goes on."""
    def make():
        holder = SimpleNamespace(hidden=None)
        weight = normal(0, 16, 16)

        def step(x):
            holder.hidden = x if holder.hidden is None else torch.tanh(holder.hidden @ weight + x)
            return holder.hidden.sum()

        return holder, step, lambda: [holder.hidden]

    def between(i, holder):
        if i in (3, 4, 5, 9):
            holder.hidden = None

    run_both(make, calls=14, between=between)


def test_losses_left_for_somebody_to_look_at_are_those_of_the_call():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.aux = nn.Linear(16, 4), None
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            weights = self.gate(x).softmax(-1)
            self.aux = weights.mean(0).square().sum()
            return sum(weights[:, i:i + 1] * expert(x) for i, expert in enumerate(self.experts))

    def make():
        model = Experts().to(DEVICE)
        optimizer = momentum(model.parameters())
        holder = SimpleNamespace(last=None)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean() + model.aux
            loss.backward()
            optimizer.step()
            holder.last = loss.detach()
            return loss.detach()

        return holder, step, lambda: [holder.last, model.aux.detach(),
                                      *(p.detach() for p in model.parameters())]

    assert_launched(run_both(make), 6)


def test_kept_answers_and_what_was_left_are_not_written_again():
    holder = SimpleNamespace(last=None)

    def step(x):
        holder.last = x * 2
        return x + 1

    recorded, kept = anabranch.record(step), []
    for i in range(8):
        recorded(normal(i, 8, 16))
        kept.append(holder.last)
    assert all(torch.equal(tensor, normal(i, 8, 16) * 2) for i, tensor in enumerate(kept))
    assert_launched(recorded, 6)


def test_a_log_may_be_another_object_in_each_call():
    def make():
        holder = SimpleNamespace(log=None)

        def step(x):
            holder.log.loss = x.square().mean()
            return x + 1

        return holder, step, lambda: [holder.log.loss]

    def between(i, holder):
        holder.log = SimpleNamespace(loss=None)

    assert_launched(run_both(make, between=between), 6)


def test_buffers_that_change_places_go_on_doing_so():
    def make():
        holder = SimpleNamespace(front=normal(1, 8, 16), back=normal(2, 8, 16))

        def step(x):
            holder.back.copy_(holder.front + x)
            holder.front, holder.back = holder.back, holder.front
            return holder.front.sum()

        return holder, step, lambda: [holder.front, holder.back]

    assert_launched(run_both(make), 6)


def test_a_module_may_bind_its_buffers_anew():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(16))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    def make():
        model = Averaging().to(DEVICE)
        return model, model, lambda: [model.mean]

    assert_launched(run_both(make), 7)


def test_an_argument_that_is_left_somewhere_is_that_of_the_call():
    def make():
        holder = SimpleNamespace(batch=None, first=None)

        def step(x):
            holder.batch, holder.first = x, x[0]
            return x.sum()

        return holder, step, lambda: [holder.batch, holder.first]

    assert_launched(run_both(make), 6)


def test_tensors_that_are_appended_are_appended_by_launches():
    def make():
        holder = SimpleNamespace(history=[])

        def step(x):
            holder.history.append(x.mean())
            return x * 2

        return holder, step, lambda: holder.history

    def between(i, holder):
        if i == 6:
            holder.history.clear()

    assert_launched(run_both(make, between=between), 6)


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


def test_what_a_refused_step_had_made_is_made_once():
    """Its first run made a cache, and it then ran once more."""
    def make():
        holder = SimpleNamespace(cache=None, out=None)

        def step(x):
            if holder.cache is None:
                holder.cache = torch.zeros(16, device=DEVICE)
            holder.cache += x[0]
            holder.out = Box(x[0] + 1)
            return holder.cache.sum()

        return holder, step, lambda: [holder.cache, holder.out.tensor]

    def between(i, holder):
        if i in (1, 3, 4):
            holder.cache = None

    assert_plain(run_both(make, between=between), "a Box with tensors in ")


def train_by_arguments(is_recorded, calls=14):
    """Two models with their optimizers take turns as arguments of one step."""
    torch.manual_seed(0)
    models = [mlp() for _ in range(2)]
    optimizers = [momentum(model.parameters()) for model in models]

    def step(model, optimizer, given):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(given.x), given.y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = anabranch.record(step) if is_recorded else step
    history = []
    for i in range(calls):
        if i == 9:
            models[0][0].weight.data = models[0][0].weight.data.clone()
        x, y = batch(i)
        loss = call(models[i % 2], optimizers[i % 2], SimpleNamespace(x=x, y=y))
        history.append([loss.clone(), *(p.detach().clone() for m in models for p in m.parameters()),
                        *(p.grad.clone() for p in models[i % 2].parameters())])
    return call, history


def test_a_model_its_optimizer_and_a_batch_may_be_arguments():
    _, wanted = train_by_arguments(False)
    step, found = train_by_arguments(True)
    for i, (one, other) in enumerate(zip(wanted, found, strict=True)):
        assert all(map(torch.equal, one, other)), f"call {i}\n{told(step)}"
    # Each model makes its optimizer's state once, which is too seldom to be recorded.
    assert sum(report.nodes > 0 for report in step.reports) == 1, told(step)
    assert_launched(step, 8)


def test_layers_that_are_arguments_share_one_recording():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()).to(DEVICE)
              for _ in range(24)]

    def block(layer, x):
        return layer(x)

    recorded = anabranch.record(block)
    with torch.no_grad():
        for seed in range(4):
            found = wanted = normal(seed, 8, 16)
            for layer in layers:
                found, wanted = recorded(layer, found), block(layer, wanted)
            assert torch.equal(found, wanted)
    assert len(recorded.reports) == 1, told(recorded)
    assert_launched(recorded, 4 * 24 - 2)
