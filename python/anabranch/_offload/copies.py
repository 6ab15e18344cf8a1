# SPDX-License-Identifier: Apache-2.0
"""The operators by which graphs move saved tensors to the host's memory and back.

A forward takes a block (``host_memory``), begins copies to it (``copy_out``) and, some steps later,
lets go of what has been copied (``copied_out``). What is still under way when it ends is handed
over (``still_copied``), and the backward lets go of it (``let_go``). A backward begins copies from
the block (``copy_in``) some steps before it needs them (``copied_in``). Each answers the block or
the tensor that it was given, as a view of it, so that a compiler keeps their order and knows what
is alive.

On a GPU each way has a stream of its own. A copy starts behind all that its caller's stream has
queued so far, and what the caller queues behind the second operator waits for it. Memory is not
given back before that, so nothing has to be told to torch's allocator (``record_stream``): what is
copied out is an argument of ``copied_out``, and until then it is held here as well, for calls that
break in between, and from the forward to the backward.

Threads: any. Failure: torch's, of a copy or for want of memory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph

from anabranch._offload import host_memory
from anabranch._record.memory.lasting import block_in_call

_library = torch.library.Library("anabranch", "FRAGMENT")
for _schema in (
        "host_memory(Tensor like, SymInt size_bytes, bool is_allowed) -> Tensor",
        "copy_out(Tensor(a) host, Tensor value, SymInt offset, SymInt[] stride) -> Tensor(a)",
        "copied_out(Tensor(a) host, Tensor value, SymInt offset) -> Tensor(a)",
        "still_copied(Tensor(a) host, Tensor value, SymInt offset) -> Tensor(a)",
        "let_go(Tensor(a) host, SymInt offset) -> Tensor(a)",
        "copy_in(Tensor host, SymInt offset, SymInt[] size, SymInt[] stride, ScalarType dtype, "
        "Device device) -> Tensor",
        "copied_in(Tensor(a) value) -> Tensor(a)"):
    # Both operators of a copy are given the same tensor: a compiler that laid it out for one of
    # them would have made another, which nobody keeps until it is copied.
    _library.define(_schema, tags=(torch.Tag.flexible_layout,))
OPERATORS = torch.ops.anabranch


def moves_saved(graph: Graph) -> bool:
    """Whether a graph has copies of saved tensors."""
    return any(node.target in (OPERATORS.copy_out.default, OPERATORS.copy_in.default)
               for node in graph.nodes)


class _Begun(NamedTuple):
    """A copy, and what has to live until it is done."""

    done: Any
    held: tuple[Tensor, ...]
    thread: int


class Lanes:
    """A GPU's streams for copies, one each way, and the copies that nobody has waited for yet, by
    the address that they write; those of captures apart."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.out, self.into = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._begun: dict[int, _Begun] = {}
        self._captured: dict[int, _Begun] = {}

    def current(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def mark(self, stream: Any) -> Any:
        """An event behind what the stream has queued."""
        return stream.record_event()

    def copy(self, stream: Any, to: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def empty(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=self._device)

    def is_captured(self) -> bool:
        with torch.cuda.device(self._device):
            return torch.cuda.is_current_stream_capturing()

    def synchronize(self) -> None:
        """The host waits for all that is queued on the GPU; not in a capture."""
        if not self.is_captured():
            torch.cuda.synchronize(self._device)

    def begin(self, stream: Any, to: Tensor, source: Tensor) -> None:
        """Neither tensor is given back before the wait."""
        begun = self._of_now()
        stream.wait_event(self.mark(self.current()))
        self.copy(stream, to, source)
        begun[to.data_ptr()] = _Begun(self.mark(stream), (to, source), threading.get_ident())

    def wait(self, written: int, instead: Any = None) -> None:
        """For the copy that writes this address; where it is not known, for all on a stream. A
        capture knows its own."""
        begun = self._of_now().pop(written, None)
        if begun is not None:
            self.current().wait_event(begun.done)
        elif instead is not None and not self.is_captured():
            self.current().wait_event(self.mark(instead))

    def _of_now(self) -> dict[int, _Begun]:
        if self.is_captured():
            return self._captured
        for address, begun in list(self._captured.items()):
            if begun.thread == threading.get_ident():  # of a capture that broke
                self._captured.pop(address, None)
        return self._begun

    def begin_call(self) -> None:
        """Copies out of a call come behind all copies in before it, which may still read the block
        that the call is given. Also gives back what calls have left behind that broke between a
        copy and its wait."""
        if not self.is_captured():
            self.out.wait_event(self.mark(self.into))
            for address, begun in list(self._begun.items()):
                if begun.done.query():
                    self._begun.pop(address, None)


_lanes: dict[torch.device, Lanes] = {}


def lanes_of(device: torch.device) -> Lanes:
    lanes = _lanes.get(device)
    return lanes if lanes is not None else _lanes.setdefault(device, Lanes(device))


def is_apart(host: Tensor, device: torch.device) -> bool:
    """Whether a block is not in the memory of a device, so that copies run on streams for them."""
    return host.device != device


def flat(value: Tensor) -> Tensor:
    """The elements of a tensor without gaps, in the order in which they lie."""
    return value.as_strided((value.numel(),), (1,))


def laid_out(value: Tensor, stride: Sequence[int]) -> Tensor:
    """The tensor itself, or a copy, with its elements where these strides have them, which is where
    the backward looks for them: compilers lay intermediates out as they like."""
    if all(size == 1 or has == wants for size, has, wants in
           zip(value.shape, value.stride(), stride, strict=True)):
        return value
    laid = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return laid.copy_(value)


def place_in(host: Tensor, offset: int, like: Tensor) -> Tensor:
    """Where a tensor's elements lie in a block."""
    return host[offset:offset + like.numel() * like.itemsize].view(like.dtype)


def _host_memory(like: Tensor, size_bytes: int, is_allowed: bool) -> Tensor:
    if like.device.type != "cuda":
        return host_memory.take(like.device, size_bytes, is_allowed)
    lanes_of(like.device).begin_call()
    with torch.cuda.device(like.device):
        return host_memory.take(like.device, size_bytes, is_allowed)


def _copy_out(host: Tensor, value: Tensor, offset: int, stride: Sequence[int]) -> Tensor:
    laid = laid_out(value, stride)
    to, source = place_in(host, offset, laid), flat(laid)
    if is_apart(host, value.device):
        lanes = lanes_of(value.device)
        lanes.begin(lanes.out, to, source)
    else:
        to.copy_(source)
    return host


def _copied_out(host: Tensor, value: Tensor, offset: int) -> Tensor:
    if is_apart(host, value.device):
        lanes = lanes_of(value.device)
        lanes.wait(host.data_ptr() + offset, lanes.out)
    return host


def _still_copied(host: Tensor, value: Tensor, offset: int) -> Tensor:
    # A forward that is recorded by itself ends with its copies.
    return host if block_in_call() is None else _copied_out(host, value, offset)


def _let_go(host: Tensor, offset: int) -> Tensor:
    for lanes in list(_lanes.values()):
        lanes.wait(host.data_ptr() + offset)
    return host


def _copy_in(host: Tensor, offset: int, size: Sequence[int], stride: Sequence[int],
             dtype: torch.dtype, device: torch.device) -> Tensor:
    if is_apart(host, device):
        lanes = lanes_of(device)
        value = lanes.empty(size, stride, dtype)
        lanes.begin(lanes.into, flat(value), place_in(host, offset, value))
        return value
    value = torch.empty_strided(size, stride, dtype=dtype, device=device)
    flat(value).copy_(place_in(host, offset, value))
    return value


def _copied_in(value: Tensor) -> Tensor:
    lanes = _lanes.get(value.device)
    if lanes is not None:
        lanes.wait(value.data_ptr(), lanes.into)
    return value


for _name, _function in (("host_memory", _host_memory), ("copy_out", _copy_out),
                         ("copied_out", _copied_out), ("still_copied", _still_copied),
                         ("let_go", _let_go), ("copy_in", _copy_in), ("copied_in", _copied_in)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")


@torch.library.register_fake("anabranch::host_memory", lib=_library)
def _(like: Tensor, size_bytes: int, is_allowed: bool) -> Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8, device="cpu")


@torch.library.register_fake("anabranch::copy_out", lib=_library)
def _(host: Tensor, value: Tensor, offset: int, stride: Sequence[int]) -> Tensor:
    return host.view(-1)


@torch.library.register_fake("anabranch::copied_out", lib=_library)
@torch.library.register_fake("anabranch::still_copied", lib=_library)
def _(host: Tensor, value: Tensor, offset: int) -> Tensor:
    return host.view(-1)


@torch.library.register_fake("anabranch::let_go", lib=_library)
def _(host: Tensor, offset: int) -> Tensor:
    return host.view(-1)


@torch.library.register_fake("anabranch::copy_in", lib=_library)
def _(host: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
      device: torch.device) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


@torch.library.register_fake("anabranch::copied_in", lib=_library)
def _(value: Tensor) -> Tensor:
    return value.view(value.shape)
