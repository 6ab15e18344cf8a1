# SPDX-License-Identifier: Apache-2.0
"""Whole training steps: after every one, parameters, gradients, buffers, the optimizer's state and
torch's generator are what eager leaves, whatever the user changes between calls."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
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
from torch import nn

import anabranch

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True, capturable=True),
    "adamw, fused, as trainers make it": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True, capturable=True),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, capturable=True),
}


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def fused(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True, capturable=True)


def made(make_optimizer=momentum, make_model=mlp, **choices):
    """For train_both: a model, its optimizer and a training step."""
    def make():
        model = make_model()
        optimizer = make_optimizer(model.parameters())
        return model, optimizer, training(model, optimizer, **choices)

    return make


@pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers(make_optimizer):
    assert_launched(train_both(made(make_optimizer)))


@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zero"])
@pytest.mark.parametrize("clear", ["before", "after"])
def test_gradients_cleared_before_or_after_the_step(clear, to_none):
    assert_launched(train_both(made(clear=clear, to_none=to_none)))


@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zero"])
def test_gradients_accumulate_over_calls_until_the_user_clears_them(to_none):
    def make():
        model = mlp()
        optimizer = momentum(model.parameters())

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss.detach()

        return model, optimizer, step

    def between(i, model, optimizer):
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)

    assert_launched(train_both(make, between=between, calls=20), 6)


def test_gradients_that_the_user_changes_between_calls():
    def between(i, model, optimizer):
        if i == 6:
            model[0].weight.grad = None
        if i in (8, 9):
            model[0].bias.grad = model[0].bias.grad * 2  # another tensor
        if i == 11:
            model[2].weight.grad.zero_()
        if i == 13:
            model.zero_grad()
        if i == 17:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)

    assert_launched(train_both(made(clear="never"), between=between, calls=22), 8)


def test_gradients_of_one_step_are_not_overwritten_by_the_next():
    model = mlp()
    step = anabranch.record(training(model, momentum(model.parameters())))
    kept = []
    for i in range(8):
        step(*batch(i))
        kept.append([(p.grad, p.grad.clone()) for p in model.parameters()])
    assert all(torch.equal(grad, then) for grads in kept for grad, then in grads)
    assert_launched(step, 4)


@pytest.mark.parametrize("has_one", [False, True], ids=["gets it", "has one, which is added to"])
def test_an_argument_that_wants_a_gradient(has_one):
    def inputs(i):
        x = normal(i, 8, 16).requires_grad_()
        x.grad = normal(i + 500, 8, 16) if has_one else None
        return (x,)

    def make():
        model = mlp()

        def step(x):
            model.zero_grad()
            (model(x) ** 2).sum().backward()
            return x.grad

        return model, None, step

    assert_launched(train_both(make, inputs=inputs))


def test_a_loss_may_be_answered_undetached():
    def make():
        model = mlp()
        optimizer = fused(model.parameters())

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return model, optimizer, step

    assert_launched(train_both(make))


def test_clipping():
    def make():
        model = mlp()
        optimizer = fused(model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss.detach(), norm

        return model, optimizer, step

    assert_launched(train_both(make))


def test_micro_batches_in_one_step():
    def make():
        model = mlp()
        optimizer = fused(model.parameters())

        def step(parts):
            optimizer.zero_grad()
            total = 0
            for x, y in parts:
                loss = F.mse_loss(model(x), y) / len(parts)
                loss.backward()
                total = total + loss.detach()
            optimizer.step()
            return total

        return model, optimizer, step

    assert_launched(train_both(make, inputs=lambda i: ([batch(3 * i + j) for j in range(3)],)))


def test_two_backwards_through_one_graph():
    def make():
        model = mlp()
        optimizer = momentum(model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            out = model(x)
            first, second = F.mse_loss(out, y), out.square().mean()
            first.backward(retain_graph=True)
            second.backward()
            optimizer.step()
            return first.detach(), second.detach()

        return model, optimizer, step

    assert_launched(train_both(make))


def test_gradients_by_function_and_of_second_order():
    def make():
        model = mlp()

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            norm = sum(grad.square().sum() for grad in grads)
            twice = torch.autograd.grad(norm, list(model.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(model.parameters(), twice, strict=True):
                    parameter -= 0.01 * grad
            return norm.detach()

        return model, None, step

    assert_launched(train_both(make))


# The learning rate.


def tensor_lr(parameters):
    lr = torch.tensor(1e-2, device=DEVICE)
    return torch.optim.AdamW(parameters, lr=lr, fused=True, capturable=True)


@pytest.mark.parametrize("in_place", [True, False], ids=["filled", "another tensor"])
def test_a_learning_rate_in_a_tensor_may_change_between_calls(in_place):
    def between(i, model, optimizer):
        for group in optimizer.param_groups:
            if in_place:
                group["lr"].fill_(1e-2 / (i + 1))
            else:
                group["lr"] = torch.tensor(1e-2 / (i + 1), device=DEVICE)

    step = train_both(made(tensor_lr), between=between, calls=12)
    assert_launched(step, 8)


def test_a_scheduler_may_step_a_learning_rate_in_a_tensor():
    schedulers = {}

    def make():
        model = mlp()
        optimizer = tensor_lr(model.parameters())
        schedulers["now"] = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return model, optimizer, training(model, optimizer)

    def between(i, model, optimizer):
        if i:
            schedulers["now"].step()

    assert_launched(train_both(make, between=between, calls=12), 8)


def test_a_learning_rate_in_python_may_change_between_calls():
    def between(i, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.1 if i < 6 else 0.05

    assert_launched(train_both(made(), between=between, calls=12), 6)


def test_a_scheduler_inside_the_step_keeps_it_plain():
    """It computes numbers in Python, which every launch would repeat: they are not followed, and
    each is a signature."""
    model = mlp()
    optimizer = momentum(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    inner = training(model, optimizer)

    @anabranch.record(max_recordings=4)
    def step(x, y):
        loss = inner(x, y)
        scheduler.step()
        return loss

    rates = []
    for i in range(12):
        step(*batch(i))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1 * 0.9 ** (i + 1) for i in range(12)]), rates
    assert launches(step) == 0 and any(report.reason for report in step.reports), told(step)


def test_an_optimizer_that_reads_its_steps_on_the_host_runs_plainly():
    def make():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, optimizer, training(model, optimizer)

    assert_plain(train_both(make), "capturable")


# What the user may do between calls.


def test_parameters_may_move():
    def between(i, model, optimizer):
        if i >= 6:
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()

    step = train_both(made(), between=between, calls=12)
    assert_launched(step, 8)
    assert len(step.reports) == 2, told(step)  # without and with the optimizer's state


def test_a_state_may_be_loaded_into_the_model_between_calls():
    saved = {}

    def between(i, model, optimizer):
        if i == 3:
            saved["now"] = copy.deepcopy(model.state_dict())
        if i in (6, 9):
            model.load_state_dict(saved["now"])

    assert_launched(train_both(made(), between=between, calls=12), 8)


@pytest.mark.parametrize("make_optimizer", [momentum, fused, tensor_lr],
                         ids=["momentum", "adamw", "lr in a tensor"])
def test_a_state_may_be_loaded_into_the_optimizer_again_and_again(make_optimizer):
    """Each time it makes new dictionaries and tensors, perhaps where the ones before last lay."""
    saved = {}

    def between(i, model, optimizer):
        if i == 3:
            saved["now"] = copy.deepcopy(optimizer.state_dict())
        if i >= 6 and i % 3 == 0:
            optimizer.load_state_dict(copy.deepcopy(saved["now"]))

    assert_launched(train_both(made(make_optimizer), between=between, calls=24,
                               options={"max_recordings": 100}), 8)


@pytest.mark.parametrize("to_none", [True, False], ids=["to None", "to zero"])
def test_a_parameter_may_be_replaced_by_another(to_none):
    def make():
        model = mlp()

        def step(x, y):
            model.zero_grad(set_to_none=to_none)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            return loss.detach()

        return model, None, step

    def between(i, model, optimizer):
        if i in (6, 10):
            model[0].weight = nn.Parameter(normal(i, 32, 16))

    assert_launched(train_both(make, between=between, calls=14), 6)


def test_modes_may_be_switched():
    def between(i, model, optimizer):
        model.train(i % 8 < 4)

    def with_modes():
        return mlp(nn.BatchNorm1d(32), nn.Dropout(0.3))

    assert_launched(train_both(made(make_model=with_modes), between=between, calls=24), 10)


@pytest.mark.parametrize("clear", ["before", "after", "never"])
def test_parameters_may_be_frozen_and_thawed(clear):
    def between(i, model, optimizer):
        model[0].requires_grad_(not 6 <= i < 12)

    assert_launched(train_both(made(clear=clear), between=between, calls=18), 8)


def test_the_gradients_of_frozen_parameters_are_used_until_they_are_gone():
    def between(i, model, optimizer):
        model[0].requires_grad_(i < 6)
        if i == 12:
            model[0].weight.grad = None
        elif i > 12:
            model[0].bias.grad.mul_(2)

    assert_launched(train_both(made(clear="never"), between=between, calls=18), 8)


def test_buffers_are_written_as_in_eager():
    step = train_both(made(make_model=lambda: mlp(nn.BatchNorm1d(32, momentum=0.3))), calls=12)
    assert_launched(step, 8)


class Shrinking(nn.Module):
    """Batch norms of one function, each over fewer pixels: cuDNN allows it another amount of shared
    memory for each."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(4))

    def forward(self, x):
        x = x.view(8, 1, 4, 4).repeat(4, 16, 16, 16)
        for norm in self.norms:
            x = nn.functional.avg_pool2d(norm(x).relu(), 2)
        return x.mean((2, 3))[:8, :4]


def test_batch_norms_of_several_sizes():
    def make():
        model = Shrinking().to(DEVICE)
        optimizer = momentum(model.parameters())
        return model, optimizer, training(model, optimizer)

    assert_launched(train_both(make, calls=24), 10)


def test_parameters_that_are_shared_are_still_one():
    def tied():
        model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.Linear(16, 4))
        model[2].weight = model[0].weight
        return model.to(DEVICE)

    assert_launched(train_both(made(make_model=tied)))


def test_parameters_that_are_views_of_one_tensor_may_be_used():
    """As flattened parameters are: one allocation, and a gradient of each."""
    def flattened():
        model = mlp()
        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        begin = 0
        for parameter in model.parameters():
            end = begin + parameter.numel()
            parameter.data = flat[begin:end].view_as(parameter)
            begin = end
        return model

    assert_launched(train_both(made(make_model=flattened)))


def test_two_models_and_two_optimizers_in_one_step():
    def make():
        both = nn.ModuleList([mlp(), mlp()])
        optimizers = [fused(both[0].parameters()), momentum(both[1].parameters())]

        def step(x, y):
            fake = both[0](x)
            for optimizer in optimizers:
                optimizer.zero_grad()
            first = F.mse_loss(fake, y)
            second = F.mse_loss(both[1](x), fake.detach())
            first.backward()
            second.backward()
            for optimizer in optimizers:
                optimizer.step()
            return first.detach(), second.detach()

        return both, optimizers[1], step

    assert_launched(train_both(make))


def test_an_average_of_the_weights_is_kept_by_the_step():
    def make():
        model = mlp()
        average = copy.deepcopy(model).requires_grad_(False)
        optimizer = fused(model.parameters())
        inner = training(model, optimizer)

        def step(x, y):
            loss = inner(x, y)
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
                return loss, average(x)

        return nn.ModuleList([model, average]), optimizer, step

    assert_launched(train_both(make))
