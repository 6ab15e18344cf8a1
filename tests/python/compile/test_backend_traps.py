# SPDX-License-Identifier: Apache-2.0
"""Places where torch lets a backend go wrong in silence, and what Anabranch promises there.

Every result is compared with eager: some of these are wrong under torch.compile too.
"""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as F
from torch import nn
from torch._inductor.utils import fresh_cache

import anabranch

pytestmark = pytest.mark.own


def both(make, inputs, **options):
    """Gradients and outputs of the eager and the compiled form of one module, from one state."""
    torch.manual_seed(1)
    eager = make()
    compiled_module = make()
    compiled_module.load_state_dict(eager.state_dict())
    compiled = torch.compile(compiled_module, backend="anabranch", options=options)
    results = []
    for module, call in ((eager, eager), (compiled_module, compiled)):
        mine = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        out = call(*mine)
        out.square().sum().backward()
        results.append([out.detach(), *(p.grad for p in module.parameters()),
                        *(x.grad for x in mine if x.requires_grad), *module.buffers()])
    return results


def assert_same(make, inputs, tolerance=1e-4, **options):
    eager, compiled = both(make, inputs, **options)
    assert len(eager) == len(compiled)
    for a, b in zip(eager, compiled):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


class Normed(nn.Module):
    """Two branches with statistics, so that the backward saves much and reads it on two streams."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm_a, self.norm_b = nn.BatchNorm1d(16), nn.BatchNorm1d(16)

    def forward(self, x):
        with anabranch.stream("a"):
            left = F.gelu(self.norm_a(self.a(x)))
        with anabranch.stream("b"):
            right = F.gelu(self.norm_b(self.b(x)))
        return left * right.sigmoid() + x


@pytest.mark.oldest
def test_backward_regions_leave_saved_tensors_alone():
    """Inductor's ambient context names saved tensors of the whole backward as free to overwrite."""
    x = torch.randn(8, 16, requires_grad=True)
    assert_same(Normed, [x])
    torch.manual_seed(1)
    compiled = torch.compile(Normed(), backend="anabranch")
    out = compiled(x)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)[0]
    second = torch.autograd.grad(out.sum(), x)[0]
    assert torch.equal(first, second)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x):
        self.count.add_(1)
        with anabranch.stream("a"):
            left = (x * self.scale + self.count).cos()
        with anabranch.stream("b"):
            right = (x - self.count).sin()
        return left + right


class Previous(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("previous", torch.ones(8))

    def forward(self, x):
        with anabranch.stream("a"):
            left = ((x * self.scale - self.previous).cos()).exp()
        with anabranch.stream("b"):
            right = (x + self.previous).sin().exp()
        self.previous.copy_(x.detach().mean(0))
        return left * right


@pytest.mark.oldest
@pytest.mark.parametrize("make", [Counted, Previous])
@pytest.mark.parametrize("streams", [True, False])
def test_a_value_read_before_its_buffer_is_overwritten_is_not_computed_again(make, streams):
    x = torch.randn(4, 8, requires_grad=True)
    assert_same(make, [x], tolerance=1e-5, streams=streams)


def test_a_write_back_never_overtakes_a_reader_on_another_stream():
    class Swap(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("state", torch.zeros(64, 64))

        def forward(self, x):
            with anabranch.stream("reader"):
                old = self.state
                for _ in range(4):
                    old = torch.tanh(old @ x)
            with anabranch.stream("writer"):
                self.state.copy_(x * 2)
            return old

    x = torch.randn(64, 64) / 8
    eager, expected = Swap(), []
    for _ in range(6):
        expected.append(eager(x).clone())
    for seed in (None, 1, 2, 3):
        compiled = torch.compile(Swap(), backend="anabranch", options={"delay_seed": seed})
        for want in expected:
            torch.testing.assert_close(compiled(x), want)


@pytest.mark.oldest
def test_parts_of_a_tuple_cross_streams():
    class Tuples(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(8, 8)

        def forward(self, x):
            with anabranch.stream("a"):
                values, order = torch.sort(self.lift(x), dim=1)
                deviation, mean = torch.var_mean(values, dim=1, keepdim=True)
            with anabranch.stream("b"):
                return (values - mean) / (deviation + 1) + torch.gather(x, 1, order)

    assert_same(Tuples, [torch.randn(4, 8, requires_grad=True)])


def test_symbolic_sizes_and_fractions_cross_streams():
    torch.manual_seed(1)
    eager, module = Normed(), Normed()
    module.load_state_dict(eager.state_dict())
    compiled = torch.compile(module, backend="anabranch", dynamic=True)
    for batch in (4, 6, 10, 6):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-4, atol=1e-4)


class Images(nn.Module):
    """Convolutions like to change the layout of what they answer; the other stream must not
    care."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        with anabranch.stream("a"):
            y = self.first(x)
        with anabranch.stream("b"):
            y = self.second(F.relu(y))
        return y * 2


@pytest.mark.oldest
def test_results_of_a_region_have_the_strides_the_next_one_expects():
    images = torch.randn(2, 3, 12, 12).to(memory_format=torch.channels_last)
    assert_same(Images, [images])


@pytest.fixture
def cache(tmp_path):
    """A folder in which Inductor finds nothing compiled."""
    with fresh_cache(dir=str(tmp_path)):
        yield


def test_a_graph_compiled_by_inductor_before_does_not_change_ours(cache):
    """The key of Inductor's cache does not know that we pin the strides of results."""
    module, x = Images(), torch.randn(2, 3, 12, 12)
    want = module(x)
    for backend in ("inductor", "anabranch"):
        torch.compiler.reset()
        got = torch.compile(module, backend=backend)(x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        got.sum().backward()


@pytest.mark.oldest
def test_a_graph_without_streams_is_ours_also_when_it_was_compiled_before(cache):
    """AOTAutograd's cache would answer Inductor's callables, which nothing of ours has seen."""
    module, x = nn.Linear(7, 5), torch.randn(3, 7)
    for _ in range(2):
        torch.compiler.reset()
        report = anabranch.explain(torch.compile(module, backend="anabranch"), x)
        assert len(report.graphs) == 1


def test_workers_start_no_teams_of_their_own():
    """A library that finds itself on a new thread would start as many threads as there are
    cores."""

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)

        def forward(self, x):
            with anabranch.stream("a"):
                left = self.a(x)
            with anabranch.stream("b"):
                right = self.b(x)
            return left + right

    def threads():
        return len(os.listdir("/proc/self/task"))

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with torch.no_grad():
            compiled = torch.compile(Wide(), backend="anabranch")
            x = torch.randn(256, 256)
            compiled(x)
            first = threads()
            for _ in range(20):
                compiled(x)
            assert threads() == first
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_complex_numbers_fall_back_with_a_reason(caplog):
    class Complex(nn.Module):
        def forward(self, x):
            with anabranch.stream("a"):
                left = torch.fft.fft(x)
            with anabranch.stream("b"):
                right = x * 2
            return left.abs() + right

    x = torch.randn(8, 16)
    compiled = torch.compile(Complex(), backend="anabranch")
    torch.testing.assert_close(compiled(x), Complex()(x), rtol=1e-4, atol=1e-4)
    assert "E0602" in caplog.text and "complex64" in caplog.text
    with pytest.raises(Exception, match="E0607"):
        torch.compiler.reset()
        torch.compile(Complex(), backend="anabranch", options={"strict": True})(x)
    caplog.clear()
    torch.compiler.reset()
    allowing = {"strict": True, "allow": ["E0602"]}
    torch.compile(Complex(), backend="anabranch", options=allowing)(x)
    assert "E0602" not in caplog.text


def test_an_operator_the_tape_does_not_know_runs_in_python_and_says_so():
    @torch.library.custom_op("anabranch_test::halve", mutates_args=())
    def halve(x: torch.Tensor, how: str) -> torch.Tensor:
        return x / 2

    @halve.register_fake
    def _(x, how):
        return torch.empty_like(x)

    def model(x):
        with anabranch.stream("a"):
            left = torch.ops.anabranch_test.halve(x, "well") + 1
        with anabranch.stream("b"):
            right = x.cos()
        return left * right

    x = torch.randn(32, 32)
    compiled = torch.compile(model, backend="anabranch")
    explanation = anabranch.explain(compiled, x)
    torch.testing.assert_close(compiled(x), (x / 2 + 1) * x.cos())
    assert "under Python's lock (an argument of type str)" in str(explanation)


def test_random_numbers_on_streams_are_those_of_inductor():
    def model(x):
        with anabranch.stream("a"):
            left = F.dropout(x, 0.5)
        with anabranch.stream("b"):
            right = F.dropout(x * 2, 0.5)
        return left + right

    x = torch.randn(64, 64)
    results = []
    for backend in ("inductor", "anabranch"):
        torch.compiler.reset()
        compiled = torch.compile(model, backend=backend)
        torch.manual_seed(7)
        results.append([compiled(x) for _ in range(3)])
    for want, got in zip(*results):
        assert torch.equal(want, got)
    assert not torch.equal(results[1][0], results[1][1])


@inductor_config.patch(fallback_random=True)
def test_random_numbers_that_inductor_leaves_to_eager_are_drawn_in_the_graphs_order():
    """Regions draw them when they run."""
    def model(x):
        a = F.dropout(x, 0.5)
        with anabranch.stream("side"):
            b = F.dropout(x @ x, 0.5)
        return a, b, F.dropout(a @ x, 0.5)

    x = torch.randn(64, 64)
    compiled = torch.compile(model, backend="anabranch")
    for seed in range(5):
        torch.manual_seed(seed)
        wanted = model(x)
        torch.manual_seed(seed)
        for got, want in zip(compiled(x), wanted, strict=True):
            assert torch.equal(got == 0, want == 0)


@pytest.mark.oldest
def test_a_view_lies_as_what_it_is_a_view_of_whatever_a_pass_left_with_it():
    """In the backward Inductor drops a copy of a transposed gradient, and says of the transposed
    one that it lies as the copy did."""
    def step(x, y):
        with anabranch.stream("a"):
            t = y + 1
            t.copy_(x.clone())
            t.copy_(t.t().clone())
        return torch.relu(t) - 2 * t, t.t().clone()

    def run(call):
        x = torch.arange(16.).view(4, 4).sub(5).requires_grad_()
        y = torch.zeros(4, 4, requires_grad=True)
        a, b = call(x, y)
        ((a * torch.arange(16.).view(4, 4)).sum() + (b * b).sum()).backward()
        return a, b, x.grad, y.grad

    for found, wanted in zip(run(torch.compile(step, backend="anabranch")), run(step), strict=True):
        assert torch.equal(found, wanted) and found.stride() == wanted.stride()


def test_a_region_that_fails_leaves_the_model_usable():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 4)

        def forward(self, index, x):
            with anabranch.stream("a"):
                row = self.table(index)
            with anabranch.stream("b"):
                other = x.sin()
            return row + other

    compiled = torch.compile(Table(), backend="anabranch")
    good, bad, x = torch.tensor([1, 2]), torch.tensor([1, 99]), torch.randn(2, 4)
    with torch.no_grad():
        want = compiled(good, x).clone()
        with pytest.raises(anabranch.errors.LaunchError, match="E0403"):
            compiled(bad, x)
        assert torch.equal(compiled(good, x), want)


def test_two_threads_in_one_graph_get_recordings_of_their_own():
    torch.manual_seed(1)
    module = Normed().eval()
    compiled = torch.compile(module, backend="anabranch")
    inputs = [torch.randn(8, 16) for _ in range(2)]
    with torch.no_grad():
        wants = [compiled(x).clone() for x in inputs]
    wrong = []

    def work(x, want):
        with torch.no_grad():
            for _ in range(200):
                if not torch.equal(compiled(x), want):
                    wrong.append(x)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wants)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
