# SPDX-License-Identifier: Apache-2.0
"""Small saved tensors travel from the forward to the backward in one block.

A tensor between the two graphs costs more than its memory: it is allocated, wrapped, saved,
unpacked and its address taken, about two microseconds in all. A graph of many small layers saves
dozens. Nobody but the backward sees them, so the forward returns blocks that hold them side by
side: ``pack`` lists what lies where in a block, and the backward names its parts by
``as_strided``. A StreamGraph gives packed values their place in the block, so nothing is copied;
a graph that falls back to Inductor runs ``pack`` as an operator, which copies.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from anabranch import _compat
from anabranch._fx.extents import extent, extent_bytes
from anabranch._fx.schema import is_scalar, is_view, results_of, written_arguments
from anabranch.streams import ANNOTATION

# A large tensor's own allocation is cheap beside its use, and blocks above some MiB would come
# fresh from the system each time.
MAX_VALUE_BYTES = 256 << 10
MAX_BLOCK_BYTES = 8 << 20
_ALIGNMENT = 64
_BLOCK = "anabranch_saved"
_library = torch.library.Library("anabranch", "DEF")
_library.define("pack(Tensor[] values, int[] offsets, int size) -> Tensor")


def _pack(values: list[torch.Tensor], offsets: list[int], size: int) -> torch.Tensor:
    block = values[0].new_empty(size)
    for value, offset in zip(values, offsets, strict=True):
        block.as_strided(value.shape, value.stride(), offset).copy_(value)
    return block


_library.impl("pack", _pack, "CompositeExplicitAutograd")


@torch.library.register_fake("anabranch::pack", lib=_library)
def _(values: list[torch.Tensor], offsets: list[int], size: int) -> torch.Tensor:
    return values[0].new_empty(size)


@dataclasses.dataclass
class _Block:
    """Values of one dtype; offsets and size in elements."""

    values: list[Node] = dataclasses.field(default_factory=list)
    offsets: list[int] = dataclasses.field(default_factory=list)
    size: int = 0


def is_pack(node: Node) -> bool:
    return node.target is torch.ops.anabranch.pack.default


def is_part(node: Node) -> bool:
    """Whether the node is a saved tensor's place in a block."""
    return (node.target is torch.ops.aten.as_strided.default
            and node.args[0].op == "placeholder"  # type: ignore[union-attr]
            and str(node.args[0].target).startswith(_BLOCK))  # type: ignore[union-attr]


def pack_saved_tensors(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Rewrites both graphs; the first ``results`` outputs of the forward are not its saved ones."""
    if not _has_several_streams(forward.graph):
        return
    output = next(n for n in reversed(forward.graph.nodes) if n.op == "output")
    inputs = {n.name: n for n in backward.graph.nodes if n.op == "placeholder"}
    for index, block in enumerate(_make_blocks(output, results, inputs)):
        _pack_in_forward(forward.graph, output, block)
        _unpack_in_backward(backward.graph, inputs, block, f"{_BLOCK}_{index}")
    forward.recompile()
    backward.recompile()


def _has_several_streams(graph: Graph) -> bool:
    return len({_compat.annotation(n, ANNOTATION) for n in graph.nodes
                if n.op == "call_function"}) > 1


def _make_blocks(output: Node, results: int, inputs: dict[str, Node]) -> list[_Block]:
    returned = results_of(output.graph)
    shown = Counter(_base_of(n) for n in returned if isinstance(n, Node))
    blocks: dict[torch.dtype, list[_Block]] = {}
    for node in returned[results:]:
        if not _is_packable(node) or shown[node] > 1 or node.name not in inputs:
            continue
        if _is_returned(inputs[node.name]):
            continue
        value = node.meta["val"]
        of_dtype = blocks.setdefault(value.dtype, [_Block()])
        if of_dtype[-1].size * value.itemsize > MAX_BLOCK_BYTES:
            of_dtype.append(_Block())
        block = of_dtype[-1]
        block.values.append(node)
        block.offsets.append(block.size)
        step = max(1, _ALIGNMENT // value.itemsize)
        block.size += -(-extent(value.shape, value.stride()) // step) * step
    return [b for of_dtype in blocks.values() for b in of_dtype if len(b.values) > 1]


def _is_packable(node: Any) -> bool:
    if not isinstance(node, Node) or node.op != "call_function" or _base_of(node) is not node:
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or written_arguments(node):
        return False
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride())):
        return False
    return bool(value.device.type == "cpu" and value.layout is torch.strided
                and value.storage_offset() == 0 and value.numel() > 0
                and extent_bytes(value.shape, value.stride(), value.dtype) <= MAX_VALUE_BYTES
                # torch saves these another way
                and not node.meta.get("saved_tensor_with_no_vc_check", False))


def _is_returned(node: Node) -> bool:
    return any(user.op == "output" or (is_view(user) and _is_returned(user))
               for user in node.users)


def _base_of(node: Node) -> Node:
    while not is_scalar(node) and is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _pack_in_forward(graph: Graph, output: Node, block: _Block) -> None:
    with graph.inserting_before(output):
        pack = graph.call_function(torch.ops.anabranch.pack.default,
                                   (block.values, block.offsets, block.size))
    first = block.values[0].meta["val"]
    pack.meta["val"] = first.new_empty(block.size)
    returned = results_of(graph)
    returned[returned.index(block.values[0])] = pack  # where the backward has the block, too
    gone = set(block.values[1:])
    kept = [i for i, n in enumerate(returned) if not (isinstance(n, Node) and n in gone)]
    output.args = (tuple(returned[i] for i in kept),)
    if output.meta.get("desc"):
        output.meta["desc"] = [output.meta["desc"][i] for i in kept]


def _unpack_in_backward(graph: Graph, inputs: dict[str, Node], block: _Block, name: str) -> None:
    first = inputs[block.values[0].name]
    with graph.inserting_before(first):
        whole = graph.placeholder(name)
    whole.meta = {k: v for k, v in first.meta.items() if k == "desc"}
    whole.meta["val"] = first.meta["val"].new_empty(block.size)
    body = next(n for n in graph.nodes if n.op != "placeholder")
    for value, offset in zip(block.values, block.offsets, strict=True):
        saved = inputs[value.name]
        shape = saved.meta["val"]
        with graph.inserting_before(body):
            part = graph.call_function(
                torch.ops.aten.as_strided.default,
                (whole, list(shape.shape), list(shape.stride()), offset))
        part.meta["val"] = shape
        saved.replace_all_uses_with(part)
        graph.erase_node(saved)
