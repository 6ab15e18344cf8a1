# SPDX-License-Identifier: Apache-2.0
"""A launch moves torch's generator as far as the step does. Graphs and the generator are stood in
for: no GPU draws."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from anabranch._record.launch import rng_graph
from anabranch._record.refusals import NotRecordable

pytestmark = pytest.mark.oldest

STREAM = SimpleNamespace(device="cpu", device_index=0)
DEVICE = SimpleNamespace(clear=lambda graph: None)


class Generator:
    offset = 40

    def get_offset(self):
        return self.offset

    def set_offset(self, offset):
        self.offset = offset


class Graph:
    """A replay moves the generator by ``each`` for what was drawn while it was captured."""

    each, generator = 4, None

    def __init__(self, draws=0, keep_graph=True):
        self.draws = draws

    def raw_cuda_graph(self):
        return self

    def instantiate(self):
        pass

    def replay(self):
        self.generator.offset += self.each * self.draws


@pytest.fixture
def generator(monkeypatch):
    generator = Generator()
    monkeypatch.setattr(torch.cuda, "default_generators", [generator])
    monkeypatch.setattr(Graph, "generator", generator)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)

    @contextlib.contextmanager
    def captured(graph, **how):
        def draw(scratch):
            graph.draws += 1

        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "uniform_", draw)
            yield

    monkeypatch.setattr(torch.cuda, "graph", captured)
    return generator


def made(draws):
    return rng_graph.make_rng_graph(Graph(draws), DEVICE, STREAM)


@pytest.mark.parametrize("draws", [1, 7, 1 << 10, (1 << 10) + 1, 37_748_736])
def test_each_launch_moves_the_generator_as_far_as_the_step(generator, draws):
    """The last is what twelve layers of attention draw: so many kernels are not captured."""
    graph = made(draws)
    assert generator.offset == 40 and graph._graph.draws <= 1 << 10
    for launch in range(1, 4):
        graph.replay()
        assert generator.offset == 40 + 4 * draws * launch
    graph.take_back()
    assert generator.offset == 40 + 4 * draws * 2


def test_a_step_that_draws_nothing_needs_no_graph(generator):
    assert made(0) is None


def test_draws_that_a_stand_in_does_not_repeat_are_refused(generator, monkeypatch):
    drawn = Graph(5)
    monkeypatch.setattr(drawn, "each", 6)
    with pytest.raises(NotRecordable, match="cannot be repeated"):
        rng_graph.make_rng_graph(drawn, DEVICE, STREAM)
