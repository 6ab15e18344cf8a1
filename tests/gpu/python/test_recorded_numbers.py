# SPDX-License-Identifier: Apache-2.0
"""Numbers that change between calls are followed by one recording, whatever they are the numbers
of, and every call leaves what eager leaves, bit for bit."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from recordings import CALLS, assert_follows, launches, mlp, normal, told, train_both, training
from torch import nn
from torch.optim import lr_scheduler

import anabranch

STEPS = 50
SINGLE, FOREACH = {"foreach": False, "capturable": True}, {"foreach": True, "capturable": True}
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"foreach": False}),
    "sgd, foreach": (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd, fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9, "nesterov": True}),
    "adam, fused": (torch.optim.Adam, {"fused": True, "capturable": True, "weight_decay": 0.01}),
    **{f"{name.lower()}, {how}": (getattr(torch.optim, name), chosen)
       for name, (how, chosen) in itertools.product(
           ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adadelta", "Adamax", "ASGD"),
           (("one by one", SINGLE), ("foreach", FOREACH)))},
    "adamw, fused": (torch.optim.AdamW, {"fused": True, "capturable": True}),
}
SCHEDULES = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.05, total_steps=STEPS + 1),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda i: 1.0 / (1 + 0.1 * i)),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.97),
    "step": lambda o: lr_scheduler.StepLR(o, 10, 0.3),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.02, step_size_up=7,
                                              cycle_momentum=False),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 12),
    "warm-up, then cosine": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=9),
            lr_scheduler.CosineAnnealingLR(o, STEPS)], [9]),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, STEPS, 2.0),
}


def recordings(step):
    """Reports of what has been recorded and is not retired."""
    return [spec.current_report() for spec in step._recorder.specializations.values()]


def train_scheduled(optimizer, chosen, schedule, calls=STEPS):
    schedulers = {}

    def make():
        model = mlp()
        made = optimizer(model.parameters(), lr=0.01, **chosen)
        schedulers["now"] = schedule(made)
        return model, made, training(model, made)

    def between(i, model, optimizer):
        if i:
            schedulers["now"].step()

    return train_both(make, between=between, calls=calls)


def assert_one_recording(step, least):
    """One recording is there at the end, and was launched as often as that."""
    reports = [report for report in recordings(step) if report.nodes]
    assert len(reports) == 1 and reports[0].launched >= least, told(step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_falls_in_every_step_is_followed_in_every_optimizer(name):
    assert_one_recording(train_scheduled(*OPTIMIZERS[name], SCHEDULES["exponential"]), STEPS - 15)


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_every_scheduler_is_followed(schedule, fused):
    chosen = {"fused": True, "capturable": True} if fused else FOREACH
    step = train_scheduled(torch.optim.AdamW, chosen, schedule)
    assert_one_recording(step, STEPS - 30)


def test_a_plateau_scheduler_is_followed():
    schedulers = {}

    def make():
        model = mlp()
        made = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True)
        schedulers["now"] = lr_scheduler.ReduceLROnPlateau(made, factor=0.7, patience=2)
        return model, made, training(model, made)

    def between(i, model, optimizer):
        if i:
            schedulers["now"].step(1.0)

    assert_one_recording(train_both(make, between=between, calls=STEPS), STEPS - 15)


@pytest.mark.parametrize("name", ["momentum", "weight_decay"])
def test_an_optimizers_other_numbers_are_followed(name):
    def make():
        model = mlp()
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        return model, made, training(model, made)

    def between(i, model, optimizer):
        optimizer.param_groups[0][name] = 0.9 - i / 100

    assert_one_recording(train_both(make, between=between, calls=30), 15)


def test_a_rate_of_each_of_two_groups_is_followed():
    def make():
        model = mlp()
        made = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.01},
                                  {"params": model[2].parameters(), "lr": 0.01}], **FOREACH)
        return model, made, training(model, made)

    def between(i, model, optimizer):
        for j, group in enumerate(optimizer.param_groups):
            group["lr"] = 0.01 / (1 + i * (j + 1))

    assert_one_recording(train_both(make, between=between, calls=30), 15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_arguments_of_every_width_are_followed(dtype):
    weight = normal(0, 64, dtype=dtype)

    def step(x, temperature, scale):
        return (x * scale + weight) / temperature, torch.add(x, weight, alpha=scale)

    def inputs(seed):
        return normal(seed + 1, 64, dtype=dtype), 1.5 - seed / 31, 0.7 + seed / 19

    assert_one_recording(assert_follows(step, inputs, 20), 8)


def test_a_loss_weight_a_clip_norm_and_a_decay_are_followed():
    class Weights:
        loss, clip, decay = 1.0, 1.0, 0.9

    def make():
        weights, model = Weights(), mlp()
        average = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made["now"] = weights

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y) * weights.loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), weights.clip)
            optimizer.step()
            with torch.no_grad():
                for mean, p in zip(average, model.parameters(), strict=True):
                    mean.mul_(weights.decay).add_(p, alpha=1 - weights.decay)
            return loss.detach(), average

        return model, optimizer, step

    made = {}

    def between(i, model, optimizer):
        made["now"].loss = 1.0 - i / 50
        made["now"].clip = 0.2 + i / 40
        made["now"].decay = 1 - 1 / (i + 2)

    assert_one_recording(train_both(make, between=between, calls=30), 12)


def test_what_is_not_followed_is_recorded_by_itself():
    def step(x, t):
        return x * math.sqrt(t)

    step = assert_follows(step, lambda i: (normal(i, 64), (0.25, 0.75)[i % 2]), 20)
    assert len([report for report in recordings(step) if report.launched]) == 2, told(step)
    assert launches(step) >= CALLS, told(step)


def test_a_branch_is_recorded_each_way():
    def step(x, t):
        return x * t if t > 0.5 else x + t

    step = assert_follows(step, lambda i: (normal(i, 64), 0.9 - i / 30), 24)
    assert launches(step) >= 14, told(step)


def test_a_compiled_step_follows_its_optimizers_rate():
    rates = [0.01 * 0.9 ** i for i in range(30)]

    def make():
        torch._dynamo.reset()
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True)
        return model, optimizer, training(torch.compile(model), optimizer)

    def between(i, model, optimizer):
        optimizer.param_groups[0]["lr"] = rates[i]

    assert_one_recording(train_both(make, between=between, calls=30), 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dropouts_probability_is_right_whether_it_is_followed_or_not(dtype):
    def step(x, p):
        return F.dropout(x, p)

    def answers(call):
        torch.manual_seed(7)
        return [call(normal(i, 1000, dtype=dtype), 0.1 + i / 40).clone() for i in range(12)]

    recorded = anabranch.record(step)
    for i, (mine, theirs) in enumerate(zip(answers(recorded), answers(step), strict=True)):
        assert torch.equal(mine, theirs), (i, told(recorded))
