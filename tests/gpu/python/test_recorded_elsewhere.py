# SPDX-License-Identifier: Apache-2.0
"""Tensors that a recorded step uses and that are not found from it by themselves: helpers of
modules, classes, modules of Python, caches. Launches use those that eager would."""

from __future__ import annotations

import functools
import types
import weakref
from types import SimpleNamespace

import pytest
import torch
from recordings import DEVICE, assert_launched, assert_plain, batch, mlp, normal, told, train_both
from torch import nn

import anabranch


def assert_follows(step, *changes, calls=5):
    """Before each change, and after the last, calls give what plain ones do."""
    recorded = anabranch.record(step)
    for change in (*changes, lambda: None):
        for seed in range(calls):
            x, _ = batch(seed)
            with torch.no_grad():
                assert torch.equal(recorded(x), step(x)), told(recorded)
        change()
    assert_launched(recorded, least=2 * (len(changes) + 1))


class Helper:
    """Of a module, which does not look into it by itself."""

    def __init__(self, seed=1):
        self.scale = normal(seed, 4)
        self.more = {"shift": normal(seed + 1, 4)}


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.helper = mlp(), Helper()

    def forward(self, x):
        return self.inner(x) * self.helper.scale + self.helper.more["shift"]


def test_objects_of_modules():
    torch.manual_seed(0)
    model = Scaled()

    def write():
        model.helper.scale.mul_(2)

    def move():
        model.helper.scale.data = model.helper.scale.data.clone() + 1

    def replace():
        model.helper.more["shift"] = normal(7, 4)

    def replace_all():
        model.helper = Helper(9)

    assert_follows(lambda x: model(x), write, move, replace, replace_all, write)


def test_attributes_of_classes():
    class Table:
        values = normal(1, 16)

    table = Table()

    def replace():
        Table.values = normal(2, 16)

    assert_follows(lambda x: x * table.values, replace)
    assert_follows(lambda x: x * Table.values, replace)


def test_variables_of_a_module_of_python():
    module = types.ModuleType("somebodys_operators")
    exec("def scaled(x):\n    return x * SCALE\n", vars(module))
    module.SCALE = normal(1, 16)

    def replace():
        module.SCALE = normal(2, 16)

    assert_follows(lambda x: module.scaled(x), replace)


def test_what_functools_keeps():
    numbers = [1.0]

    @functools.lru_cache(4)
    def table(width):
        return torch.arange(width, device=DEVICE) * numbers[0]

    def clear():
        numbers[0] = 2.0
        table.cache_clear()
        table(16)

    assert_follows(lambda x: x * table(16), calls=7)
    clear()
    assert_follows(lambda x: x * table(16), calls=7)


def test_a_step_that_writes_there_has_run_once_a_call():
    """Also in the calls that find it, and verify the recording."""
    def counted():
        model = Scaled()
        model.helper.count = torch.zeros((), device=DEVICE)

        def step(x):
            model.helper.count += 1
            return model.inner(x) * model.helper.count
        return model, step

    torch.manual_seed(0)
    model, step = counted()
    torch.manual_seed(0)
    other, plain = counted()
    recorded = anabranch.record(step)
    with torch.no_grad():
        for seed in range(9):
            x, _ = batch(seed)
            assert torch.equal(recorded(x), plain(x)), told(recorded)
            assert model.helper.count.item() == seed + 1
    assert_launched(recorded, least=4)


def test_a_training_step_with_such_a_helper_is_that_of_eager():
    def make():
        torch.manual_seed(0)
        model = Scaled()
        model.helper.losses = torch.zeros(1, device=DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True,
                                      capturable=True)

        def step(x, y):
            optimizer.zero_grad(set_to_none=True)
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            model.helper.losses += loss.detach()
            return loss.detach()
        return model, step

    model, step = make()
    other, plain = make()
    recorded = anabranch.record(step)
    for seed in range(10):
        assert torch.equal(recorded(*batch(seed)), plain(*batch(seed))), told(recorded)
    assert_launched(recorded, least=4)
    assert torch.equal(model.helper.losses, other.helper.losses)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_grad_scaler_is_looked_into():
    """Of torch, as are the objects of no step's own."""
    def make():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True)
        scaler = torch.amp.GradScaler("cuda", growth_interval=3)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = ((model(x) - y) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach(), scaler._scale.clone()

        return model, optimizer, step

    assert_launched(train_both(make, calls=14), least=5)


def test_what_is_left_in_an_object_is_left_there_in_the_call_that_finds_a_helper_too():
    torch.manual_seed(0)
    model, seen = Scaled(), SimpleNamespace(hidden=None)

    def step(x):
        hidden = model.inner(x)
        seen.hidden = hidden
        return hidden * model.helper.scale

    recorded = anabranch.record(step)
    with torch.no_grad():
        for seed in range(9):
            x, _ = batch(seed)
            answer = recorded(x)
            assert torch.equal(seen.hidden * model.helper.scale, answer), told(recorded)
            assert torch.equal(seen.hidden, model.inner(x))
    assert_launched(recorded, least=3)


def test_a_tensor_to_which_nothing_leads_is_told():
    holder = SimpleNamespace(thing=Helper())
    seen = weakref.ref(holder.thing)

    def step(x):
        return x[:, :4] * seen().scale

    recorded = anabranch.record(step)
    for seed in range(5):
        x, _ = batch(seed)
        assert torch.equal(recorded(x), step(x))
    assert_plain(recorded, "float32[4]) that nothing which was found from it leads to")
    named = anabranch.record(step, state=[holder.thing.scale])
    for seed in range(5):
        x, _ = batch(seed)
        assert torch.equal(named(x), step(x))
    assert_launched(named, least=3)


def test_under_strict_it_raises():
    holder = SimpleNamespace(thing=Helper())
    seen = weakref.ref(holder.thing)
    recorded = anabranch.record(lambda x: x[:, :4] * seen().scale, strict=True)
    recorded(batch(0)[0])
    with pytest.raises(anabranch.errors.RecordError, match="name it in state="):
        for _ in range(2):
            recorded(batch(0)[0])


def test_what_calls_have_answered_is_no_state():
    """Structs that kernels take by value may hold its addresses, of the plain calls."""
    def step(x):
        values, where = x.topk(3, dim=1)
        return values, where, (x.t() @ x).sum(0, keepdim=True).expand(3, 16)

    recorded, kept = anabranch.record(step), []
    for seed in range(7):
        x, _ = batch(seed)
        kept.append((recorded(x), step(x)))
    assert all(torch.equal(mine, theirs) for pair in kept
               for mine, theirs in zip(*pair, strict=True))
    assert_launched(recorded)
    assert len(recorded.reports) == 1, told(recorded)


def test_constants_of_compiled_code_stay_where_they_are():
    constant = [1.0, 2.0, 3.0, 4.0] * 4

    @torch.compile
    def compiled(x):
        return x * torch.tensor(constant, device=DEVICE).sin() + normal_table(x)

    recorded = anabranch.record(lambda x: compiled(x))
    for seed in range(6):
        x, _ = batch(seed)
        assert torch.equal(recorded(x), compiled(x)), told(recorded)
    assert_launched(recorded)


def normal_table(x):
    return torch.eye(16, device=DEVICE)[:8] * x
