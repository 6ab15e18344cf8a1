# SPDX-License-Identifier: Apache-2.0
"""Ways to ask for gradients, or for none."""

import copy
import functools

import pytest
import torch
from compare import Tolerance, assert_same, compare_with_eager, compiled, observe, weighted_sum
from torch.utils.checkpoint import checkpoint
from zoo import Encoder, Towers, normal

import anabranch

pytestmark = pytest.mark.usefixtures("keep_compiled")


@functools.cache
def made(make):
    model = make(True)
    return model, copy.deepcopy(model), compiled(model)


def pair(make=Towers):
    """A model and an equal one for eager, and the first one compiled: for all tests."""
    model, reference, call = made(make)
    model.zero_grad(set_to_none=True)
    reference.zero_grad(set_to_none=True)
    return model, reference, call


def gradients(loss_of, model):
    model.zero_grad(set_to_none=True)
    loss_of().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def assert_equal_gradients(compiled_loss, model, eager_loss, reference):
    assert_same(gradients(compiled_loss, model), gradients(eager_loss, reference), Tolerance())


def test_backward_twice_through_a_retained_graph_adds_the_same_again():
    model, _, call = pair()
    loss = weighted_sum(call(normal(1, 3, 8)))
    loss.backward(retain_graph=True)
    once = {name: p.grad.clone() for name, p in model.named_parameters()}
    loss.backward()
    twice = {name: p.grad for name, p in model.named_parameters()}
    assert_same(twice, {name: grad + grad for name, grad in once.items()}, Tolerance(1e-6, 0))


def test_backward_a_second_time_without_retaining_is_refused():
    _, _, call = pair()
    loss = weighted_sum(call(normal(1, 3, 8)))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.oldest
def test_a_model_used_twice_in_one_step_gets_both_gradients():
    model, reference, call = pair()
    x = normal(2, 3, 8)
    assert_equal_gradients(lambda: weighted_sum(call(call(x))), model,
                           lambda: weighted_sum(reference(reference(x))), reference)


def test_backwards_of_two_calls_may_run_in_the_order_of_the_calls():
    model, reference, call = pair()

    def both(function):
        model.zero_grad()
        reference.zero_grad()
        first, second = (weighted_sum(function(normal(seed, 3, 8))) for seed in (1, 2))
        first.backward()
        second.backward()

    both(call)
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    both(reference)
    assert_same(found, {name: p.grad for name, p in reference.named_parameters()}, Tolerance())


def test_gradients_of_gradients_are_refused_and_not_wrong():
    _, _, call = pair()
    x = normal(1, 3, 8, grad=True)
    with pytest.raises(RuntimeError, match="double backward|create_graph=False"):
        (first,) = torch.autograd.grad(weighted_sum(call(x)), x, create_graph=True)
        weighted_sum(first).backward()


def test_gradients_may_be_asked_for_inputs_alone():
    model, reference, call = pair()
    found, wanted = ({"x": torch.autograd.grad(weighted_sum(f(x)), x)[0]} for f, x in
                     ((call, normal(1, 3, 8, grad=True)), (reference, normal(1, 3, 8, grad=True))))
    assert_same(found, wanted, Tolerance())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_parameters_get_no_gradient_and_the_others_theirs():
    def make(streams):
        model = Towers(streams)
        model.left.requires_grad_(False)
        return model

    compare_with_eager(make, lambda seed: (normal(seed, 3, 8, grad=True),))


def test_one_of_several_outputs_may_stay_without_a_gradient():
    class Both(torch.nn.Module):
        def __init__(self, streams):
            super().__init__()
            self.towers = Towers(streams)

        def forward(self, x):
            return self.towers(x), self.towers.left[0](x)

    model, reference, call = pair(Both)
    x = normal(3, 3, 8)
    model.zero_grad()
    weighted_sum(call(x)[0]).backward()
    weighted_sum(reference(x)[0]).backward()
    assert_same({n: p.grad for n, p in model.named_parameters()},
                {n: p.grad for n, p in reference.named_parameters()}, Tolerance())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.oldest
def test_without_gradients_outputs_equal_eager_and_need_none(mode):
    _, reference, call = pair()
    for seed in range(2):
        with mode():
            found, wanted = call(normal(seed, 3, 8)), reference(normal(seed, 3, 8))
        assert not found.requires_grad
        torch.testing.assert_close(found, wanted)


def test_training_and_inference_mode_may_alternate():
    model, reference, call = pair()
    for seed in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(call(normal(seed, 3, 8)), reference(normal(seed, 3, 8)))
        x = normal(seed, 3, 8)
        assert_equal_gradients(lambda: weighted_sum(call(x)), model,
                               lambda: weighted_sum(reference(x)), reference)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_a_compiled_model_equals_eager(reentrant):
    model, reference, call = pair()

    def run(function):
        return lambda x: checkpoint(function, x, use_reentrant=reentrant)

    assert_same(observe(run(call), model, (normal(1, 3, 8, grad=True),)),
                observe(run(reference), reference, (normal(1, 3, 8, grad=True),)), Tolerance())


@pytest.mark.oldest
def test_checkpoint_inside_a_compiled_model_equals_eager():
    class Checkpointed(torch.nn.Module):
        def __init__(self, streams):
            super().__init__()
            self.towers = Towers(streams)

        def forward(self, x):
            return checkpoint(self.towers, x, use_reentrant=False) * 2

    compare_with_eager(Checkpointed, lambda seed: (normal(seed, 3, 8, grad=True),))


@pytest.mark.oldest
def test_autocast_equals_inductor_under_autocast():
    class Cast(torch.nn.Module):
        def __init__(self, streams):
            super().__init__()
            self.encoder = Encoder(streams)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.encoder(x)

    model, reference, call = pair(Cast)
    inductor = torch.compile(reference, backend="inductor", dynamic=False)
    for seed in range(3):
        found, wanted, rough = (
            observe(function, module, (normal(seed, 2, 5, 16, grad=True),), seed=seed)
            for function, module in ((call, model), (inductor, reference), (reference, reference)))
        assert_same(found, wanted, Tolerance())
        # Inductor keeps some intermediates in float32 where eager rounds them to bfloat16.
        assert_same(found, rough, Tolerance(0.1, 0.1))


def test_autocast_around_a_compiled_model_keeps_the_dtypes_of_eager():
    class Product(torch.nn.Module):
        def __init__(self, streams):
            super().__init__()
            self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            with anabranch.stream("a"):
                left = self.left(x)
            with anabranch.stream("b"):
                right = torch.tanh(self.right(x))
            return left * right

    _, reference, call = pair(Product)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, wanted = call(normal(1, 3, 8)), reference(normal(1, 3, 8))
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.05)
    weighted_sum(found).backward()


def test_hooks_on_parameters_see_the_gradient_once():
    model, _, call = pair()
    seen = []
    with model.left[0].weight.register_hook(lambda gradient: seen.append(gradient.clone())):
        weighted_sum(call(normal(1, 3, 8))).backward()
    assert len(seen) == 1
    assert torch.equal(seen[0], model.left[0].weight.grad)
