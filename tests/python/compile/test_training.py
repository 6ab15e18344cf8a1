# SPDX-License-Identifier: Apache-2.0
"""Training loops: twenty steps, and what people do between two of them."""

import copy

import pytest
import torch
from compare import Tolerance, assert_same, compiled, observe, weighted_sum
from zoo import Towers, normal

import anabranch

STEPS = 20
FIRST_SEED = 5  # of data whose losses fall


def losses(call, model, optimizer, *, accumulate=1, clip=None):
    """The loss of every step of a small regression; the target is fixed by the step's seed."""
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(accumulate):
            seed = FIRST_SEED + step * accumulate + part
            loss = (call(normal(seed, 3, 8)) - normal(seed + 1000, 3, 8)).square().mean()
            (loss / accumulate).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


def assert_trains_like_eager(make_optimizer, **how):
    model = Towers(True)
    reference = copy.deepcopy(model)
    found = losses(compiled(model), model, make_optimizer(model.parameters()), **how)
    wanted = losses(reference, reference, make_optimizer(reference.parameters()), **how)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert wanted[-1] < wanted[0]
    assert_same(dict(model.named_parameters()), dict(reference.named_parameters()),
                Tolerance(1e-4, 1e-5))


@pytest.mark.oldest
def test_twenty_steps_of_adamw_have_eager_losses():
    assert_trains_like_eager(lambda p: torch.optim.AdamW(p, lr=1e-2))


def test_twenty_steps_of_sgd_with_momentum_have_eager_losses():
    assert_trains_like_eager(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9))


def test_accumulated_gradients_have_eager_losses():
    assert_trains_like_eager(lambda p: torch.optim.SGD(p, lr=0.05), accumulate=3)


def test_clipped_gradients_have_eager_losses():
    assert_trains_like_eager(lambda p: torch.optim.SGD(p, lr=0.1), clip=0.1)


def move_every_parameter(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def load_other_values(model):
    torch.manual_seed(99)
    model.load_state_dict(Towers(True).state_dict())


def assign_other_tensors(model):
    torch.manual_seed(98)
    model.load_state_dict(Towers(True).state_dict(), assign=True)


@pytest.mark.parametrize("change", [move_every_parameter, load_other_values, assign_other_tensors],
                         ids=lambda change: change.__name__)
@pytest.mark.oldest
def test_parameters_that_moved_or_changed_are_the_ones_used(change):
    model = Towers(True)
    reference, call = copy.deepcopy(model), compiled(model)
    for round_ in range(3):
        x = (normal(round_, 3, 8, grad=True),)
        y = (normal(round_, 3, 8, grad=True),)
        assert_same(observe(call, model, x), observe(reference, reference, y), Tolerance())
        change(model)
        change(reference)


class Shared(torch.nn.Module):
    """One weight used on both streams: its gradient is the sum of both."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x):
        with anabranch.stream("a"):
            left = torch.tanh(x @ self.weight)
        with anabranch.stream("b"):
            right = torch.sigmoid(x @ self.weight.t())
        return left * right, left  # `left` is used twice, here and above


@pytest.mark.oldest
def test_a_parameter_an_input_and_an_output_may_belong_to_two_streams():
    model = Shared()
    reference, call = copy.deepcopy(model), compiled(model)
    for seed in range(3):
        assert_same(observe(call, model, (normal(seed, 4, 8, grad=True),)),
                    observe(reference, reference, (normal(seed, 4, 8, grad=True),)), Tolerance())


def test_an_optimizer_that_changes_weights_in_place_is_seen_by_the_next_call():
    model = Towers(True)
    reference, call = copy.deepcopy(model), compiled(model)
    x = normal(5, 3, 8)
    before = call(x).detach()
    with torch.no_grad():
        for parameter in (*model.parameters(), *reference.parameters()):
            parameter.mul_(1.5)
    after = call(x).detach()
    torch.testing.assert_close(after, reference(x).detach())
    assert not torch.allclose(before, after)


def test_a_compiled_loss_function_trains_too():
    model = Towers(True)
    reference = copy.deepcopy(model)

    def loss_of(network, x, target):
        return (network(x) - target).square().mean()

    step = compiled(lambda x, target: loss_of(model, x, target))
    for seed in range(2):
        x, target = normal(seed, 3, 8), normal(seed + 9, 3, 8)
        assert_same(observe(lambda a, b: step(a, b), model, (x, target)),
                    observe(lambda a, b: loss_of(reference, a, b), reference, (x, target)),
                    Tolerance())


def test_a_copy_of_a_compiled_models_module_has_its_own_weights():
    model = Towers(True)
    call = compiled(model)
    x = normal(1, 3, 8)
    weighted_sum(call(x)).backward()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    torch.testing.assert_close(compiled(other)(x), other(x))
    torch.testing.assert_close(call(x), model(x))
