# SPDX-License-Identifier: Apache-2.0
"""Other objects in the place of those that a recorded step was captured with: what is launched is
what eager would run. Where a step cannot tell them from those of before, by the same recording."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace

import pytest
import torch
from recordings import (DEVICE, assert_launched, batch, launches, mlp, normal, told, train_both,
                        training)
from torch import nn

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
    assert sum(report.nodes > 0 for report in recorded.report) == recordings, told(recorded)
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


@pytest.mark.parametrize("how", ["loaded", "made anew"])
def test_an_optimizers_state_may_be_other_objects(how):
    saved = {}

    def between(i, model, optimizer):
        if i == 3:
            saved["now"] = copy.deepcopy(optimizer.state_dict())
        if i not in (6, 9):
            return
        if how == "loaded":
            optimizer.load_state_dict(copy.deepcopy(saved["now"]))
        else:
            for parameter, state in list(optimizer.state.items()):
                optimizer.state[parameter] = {"momentum_buffer": torch.ones_like(parameter)}

    def make():
        model = mlp()
        optimizer = momentum(model.parameters())
        return model, optimizer, training(model, optimizer)

    step = train_both(make, between=between, calls=14)
    # The first call makes the optimizer's state, which is another signature.
    assert sum(report.nodes > 0 for report in step.report) == 1, told(step)
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
