# SPDX-License-Identifier: Apache-2.0
"""State that changes in place: what is read before, between and after the change."""

import pytest
import torch
from compare import Tolerance, assert_same, compare_with_eager, compiled, observe
from torch import nn
from zoo import Towers, Writer, normal

import anabranch

# A partitioner that computes a value again in the backward reads the buffer after it has changed;
# the gradients are then silently wrong. Each of these models has been seen to provoke that.


class Stateful(nn.Module):
    def __init__(self, streams=True):
        super().__init__()
        self.register_buffer("state", torch.full((4,), 0.3))
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))


class AddThenCosine(Stateful):
    def forward(self, x):
        self.state.add_(1)
        return (x * self.weight + self.state).cos()


class CosineThenAdd(Stateful):
    def forward(self, x):
        y = (x * self.weight + self.state).cos()
        self.state.add_(1)
        return y


class MovingNormaliser(Stateful):
    def forward(self, x):
        y = (x * self.weight) / (self.state.exp() + 1)
        self.state.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return y.tanh()


class PreviousInput(Stateful):
    def forward(self, x):
        y = torch.sin(x * self.weight * self.state.clone())
        self.state.copy_(x.detach()[0])
        return y


class ReadThroughAView(Stateful):
    def forward(self, x):
        left = self.state[:2].unsqueeze(0)
        y = (x[:, :2] * self.weight[:2] * left.sin()).exp()
        self.state[1:].mul_(2)
        return y


class OnTwoStreams(Stateful):
    def forward(self, x):
        with anabranch.stream("a"):
            y = (x * self.weight + self.state).cos()
        with anabranch.stream("b"):
            self.state.add_(1)
        return y * self.state.sin()


STATEFUL = [AddThenCosine, CosineThenAdd, MovingNormaliser, PreviousInput, ReadThroughAView,
            OnTwoStreams]


@pytest.mark.wrong_upstream
@pytest.mark.oldest
@pytest.mark.parametrize("make", STATEFUL, ids=lambda make: make.__name__)
def test_a_buffer_that_changes_in_the_forward_gives_right_gradients(make):
    compare_with_eager(make, lambda seed: (normal(seed, 3, 4, grad=True),))


@pytest.mark.oldest
def keep_a_copy(x, y):
    before = x.clone()
    x.add_(1)
    y.copy_(before)
    return y * 2


def exchange(x, y):
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def keep_parts(x, y):
    before = torch.cat([x])
    x[2:].mul_(3)
    y[:4].copy_(before[4:])
    return before.t() + x


def copy_on_a_stream(x, y):
    before = x.clone()
    with anabranch.stream("side"):
        x.remainder_(5)
        y.copy_(before)
    return torch.relu(y)


@pytest.mark.oldest
@pytest.mark.parametrize("function", [keep_a_copy, exchange, keep_parts, copy_on_a_stream])
def test_a_copy_of_an_input_keeps_what_was_there_before_the_input_is_overwritten(function):
    mine, theirs = ([torch.arange(64.0).view(8, 8) - 9, torch.ones(8, 8)] for _ in range(2))
    found = compiled(function)(*mine)
    wanted = function(*theirs)
    assert found is None or torch.equal(found, wanted)
    assert all(map(torch.equal, mine, theirs))


def test_outputs_of_earlier_calls_stay_valid():
    model = Towers(True)
    call = compiled(model)
    kept = []
    for seed in range(6):
        output = call(normal(seed, 3, 8))
        kept.append((output, output.detach().clone()))
    for output, copy_at_the_time in kept:
        assert torch.equal(output, copy_at_the_time)
    assert len({output.data_ptr() for output, _ in kept}) == len(kept)


def test_gradients_of_earlier_calls_stay_valid():
    call = compiled(Towers(True))
    kept = []
    for seed in range(4):
        x = normal(seed, 3, 8, grad=True)
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        kept.append((gradient, gradient.clone()))
    assert all(torch.equal(gradient, then) for gradient, then in kept)


def test_an_output_may_be_written_to_without_changing_the_next_one():
    model = Towers(True).eval()
    call = compiled(model)
    with torch.no_grad():
        x = normal(1, 3, 8)
        call(x).fill_(float("nan"))
        torch.testing.assert_close(call(x), model(x))


@pytest.mark.oldest
def as_it_came(x):
    t = x * 1
    t.zero_()
    return t.add_(x), x * 1, torch.zeros_like(x) + x, (x + 0).view(2, 2), x.clone()


def on_two_streams(x):
    with anabranch.stream("left"):
        left = x * 1
    with anabranch.stream("right"):
        right = torch.zeros_like(x) + x
    return left, right, left + right


@pytest.mark.wrong_upstream
@pytest.mark.oldest
@pytest.mark.parametrize("takes_gradients", [False, True])
@pytest.mark.parametrize("function", [as_it_came, on_two_streams])
def test_a_new_result_with_an_arguments_value_is_not_its_memory(function, takes_gradients):
    """Inductor answers the argument itself."""
    x = torch.arange(4.0).requires_grad_(takes_gradients)
    results = compiled(function)(x)
    for result, wanted in zip(results, function(x), strict=True):
        assert torch.equal(result, wanted)
        result.detach().fill_(9)
    assert x.tolist() == [0, 1, 2, 3]


def test_writes_reach_the_memory_of_the_caller():
    call = compiled(Writer(True))
    base = normal(1, 3, 8)
    x, y = base[:, :6], normal(2, 3, 6)
    untouched = base[:, 6:].clone()
    pointers = x.data_ptr(), y.data_ptr()
    wanted_x, wanted_y = x * 2, y + x * 2
    call(x, y, normal(3, 3, 6))
    assert (x.data_ptr(), y.data_ptr()) == pointers
    torch.testing.assert_close((x, y), (wanted_x, wanted_y))
    assert torch.equal(base[:, 6:], untouched)


def test_written_inputs_count_a_version_as_in_eager():
    x, y = normal(1, 3, 6), normal(2, 3, 6)
    before = x._version, y._version
    compiled(Writer(True))(x, y, normal(3, 3, 6))
    assert x._version > before[0] and y._version > before[1]


def test_views_of_inputs_are_views_that_can_be_written_through():
    def head(x):
        with anabranch.stream("a"):
            tail = x[1:]
        with anabranch.stream("b"):
            doubled = x * 2
        return tail, doubled

    x = normal(1, 4, 2)
    tail, _ = compiled(head)(x)
    tail.zero_()
    assert torch.equal(x[1:], torch.zeros(3, 2)) and x[0].abs().sum() > 0


def test_a_buffer_changed_by_eager_code_between_calls_is_read_anew():
    model = OnTwoStreams()
    reference = OnTwoStreams()
    call = compiled(model)
    for seed in range(3):
        with torch.no_grad():
            model.state.fill_(seed)
            reference.state.fill_(seed)
        with torch.no_grad():
            torch.testing.assert_close(call(normal(seed, 3, 4)), reference(normal(seed, 3, 4)))
        torch.testing.assert_close(model.state, reference.state)


def test_writes_on_one_stream_order_with_reads_on_the_other():
    """Read, write, read, write: each of a different value of the same buffer."""

    def ladder(x, state):
        with anabranch.stream("a"):
            first = x * state
        with anabranch.stream("b"):
            state.add_(1)
        with anabranch.stream("a"):
            second = x * state
        with anabranch.stream("b"):
            state.mul_(3)
        return first, second, x * state

    call = compiled(ladder)
    for seed in range(5):
        inputs = [(normal(seed, 64), normal(seed + 7, 64)) for _ in range(2)]
        assert_same(observe(call, None, inputs[0], train=False),
                    observe(ladder, None, inputs[1], train=False), Tolerance(1e-6, 1e-6))
