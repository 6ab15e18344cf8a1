# SPDX-License-Identifier: Apache-2.0
"""Arguments as they come: odd layouts and sizes, several batch sizes, and wrong ones."""

import copy

import pytest
import torch
from compare import Tolerance, assert_same, compare_with_eager, compiled, observe
from zoo import Cnn, Encoder, Mlp, Towers, normal


def transposed(seed):
    return (normal(seed, 8, 3).t().requires_grad_(),)


def every_second_row(seed):
    return (normal(seed, 6, 8)[::2].requires_grad_(),)


def expanded(seed):
    return (normal(seed, 1, 8).expand(3, 8).requires_grad_(),)


def one_element_off(seed):
    """The data starts four bytes after an aligned address."""
    return (normal(seed, 25)[1:].view(3, 8).requires_grad_(),)


def empty(seed):
    return (normal(seed, 0, 8, grad=True),)


@pytest.mark.parametrize("make_inputs", [
    pytest.param(transposed, marks=pytest.mark.oldest), every_second_row, expanded,
    one_element_off, empty], ids=lambda inputs: inputs.__name__)
def test_inputs_of_any_layout_equal_eager(make_inputs):
    compare_with_eager(Towers, make_inputs, calls=2)


@pytest.mark.oldest
def test_alignment_may_change_from_call_to_call():
    compare_with_eager(Towers, lambda seed: one_element_off(seed) if seed % 2
                       else (normal(seed, 3, 8, grad=True),), calls=4)


def test_a_transposed_image_keeps_the_strides_that_eager_gives():
    model = Cnn(True).eval()
    with torch.no_grad():
        image = normal(1, 2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        found, wanted = compiled(model)(image), model(image)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


# One row is compiled for itself, of whatever model.
@pytest.mark.parametrize("make, shape, batches", [
    pytest.param(Mlp, (8,), (3, 5, 3, 7), id="mlp"),
    pytest.param(Towers, (8,), (3, 5, 3, 7, 1, 12), id="towers", marks=pytest.mark.oldest),
    pytest.param(Encoder, (5, 16), (2, 5, 2, 7), id="encoder")])
def test_two_batch_sizes_and_then_any(make, shape, batches):
    model = make(True)
    reference = copy.deepcopy(model)
    call = compiled(model, dynamic=None)  # fixed first, dynamic from the second size on
    for batch in batches:
        inputs = [(normal(batch, batch, *shape, grad=True),) for _ in range(2)]
        assert_same(observe(call, model, inputs[0]), observe(reference, reference, inputs[1]),
                    Tolerance(1e-5, 2e-5))


def test_sizes_marked_dynamic_are_compiled_once():
    model = Towers(True)
    reference = copy.deepcopy(model)
    call = compiled(model, dynamic=True)
    compiles = torch._dynamo.utils.counters["stats"]
    counts = []
    for batch in (2, 4, 9):
        inputs = [(normal(batch, batch, 8, grad=True),) for _ in range(2)]
        assert_same(observe(call, model, inputs[0]), observe(reference, reference, inputs[1]),
                    Tolerance())
        counts.append(compiles["unique_graphs"])
    assert counts[0] == counts[-1]


@pytest.mark.oldest
def test_a_wrong_shape_is_refused_and_the_model_stays_usable():
    model = Towers(True)
    reference, call = copy.deepcopy(model), compiled(model)
    for _ in range(2):
        with pytest.raises(Exception, match="(?i)size|shape"):
            call(normal(1, 3, 9))
        assert_same(observe(call, model, (normal(1, 3, 8, grad=True),)),
                    observe(reference, reference, (normal(1, 3, 8, grad=True),)), Tolerance())


def test_another_dtype_compiles_again_and_equals_eager():
    model = Towers(True)
    call = compiled(model)
    with torch.no_grad():
        torch.testing.assert_close(call(normal(1, 3, 8)), model(normal(1, 3, 8)))
        model.double()
        torch.testing.assert_close(call(normal(1, 3, 8).double()), model(normal(1, 3, 8).double()))


def test_the_same_tensor_may_be_passed_twice():
    def both(x, y):
        return (x * 2).sin() + y.cos()

    x = normal(1, 3, 4)
    torch.testing.assert_close(compiled(both)(x, x), both(x, x))


def test_overlapping_inputs_equal_eager():
    whole = normal(1, 10)
    call = compiled(lambda x, y: (x + y, x * y))
    for first, second in ((whole[:6], whole[4:]), (whole[2:8], whole[:6])):
        found = call(first, second)
        assert torch.equal(found[0], first + second) and torch.equal(found[1], first * second)


def test_numbers_none_and_containers_pass_through():
    def mixed(pair, scale, nothing, named):
        left, right = pair
        return {"sum": left + right * scale, "given": nothing, "list": [named["x"] - 1, 5]}

    arguments = ((normal(1, 3), normal(2, 3)), 3, None, {"x": normal(3, 2)})
    found, wanted = compiled(mixed)(*arguments), mixed(*arguments)
    torch.testing.assert_close(found["sum"], wanted["sum"])
    assert found["given"] is None and found["list"][1] == 5
    torch.testing.assert_close(found["list"][0], wanted["list"][0])


def test_a_scalar_tensor_and_a_graph_without_inputs_equal_eager():
    torch.testing.assert_close(compiled(lambda x: x * 2 + 1)(torch.tensor(3.0)), torch.tensor(7.0))
    torch.testing.assert_close(compiled(lambda: torch.arange(5) * 2)(), torch.arange(5) * 2)
