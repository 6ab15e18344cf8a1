# SPDX-License-Identifier: Apache-2.0
"""Random loops: numbers, sizes, modes and state change between the calls of a training step, and
every call leaves what eager leaves, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from recordings import everything, launches, normal, told
from torch import nn

import anabranch

SEEDS, AT_A_TIME, CALLS = 300, 10, 24
KINDS = {"foreach": {"foreach": True}, "one by one": {"foreach": False}, "fused": {"fused": True}}
OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam,
              torch.optim.RMSprop, torch.optim.Adadelta)


def optimizer_of(chance: random.Random, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    kind = chance.choice(OPTIMIZERS)
    has_fused = kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
    how = dict(KINDS[chance.choice([*KINDS] if has_fused else ["foreach", "one by one"])])
    if kind is torch.optim.SGD:
        how |= {"momentum": 0.9} if chance.random() < 0.5 else {}
    else:
        how["capturable"] = True
    return kind(parameters, lr=0.01, weight_decay=chance.choice((0.0, 0.01)), **how)


class Net(nn.Module):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.scale, self.slope, self.bound = 1.0, 0.1, 0.5
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(chance.randint(1, 3))])
        self.norm = nn.BatchNorm1d(8)
        self.uses = chance.sample(("scale", "slope", "bound", "branch", "norm"), 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
            x = F.leaky_relu(x, self.slope) if "slope" in self.uses else F.relu(x)
        if "scale" in self.uses:
            x = x * self.scale + 1 / (1 + self.scale)
        if "bound" in self.uses:
            x = x.clamp(-self.bound, self.bound)
        if "branch" in self.uses and self.scale > 0.8:
            x = x + self.scale
        return self.norm(x) if "norm" in self.uses else x


class Loop:
    """A model, its step, and what the user does before each call: the same for each seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        torch.manual_seed(seed)
        self.model = Net(chance).to("cuda")
        self.optimizer = optimizer_of(chance, list(self.model.parameters()))
        self.sizes = chance.sample((4, 8, 12), chance.choice((1, 1, 2)))
        self.weight = 1.0  # of the loss
        self.changes = [self._change(chance) for _ in range(chance.randint(1, 3))]
        self._calls = random.Random(seed + 1)

    def step(self, x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x) / temperature, y) * self.weight
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _change(self, chance: random.Random) -> Callable[[int], None]:
        [group], falls = self.optimizer.param_groups, chance.uniform(0.8, 0.99)

        def rate(i: int) -> None:
            group["lr"] = 0.01 * falls ** i

        def decay(i: int) -> None:
            group["weight_decay"] = 0.02 * falls ** i

        def betas(i: int) -> None:
            if "betas" in group:
                group["betas"] = (0.9 * falls ** (i / 9), 0.99)

        def attribute(i: int) -> None:
            name = ("scale", "slope", "bound")[int(falls * 100) % 3]
            setattr(self.model, name, getattr(self.model, name) * falls)

        def loss_weight(i: int) -> None:
            self.weight = 1.0 - falls / (i + 2)

        def modes(i: int) -> None:
            self.model.train(i % 7 != 3)

        def memory(i: int) -> None:
            if i % 6 == 4:
                for parameter in self.model.parameters():
                    parameter.data = parameter.data.clone()

        def weights(i: int) -> None:
            if i % 5 == 2:
                with torch.no_grad():
                    self.model.layers[0].weight.mul_(0.99)

        return chance.choice((rate, rate, decay, betas, attribute, loss_weight, modes, memory,
                              weights))

    def inputs(self, i: int) -> tuple[Any, ...]:
        rows = self._calls.choice(self.sizes)
        temperature = 1.0 if self._calls.random() < 0.7 else self._calls.uniform(0.5, 2)
        return normal(i, rows, 8), normal(100 + i, rows, 8), temperature

    def run(self, step: Callable[..., torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        found = []
        for i in range(CALLS):
            if i:
                for change in self.changes:
                    change(i)
            found.append(everything(step(*self.inputs(i)), self.model, self.optimizer))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, AT_A_TIME))
def test_a_random_loop_leaves_what_eager_leaves(first):
    launched = 0
    for seed in range(first, first + AT_A_TIME):
        eager, mine = Loop(seed), Loop(seed)
        wanted = eager.run(eager.step)
        recorded = anabranch.record(mine.step)
        for i, (found, expected) in enumerate(zip(mine.run(recorded), wanted, strict=True)):
            try:
                assert_same(found, expected)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, call {i}: {error}\n{told(recorded)}") from None
        launched += launches(recorded)
    assert launched > AT_A_TIME
