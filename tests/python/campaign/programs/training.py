# SPDX-License-Identifier: Apache-2.0
"""Training steps with their optimizers, as trainers have them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import DEVICE, batches, numbers
from torch import nn
from torch.utils.checkpoint import checkpoint


def _model():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(DEVICE)


def _trained(model, optimizer, loss_of=lambda y: y.square().mean()):
    def step(x):
        loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, batches(3, 4)


def sgd():
    model = _model()
    return _trained(model, torch.optim.SGD(model.parameters(), lr=0.1))


def momentum():
    model = _model()
    return _trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9,
                                           weight_decay=0.01, nesterov=True))


def sgd_of_lists():
    model = _model()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}]
    return _trained(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=True))


def adamw():
    """Launched on a GPU alone: on the CPU torch's counts on the CPU."""
    model = _model()
    return _trained(model, torch.optim.AdamW(model.parameters(), lr=0.01,
                                             capturable=DEVICE == "cuda"))


class Own(torch.optim.Optimizer):
    """Adam, which counts in a tensor."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.99), eps=1e-6):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(count=torch.zeros((), device=p.device), mean=torch.zeros_like(p),
                                 square=torch.zeros_like(p))
                state["count"] += 1
                state["mean"].lerp_(p.grad, 1 - first)
                state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                rate = group["lr"] * (1 - second ** state["count"]).sqrt() \
                    / (1 - first ** state["count"])
                p.sub_(rate * state["mean"] / (state["square"].sqrt() + group["eps"]))


def own_optimizer():
    model = _model()
    return _trained(model, Own(model.parameters()))


class Trainer:
    """As a library has it."""

    clip, accumulate = 1.0, 2

    def __init__(self):
        self.model = _model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.config = {"loss": "square", "weights": [1.0, 0.5], "label": 0.1, "log": False}
        self.losses = {"square": lambda y: y.square().mean(), "abs": lambda y: y.abs().mean()}

    def loss_of(self, x):
        y = self.model(x)
        main = self.losses[self.config["loss"]](y)
        extra = (y.mean() - self.config["label"]).square()
        return sum(w * loss for w, loss in zip(self.config["weights"], (main, extra)))

    def train_step(self, x):
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=x.device)
        for part in x.chunk(self.accumulate):
            loss = self.loss_of(part) / self.accumulate
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return total


def trainer():
    return Trainer().train_step, batches(4, 4)


def two_models():
    makes, judges = _model(), nn.Linear(2, 1).to(DEVICE)
    first = torch.optim.SGD(makes.parameters(), lr=0.05)
    second = torch.optim.SGD(judges.parameters(), lr=0.1)
    balance = {"makes": 1.0, "judges": 0.5}

    def step(x):
        second.zero_grad()
        judged = F.softplus(-judges(makes(x).detach())).mean() * balance["judges"]
        judged.backward()
        second.step()
        first.zero_grad()
        made = F.softplus(judges(makes(x))).mean() * balance["makes"]
        made.backward()
        first.step()
        return judged.detach(), made.detach()

    return step, batches(3, 4)


def averaged():
    model, average = _model(), _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"decay": 0.9, "is_on": True}

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if options["is_on"]:
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), model.parameters()):
                    mine.lerp_(theirs, 1 - options["decay"])
        return loss.detach()

    return step, batches(3, 4)


def distilled():
    teacher, student = _model().eval(), _model()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    temperature = 2.0

    def step(x):
        with torch.no_grad():
            wanted = (teacher(x) / temperature).softmax(-1)
        loss = F.kl_div((student(x) / temperature).log_softmax(-1), wanted, reduction="batchmean")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, batches(3, 4)


def with_batch_norm():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE)
    return _trained(model, torch.optim.SGD(model.parameters(), lr=0.05))


class Scaled(torch.autograd.Function):
    strength = 0.5

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.by * Scaled.strength, None


def own_backward():
    model, by = _model(), {"now": 1.5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return _trained(model, optimizer, lambda y: Scaled.apply(y, by["now"]).square().mean())


def checkpointed():
    first, last = nn.Linear(4, 8).to(DEVICE), nn.Linear(8, 1).to(DEVICE)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
    slope = {"now": 0.1}

    def inner(x):
        return F.leaky_relu(first(x), slope["now"])

    def step(x):
        loss = last(checkpoint(inner, x, use_reentrant=False)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, batches(3, 4)


def gradients_left():
    model, penalty = _model(), {"rate": 0.01, "norm": "two"}

    def step(x):
        model.zero_grad()
        size = sum(p.square().sum() if penalty["norm"] == "two" else p.abs().sum()
                   for p in model.parameters())
        (model(x).square().mean() + penalty["rate"] * size).backward()

    return step, batches(3, 4)


def tensor_hooks():
    model, by = _model(), {"now": 0.5}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].weight.register_hook(lambda grad: grad * by["now"])
    return _trained(model, optimizer)


def by_hand():
    weight, rate = numbers(3, 4, 2).requires_grad_(), {"now": 0.1}

    def step(x):
        loss = (x @ weight).square().mean()
        grad, = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(rate["now"] * grad)
        return loss.detach()

    return step, batches(3, 4)


def modes_inside():
    model, options = _model(), {"enabled": True, "dtype": torch.bfloat16}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        with torch.autocast(DEVICE, options["dtype"], enabled=options["enabled"]):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            after = model(x).sum()
        return loss.detach(), after

    return step, batches(3, 4)


PROGRAMS = [sgd, momentum, sgd_of_lists, adamw, own_optimizer, trainer, two_models, averaged,
            distilled, with_batch_norm, own_backward, checkpointed, gradients_left, tensor_hooks,
            by_hand, modes_inside]
