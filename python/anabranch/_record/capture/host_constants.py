# SPDX-License-Identifier: Apache-2.0
"""Constants that a step makes on the CPU and copies to the GPU while it is captured.

``torch.tensor(3.0, device="cuda")`` and ``.to("cuda")`` copy from pageable memory, which torch
refuses in a capture. Here the bytes are put into pinned memory first, elsewhere in each capture.
The core then takes them for a table, compares both captures' and keeps them. Every launch copies
the same bytes, so only such constants are accepted that each call of the signature makes alike:
those made of Python's numbers, or of tensors that are guarded. Anything else is refused.

Threads: one capture at a time; other threads' calls go their own way. Failure: NotRecordable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._fx.schema import tensors_in
from anabranch._record.capture.replaced import of_pythons_things, replaced
from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.tensors import memory_on_cpu

CONSTANTS_BYTES = 4 << 20  # for all of a capture
_ALIGNMENT = 256
_GPU = "cuda"
_aten = torch.ops.aten
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)


class HostConstants(_compat.TorchDispatchMode):
    """The constants of one capture.

    Args:
        pinned: memory for them, which has to stay until the graph has been read.
        guarded: tensors on the CPU whose changes are another signature.
    """

    def __init__(self, pinned: Tensor, guarded: Iterable[Tensor]) -> None:
        super().__init__()
        self._memory = pinned
        self._used = 0
        # By the addresses of their memory, which they keep.
        self._known: dict[int | None, Tensor] = {}
        for tensor in guarded:
            self.know(tensor)

    def know(self, tensor: Tensor) -> None:
        if (address := memory_on_cpu(tensor)) is not None:
            self._known[address] = tensor

    def _is_known(self, tensor: Tensor) -> bool:
        return memory_on_cpu(tensor) in self._known

    def __torch_dispatch__(self, function: Any, types: Any, args: Sequence[Any] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if function is _aten._to_copy.default and _leaves_the_cpu(args[0], kwargs.get("device")):
            return self._to_copy(args[0], **kwargs)
        if function is _aten.copy_.default and _leaves_the_cpu(args[1], args[0].device):
            return args[0].copy_(self._on_gpu(args[1], args[0].dtype, args[0].device))
        if function in _INDEXED and _is_on_gpu(args[0]):
            args = self._with_indices(*args)
        answer = function(*args, **kwargs)
        given = list(tensors_in((args, (*kwargs.values(),))))
        self._note(function, given, list(tensors_in(answer)))
        return answer

    def _note(self, function: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Notes that what is made of known tensors is known as well, but for random numbers."""
        is_known = _is_a_number(given) if function is _aten.lift_fresh.default else \
            all(map(self._is_known, given)) \
            and torch.Tag.nondeterministic_seeded not in function.tags
        if is_known:
            for tensor in made:
                self.know(tensor)
        else:  # they may be what it has written, or views of it
            for tensor in (*given, *made) if function._schema.is_mutable else made:
                self._known.pop(memory_on_cpu(tensor), None)

    def _to_copy(self, source: Tensor, *, device: torch.device, dtype: torch.dtype | None = None,
                 memory_format: Any = None, **_: Any) -> Tensor:
        made = self._on_gpu(source, dtype or source.dtype, device)
        like = torch.empty_like(source, dtype=made.dtype, device=device,
                                memory_format=memory_format or torch.preserve_format)
        return made if made.stride() == like.stride() else like.copy_(made)

    def _with_indices(self, of: Tensor, indices: Sequence[Tensor | None], *others: Any) -> Any:
        """Arguments of one that is indexed. What is put there may be a number, of which torch has
        made a tensor on the CPU."""
        found = [part for index in indices for part in self._indices(index, of.device)]
        if not others or not _leaves_the_cpu(others[0], of.device):
            return of, found, *others
        value, *rest = others
        if _is_a_number([value]):
            self.know(value)
        return of, found, self._on_gpu(value, value.dtype, of.device), *rest

    def _indices(self, index: Tensor | None, device: torch.device) -> list[Tensor | None]:
        """Of a mask those that are true, of which the GPU would have to tell how many there are."""
        if index is None or not _leaves_the_cpu(index, device):
            return [index]
        parts = [index]
        if index.dtype == torch.bool:
            parts = list(index.nonzero().unbind(1))
            if self._is_known(index):
                list(map(self.know, parts))
        return [self._on_gpu(part, part.dtype, device) for part in parts]

    def _on_gpu(self, source: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A copy of a tensor on the CPU."""
        if not self._is_known(source):
            kind = str(source.dtype).removeprefix("torch.")
            raise NotRecordable(
                f"it copies a tensor from the CPU ({kind}{list(source.shape)}) of which is not "
                "known that each call brings the same", Cause.COPIES_FROM_CPU,
                "Make it on the GPU, give it as an argument that is there, or pin it where the "
                "step finds it.")
        pinned = self._pinned(source.numel() * dtype.itemsize).view(dtype).view(source.shape)
        pinned.copy_(source)
        made = torch.empty(source.shape, dtype=dtype, device=device)
        return made.copy_(pinned, non_blocking=True)

    def _pinned(self, size_bytes: int) -> Tensor:
        begin = self._used
        self._used += -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        if self._used > self._memory.numel():
            raise NotRecordable(f"it copies more than {self._memory.numel()} bytes from the CPU",
                                Cause.COPIES_FROM_CPU, "Keep them on the GPU.")
        return self._memory[begin:begin + size_bytes]

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Around the step."""
        tensor = torch.tensor

        def made(data: Any, dtype: torch.dtype | None = None,
                 device: torch.device | None = None) -> Tensor | None:
            """First on the CPU, and then where it shall be."""
            if not _is_pythons(data):
                return None
            found = tensor(data, dtype=dtype, device="cpu")
            self.know(found)
            return found if device is None else found.to(device)

        def opened(part: Any) -> Any:
            """Lists among indices become tensors on the CPU first."""
            found = made(part) if type(part) is list else None
            return part if found is None else found

        with replaced(of_pythons_things(made, opened)), self:
            yield


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.device.type == _GPU


def _leaves_the_cpu(source: Any, device: torch.device | None) -> bool:
    return device is not None and device.type == _GPU and isinstance(source, Tensor) \
        and source.device.type == "cpu" and source.numel() > 0 and not source.is_pinned()


def _is_a_number(given: Sequence[Tensor]) -> bool:
    """Of Python's, or of numpy's and no array that somebody may write."""
    return all(tensor.dim() == 0 and tensor.untyped_storage().resizable() for tensor in given)


def _is_pythons(data: Any) -> bool:
    if type(data) in (list, tuple):
        return all(map(_is_pythons, data))
    return type(data) in (int, float, bool, complex)
