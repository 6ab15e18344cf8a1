# SPDX-License-Identifier: Apache-2.0
"""A forward and a backward that move saved tensors, each recorded by itself.

A recording copies to and from pinned memory at fixed addresses, and answers no tensors on the CPU.
So the block of a call is put beside its graph: the forward's is taken before the call and answered
behind it, the backward's is taken out of its inputs, and each block that there is has recordings of
its own. A model whose backward follows its forward has one block, and another one for each forward
that is called before the backward of the one before.

Such a forward ends with its copies, since a launch ends with all of its work: none are under way
then that the backward would have to wait for.

Threads: any. Failure: none. Where other code sees what is saved, and where no pinned memory is to
be had, the graphs run plainly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from anabranch import _compat
from anabranch._fx.schema import results_of
from anabranch._offload.copies import OPERATORS
from anabranch._offload.rewrite import HOST
from anabranch._offload.saved import base_of
from anabranch._record.memory.lasting import PinnedBlocks, block_in_call, calling_with
from anabranch._record.recorded_graph import RecordedGraph

Call = Callable[[list[Any]], Any]


class SavingBlocks:
    """What a forward and its backward share: the blocks, and on which stream each was used last."""

    def __init__(self) -> None:
        self._blocks = PinnedBlocks()
        self._used_on: dict[int, Any] = {}  # by address

    def take(self, size_bytes: int) -> torch.Tensor:
        """A block that nobody holds, once its last copies are ordered before the current stream.
        Raises RuntimeError where no memory can be pinned."""
        block = self._blocks.take(size_bytes)
        used, now = self._used_on.get(block.data_ptr()), torch.cuda.current_stream()
        if used is not None and used != now:
            now.wait_stream(used)
        return block

    def has(self, block: torch.Tensor) -> bool:
        return not block.is_cuda and self._blocks.has(block)

    def note_use(self, block: torch.Tensor) -> None:
        self._used_on[block.data_ptr()] = torch.cuda.current_stream()


class MovingForward:
    """In the place of a compiled forward that copies to a block; ``record`` makes the recorded
    graph of what it is given."""

    def __init__(self, call: Call, graph: Graph, blocks: SavingBlocks,
                 record: Callable[[Call], RecordedGraph]) -> None:
        node = next(n for n in graph.nodes if n.target == OPERATORS.host_memory.default)
        self._size_bytes: int = node.args[1]
        self._place = next(i for i, result in enumerate(results_of(graph))
                           if isinstance(result, torch.fx.Node) and base_of(result) is node)
        self._call, self._blocks = call, blocks
        self.recorded = record(self._without_block)

    def __call__(self, inputs: list[Any]) -> Any:
        if torch.cuda.is_current_stream_capturing() or not _compat.saves_unseen():
            return self._call(inputs)
        try:
            block = self._blocks.take(self._size_bytes)
        except RuntimeError:  # told by who takes another kind of memory
            return self._call(inputs)
        with calling_with(block):
            results = list(self.recorded(inputs, (block.data_ptr(),)))
        self._blocks.note_use(block)
        results.insert(self._place, block)
        return results

    def _without_block(self, inputs: list[Any]) -> list[Any]:
        results = list(self._call(inputs))
        del results[self._place]
        return results


def recorded_inputs(graph: Graph) -> list[Node]:
    """Of what is recorded: all but the block, if a backward copies from one."""
    return [node for node in graph.find_nodes(op="placeholder") if node.target != HOST]


class MovingBackward:
    """In the place of a compiled backward that copies from a block."""

    def __init__(self, call: Call, graph: Graph, blocks: SavingBlocks,
                 record: Callable[[Call], RecordedGraph]) -> None:
        self._place = next(i for i, node in enumerate(graph.find_nodes(op="placeholder"))
                           if node.target == HOST)
        self._call, self._blocks = call, blocks
        self.recorded = record(self._with_block)

    def __call__(self, inputs: list[Any]) -> Any:
        block = inputs[self._place]
        if torch.cuda.is_current_stream_capturing() or not self._blocks.has(block):
            return self._call(inputs)
        del inputs[self._place]
        with calling_with(block):
            results = self.recorded(inputs, (block.data_ptr(),))
        self._blocks.note_use(block)
        return results

    def _with_block(self, inputs: list[Any]) -> Any:
        inputs.insert(self._place, block_in_call())
        return self._call(inputs)
