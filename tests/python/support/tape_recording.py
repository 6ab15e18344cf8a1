# SPDX-License-Identifier: Apache-2.0
"""Recordings on the CPU that are as a GPU's: a capture notes the operators that the step's Python
runs, and a launch runs these again, and none of that Python.

A tape stands for a CUDA graph. Of tensors it has where they lie; whatever else an operator was
given is frozen. What is replaced is torch.cuda and the core's captures (``_core.capture``); all
that is above is the product's own. Tensors lie on the CPU and say that they are a GPU's. Not here:
random numbers, streams, the memory of temporaries, and tensors that are the CPU's.

Threads: one that records; launches from several at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import struct
import traceback
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from stand_in_recording import stand_in_memory
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Number, Slot
from anabranch._core.library import native_error
from anabranch._record import attempt, kept_calls, recorded_callable, recorder
from anabranch._record.capture import capture, untracked
from anabranch._record.capture.stand_ins import StandIns
from anabranch._record.launch import discovered, known
from anabranch._record.launch.in_turn import BAD_BINDING
from anabranch._record.launch.known import CAPTURES_DIFFER
from anabranch._record.memory import garbage
from anabranch._record.signatures import specialization
from anabranch._record.tensors import whole_bytes
from anabranch._record.trial import kept_call, kept_capture, trial, values

GIB = 1 << 30
FAILED = 399
REFUSED = "CUDA error: operation not permitted when stream is capturing"
STREAM = SimpleNamespace(cuda_stream=7, device_index=0)
_aten = torch.ops.aten
_LOOKS = {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
_OF_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_ALIGNMENT = 512  # of torch's allocations on a GPU


class Lies(NamedTuple):
    """A tensor by its place: in a block, so many bytes behind its beginning; or in memory that was
    there before and is nobody's, ``block`` then being a storage. None: it has no bytes."""

    block: Any
    offset_bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_conj: bool
    is_neg: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Lies:
        """``block`` is its address, until resolved()."""
        return cls(tensor.data_ptr() if tensor.numel() else None, 0, tuple(tensor.shape),
                   tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg())

    def over(self, storage: torch.UntypedStorage, begin: int) -> Tensor:
        made = torch.empty(0, dtype=self.dtype)
        made.set_(storage, begin // self.dtype.itemsize, self.shape, self.stride)
        return _compat.read_otherwise(made, self.is_conj, self.is_neg)


class Entry(NamedTuple):
    """An operator, what it was given, and which of its results lie in memory of its own: by their
    number and the address of that."""

    function: Any
    given: list[Any]
    tree: Any
    made: tuple[tuple[int, int], ...]


class Tape(TorchDispatchMode):
    """Of one capture, and what torch's allocator has told meanwhile: the operators' results are
    its blocks, which live as long as the tape."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        self.storages: dict[int, torch.UntypedStorage] = {}  # by address
        self.before: dict[int, torch.UntypedStorage] = {}  # older memory, by tensors' addresses
        self._as_found: dict[int, torch.UntypedStorage] = {}  # what was in that, by its address

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in _LOOKS or _OF_DATA.intersection(function.tags):
            raise RuntimeError(REFUSED)
        if function is _aten.lift_fresh.default:  # of numbers: torch.tensor(...)
            function, args = _constant(args[0]), ()
        flat, tree = tree_flatten((args, kwargs or {}))
        given = [Lies.of(one) if isinstance(one, Tensor) else one for one in flat]
        for one in flat:
            if isinstance(one, Tensor) and one.numel() and not self._is_known(one):
                storage = self.before[one.data_ptr()] = one.untyped_storage()
                if storage.data_ptr() not in self._as_found:
                    self._as_found[storage.data_ptr()] = storage.clone()
        answer = function(*args, **(kwargs or {}))
        made = []
        for number, tensor in enumerate(tree_flatten(answer)[0]):
            if isinstance(tensor, Tensor) and tensor.numel() and self._is_new(tensor, flat):
                storage = tensor.untyped_storage()
                self.storages[storage.data_ptr()] = storage
                made.append((number, storage.data_ptr()))
        if made or function._schema.is_mutable:
            self.entries.append(Entry(function, given, tree, tuple(made)))
        return answer

    def put_back(self) -> None:
        """Nothing has run while it was captured."""
        for storage in self.before.values():
            found = self._as_found.pop(storage.data_ptr(), None)
            if found is not None:
                _bytes_of(storage).copy_(_bytes_of(found))

    def run(self) -> None:
        """In the memory that it was captured with."""
        for entry in self.entries:
            given = [self._there(one) if isinstance(one, Lies) else one for one in entry.given]
            args, kwargs = tree_unflatten(given, entry.tree)
            answers = tree_flatten(entry.function(*args, **kwargs))[0]
            for number, address in entry.made:
                made = answers[number].untyped_storage()
                _bytes_of(self.storages[address])[:made.nbytes()] = _bytes_of(made)

    def _there(self, one: Lies) -> Tensor:
        if one.block is None:
            return torch.empty_strided(one.shape, one.stride, dtype=one.dtype)
        storage = self.before.get(one.block) or next(
            each for begin, each in self.storages.items()
            if begin <= one.block < begin + each.nbytes())
        return one.over(storage, one.block - storage.data_ptr())

    def _is_known(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage().data_ptr()
        return storage in self.storages or storage in Memory.bases

    def _is_new(self, tensor: Tensor, given: list[Any]) -> bool:
        storage = tensor.untyped_storage().data_ptr()
        return storage not in self.storages and all(
            storage != one.untyped_storage().data_ptr() for one in given if isinstance(one, Tensor))

    @property
    def held_bytes(self) -> int:
        """Of its memory what somebody else has."""
        return sum(one.nbytes() for one in self.storages.values() if is_held(one))


def is_held(storage: torch.UntypedStorage) -> bool:
    """By somebody other than its tape."""
    return bool(torch._C._storage_Use_Count(storage._cdata) > 1)


def _constant(value: Tensor) -> Any:
    """An operator without arguments that answers such a tensor."""

    def constant() -> Tensor:
        return value.clone()

    constant._schema, constant.value = SimpleNamespace(is_mutable=False), value
    return constant


class Graph:
    """In the place of torch.cuda.CUDAGraph."""

    of_pool: dict[Any, Tape] = {}  # by the id of the pool that a capture allocates in
    now: list[Tape] = []  # the capture that goes on

    def __init__(self, keep_graph: bool = False) -> None:
        self.tape = Tape()

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "") -> None:
        self.of_pool[pool] = self.tape
        self.now.append(self.tape)
        self.tape.__enter__()

    def capture_end(self) -> None:
        if self.tape in self.now:
            self.now.remove(self.tape)
            self.tape.__exit__(None, None, None)
            self.tape.put_back()

    def replay(self) -> None:
        with as_on_a_gpu_alone():
            self.tape.run()

    def raw_cuda_graph(self) -> Tape:
        return self.tape

    def reset(self) -> None:
        for pool in [pool for pool, tape in self.of_pool.items() if tape is self.tape]:
            del self.of_pool[pool]


class Pool:
    numbers = itertools.count(1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.id = (0, next(self.numbers))


class Memory:
    """In the place of CaptureMemory: as a GPU's allocator has it, and not one page."""

    bases: set[int] = set()  # of all

    def __init__(self, device: Any, is_kept: bool = False) -> None:
        self._blocks: dict[int, Any] = {}
        self.begin_capture = self.open = self.shut = lambda: None
        self.give_own = lambda: None
        self.take_own = lambda addresses: None

    def allocate(self, size_bytes: int) -> int:
        block = ctypes.create_string_buffer(size_bytes + _ALIGNMENT)
        base = ctypes.addressof(block) + -ctypes.addressof(block) % _ALIGNMENT
        self._blocks[base] = block
        self.bases.add(base)
        return base

    def close(self) -> None:
        self.bases.difference_update(self._blocks)
        self._blocks.clear()


class Filled(StandIns):
    """Operators run while they are noted, and indices have to be some."""

    def __init__(self, tensors: Any, units: Any, memory: Memory) -> None:
        super().__init__(tensors, units, memory)
        for mine, theirs in zip(self.tensors, tensors, strict=True):
            if mine is not theirs:
                mine.copy_(theirs.detach())


class Snapshot:
    """In the place of CaptureSnapshot."""

    def __init__(self, device: Any, tape: Tape, staying: Any = ()) -> None:
        self.tape = tape
        self.close = lambda: None

    def mentions(self, ranges: Any, other: Any = None) -> Any:
        """Of memory, and not of which tensors in it."""
        named = {one.block for entry in self.tape.entries for one in entry.given
                 if isinstance(one, Lies) and one.block}
        return [(i, "an operator") for i, (begin, size) in enumerate(ranges)
                if any(begin <= address < begin + size for address in named)]


@contextlib.contextmanager
def memory_history(device: int) -> Any:
    def told() -> _compat.PoolHistory:
        tapes = Graph.of_pool
        events = [_compat.Event(address, storage.nbytes(), False) for tape in tapes.values()
                  for address, storage in tape.storages.items()]
        alive = {(storage.data_ptr(), storage.nbytes(), (0, 0)) for tape in tapes.values()
                 for storage in tape.before.values()}
        alive |= {(address, storage.nbytes(), pool) for pool, tape in tapes.items()
                  for address, storage in tape.storages.items() if is_held(storage)}
        segments = {pool: {address: max(1, storage.nbytes())
                           for address, storage in tape.storages.items()}
                    for pool, tape in tapes.items()}
        return _compat.PoolHistory(events, segments, sorted(alive), False)

    yield told


class Resolved(NamedTuple):
    """An entry that names blocks by their numbers, and these of its results."""

    function: Any
    given: list[Any]
    tree: Any
    made: tuple[tuple[int, int], ...]

    def is_like(self, other: Resolved, but_floats: bool) -> bool:
        same = _frozen if but_floats else _same
        return (_kind(self.function), self.tree, self.made) == \
            (_kind(other.function), other.tree, other.made) and \
            all(map(same, self.given, other.given)) and _same_constant(self, other)


def _kind(function: Any) -> Any:
    return "constant" if hasattr(function, "value") else function


def _same_constant(one: Resolved, other: Resolved) -> bool:
    return not hasattr(one.function, "value") or (
        one.function.value.dtype == other.function.value.dtype
        and whole_bytes(one.function.value).tolist() == whole_bytes(other.function.value).tolist())


def _same(one: Any, other: Any) -> bool:
    if type(one) is float and type(other) is float:
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, Lies) and isinstance(one.block, torch.UntypedStorage):
        return isinstance(other, Lies) and isinstance(other.block, torch.UntypedStorage) \
            and one.block.data_ptr() == other.block.data_ptr() and one[1:] == other[1:]
    return type(one) is type(other) and bool(one == other)


def _frozen(one: Any, other: Any) -> bool:
    return (type(one) is float and type(other) is float) or _same(one, other)


def resolved(tape: Tape, addresses: list[int], sizes: list[int]) -> list[Resolved]:
    """With blocks at these addresses."""
    def place(one: Any) -> Any:
        if not isinstance(one, Lies) or one.block is None:
            return one
        for block, (begin, size) in enumerate(zip(addresses, sizes, strict=True)):
            if begin <= one.block < begin + size:
                return one._replace(block=block, offset_bytes=one.block - begin)
        storage = tape.before[one.block]
        return one._replace(block=storage, offset_bytes=one.block - storage.data_ptr())

    blocks = {address: block for block, address in enumerate(addresses)}
    return [Resolved(entry.function, list(map(place, entry.given)), entry.tree,
                     tuple((number, blocks[address]) for number, address in entry.made))
            for entry in tape.entries]


class Step:
    """In the place of CapturedStep."""

    def __init__(self, device: Any, first: Snapshot, second: Snapshot, blocks: Any,
                 noted: Any = None, others: Any = None) -> None:
        sizes = [block.size_bytes for block in blocks]
        self.blocks, self.device = blocks, device
        self.entries = resolved(first.tape, [block.first_address for block in blocks], sizes)
        again = resolved(second.tape, [block.second_address for block in blocks], sizes)
        _check(self.entries, again)
        self.words: list[tuple[int, int, Number]] = []  # entry, argument
        if others is not None:
            snapshot, addresses = others
            other = resolved(snapshot.tape, list(addresses), sizes)
            _check(self.entries, other, but_floats=True)
            self.words = [(i, j, Number(8, _bits(a), _bits(b))) for i, (one, two)
                          in enumerate(zip(self.entries, other, strict=True))
                          for j, (a, b) in enumerate(zip(one.given, two.given, strict=True))
                          if type(a) is float and not _same(a, b)]

    def stretches(self, let_go: Any) -> list[int]:
        return []

    def close(self) -> None:
        pass


def _check(entries: list[Resolved], others: list[Resolved], but_floats: bool = False) -> None:
    if len(entries) != len(others):
        raise native_error(CAPTURES_DIFFER, f"{len(entries)} operators and {len(others)}")
    for i, (one, other) in enumerate(zip(entries, others, strict=True)):
        if not one.is_like(other, but_floats):
            raise native_error(CAPTURES_DIFFER, f"operator {i}, {_kind(one.function)}, is given "
                               "something else in another capture")


def _bits(value: float) -> int:
    return struct.unpack("Q", struct.pack("d", value))[0]


class Recording:
    """In the place of CapturedRecording; its launch is a function of C, as theirs is."""

    launches = 0  # of all
    parts: tuple[int, ...] = ()

    def __init__(self, step: Step, *_: Any, **__: Any) -> None:
        self.entries, self._words = step.entries, step.words
        self.counts = CaptureCounts(nodes=len(self.entries), lanes=1)
        named = {one.block for entry in self.entries for one in entry.given
                 if isinstance(one, Lies) and type(one.block) is int}
        named |= {block for entry in self.entries for _, block in entry.made}
        self.slots = [Slot(block, step.blocks[block].size_bytes,
                           math.gcd(step.blocks[block].first_address, 16))
                      for block in sorted(named) if step.blocks[block].given]
        self.handle, self._failed = ctypes.c_void_p(3), None
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
                                          ctypes.c_uint32, ctypes.c_void_p)(self._called)
        self.launch_address = ctypes.cast(self._function, ctypes.c_void_p).value

    @property
    def numbers(self) -> list[Number]:
        return [number for _, _, number in self._words]

    def launch(self, addresses: bytes, stream: int) -> None:
        if code := self._launched(addresses):
            raise native_error(code, "an address does not fit")

    def _called(self, handle: int, addresses: int, count: int, stream: int) -> int:
        try:
            return self._launched(ctypes.string_at(addresses, 8 * count))
        except BaseException:  # which C would not see
            traceback.print_exc()
            return FAILED

    def _launched(self, told: bytes) -> int:
        given = struct.unpack(f"{len(told) // 8}Q", told)
        if any(address % slot.alignment for address, slot in zip(given, self.slots)):
            return BAD_BINDING
        Recording.launches += 1
        begin = len(self.slots)
        words = struct.unpack(f"{len(given) - begin}d", told[8 * begin:])
        with as_on_a_gpu_alone():
            self._run({slot.block: _compat.storage_at(address, slot.size_bytes, torch.device("cpu"))
                       for slot, address in zip(self.slots, given)}, words)
        return 0

    def _run(self, memory: dict[int, torch.UntypedStorage], words: tuple[float, ...]) -> None:
        word_at = {(i, j): word for (i, j, _), word in zip(self._words, words, strict=True)}
        for i, entry in enumerate(self.entries):
            given = [word_at.get((i, j), _standing(one, memory)) for j, one
                     in enumerate(entry.given)]
            args, kwargs = tree_unflatten(given, entry.tree)
            answers = tree_flatten(entry.function(*args, **kwargs))[0]
            for number, block in entry.made:
                storage = answers[number].untyped_storage()
                there = memory.setdefault(block, storage)
                if there is not storage:
                    _bytes_of(there)[:storage.nbytes()] = _bytes_of(storage)


def _standing(one: Any, memory: dict[int, torch.UntypedStorage]) -> Any:
    if not isinstance(one, Lies):
        return one
    if one.block is None:
        return torch.empty_strided(one.shape, one.stride, dtype=one.dtype)
    return one.over(memory[one.block] if type(one.block) is int else one.block, one.offset_bytes)


def bytes_at(address: int, size_bytes: int, device: int) -> Tensor:
    return _bytes_of(_compat.storage_at(address, size_bytes, torch.device("cpu")))


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


@contextlib.contextmanager
def as_on_a_gpu_alone() -> Any:
    """Nothing of torch's modes reaches what a graph does."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False), \
            torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class OnTape:
    """Everything of a GPU's that recordings ask for, from now on until ``monkeypatch`` undoes it.
    ``captures`` and ``launches`` count. Where memory ``is_plentiful``, the Python of a step runs once a
    call."""

    def __init__(self, monkeypatch: Any, is_plentiful: bool = True) -> None:
        def put(place: Any, **names: Any) -> None:
            for name, value in names.items():
                monkeypatch.setattr(place, name, value, raising=False)

        nothing = contextlib.nullcontext
        stand_in_memory(monkeypatch)
        put(Tensor, is_cuda=property(lambda tensor: True))
        put(torch.cuda, CUDAGraph=Graph, MemPool=Pool, synchronize=lambda *_: None,
            device=lambda _: nothing(), stream=lambda _: nothing(),
            current_stream=lambda *_: STREAM, is_current_stream_capturing=lambda: bool(Graph.now),
            get_rng_state=lambda device: torch.zeros(1), set_rng_state=lambda state, device: None)
        put(_compat, memory_history=memory_history, current_device=lambda: 0,
            current_stream=lambda device: STREAM.cuda_stream,
            empty_strided_cuda=_compat.empty_strided_cpu, byte_allocator=lambda: (0, 0),
            allocated_in_pools=lambda pools: sum(
                Graph.of_pool[pool].held_bytes for pool in pools if pool in Graph.of_pool),
            reserved_in_pools=lambda pools: sum(
                Graph.of_pool[pool].held_bytes for pool in pools if pool in Graph.of_pool),
            end_pool=lambda *_: None, release_pool=lambda *_: None,
            clear_workspaces=lambda: None)
        for module in (capture, untracked, kept_capture):
            put(module, CaptureMemory=Memory, CaptureSnapshot=Snapshot, bytes_at=bytes_at,
                capture_allocator=lambda: SimpleNamespace(allocator=lambda: None))
        put(capture, StandIns=Filled, _noting=lambda *_: nothing())
        put(kept_call, capture_device=lambda device: None)
        put(untracked, _of_generator=lambda memory, step, device: set())
        for module in (recorder, kept_calls):
            put(module, is_plentiful=lambda device, used: is_plentiful)
        put(recorder, on_capture_stream=lambda device: nothing())
        put(trial, on_stream=lambda stream, device: nothing())
        put(attempt, capture_device=lambda device: None,
            make_rng_graph=lambda graph, device, stream: None)
        put(attempt.Attempt, _is_enough=lambda self, step: None)
        put(known.KnownSteps, add=lambda self, step: None)
        put(discovered, CapturedStep=Step, CapturedRecording=Recording)
        # Counts what is frozen, of which tests have much.
        put(garbage, _count_anew=lambda: None)
        put(recorded_callable, _has_gpu=lambda: True)
        put(recorder, device_of=lambda leaves, tensors: 0, capture_stream=lambda device: STREAM,
            give_back_memory=lambda: None)
        put(kept_calls, noted_sizes=lambda device: nothing(list))
        check = specialization._check_argument
        put(specialization, _check_argument=lambda index, leaf, device: check(
            index, leaf, leaf.device.index))
        for module in (trial, values):
            put(module, grantable_bytes=lambda *asked: GIB)
        Recording.launches = 0

    @property
    def launches(self) -> int:
        return Recording.launches
