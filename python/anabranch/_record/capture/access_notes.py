# SPDX-License-Identifier: Apache-2.0
"""Notes of who reads and writes what while a step is captured.

A capture on one stream is a chain. For each piece of captured work whose use of memory is known,
the notes say which addresses it reads and writes, so that the chain can be relaxed to what it has
to be. What is not known for certain gets no note and stands for reading and writing everything.

Noted are operators, which a dispatch mode around the step sees: in eager code, on autograd's
threads, and in the wrappers of graphs that Inductor has compiled; and the kernels of these graphs.
The mode says of itself that it leaves compiled code alone, so Dynamo runs what it would run. It is
off while autograd's engine runs next to nothing but compiled graphs, which are noted all the same.
What reaches the GPU in other ways, such as a Triton kernel of the user's, is not known.

Three sources are trusted. The schema of torch's own operators: beside what it calls written, they
write memory that they allocate, workspaces, and a few arguments known by their names. The names
that Inductor gives to the arguments of the kernels it generates, with its list of inputs that are
written, by which it saves them while it tunes. And the schema of functional collectives that NCCL
runs: its kernel reads the input and writes the result, on a stream of its own behind the current
one, and ``wait_tensor`` queues nothing but a wait for that. What needs the wait is who uses the
memory, so memory tells. What NCCL has of its own, and that all processes queue collectives in one
order, memory does not tell: these are in turn. Collectives of other backends, and those called as
torch.distributed's functions, are unknown.

Threads: patches act on every thread, since backward runs on autograd's; notes are taken on those
whose current stream is being captured. One of them queues at a time, as anywhere in a capture, and
``mark`` is called by that one. Failure: what the noted code raises goes through, and is not noted.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.capture import Work
from anabranch._fx.schema import arguments_of, is_collective, is_wait, tensors_in
from anabranch._record.capture.eager_lines import EagerLines
from anabranch._record.capture.labels import Labels, generated_kernel_of, operator_of

# What they use beside their arguments is the workspace that torch gives to cuBLAS and a copy of an
# operand in a layout that cuBLAS takes; neither holds anything before or after. All overloads:
# `out` writes into a tensor, `dtype` names that of the result. Operators that look alike are left
# out, since some of theirs goes other ways: _scaled_mm, _addmm_activation, _int_mm.
_MATRIX_PRODUCTS = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"))
# One kernel after the other, each over some of the tensors, or one operator after the other, each
# over one: they share the tensors they name and nothing else.
_OVER_LISTS = re.compile(r"aten::(_foreach_|_fused_(adam|adamw|sgd|adagrad)_$)")
# Of one of those kernels: so many blocks, each over so many elements of one tensor (torch's
# MultiTensorApply.cuh, 2.11 and 2.15).
_LAUNCH_BLOCKS, _BLOCK_ELEMENTS = 320, 65_536
# Copies to and from the host. Their nodes say themselves which of its memory they touch.
_WITH_HOST = frozenset(("aten::copy_", "aten::_to_copy", "prims::device_put"))
# Factorizations and what uses them. cuSOLVER computes them, with products by a cuBLAS of its own,
# and where that keeps partial sums no schema tells.
_BY_CUSOLVER = re.compile(
    r"aten::(_?linalg_(?!vector_norm|cross)|_?cholesky|_?lu_|geqrf|ormqr|orgqr|triangular_solve|_?svd|lstsq)")
_MOST_OTHERS = 8  # nodes of a backward beside those of compiled graphs, whose work is unknown then
_UNKNOWN_TAGS = frozenset((torch.Tag.maybe_aliasing_or_mutating,))
_PLAIN = (Tensor, torch.nn.Parameter)


class AccessNotes:
    """``mark`` gives a number to the nodes captured since it was called last, and answers it: one
    more each time. ``device`` is the kind whose work is noted, ``backends`` those whose
    collectives are; a test may note the CPU's. ``labels`` are told by mark what is queued, and
    ``eager`` pauses where they are."""

    def __init__(self, mark: Callable[[], int], device: str = "cuda",
                 backends: Collection[str] = ("nccl", "nccl2"),
                 labels: Labels | None = None, eager: EagerLines | None = None) -> None:
        self.works: list[Work] = []
        self.has_raised = False  # something that was noted
        self._mark = mark
        self._labels = labels
        self._eager = eager
        self._device = device
        self._backends = backends
        self._lets_gradients_go = False
        self._thread = threading.local()
        self._lock = threading.Lock()  # over the two below
        self._users = 0
        self._patches = contextlib.ExitStack()

    @contextlib.contextmanager
    def known_calls(self) -> Iterator[None]:
        """While inside, the operators of this thread and of autograd's threads that work for it run
        noted; and graphs that Inductor has compiled do, on whatever thread."""
        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            with self.noted():
                answer = original(*args, **kwargs)
            if self._lets_gradients_go:
                _compat.let_go_of_generated(answer)
            return answer

        with _compat.calls_of_compiled_graphs(call), \
                _compat.runs_of_backward(self._backward), _Mode(self):
            yield

    def _backward(self, original: Callable[..., Any], roots: Sequence[Tensor], *args: Any,
                  **kwargs: Any) -> Any:
        """A run of autograd's engine. It adds up the gradients that several compiled graphs make of
        a tensor: in place where nobody else has them and no mode is on, and else into a third one.
        So where it does little else it runs without ours; the graphs note what they do."""
        is_innermost = any(map(self._is_mine, _compat.dispatch_modes()[-1:]))
        if not is_innermost or not _compat.is_backward_of_compiled_graphs(roots, _MOST_OTHERS):
            return original(roots, *args, **kwargs)
        self._lets_gradients_go = True
        try:
            with _compat.without_innermost_mode():
                return original(roots, *args, **kwargs)
        finally:
            self._lets_gradients_go = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """What this thread runs inside is noted, operator by operator and kernel by kernel: around
        what Inductor has compiled."""
        if self._is_noting():
            yield
            return
        try:
            with self._eager.paused() if self._eager is not None else contextlib.nullcontext(), \
                    self._generated_kernels(), self._mode(), self._noting(True):
                yield
                if self._labels is not None and self._is_captured():
                    self._mark()  # so that what comes behind is not taken for what came last
        except Exception:
            self.has_raised = True
            raise

    def _mode(self) -> contextlib.AbstractContextManager[Any]:
        """One that sends operators here, unless one is on in this thread."""
        is_on = any(map(self._is_mine, _compat.dispatch_modes()))
        return contextlib.nullcontext() if is_on else _Mode(self)

    def _is_mine(self, mode: Any) -> bool:
        return isinstance(mode, _Mode) and mode.notes is self

    def _operator(self, function: Callable[..., Any], args: Sequence[Any],
                  kwargs: Mapping[str, Any]) -> Any:
        """Runs an operator that has reached the mode."""
        def run() -> Any:
            return function(*args, **kwargs)

        if self._eager is not None:
            self._eager.take()  # what has come before is not the operator's
        with self._noting(False):  # what runs below is of the operator
            if not isinstance(function, _compat.OpOverload):  # of higher order
                return self._unknown(run, operator_of(function))
            name = function._schema.name
            if function.is_view or is_wait(function):
                return run()  # queues nothing; if it does, that is unknown
            in_turn = is_collective(function)
            if not (self._is_ours(function, args, kwargs) if in_turn
                    else _is_trusted(function)):
                return self._unknown(run, name)
            if _OVER_LISTS.match(name):
                return self._over_lists(function, args, kwargs)
            return self._piece(name, run, _uses_of(function, args, kwargs),
                               has_scratch=name in _MATRIX_PRODUCTS,
                               with_host=name in _WITH_HOST, in_turn=in_turn)

    def _over_lists(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A piece for each launch. Each has addresses left over from those before, and is told from
        its piece to have no use for them: it need not wait for the last gradient when it has its
        own."""
        result: list[Tensor] | None = None
        for part in _parts_of(function, args, kwargs):
            of_part = self._piece(function._schema.name,
                                  functools.partial(function, *part[0], **part[1]),
                                  _uses_of(function, *part), independent=True)
            if of_part:
                result = [*(result or ()), *of_part]
        return result

    def _is_ours(self, collective: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether it is of a group whose backend queues work that is noted."""
        given = {argument.name: value for argument, value in
                 zip(collective._schema.arguments, args, strict=False)} | dict(kwargs)
        try:
            backend = _compat.backend_of_group(given["group_name"], torch.device(self._device))
        except RuntimeError:  # it has none there, and the collective will say so
            return False
        return backend in self._backends

    def _kernel(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs a kernel that Inductor generated, in place of CachingAutotuner.run."""
        if not self._is_noting():
            return original(tuner, *args, **kwargs)
        def run() -> Any:
            return original(tuner, *args, **kwargs)

        name = generated_kernel_of(tuner)
        named = _compat.arguments_of_generated_kernel(tuner, args, kwargs)
        return self._unknown(run, name) if named is None else \
            self._piece(name, run, lambda result: named)

    def _piece(self, name: str, run: Callable[[], Any],
               uses: Callable[[Any], Iterable[tuple[Any, bool]]], has_scratch: bool = False,
               independent: bool = False, with_host: bool = False,
               in_turn: bool = False) -> Any:
        """Runs one piece. It is one if nothing else has been marked inside; its addresses are taken
        before and after, because an operator may give an ``out`` tensor other memory."""
        accesses: dict[int, bool] = {}
        if not self._is_captured() or not self._add(accesses, uses(None), with_host):
            return self._unknown(run, name)
        begin = self._mark()
        self._label(begin + 1, name)
        result = run()
        end = self._mark()
        if end == begin + 1 and self._add(accesses, uses(result), with_host):
            self.works.append(
                Work(end, tuple(accesses.items()), has_scratch, independent, in_turn))
        return result

    def _unknown(self, run: Callable[[], Any], name: str) -> Any:
        if not self._is_captured():
            return run()
        # So that a piece around it knows of it.
        self._label(self._mark() + 1, name)
        result = run()
        if self._labels is not None:
            self._mark()  # so that what comes behind is not taken for its
        return result

    def _label(self, mark: int, name: str) -> None:
        if self._labels is not None:
            self._labels.note(mark, name, self._eager.line if self._eager is not None else None)

    def _add(self, accesses: dict[int, bool], uses: Iterable[tuple[Any, bool]],
             with_host: bool = False) -> bool:
        """Adds the memory of tensors; answers whether all of it can be told. ``with_host``: the
        host's need not be."""
        try:
            for value, is_written in uses:
                for tensor in tensors_in(value):
                    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided:
                        return False  # its memory is not at data_ptr()
                    if tensor.device.type != self._device:
                        if with_host and tensor.device.type == "cpu":
                            continue
                        return False  # the host's memory, or another device's
                    if tensor.numel():
                        address = tensor.data_ptr()
                        accesses[address] = accesses.get(address, False) or is_written
        except RuntimeError:  # of data_ptr(), where there is none
            return False
        return 0 not in accesses

    def _is_captured(self) -> bool:
        return self._device != "cuda" or torch.cuda.is_current_stream_capturing()

    def _is_noting(self) -> bool:
        return getattr(self._thread, "noting", False)

    @contextlib.contextmanager
    def _noting(self, noting: bool) -> Iterator[None]:
        before = self._is_noting()
        self._thread.noting = noting
        try:
            yield
        finally:
            self._thread.noting = before

    @contextlib.contextmanager
    def _generated_kernels(self) -> Iterator[None]:
        """The patch of Inductor's kernels, there from the first that is inside to the last."""
        with self._lock:
            if self._users == 0:
                self._patches.enter_context(_compat.runs_of_generated_kernels(self._kernel))
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._patches.close()


class _Mode(_compat.TorchDispatchMode):
    """Sends every operator that this thread calls to the notes."""

    supports_higher_order_operators = True

    def __init__(self, notes: AccessNotes) -> None:
        super().__init__()
        self.notes = notes

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Dynamo asks. Under a mode that says no it runs nothing that it has compiled."""
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        try:
            return self.notes._operator(function, args, kwargs or {})
        except Exception:
            self.notes.has_raised = True
            raise


def _uses_of(function: Any, args: Sequence[Any],
             kwargs: Mapping[str, Any]) -> Callable[[Any], list[tuple[Any, bool]]]:
    """What an operator uses, given its result."""
    named = list(arguments_of(function, args, kwargs))
    return lambda result: [*named, (result, True)]


Arguments = tuple[Sequence[Any], Mapping[str, Any]]


def _parts_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Arguments]:
    """The arguments of an operator over lists, as many tensors at a time as one of its launches
    takes, or one that takes several. Each tensor's result is its own; but operators go another way
    where one of the tensors is unlike the others, by which results might be rounded otherwise, so
    then the lists stay whole. What is fused refuses such lists."""
    lists = [value for value in (*args, *kwargs.values()) if _is_list(value) and value]
    tensors = [values for values in lists if all(type(value) in _PLAIN for value in values)]
    if not tensors or len({len(values) for values in lists}) != 1 or not (
            "_fused_" in function._schema.name or _are_alike(tensors)):
        yield args, kwargs
        return
    blocks = [-(-tensor.numel() // _BLOCK_ELEMENTS) for tensor in tensors[0]]
    begin = 0
    for end in range(1, len(blocks) + 1):
        if end < len(blocks) and sum(blocks[begin:end + 1]) <= _LAUNCH_BLOCKS:
            continue
        part = slice(begin, end)
        yield ([value[part] if _is_list(value) else value for value in args],
               {name: value[part] if _is_list(value) else value for name, value in kwargs.items()})
        begin = end


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _are_alike(lists: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the tensors are of one type and device and without gaps, those of one place of the
    lists of one shape, too."""
    kinds = {(tensor.dtype, tensor.device) for tensors in lists for tensor in tensors}
    return len(kinds) == 1 and all(
        tensor.is_floating_point() and tensor.is_contiguous() and tensor.shape == first.shape
        for tensors in lists for first, tensor in zip(lists[0], tensors, strict=True))


def _is_trusted(operator: Any) -> bool:
    """Whether the schema tells all. A random operator of torch's own reads the generator's memory
    besides, which nothing in a graph writes: launches set it before, and each kernel has its place
    in the sequence from the capture."""
    if operator.namespace not in ("aten", "prims") or _UNKNOWN_TAGS.intersection(operator.tags):
        return False
    if operator._schema.name.startswith("prims::inductor_"):
        return False  # some are random and do not say so
    if _BY_CUSOLVER.match(operator._schema.name):
        return False
    return operator.namespace == "aten" or torch.Tag.nondeterministic_seeded not in operator.tags
