# SPDX-License-Identifier: Apache-2.0
"""A forward and a backward that move saved tensors, each in recordings of its own for each block.

What records is stood in for: the graphs run as they are, and it is noted for what they would be
recorded.
"""

import dataclasses
import functools

import pytest
import torch
from torch import nn
from zoo import normal

import anabranch
from anabranch import _compat
from anabranch._offload import activation_memory, rewrite, saved
from anabranch._offload.recorded import MovingBackward, MovingForward, SavingBlocks
from anabranch._offload.saved import Pair
from anabranch._record.memory import lasting

pytestmark = pytest.mark.oldest


@dataclasses.dataclass
class Recorded:
    """In the place of a RecordedGraph."""

    call: object
    signatures: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    def __call__(self, inputs, beside=()):
        self.signatures.append(beside)
        return self.call(inputs)


@functools.cache
def moving_pair():
    """Both graphs of a model with a part inside anabranch.offload(), as they are rewritten."""
    pairs = []

    def kept(pair, *rest):
        rewrite.move(pair, *rest)
        pairs.append(pair)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved, "LEAST_BYTES", 64)
        patch.setattr(activation_memory, "move", kept)
        layer = nn.Linear(8, 8)
        inner = anabranch.offload()(lambda x: torch.sin(layer(x)).exp())
        call = torch.compile(lambda x: inner(x).sum(), backend="anabranch", dynamic=False)
        call(normal(1, 4, 8).requires_grad_()).backward()
    [pair] = pairs
    return Pair(pair.forward, pair.backward, pair.results), layer


@pytest.fixture
def graphs(monkeypatch):
    pair, layer = moving_pair()  # before anything stands in for torch's, which Dynamo looks up once
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "the stream")
    monkeypatch.setattr(lasting, "pinned_bytes", lambda size: torch.empty(size, dtype=torch.uint8))
    blocks = SavingBlocks()
    made = [kind(lambda inputs, graph=module: graph(*inputs), module.graph, blocks, Recorded)
            for kind, module in ((MovingForward, pair.forward), (MovingBackward, pair.backward))]
    return pair, layer, *made


def forward_of(graphs, x):
    """What the backward is given, without the block's place filled otherwise."""
    pair, layer, forward, _ = graphs
    inputs = {tuple(layer.weight.shape): layer.weight, tuple(layer.bias.shape): layer.bias,
              tuple(x.shape): x}
    given = [inputs[tuple(node.meta["val"].shape)].detach()
             for node in pair.forward.graph.find_nodes(op="placeholder")]
    names = [node.name for node in saved.results_of(pair.forward.graph)]
    return dict(zip(names, forward(given), strict=True))


def gradients_of(graphs, results):
    """By the backward, which is given the saved results by their names."""
    pair, *_, backward = graphs
    host = next(value for value in results.values() if value.dtype == torch.uint8)
    given = []
    for node in pair.backward.graph.find_nodes(op="placeholder"):
        target = str(node.target)
        given.append(host if target == rewrite.HOST else results[target] if target in results
                     else torch.ones(()))
    return backward(given)


def wanted(graphs, x):
    _, layer, _, _ = graphs
    x = x.clone().requires_grad_()
    return torch.autograd.grad(torch.sin(layer(x)).exp().sum(), [layer.weight, layer.bias, x])


def assert_right(graphs, found, x):
    found = [each for each in found if each is not None]
    for gradient in wanted(graphs, x):
        [same] = [each for each in found if each.shape == gradient.shape]
        assert torch.allclose(same, gradient, atol=1e-5)


def test_forward_and_backward_are_recorded_for_one_block_while_they_take_turns(graphs):
    *_, forward, backward = graphs
    for seed in range(3):
        x = normal(seed, 4, 8)
        assert_right(graphs, gradients_of(graphs, forward_of(graphs, x)), x)
    assert len(forward.recorded.signatures) == len(backward.recorded.signatures) == 3
    assert len({*forward.recorded.signatures, *backward.recorded.signatures}) == 1


def test_a_forward_before_the_backward_of_the_last_has_another_block_and_recording(graphs):
    *_, forward, backward = graphs
    inputs = [normal(seed, 4, 8) for seed in range(2)]
    results = [forward_of(graphs, x) for x in inputs]
    assert len(set(forward.recorded.signatures)) == 2
    for x, kept in zip(inputs, results, strict=True):
        assert_right(graphs, gradients_of(graphs, kept), x)
    assert backward.recorded.signatures == forward.recorded.signatures


@pytest.mark.parametrize("why", ["seen", "no memory", "captured"])
def test_graphs_whose_block_cannot_be_theirs_run_as_they_are(graphs, monkeypatch, why):
    *_, forward, backward = graphs
    x = normal(5, 4, 8)
    if why == "seen":
        monkeypatch.setattr(_compat, "saves_unseen", lambda: False)
    elif why == "captured":
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    else:
        def refuse(size):
            raise RuntimeError("no memory can be pinned")
        monkeypatch.setattr(lasting, "pinned_bytes", refuse)
    assert_right(graphs, gradients_of(graphs, forward_of(graphs, x)), x)
    assert not forward.recorded.signatures and not backward.recorded.signatures


def test_a_block_that_was_used_on_another_stream_is_waited_for(graphs, monkeypatch):
    """Recordings copy on the stream that they are launched on, and nothing else orders two."""
    class Stream:
        def __init__(self):
            self.waited = []

        def wait_stream(self, other):
            self.waited.append(other)

    first, second = Stream(), Stream()
    x = normal(6, 4, 8)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: first)
    gradients_of(graphs, forward_of(graphs, x))
    assert first.waited == []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: second)
    gradients_of(graphs, forward_of(graphs, x))
    assert second.waited == [first]
