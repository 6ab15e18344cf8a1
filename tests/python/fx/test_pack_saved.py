# SPDX-License-Identifier: Apache-2.0
"""Small saved tensors go from the forward to the backward in blocks, and nobody can tell."""

import copy

import pytest
import torch
from compare import Tolerance, assert_same, compiled, observe
from zoo import Towers, lane, normal

import anabranch
from anabranch._compile import backend
from anabranch._compile.graph import Unsupported
from anabranch._fx import pack_saved

pytestmark = pytest.mark.own


def compare(model, inputs, function=None):
    """Forward and backward of a model against an equal one in eager."""
    reference = copy.deepcopy(model)
    call = compiled(model) if function is None else function
    again = tuple(x.detach().clone().requires_grad_() for x in inputs)
    assert_same(observe(call, model, inputs), observe(reference, reference, again), Tolerance())


def forward_of(model, *inputs):
    """What Anabranch made of the forward graph."""
    call = compiled(model, options={"strict": True})
    told = anabranch.explain(lambda: call(*inputs))
    return told.graphs[0].streamed


@pytest.mark.oldest
def test_they_lie_in_one_block_for_each_dtype():
    model, x = Towers(), normal(3, 3, 8).requires_grad_()
    compare(model, (x,))
    assembly = forward_of(model, x).last
    blocks = [out for out in assembly.outputs if len(out.sizes) == 1]
    assert [block.dtype for block in blocks] == [torch.float32]
    assert len(assembly.outputs) == 2  # and the result


class Sorting(torch.nn.Module):
    """Saves indices beside floats."""

    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x):
        with lane("a", True):
            a = torch.nn.functional.gelu(self.left(x).sort(dim=1).values)
        with lane("b", True):
            b = torch.nn.functional.gelu(self.right(x).sort(dim=1).values)
        return a * b


def test_each_dtype_has_a_block_of_its_own():
    model, x = Sorting(), normal(3, 3, 8).requires_grad_()
    compare(model, (x,))
    outputs = forward_of(model, x).last.outputs
    assert {out.dtype for out in outputs if len(out.sizes) == 1} == {torch.float32, torch.int64}


class ReturnsWhatItSaves(Sorting):
    """A saved tensor and a view of another are results, too."""

    def forward(self, x):
        with lane("a", True):
            a = self.left(x)
            c = torch.nn.functional.gelu(a)
        with lane("b", True):
            b = self.right(x)
            d = torch.nn.functional.gelu(b)
        return a, b[0], c * d


def test_a_saved_tensor_that_the_caller_also_gets_stays_a_tensor_of_its_own():
    model, x = ReturnsWhatItSaves(), normal(3, 3, 8).requires_grad_()
    compare(model, (x,))
    outputs = forward_of(model, x).last.outputs
    assert [len(out.sizes) for out in outputs] == [2, 2, 2]


def test_large_ones_are_left_alone(monkeypatch):
    monkeypatch.setattr(pack_saved, "MAX_VALUE_BYTES", 64)
    model, x = Towers(), normal(5, 3, 8).requires_grad_()
    compare(model, (x,))
    assert len(forward_of(model, x).last.outputs) > 2


@pytest.mark.oldest
def test_a_full_block_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(pack_saved, "MAX_BLOCK_BYTES", 128)
    model, x = Towers(), normal(5, 3, 8).requires_grad_()
    compare(model, (x,))
    assert len(forward_of(model, x).last.outputs) > 2


@pytest.mark.oldest
def test_hooks_on_saved_tensors_see_the_blocks():
    model, x = Towers(), normal(3, 3, 8).requires_grad_()
    call = compiled(model)

    def with_hooks(function):
        def run(*inputs):
            with torch.autograd.graph.save_on_cpu():
                return function(*inputs)
        return run

    compare(model, (x,), with_hooks(call))


def test_a_graph_that_falls_back_to_inductor_copies_into_the_blocks(monkeypatch, caplog):
    def refuse(*_):
        raise Unsupported("the test says so")

    monkeypatch.setattr(backend, "_compile_streams", refuse)
    compare(Towers(), (normal(3, 3, 8).requires_grad_(),))
    assert "the test says so" in caplog.text


def test_dynamic_sizes_are_left_alone():
    model = Towers()
    call = compiled(model, dynamic=True)
    for rows in (3, 5):
        compare(model, (normal(3, rows, 8).requires_grad_(),), call)
