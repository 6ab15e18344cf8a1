# SPDX-License-Identifier: Apache-2.0
"""torch's random numbers in a recording: a graph without nodes that moves the generator as the step
does."""

from __future__ import annotations

import torch

from anabranch._core.capture import CaptureDevice
from anabranch._record.refusals import Cause, NotRecordable

_RANDOM_STEP = 4  # torch counts random numbers in steps of four a kernel


def make_rng_graph(graph: torch.cuda.CUDAGraph, device: CaptureDevice,
                   stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph | None:
    """A graph without nodes whose replay() does to torch's generator what the captured one's would.
    It takes the nodes out of that one. ``stream`` is one of their device, to capture on: torch's
    own is of whatever device captured first.

    Kernels that draw random numbers read seed and offset from tensors of the generator, which
    torch sets when it replays a graph of its own. How far the captured step moves the offset shows
    as its graph is replayed without nodes; a graph of as many tiny draws, emptied as well, then
    does the same for the recording's life, without the memory of the capture.
    """
    generator = torch.cuda.default_generators[stream.device_index]
    drawn = _drawn(graph, device, generator)
    if drawn == 0:
        return None
    stand_in = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(stand_in, stream=stream, capture_error_mode="thread_local"):
        scratch = torch.empty(1, device=stream.device)
        for _ in range(drawn // _RANDOM_STEP):
            scratch.uniform_()
    if _drawn(stand_in, device, generator) != drawn:
        raise NotRecordable(f"it draws {drawn} random numbers a thread, which cannot be repeated",
                            Cause.GENERATOR_STATE)
    return stand_in


def _drawn(graph: torch.cuda.CUDAGraph, device: CaptureDevice, generator: torch.Generator) -> int:
    device.clear(graph.raw_cuda_graph())
    graph.instantiate()
    before = generator.get_offset()
    graph.replay()
    drawn = generator.get_offset() - before
    generator.set_offset(before)
    return drawn
