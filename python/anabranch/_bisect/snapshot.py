# SPDX-License-Identifier: Apache-2.0
"""All that a run may change, as it is before the first one: put back before and after each run.

Tensors, gradients and bindings of what can be reached from the callable (``_record.state.walk``),
random generators, and whether gradients are on. Contents are put back through ``.data``, which
counts no version: graphs of autograd that the user holds stay valid. It takes a copy of all of it.

Threads: nobody else may use the state meanwhile. Failure: what copying raises.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch._record.state.paths import name_of
from anabranch._record.state.walk import Walk
from anabranch._record.tensors import MemoryOf


class _Kept(NamedTuple):
    tensor: Tensor
    data: Tensor  # its memory, and a copy of what is in it
    content: Tensor
    requires_grad: bool
    grad: Tensor | None
    grad_content: Tensor | None


class Snapshot:
    """``roots`` are what is run, ``arguments`` objects and tensors that it is given as they are."""

    def __init__(self, roots: Iterable[Any], arguments: Sequence[Any]) -> None:
        self._roots, self._arguments = tuple(roots), list(arguments)
        walk = Walk(self._roots, self._arguments)
        self._tensors = [_kept(found.tensor) for found in walk.tensors]
        self._memory = MemoryOf([kept.tensor for kept in self._tensors])
        self._holders = [(holder, _items(holder)) for holder, _ in walk.holders]
        self._generators = [(one, one.get_state()) for one in walk.generators]
        self._random = random_states()
        self._has_gradients = torch.is_grad_enabled()

    def knows(self, tensor: Tensor) -> bool:
        """Whether the callable leads to it."""
        return any(kept.tensor is tensor for kept in self._tensors)

    def tensors(self) -> dict[str, Tensor]:
        """What can be reached now, by name."""
        return {f"state {name_of(found.place.path) or i}": found.tensor
                for i, found in enumerate(Walk(self._roots, self._arguments).tensors)}

    def put_back(self) -> None:
        for holder, items in self._holders:
            _put_items(holder, items)
        self._memory.give_back()
        for kept in self._tensors:
            _put_tensor(kept)
        for generator, state in self._generators:
            generator.set_state(state)
        set_random_states(self._random)
        torch.set_grad_enabled(self._has_gradients)


def _kept(tensor: Tensor) -> _Kept:
    grad = tensor.grad if tensor.is_leaf else None
    return _Kept(tensor, tensor.data, tensor.data.clone(), tensor.requires_grad, grad,
                 None if grad is None else grad.data.clone())


def _put_tensor(kept: _Kept) -> None:
    tensor = kept.tensor
    _put_content(kept.data, kept.content)
    if tensor.is_leaf:
        if tensor.requires_grad != kept.requires_grad:
            tensor.requires_grad_(kept.requires_grad)
        if tensor.grad is not kept.grad:
            tensor.grad = kept.grad
        if kept.grad is not None and kept.grad_content is not None:
            _put_content(kept.grad.data, kept.grad_content)


def _put_content(data: Tensor, content: Tensor) -> None:
    """Memory that holds it already is left alone: it may be shared with others, or not writable."""
    if not torch.equal(data, content):
        data.copy_(content)


def _items(holder: Any) -> dict[Any, Any]:
    return dict(holder.items()) if hasattr(holder, "items") else dict(enumerate(holder))


def _put_items(holder: Any, before: dict[Any, Any]) -> None:
    now = _items(holder)
    if now.keys() == before.keys() and all(now[key] is before[key] for key in now):
        return
    if isinstance(holder, list):
        holder[:] = before.values()
        return
    for key in now.keys() - before.keys():
        del holder[key]
    for key, value in before.items():
        if key not in now or now[key] is not value:
            holder[key] = value


def random_states() -> tuple[Any, ...]:
    """torch's generators, Python's and numpy's."""
    numpy = sys.modules.get("numpy")
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return (torch.get_rng_state(), gpus, random.getstate(),
            numpy.random.get_state() if numpy else None)


def set_random_states(states: tuple[Any, ...]) -> None:
    host, gpus, pythons, numpys = states
    torch.set_rng_state(host)
    if gpus:
        torch.cuda.set_rng_state_all(gpus)
    random.setstate(pythons)
    if numpys is not None:
        sys.modules["numpy"].random.set_state(numpys)
