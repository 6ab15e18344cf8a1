# SPDX-License-Identifier: Apache-2.0
"""torch's random numbers in a recording: a graph without nodes that moves the generator as the step
does."""

from __future__ import annotations

import torch

from anabranch._core.capture import CaptureDevice
from anabranch._record.refusals import Cause, NotRecordable

_RANDOM_STEP = 4  # torch counts random numbers in steps of four a kernel
# Of the tiny kernels in a stand-in. Attention with dropout counts one number for each of its
# weights: a model of some layers draws a hundred million.
_MOST_DRAWS = 1 << 10


class RngGraph:
    """A graph that draws, without its nodes; how many numbers the step draws, and how many of these
    the generator is to be moved by besides."""

    def __init__(self, graph: torch.cuda.CUDAGraph, generator: torch.Generator, drawn: int,
                 farther: int) -> None:
        self._graph, self._generator = graph, generator
        self._drawn, self._farther = drawn, farther

    def replay(self) -> None:
        """Sets what kernels read, and moves the generator. Another thread that draws at this very
        moment may move it in between, and would have its numbers drawn again."""
        self._graph.replay()
        if self._farther:
            self._generator.set_offset(self._generator.get_offset() + self._farther)

    def take_back(self) -> None:
        """The same backwards, where what was to draw has been refused."""
        self._generator.set_offset(self._generator.get_offset() - self._drawn)


def make_rng_graph(graph: torch.cuda.CUDAGraph, device: CaptureDevice,
                   stream: torch.cuda.Stream) -> RngGraph | None:
    """What does to torch's generator what replay() of the captured graph would; None where that
    draws nothing. It takes the nodes out of that one. ``stream`` is one of their device, to capture
    on: torch's own is of whatever device captured first.

    Kernels that draw random numbers read seed and offset from tensors of the generator, which
    torch sets when it replays a graph of its own. How far the captured step moves the offset shows
    as its graph is replayed without nodes; a graph of as many tiny draws, emptied as well, then
    does the same for the recording's life, without the memory of the capture. Where they were too
    many, the offset is moved by hand for the rest.
    """
    generator = torch.cuda.default_generators[stream.device_index]
    drawn = _drawn(graph, device, generator)
    if drawn == 0:
        return None
    draws = drawn // _RANDOM_STEP
    stand_in = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(stand_in, stream=stream, capture_error_mode="thread_local"):
        scratch = torch.empty(1, device=stream.device)
        for _ in range(draws if draws <= _MOST_DRAWS else 1):
            scratch.uniform_()
    farther = drawn - _drawn(stand_in, device, generator)
    if farther and draws <= _MOST_DRAWS:
        raise NotRecordable(f"it draws {drawn} random numbers a thread, which cannot be repeated",
                            Cause.GENERATOR_STATE)
    return RngGraph(stand_in, generator, drawn, farther)


def _drawn(graph: torch.cuda.CUDAGraph, device: CaptureDevice, generator: torch.Generator) -> int:
    device.clear(graph.raw_cuda_graph())
    graph.instantiate()
    before = generator.get_offset()
    graph.replay()
    drawn = generator.get_offset() - before
    generator.set_offset(before)
    return drawn
