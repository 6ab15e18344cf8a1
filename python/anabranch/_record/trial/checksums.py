# SPDX-License-Identifier: Apache-2.0
"""128-bit checksums of tensors, made where the tensors are: what two runs answered is compared
without keeping what the first one did.

Each word of 64 bits is mixed, with its place in the tensor, by the finalizer of SplitMix64 (Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", 2014), once and once more, and both
results are added up. A mix is a bijection: two runs that differ in one word always have other sums,
those that differ in several have the same by chance alone, one in 2^128. It is no protection
against somebody who wants them to be the same.

Threads: any; on the current stream. Failure: torch's own errors.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import capture_device
from anabranch._core.library import NativeError

PIECE_BYTES = 16 << 20
_SENT_BYTES = 1 << 20  # of pinned memory
_WORD = 8
_ALL = (1 << 64) - 1


def pieces(tensor: Tensor, most_bytes: int = PIECE_BYTES) -> Iterator[Tensor]:
    """A tensor's bytes in the order in which its elements lie, as flat views of at most so many
    bytes; where they lie apart, or one on another, copies in the order of its elements, one piece
    at a time."""
    if tensor.numel() == 0:
        return
    tensor = as_it_lies(tensor)
    if tensor.dtype is torch.uint8 and tensor.dim() == 1 and tensor.numel() <= most_bytes \
            and not tensor.requires_grad and _lies_in_order(tensor):
        yield tensor
        return
    tensor = tensor.detach()
    if _lies_in_order(tensor):
        flat = tensor.reshape(-1).view(torch.uint8)
        for begin in range(0, flat.numel(), most_bytes):
            yield flat[begin:begin + most_bytes]
    elif tensor.numel() * tensor.element_size() <= most_bytes:
        yield tensor.contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
    else:
        rows = max(1, most_bytes * tensor.shape[0] // (tensor.numel() * tensor.element_size()))
        for begin in range(0, tensor.shape[0], rows):
            part = tensor[begin:begin + rows]
            yield from pieces(part if part.shape[0] > 1 else part[0], most_bytes)


def as_it_lies(tensor: Tensor) -> Tensor:
    """With its dimensions in the order of its memory, where it fills that, as one of channels last
    does."""
    if _lies_in_order(tensor):
        return tensor
    steps = tensor.stride()
    moved = tensor.permute(sorted(range(tensor.dim()), key=lambda i: -steps[i]))
    return moved if _lies_in_order(moved) else tensor


def checksums(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """One a tensor, of its bytes as pieces() has them: shapes, strides and types are the caller's
    matter. BLAKE2 where a tensor is on the CPU; what is pinned, and large, goes by way of the GPU,
    to which it is copied many times as fast as it is hashed here."""
    sums: dict[int, tuple[int, int]] = {}
    with torch.no_grad():
        tensors = list(map(as_it_lies, tensors))
        ways = [_way_of(tensor) for tensor in tensors]
        for way in set(ways):
            numbers = [i for i, one in enumerate(ways) if one == way]
            there = [tensors[i] for i in numbers]
            sums.update(zip(numbers, _summed(there, *way), strict=True))
    return [sums[i] for i in range(len(tensors))]


def _way_of(tensor: Tensor) -> tuple[torch.device, torch.device]:
    """Where a tensor is, and where it is hashed."""
    lies = tensor.device
    if not tensor.is_cuda and lies.type == "cpu" and tensor.nbytes >= _SENT_BYTES \
            and tensor.is_pinned():
        return lies, torch.device("cuda", torch.cuda.current_device())
    return lies, lies


def _summed(tensors: Sequence[Tensor], lie: torch.device,
            hashed: torch.device) -> Iterable[tuple[int, int]]:
    if lie != hashed:
        return on_device(tensors, hashed)
    return map(_on_cpu, tensors) if hashed.type == "cpu" else _on_gpu(tensors, hashed)


def _on_gpu(tensors: Sequence[Tensor], device: torch.device) -> list[tuple[int, int]]:
    """By our device code, at the speed of memory, where there is any and elements lie in their
    order; by torch's operators otherwise, with the same result."""
    plain, others = list[int](), list[int]()
    for i, tensor in enumerate(tensors):
        (plain if _lies_in_order(tensor) else others).append(i)
    try:
        ranges = [(tensors[i].data_ptr(), tensors[i].nbytes) for i in plain]
        found = capture_device(device.index).checksums(ranges, _compat.current_stream(device.index))
    except NativeError:
        return on_device(tensors, device)
    rest = on_device([tensors[i] for i in others], device) if others else []
    sums = dict(zip([*plain, *others], [*found, *rest], strict=True))
    return [sums[i] for i in range(len(tensors))]


def _lies_in_order(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def on_device(tensors: Sequence[Tensor], device: torch.device) -> list[tuple[int, int]]:
    """By operators that run on that device."""
    hasher = _Hasher(device)
    for number, tensor in enumerate(tensors):
        for i, piece in enumerate(pieces(tensor)):
            hasher.add(number, i, piece)
    return [(first & _ALL, second & _ALL) for first, second in hasher.finish(len(tensors)).tolist()]


def _on_cpu(tensor: Tensor) -> tuple[int, int]:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces(tensor):
        digest.update((ctypes.c_char * piece.numel()).from_address(piece.data_ptr()))
    whole = digest.digest()
    return int.from_bytes(whole[:8], "little"), int.from_bytes(whole[8:], "little")


class _Hasher:
    """Puts pieces side by side into one buffer, and hashes that when it is full."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.zeros(PIECE_BYTES // _WORD, dtype=torch.int64, device=device)
        self._used = 0  # words
        self._ends: list[int] = []  # of the pieces in it
        self._owners: list[int] = []  # tensors, of all pieces so far
        self._sums: list[Tensor] = []  # (pieces, 2) of each full buffer

    def add(self, owner: int, number: int, piece: Tensor) -> None:
        """A piece of a tensor, by its number in that."""
        words = -(-piece.numel() // _WORD)
        if self._used + words > self._buffer.numel():
            self._flush()
        begin = self._used * _WORD
        self._buffer.view(torch.uint8)[begin:begin + piece.numel()].copy_(piece)
        mine = self._buffer[self._used:self._used + words]
        mine.add_(_places(self._buffer.device)[:words])
        if number:
            mine.add_(_wrapped(_GOLDEN * number))
        self._used += words
        self._ends.append(self._used)
        self._owners.append(owner)

    def _flush(self) -> None:
        if not self._ends:
            return
        words = self._buffer[:self._used]
        ends = torch.tensor(self._ends, device=self._buffer.device) - 1
        columns = []
        for _ in range(2):
            _mix(words)
            until = words.cumsum(0)[ends]
            columns.append(torch.cat((until[:1], until[1:] - until[:-1])))
        self._sums.append(torch.stack(columns, 1))
        words.zero_()
        self._used, self._ends = 0, []

    def finish(self, count: int) -> Tensor:
        self._flush()
        sums = torch.zeros(count, 2, dtype=torch.int64, device="cpu")
        if self._sums:
            sums.index_add_(0, torch.tensor(self._owners, device="cpu"),
                            torch.cat(self._sums).cpu())
        return sums


_GOLDEN = 0x9E3779B97F4A7C15  # of SplitMix64, as are the numbers in _mix()


def _wrapped(number: int) -> int:
    """As a signed number of 64 bits."""
    number &= _ALL
    return number - (1 << 64) if number >> 63 else number


@functools.lru_cache(maxsize=1)
def _places(device: torch.device) -> Tensor:
    """A number of its own for each word of a piece."""
    numbers = torch.arange(1, PIECE_BYTES // _WORD + 1, device=device).mul_(_wrapped(_GOLDEN))
    return _mix(numbers)


def forget_places() -> None:
    """Lets go of what checksums keep on a device between one another."""
    _places.cache_clear()


def _mix(words: Tensor) -> Tensor:
    """In place; torch shifts signed numbers, so that what comes in at the top is masked."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        high = words.bitwise_right_shift(shift).bitwise_and_((1 << (64 - shift)) - 1)
        words.bitwise_xor_(high).mul_(_wrapped(factor))
    return words
