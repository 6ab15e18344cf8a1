# SPDX-License-Identifier: Apache-2.0
"""Copies of a GPU's memory, so that a step can run again from the same state. They are made on the
GPU where they fit into the bytes granted there, and else in the host's memory, through a few pinned
buffers: those of small tensors many at a time, since each copy costs the CPU as much as 2 MB take.

The host's memory is pageable, since pinning as much as a large model's state takes many seconds.
Threads: one at a time. Failure: Short where neither has enough memory; nothing is held then.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._record.memory.gpu import free_bytes, is_plentiful
from anabranch._record.memory.host import free_aside, fresh_bytes, host_free_bytes
from anabranch._record.memory.shortage import Short
from anabranch._record.tensors import size_of
from anabranch._record.trial.checksums import pieces
from anabranch._record.trial.stages import STAGE_BYTES, Stages, stage_bytes_for

# Of what the host has available, what copies leave alone, for its other work.
_HOST_SHARE = 0.9
_ALIGNMENT = 64
_WORD = 8
_SMALL_BYTES = 32 << 20
_SMALL_SHARE = 64
_PLENTY_SHARE = 32


@dataclasses.dataclass
class _Batch:
    """Pieces of tensors whose copies lie one behind the other, as many as a stage holds; each with
    its tensor's number and where it begins in the copies."""

    begin: int
    end: int
    pieces: list[tuple[int, int, Tensor]]

    @property
    def whole(self) -> Tensor | None:
        """Its only piece."""
        return self.pieces[0][2] if len(self.pieces) == 1 else None

    def place(self) -> Tensor:
        """Memory for all of it where the pieces are."""
        return torch.empty(self.end - self.begin, dtype=torch.uint8,
                           device=self.pieces[0][2].device)

    def parts(self, place: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Each tensor's number, its piece, and where that lies in such memory."""
        for number, at, piece in self.pieces:
            begin = at - self.begin
            yield number, piece, place[begin:begin + piece.numel()]


class Copies:
    """Of tensors of one GPU, as they are when it is made. ``where`` says in whose memory;
    ``device_bytes`` may be taken of the GPU's. The tensors themselves are not held, but those into
    which they were put back last."""

    def __init__(self, tensors: Sequence[Tensor], device_bytes: int) -> None:
        # Each begins aligned, so that pieces can be viewed as whatever type they have.
        *self._begins, self.size_bytes = itertools.accumulate(
            (_aligned(size_of([tensor])) for tensor in tensors), initial=0)
        self._stage_bytes = stage_bytes_for(self.size_bytes)
        self.where = "GPU" if self.size_bytes <= device_bytes else "host"
        self._kept = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._way_back: tuple[Sequence[Tensor], _Pairs] | None = None  # into which tensors
        if self.where == "GPU":
            self._keep_on_device(tensors)
        else:
            self._keep_on_host(tensors)

    @property
    def device_memory(self) -> list[Tensor]:
        """Where those of the GPU are."""
        return [self._kept] if self.where == "GPU" else []

    def _keep_on_device(self, tensors: Sequence[Tensor]) -> None:
        on_gpu = next((tensor.device for tensor in tensors if tensor.is_cuda), self._kept.device)
        self._kept = torch.empty(self.size_bytes, dtype=torch.uint8, device=on_gpu)
        _Pairs((ours, piece) for _, piece, ours in self._pieces(dict(enumerate(tensors)))).copy()

    def _keep_on_host(self, tensors: Sequence[Tensor]) -> None:
        available = host_free_bytes()
        if self.size_bytes > _HOST_SHARE * available:
            raise Short("copies of what the step writes", self.size_bytes, available, "host")
        try:
            self._kept = fresh_bytes(self.size_bytes)
        except (RuntimeError, MemoryError, OSError) as error:  # a limit of the process
            raise Short("copies of what the step writes", self.size_bytes, available,
                        "host") from error
        with Stages(self.size_bytes, self._stage_bytes) as stages:
            for batch in self._batches(dict(enumerate(tensors))):
                there = batch.whole
                if there is None:
                    there = batch.place()
                    _Pairs((part, piece) for _, piece, part in batch.parts(there)).copy()
                stages.fetch(self._kept[batch.begin:batch.end], there)

    def put_back(self, tensors: Sequence[Tensor], but: Collection[int] = ()) -> None:
        """Into tensors of the same layout, on the current stream. What is in the host's memory of
        the tensors with the numbers ``but`` stays there."""
        if self.where == "GPU":
            self._back_into(tensors).copy()
            return
        wanted = {i: tensor for i, tensor in enumerate(tensors) if i not in but}
        for batch, there in self._sent(wanted, lambda batch: batch.whole):
            if there is not batch.whole:
                _Pairs((piece, part) for _, piece, part in batch.parts(there)).copy()

    def put_some_back(self, tensors: Mapping[int, Tensor]) -> None:
        """Those with these numbers alone, likewise."""
        if tensors:
            _Pairs((piece, ours) for _, piece, ours in self.pieces(tensors)).copy()

    def _back_into(self, tensors: Sequence[Tensor]) -> _Pairs:
        """All pieces and their copies on the GPU. Made once for the same tensors: to make them
        takes longer than to copy them."""
        into, pairs = self._way_back or ((), None)
        if pairs is None or len(into) != len(tensors) or not all(map(operator.is_, into, tensors)):
            pairs = _Pairs((piece, ours) for _, piece, ours in
                           self._pieces(dict(enumerate(tensors))))
            self._way_back = list(tensors), pairs
        return pairs

    def close(self) -> None:
        """Lets go of them."""
        self._way_back = None
        kept, self._kept = [self._kept], self._kept[:0].clone()
        if self.where == "host":
            free_aside(kept)

    def pieces(self, tensors: Mapping[int, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of some tensors, by their number, of the layout of the ones copied: which one, a piece of
        it as it is now, and the same of the copy, on the tensor's device. Flat bytes. Those of the
        host's memory are on their way while earlier ones are looked at."""
        if self.where == "GPU":
            for number, piece, ours in self._pieces(tensors, STAGE_BYTES):
                yield number, piece, ours.to(piece.device)
            return
        for batch, there in self._sent(tensors, lambda batch: None):
            yield from batch.parts(there)

    def _sent(self, tensors: Mapping[int, Tensor], place: Callable[[_Batch], Tensor | None]
              ) -> Iterator[tuple[_Batch, Tensor]]:
        """The copies in the host's memory, a batch at a time: where ``place`` says, or in memory of
        their own on the tensors' device, when what brings them there has been queued."""
        sent: collections.deque[tuple[_Batch, Tensor]] = collections.deque()
        with Stages(size_of([*tensors.values()]), self._stage_bytes) as stages:
            for batch in self._batches(tensors):
                given = place(batch)
                there = batch.place() if given is None else given
                stages.send(there, self._kept[batch.begin:batch.end])
                sent.append((batch, there))
                if len(sent) > stages.ahead:
                    stages.pass_on()
                    yield sent.popleft()
            while sent:
                stages.pass_on()
                yield sent.popleft()

    def _batches(self, tensors: Mapping[int, Tensor]) -> Iterator[_Batch]:
        batch: _Batch | None = None
        for number, begin, piece in self._pieces_at(tensors, self._stage_bytes):
            end = begin + piece.numel()
            if batch is not None and (end - batch.begin > self._stage_bytes
                                      or piece.device != batch.pieces[0][2].device):
                yield batch
                batch = None
            if batch is None:
                batch = _Batch(begin, end, [])
            batch.end = end
            batch.pieces.append((number, begin, piece))
        if batch is not None:
            yield batch

    def _pieces(self, tensors: Mapping[int, Tensor],
                most_bytes: int | None = None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Of the GPU's copies: which tensor, a piece of it, and the same of the copy."""
        for number, begin, piece in self._pieces_at(tensors, most_bytes or self.size_bytes):
            yield number, piece, self._kept[begin:begin + piece.numel()]

    def _pieces_at(self, tensors: Mapping[int, Tensor],
                   most_bytes: int) -> Iterator[tuple[int, int, Tensor]]:
        """Which tensor, where its piece begins in the copies, and the piece."""
        for number, tensor in tensors.items():
            begin = self._begins[number]
            for piece in pieces(tensor, most_bytes):
                yield number, begin, piece
                begin += piece.numel()


class _Pairs:
    """Flat bytes, of which the second of each pair goes into the first: all at once, since they may
    be hundreds, and in words where that can be."""

    def __init__(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._of_kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for pair in pairs:
            are_words = pair[0].numel() % _WORD == 0 and not any(
                one.storage_offset() % _WORD for one in pair)
            kind = torch.int64 if are_words else torch.uint8
            for some, one in zip(self._of_kinds.setdefault(kind, ([], [])), pair, strict=True):
                some.append(one.view(kind))

    def copy(self) -> None:
        for to, source in self._of_kinds.values():
            _compat.copy_all(to, source)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


def grantable_bytes(device: int, used: int) -> int:
    """How much of the GPU's memory copies may take, for a callable that uses so many bytes: a 64th
    of what torch has reserved there, a 32nd of all where that is_plentiful(), and 32 MiB at least;
    and at most a quarter of what is free."""
    most = max(_SMALL_BYTES, torch.cuda.memory_reserved(device) // _SMALL_SHARE)
    if is_plentiful(device, used):
        most = max(most, torch.cuda.mem_get_info(device)[1] // _PLENTY_SHARE)
    return min(most, free_bytes(device) // 4)
