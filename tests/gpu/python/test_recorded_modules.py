# SPDX-License-Identifier: Apache-2.0
"""Recorded models and methods on a GPU: they train, are saved and are launched as modules; streams
that are kept."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same, compiled
from recordings import (
    CALLS,
    DEVICE,
    assert_launched,
    batch,
    everything,
    launches,
    mlp,
    normal,
    told,
    train_both,
    training,
)
from torch import nn

import anabranch
from anabranch import RecordedModule


class Outer(nn.Module):
    def __init__(self, wrap=anabranch.record):
        super().__init__()
        self.first, self.net = nn.Linear(16, 16), wrap(mlp(nn.BatchNorm1d(32)))

    def forward(self, x):
        return self.net(torch.relu(self.first(x)))


def made(wrap=anabranch.record):
    torch.manual_seed(0)
    return Outer(wrap).to(DEVICE)


def plainly(model):
    return model


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def assert_equal(one, other):
    assert_same(one.state_dict(), other.state_dict())


def test_a_layer_recorded_inside_another_module_trains_as_in_eager_and_is_saved():
    models = []
    for wrap in (anabranch.record, plainly):
        model = made(wrap)
        step = training(model, adam(model))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", anabranch.RecordWarning)  # E0321: it has gradients
            history = [everything(step(*batch(seed)), model, None) for seed in range(CALLS)]
        models.append((model, history))
    (recorded, mine), (plain, theirs) = models
    for found, wanted in zip(mine, theirs, strict=True):
        assert_same(found, wanted)
    file = io.BytesIO()
    torch.save(recorded.state_dict(), file)
    file.seek(0)
    fresh = Outer(plainly).to(DEVICE)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert_equal(fresh, plain)
    assert launches(recorded.net) == 0, told(recorded.net)


def test_what_has_been_trained_is_what_is_launched_without_gradients():
    model, plain = made(), made(plainly)
    plain.load_state_dict(model.state_dict())
    optimizers = [adam(model), adam(plain)]
    for seed in range(3):
        for one, optimizer in zip((model, plain), optimizers, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", anabranch.RecordWarning)
                training(one.train(), optimizer)(*batch(seed))
            one.eval()
        with torch.no_grad():
            for i in range(CALLS):
                x = normal(i, 8, 16)
                assert torch.equal(model(x), plain(x)), told(model.net)
    assert launches(model.net) >= 2 * CALLS, told(model.net)
    model.load_state_dict(Outer(plainly).state_dict())
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(normal(1, 8, 16)), plain(normal(1, 8, 16)))
    assert_equal(model, plain)


def test_a_recorded_layer_in_a_recorded_step_is_part_of_it():
    inner = []

    def make():
        torch.manual_seed(0)
        model = Outer().to(DEVICE)
        inner.append(model.net)
        optimizer = adam(model)
        return model, optimizer, training(model, optimizer)

    assert_launched(train_both(make))
    assert launches(inner[-1]) == 0 and inner[-1].reports == [], told(inner[-1])


def test_a_recorded_model_goes_through_a_trainers_loop():
    """It trains in a recorded step, is evaluated, saved, loaded and goes on; train() and eval() take
    turns."""
    def run(record):
        torch.manual_seed(0)
        model = record(mlp(nn.Dropout(0.5)))
        optimizer = adam(model)
        step = record(training(model, optimizer))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4)
        found = []
        torch.manual_seed(1)
        for epoch in range(3):
            model.train()
            for seed in range(5):
                found.append(step(*batch(seed)))
                schedule.step()
            model.eval()
            with torch.no_grad():
                found += [F.mse_loss(model(x), y) for x, y in map(batch, range(4))]
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict({name: tensor + epoch for name, tensor in kept.items()})
            model.load_state_dict(kept)
        return [one.clone() for one in found], model, step

    (mine, model, step), (theirs, plain, _) = run(anabranch.record), run(plainly)
    for i, (found, wanted) in enumerate(zip(mine, theirs, strict=True)):
        assert torch.equal(found, wanted), (i, told(model), told(step))
    assert_equal(model, plain)
    assert launches(step) > 0 and launches(model) > 0, told(step)
    assert isinstance(model, nn.Sequential) and isinstance(model, RecordedModule)


def test_a_recorded_model_is_followed_through_casts_copies_and_hooks():
    model, plain = anabranch.record(mlp()), mlp()
    plain.load_state_dict(model.state_dict())

    def assert_follows(seeds, dtype=torch.float32):
        with torch.no_grad():
            for seed in seeds:
                x = normal(seed, 8, 16, dtype=dtype)
                assert torch.equal(model(x), plain(x)), told(model)

    assert_follows(range(CALLS))
    for one in (model, plain):
        one.double()
    assert_follows(range(CALLS), torch.float64)
    for one in (model, plain):
        one.float()
    assert_follows(range(CALLS))
    handles = [one.register_forward_hook(lambda module, given, answer: answer * 2)
               for one in (model, plain)]
    assert_follows(range(CALLS))
    for handle in handles:
        handle.remove()
    assert_follows(range(CALLS))
    assert launches(model) >= 3 * CALLS, told(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in other.parameters():
            tensor.mul_(2)
        for seed in range(CALLS):
            x = normal(seed, 8, 16)
            assert torch.equal(other(x), other.anabranch.__wrapped__(x)), told(other)
    assert_launched(other)
    assert_follows(range(2))


def test_compiled_code_around_a_recorded_layer_is_that_around_the_plain_one():
    for backend in ("eager", anabranch.backend):
        model, plain = made().eval(), made(plainly).eval()
        plain.load_state_dict(model.state_dict())
        torch.compiler.reset()
        call = torch.compile(model, backend=backend, fullgraph=True)
        wanted = torch.compile(plain, backend=backend, fullgraph=True)
        for seed in range(CALLS):
            x = normal(seed, 8, 16)
            assert torch.equal(call(x), wanted(x))
        assert model.net.reports == [], told(model.net)


class Owner:
    def __init__(self, seed):
        self.weight = normal(seed, 16, 16)

    @anabranch.record
    def method(self, x):
        return torch.relu(x @ self.weight)

    @anabranch.record
    @staticmethod
    def static(x):
        return torch.relu(x @ x.T)

    @classmethod
    @anabranch.record
    def of_class(cls, x):
        return torch.relu(x + 1)


def test_methods_are_precompiled_and_launched():
    owners = [Owner(0), Owner(1)]
    report = owners[0].method.precompile(normal(0, 8, 16))
    assert report.nodes and report.reason is None, str(report)
    for seed in range(CALLS):
        for owner in owners:
            x = normal(seed, 8, 16)
            assert torch.equal(owner.method(x), torch.relu(x @ owner.weight))
            assert torch.equal(owner.static(x), torch.relu(x @ x.T))
            assert torch.equal(owner.of_class(x), torch.relu(x + 1))
    for step in (Owner.method, Owner.static, Owner.of_class):
        assert_launched(step)


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "on streams"])
def test_kept_streams_are_entered_often(record):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.side, self.layer = anabranch.stream("side", priority=-1), nn.Linear(16, 16)

        def forward(self, x):
            with self.side:
                y = self.layer(x)
            z = torch.sin(x)
            with self.side:
                with self.side:
                    y = torch.tanh(self.layer(y))
            return y + z

    torch.manual_seed(0)
    model = Model().to(DEVICE)
    call = compiled(model, options={"record": record, "strict": True})
    for seed in range(CALLS):
        x = normal(seed, 8, 16)
        torch.testing.assert_close(call(x), model(x))
    told_of = anabranch.explain(call, normal(0, 8, 16))
    assert "without effect" not in str(told_of), told_of
