# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded step looks at before it is launched, for hundreds of tensors at once: a
compiled module (bridge/quick.cpp), or the same in Python where there is none.

``stand(holders, keys, things)``: whether the very same thing is still at each key of its holder.
``values_stand(dicts, values)``: whether each dictionary has these very values, in their order.
``gradients_are(parameters, told)``: whether each parameter's byte still says whether it requires a
gradient (1) and whether it has none (2). ``addresses(tensors, offsets, which)``: 8 bytes for each
tensor, or each of those with the numbers ``which``, which are 8 bytes each: its address and what
``offsets`` add, which are 8 bytes each, or none at all. Sequences are lists or tuples.

The compiled module reads a tensor's pointer where objects of Python's keep it. Where that is, is
found out from tensors that say it themselves, once a process, and compared with what torch answers.

Threads: any. Failure: what addresses() raises is what Tensor.data_ptr() raises.
"""

from __future__ import annotations

import array
import importlib.machinery
import importlib.util
import itertools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.library import library_path

_NAME, _FILE, _VERSION = "anabranch_quick", "anabranch_quick.abi3.so", 3
_address: Callable[[Tensor], int] = Tensor.data_ptr
_flat = itertools.chain.from_iterable


def _load(path: Path) -> Any:
    """The compiled module; None where there is none for this interpreter, or of another version."""
    if not path.is_file():
        return None
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    try:
        assert spec is not None
        made = importlib.util.module_from_spec(spec)
        loader.exec_module(made)
    except ImportError:
        return None
    return made if made.version == _VERSION else None


class _Class(Tensor):
    """One of a user's."""


def _can_tell_addresses(module: Any) -> bool:
    """Whether the compiled module has found out where tensors are, and says what torch says."""
    function = _compat.library_function("data_pointer")
    plain = torch.empty(3, device="cpu")
    some = [plain, plain[1:], plain.detach().requires_grad_(), torch.nn.Parameter(plain),
            plain.as_subclass(_Class)]
    if not function or not module.calibrate(
            Tensor.__mro__[1], torch.nn.Parameter, some, [tensor._cdata for tensor in some],
            function, _addresses):
        return False
    told = array.array("Q", map(_address, some)).tobytes()
    return bool(module.addresses(some, b"", None) == told)


def _stand(holders: Sequence[Any], keys: Sequence[Any], things: Sequence[Any]) -> bool:
    try:
        return len(holders) == len(keys) == len(things) and all(
            map(operator.is_, map(operator.getitem, holders, keys), things))
    except Exception:
        return False


def _values_stand(dicts: Sequence[dict[Any, Any]], values: Sequence[tuple[Any, ...]]) -> bool:
    try:
        return list(map(len, dicts)) == list(map(len, values)) and all(map(
            operator.is_, _flat(map(dict.values, dicts)), _flat(values)))
    except Exception:
        return False


def tell_gradients(parameters: Sequence[Tensor]) -> bytes:
    """What gradients_are() compares."""
    return bytes([parameter.requires_grad + 2 * (parameter.grad is None)
                  for parameter in parameters])


def _gradients_are(parameters: Sequence[Tensor], told: bytes) -> bool:
    return tell_gradients(parameters) == told


def _addresses(tensors: Sequence[Tensor], offsets: bytes, which: bytes | None) -> bytes:
    at = map(_address, tensors if which is None
             else map(tensors.__getitem__, array.array("Q", which)))
    return array.array("Q", map(operator.add, at, array.array("Q", offsets)) if offsets
                       else at).tobytes()


_module = _load(library_path.with_name(_FILE))
is_compiled: bool = _module is not None
stand: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], bool] = \
    _stand if _module is None else _module.stand
values_stand: Callable[[Sequence[dict[Any, Any]], Sequence[tuple[Any, ...]]], bool] = \
    _values_stand if _module is None else _module.values_stand
gradients_are: Callable[[Sequence[Tensor], bytes], bool] = \
    _gradients_are if _module is None else _module.gradients_are
addresses: Callable[[Sequence[Tensor], bytes, bytes | None], bytes] = \
    _module.addresses if _module is not None and _can_tell_addresses(_module) else _addresses
