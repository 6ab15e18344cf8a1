# SPDX-License-Identifier: Apache-2.0
"""Arguments of a step that lie on the CPU, while it is captured: lengths, page tables, a batch.

A launch is given a copy of each on the GPU, its *twin*, so its bytes are arguments like any other.
While the step is captured, what it copies to the GPU is taken from the twin instead. What it
computes on the CPU before that is computed on the GPU as well, where both get the same bits, and is
captured there. Anything else would be what it was in the captured call for ever, and is refused.

Threads: one capture at a time; other threads' calls go their own way. Failure: NotRecordable.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._fx.schema import tensors_in
from anabranch._record.capture.noted_lists import lists_noted
from anabranch._record.capture.replaced import replaced
from anabranch._record.refusals import Cause, NotRecordable
from anabranch._record.tensors import memory_on_cpu

_GPU = "cuda"
_aten = torch.ops.aten
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)
_ASKING = (_aten.is_pinned.default,)  # which tell nothing of what is in it
_PINNING = (_aten.pin_memory.default, _aten._pin_memory.default)
# Which change no bits, whatever the type.
_MOVING = frozenset((
    _aten.cat.default, _aten.stack.default, _aten.clone.default, _aten.constant_pad_nd.default,
    _aten.flip.default, _aten.roll.default, _aten.repeat.default, _aten.tril.default,
    _aten.triu.default, _aten.index_select.default, _aten.gather.default))
_NOT_ALIKE = (torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape,
              torch.Tag.data_dependent_output)
# By which Python reads a tensor without an operator.
_READING = ("tolist", "numpy", "__array__", "__dlpack__")


class HostTables(_compat.TorchDispatchMode):
    """Of one capture.

    Args:
        twins: tensors on the CPU, each with its twin on the GPU: contiguous, of one shape and type.
        known: tensors on the CPU whose values may be looked at, since they are guarded.

    ``waited`` has those of the first, by number, that the step copies and waits for.
    """

    def __init__(self, twins: Sequence[tuple[Tensor, Tensor]], known: Iterable[Tensor]) -> None:
        super().__init__()
        self.waited: set[int] = set()
        # By the addresses of their memory, which they keep.
        self._twins: dict[int, tuple[Tensor, Tensor]] = {}
        self._numbers: dict[int, int] = {}
        self._known = {tensor.untyped_storage().data_ptr(): tensor for tensor in known}
        for i, (table, twin) in enumerate(twins):
            if table.numel():
                self._add(table, twin)
                self._numbers[table.untyped_storage().data_ptr()] = i

    def _add(self, table: Tensor, twin: Tensor) -> None:
        self._twins[table.untyped_storage().data_ptr()] = table, twin

    def is_table(self, thing: Any) -> bool:
        """Whether it is one on the CPU that is to be followed."""
        return isinstance(thing, Tensor) and memory_on_cpu(thing) in self._twins

    def __torch_dispatch__(self, function: Any, types: Any, args: Sequence[Any] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if function is _aten._local_scalar_dense.default:
            self._check_may_be_read(args[0])
        given = list(tensors_in((args, tuple(kwargs.values()))))
        if not any(map(self.is_table, given)) or function in _ASKING:
            return function(*args, **kwargs)
        if function is _aten.copy_.default and args[0].device.type == _GPU:
            self._note_wait(args[1], args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            return args[0].copy_(self._twin(args[1]))
        if function is _aten._to_copy.default and _is_gpu(kwargs.get("device")):
            self._note_wait(args[0], kwargs.get("non_blocking"))
            return function(self._twin(args[0]), **kwargs)
        if function in _PINNING:
            return self._on_both(_aten.clone.default, args[:1], {}, given)
        if function in _INDEXED and args[0].device.type == _GPU:
            return function(args[0], *map(self._twin_of_index, args[1:]), **kwargs)
        return self._on_both(function, args, kwargs, given)

    def _on_both(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
                 given: Sequence[Tensor]) -> Any:
        """Runs it on the CPU, and on the GPU for what launches get. Twins of views are found by
        the memory."""
        if function.is_view:
            return function(*args, **kwargs)
        if function._schema.is_mutable:
            self._add_what_is_written(function, args[0])
        answer = function(*args, **kwargs)
        _check_is_alike(function, given, list(tensors_in(answer)))
        there = function(*map(self._there, args),
                         **{name: self._there(value) for name, value in kwargs.items()})
        for made, twin in zip(tensors_in(answer), tensors_in(there), strict=True):
            if made.numel() and not self.is_table(made):
                self._add(made, _laid_out_as(made, twin))
        return answer

    def _add_what_is_written(self, function: Any, target: Tensor) -> None:
        """What is written with a table is one from then on. A launch writes no argument, and no
        state on the CPU."""
        storage, memory = target.untyped_storage(), memory_on_cpu(target)
        if memory is None or memory in self._numbers or memory in self._known:
            _refuse(function)
        if not self.is_table(target):
            whole = torch.empty(0, dtype=target.dtype, device="cpu")
            whole.set_(storage, 0, (storage.nbytes() // whole.element_size(),), (1,))
            self._add(whole, _copied(whole))

    def _check_may_be_read(self, tensor: Tensor) -> None:
        """Refuses to read in Python what is on the CPU, unless it is known: compiled code may have
        made it of a table in a way that nothing here sees."""
        memory = memory_on_cpu(tensor)
        if memory is not None and memory not in self._known:
            raise NotRecordable("it is given a tensor on the CPU, and reads one there into Python "
                                "(.item(), an if, an operand of one number)",
                                Cause.READS_CPU_ARGUMENT)

    def _there(self, thing: Any) -> Any:
        """An argument of an operator on the CPU, as it is given to the GPU's."""
        if isinstance(thing, Tensor):
            return self._twin(thing) if self.is_table(thing) else _copied(thing)
        if isinstance(thing, (list, tuple)):
            return type(thing)(map(self._there, thing))
        return torch.device(_GPU) if isinstance(thing, torch.device) else thing

    def _twin(self, tensor: Tensor) -> Tensor:
        """The tensor's bytes on the GPU. It may be a view of a table, of another type too."""
        _, twin = self._twins[tensor.untyped_storage().data_ptr()]
        if twin.dtype != tensor.dtype:
            twin = twin.view(-1).view(tensor.dtype)
        return twin.as_strided(tensor.shape, tensor.stride(),
                               tensor.storage_offset() + twin.storage_offset())

    def _twin_of_index(self, part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return type(part)(map(self._twin_of_index, part))
        if not self.is_table(part):
            return part
        if part.dtype == torch.bool:
            raise NotRecordable("it takes a mask on the CPU for an index, and how much that names "
                                "may change", Cause.READS_CPU_ARGUMENT,
                                "Make it an index of a fixed size.")
        return self._twin(part)

    def _note_wait(self, table: Tensor, non_blocking: Any) -> None:
        number = self._numbers.get(table.untyped_storage().data_ptr())
        if number is not None and not non_blocking:
            self.waited.add(number)

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Around the step."""
        readers = [(Tensor, name, self._reader(name, getattr(Tensor, name))) for name in _READING]
        try:
            with replaced(readers), lists_noted(), self:
                yield
        finally:
            self._twins.clear()  # some lie in the memory of the capture

    def _reader(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        mine = threading.get_ident()

        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == mine and tensor.device.type == "cpu" \
                    and self.is_table(tensor):
                raise NotRecordable("it is given a tensor on the CPU, and reads it there "
                                    f"(.{name.strip('_')}())", Cause.READS_CPU_ARGUMENT)
            return original(tensor, *args, **kwargs)

        return read


def _check_is_alike(function: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
    """Refuses what may have other bits on the GPU, or none: arithmetic of floats, random numbers,
    shapes that follow values, and what is no tensor."""
    of_floats = [tensor.dtype.is_floating_point or tensor.dtype.is_complex
                 for tensor in (*given, *made)]
    casts = (_aten._to_copy.default, _aten.copy_.default)  # of integers to floats, and not back
    is_exact = function in _MOVING or not any(of_floats) or (
        function in casts and (of_floats[-1] or not of_floats[0]))
    if not is_exact or not made or any(tag in function.tags for tag in _NOT_ALIKE) \
            or any(tensor.device.type != "cpu" for tensor in given):
        _refuse(function)


def _copied(constant: Tensor) -> Tensor:
    """A tensor on the CPU that is no table, as the GPU is given it: see host_constants."""
    made: Tensor = _aten._to_copy.default(constant, device=torch.device(_GPU))
    return made


def _laid_out_as(made: Tensor, twin: Tensor) -> Tensor:
    if twin.stride() == made.stride() and not twin.storage_offset():
        return twin
    return torch.empty_strided(made.shape, made.stride(), dtype=made.dtype,
                               device=twin.device).copy_(twin)


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == _GPU


def _refuse(function: Any) -> None:
    raise NotRecordable(f"it is given a tensor on the CPU, and computes with it there ({function}) "
                        "what a launch would not", Cause.READS_CPU_ARGUMENT)
