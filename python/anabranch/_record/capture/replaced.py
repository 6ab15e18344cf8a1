# SPDX-License-Identifier: Apache-2.0
"""Functions of torch that others stand in for while a step is captured.

Threads: one capture at a time. Failure: none.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_NOTHING = object()
StandIn = tuple[Any, str, Callable[..., Any]]  # in whose place, under which name


@contextlib.contextmanager
def replaced(stand_ins: Sequence[StandIn]) -> Iterator[None]:
    """Around the step."""
    before = [(owner, name, vars(owner).get(name, _NOTHING)) for owner, name, _ in stand_ins]
    try:
        for stand_in in stand_ins:
            setattr(*stand_in)
        yield
    finally:
        for owner, name, value in before:
            if value is _NOTHING:
                delattr(owner, name)  # it inherits it
            else:
                setattr(owner, name, value)


# Given data, type and device, which may be None: a tensor, or None where torch is to make it.
Make = Callable[[Any, Any, torch.device], Tensor | None]


def of_pythons_things(make: Make, opened: Callable[[Any], Any]) -> list[StandIn]:
    """For what makes tensors of numbers and lists, which no dispatch mode sees: torch.tensor and
    its like, and indices. ``opened(part)`` answers what is to stand in the place of a part of an
    index. This thread alone meets them."""
    return [(torch, "tensor", _maker(torch.tensor, make)),
            (torch, "as_tensor", _maker(torch.as_tensor, make)),
            (Tensor, "new_tensor", _maker(Tensor.new_tensor, make, is_method=True)),
            *((Tensor, name, _indexer(getattr(Tensor, name), opened))
              for name in ("__getitem__", "__setitem__"))]


def _maker(original: Callable[..., Tensor], make: Make,
           is_method: bool = False) -> Callable[..., Tensor]:
    mine = threading.get_ident()

    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> Tensor:
        given = dict(zip(("data", "dtype", "device"), args[is_method:], strict=False)) | kwargs
        found = None
        if threading.get_ident() == mine:
            found = make(given.get("data"),
                         given.get("dtype") or (args[0].dtype if is_method else None),
                         given.get("device") or (args[0].device if is_method
                                                 else torch.get_default_device()))
        if found is None:
            return original(*args, **kwargs)
        return found.requires_grad_() if given.get("requires_grad") else found

    return made


def _indexer(original: Callable[..., Any], opened: Callable[[Any], Any]) -> Callable[..., Any]:
    mine = threading.get_ident()

    @functools.wraps(original)
    def index(of: Tensor, index: Any, *value: Any) -> Any:
        if threading.get_ident() == mine:
            index = tuple(map(opened, index)) if type(index) is tuple else opened(index)
        return original(of, index, *value)

    return index
