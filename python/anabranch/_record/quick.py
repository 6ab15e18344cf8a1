# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded step looks at before it is launched, for hundreds of tensors at once: a
compiled module (bridge/quick.cpp), or the same in Python where there is none.

* ``stand(holders, keys, things)``: whether the very same thing is still at each key of its holder,
  or in it, where that is a cell and the key the class of cells.
* ``holding(whole)``: what tells whether each dictionary has the very keys and values that come with
  it, in their order; where the keys are None, they may be any.
* ``answers_are(functions, arguments, answers)``: whether each function, called with its tuple of
  arguments, answers what is equal to this.
* ``modes_told()``: in which of torch's modes this thread is; ``modes_are(told)``: whether it still
  is in those.
* ``gradients_are(parameters, told)``: whether each parameter's byte still says whether it requires
  a gradient (1) and whether it has none (2).
* ``increment_versions(tensors, which)``: torch's increment_version of the tensors with the numbers
  ``which``, 8 bytes each. False where that is left to torch; some may have been counted then.
* ``addresses(tensors, offsets, which)``: 8 bytes for each tensor, or each of those with the numbers
  ``which``: its address and what ``offsets`` add, which are 8 bytes each, or none at all.
* ``call_launch(function, recording, stream, swaps, given, offsets, which, bases, base_offsets,
  which_bases, sizes, allocate, free, words, before)``: calls the core's captured_launch, or one
  like it at the address ``function``, with what addresses() answers for the given and for the
  bases, with memory of these sizes (8 bytes each) by the functions of torch's byte_allocator(),
  freed when it has returned, and with the words. Right before that it calls ``before``, unless that
  is None. What the function returns; None where neither has been called, which is left to the
  caller: ``swaps.count`` is odd, an address is not told here, or there is no memory.

Sequences are lists or tuples.

The compiled module reads a tensor's pointer where objects of Python's keep it. Where that is, is
found out from tensors that say it themselves, once a process, and compared with what torch answers.
So are torch's functions of C++ for gradients, versions and modes, which are found by their names.

Threads: any. Failure: what addresses() raises is what Tensor.data_ptr() raises.
"""

from __future__ import annotations

import array
import contextlib
import functools
import importlib.machinery
import importlib.util
import itertools
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CellType
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.library import library_path

_NAME, _FILE, _VERSION = "anabranch_quick", "anabranch_quick.abi3.so", 7
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
            (Tensor.__mro__[1], Tensor, torch.nn.Parameter), some,
            [tensor._cdata for tensor in some], function, _addresses):
        return False
    told = array.array("Q", map(_address, some)).tobytes()
    return bool(module.addresses(some, b"", None) == told)


def _can_tell_autograd(module: Any) -> bool:
    """The same of gradients and versions, once it can tell addresses."""
    functions = tuple(map(_compat.library_function, (
        "requires_gradient", "gradient", "increment_version")))
    plain = torch.empty(3, device="cpu")
    owner, gradient = torch.nn.Parameter(plain.clone()), plain.clone()
    owner.grad = gradient
    some = [owner, torch.nn.Parameter(plain.clone()), plain, torch.nn.Parameter(plain, False)]
    before = plain._version
    if module.learn_autograd(functions, owner, gradient, plain) \
            and all(module.gradients_are(some, bytes(told)) == (tuple(told) == (1, 3, 2, 2))
                    for told in itertools.product(range(4), repeat=4)) \
            and module.increment_versions([plain], bytes(8)) and plain._version == before + 1:
        return True
    module.learn_autograd((0, 0, 0), owner, gradient, plain)
    return False


def _can_tell_modes(module: Any) -> bool:
    """Whether torch's C++ says of this thread's modes what its Python says."""
    with contextlib.suppress(Exception):  # an answer of Python's that has no number here, say
        module.learn_modes(array.array("Q", _compat.modes_in_cpp()).tobytes())
        told = module.modes_told()
        if told is not None and array.array("H", told).tolist() == _compat.numbers_of_modes():
            return True
    module.learn_modes(b"")
    return False


def _modes_are(told: Any) -> bool:
    return bool(_compat.modes() == told)


def _stand(holders: Sequence[Any], keys: Sequence[Any], things: Sequence[Any]) -> bool:
    try:
        return len(holders) == len(keys) == len(things) and all(
            map(operator.is_, map(_at, holders, keys), things))
    except Exception:
        return False


def _at(holder: Any, key: Any) -> Any:
    return holder.cell_contents if key is CellType else holder[key]


# A function, its arguments, and what it answers as long as nothing changes: for answers_are().
Question = tuple[Callable[..., Any], tuple[Any, ...], Any]
# A dictionary, its keys or None, and its values.
Whole = tuple[dict[Any, Any], tuple[Any, ...] | None, tuple[Any, ...]]


def _holding_compiled(whole: Sequence[Whole]) -> Callable[[], bool]:
    rows = array.array("Q")
    for one, keys, values in whole:
        items = values if keys is None else _flat(zip(keys, values, strict=True))
        rows.extend((id(one), keys is not None, len(values), *map(id, items)))
    return functools.partial(_module.items_stand, rows.tobytes(), whole)


def _holding(whole: Sequence[Whole]) -> Callable[[], bool]:
    dicts, values = [one for one, _, _ in whole], [values for _, _, values in whole]
    named = [(one, keys) for one, keys, _ in whole if keys is not None]
    sizes = list(map(len, values))

    def stand() -> bool:
        try:
            return list(map(len, dicts)) == sizes \
                and all(map(operator.is_, _flat(map(dict.values, dicts)), _flat(values))) \
                and all(all(map(operator.is_, one, keys)) for one, keys in named)
        except Exception:
            return False

    return stand


def _answers_are(functions: Sequence[Callable[..., Any]], arguments: Sequence[tuple[Any, ...]],
                 answers: Sequence[Any]) -> bool:
    try:
        return len(functions) == len(arguments) == len(answers) and all(map(
            operator.eq, itertools.starmap(_called, zip(functions, arguments, strict=True)),
            answers))
    except Exception:
        return False


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def tell_gradients(parameters: Sequence[Tensor]) -> bytes:
    """What gradients_are() compares."""
    return bytes([parameter.requires_grad + 2 * (parameter.grad is None)
                  for parameter in parameters])


def _gradients_are(parameters: Sequence[Tensor], told: bytes) -> bool:
    return tell_gradients(parameters) == told


def _increment_versions(tensors: Sequence[Tensor], which: bytes) -> bool:
    return False


def _call_launch(*of_what: Any) -> int | None:
    return None


def _addresses(tensors: Sequence[Tensor], offsets: bytes, which: bytes | None) -> bytes:
    at = map(_address, tensors if which is None
             else map(tensors.__getitem__, array.array("Q", which)))
    return array.array("Q", map(operator.add, at, array.array("Q", offsets)) if offsets
                       else at).tobytes()


_module = _load(library_path.with_name(_FILE))
is_compiled: bool = _module is not None
_is_calibrated = is_compiled and _can_tell_addresses(_module)
tells_autograd: bool = _is_calibrated and _can_tell_autograd(_module)
tells_modes: bool = is_compiled and _can_tell_modes(_module)
modes_told: Callable[[], Any] = _module.modes_told if tells_modes else _compat.modes
modes_are: Callable[[Any], bool] = _module.modes_are if tells_modes else _modes_are
stand: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], bool] = \
    _stand if _module is None else _module.stand
holding: Callable[[Sequence[Whole]], Callable[[], bool]] = \
    _holding if _module is None else _holding_compiled
answers_are: Callable[[Sequence[Callable[..., Any]], Sequence[tuple[Any, ...]], Sequence[Any]],
                      bool] = _answers_are if _module is None else _module.answers_are
gradients_are: Callable[[Sequence[Tensor], bytes], bool] = \
    _gradients_are if _module is None else _module.gradients_are
increment_versions: Callable[[Sequence[Tensor], bytes], bool] = \
    _module.increment_versions if _is_calibrated else _increment_versions
calls_launches = _is_calibrated
call_launch: Callable[..., int | None] = \
    _module.call_launch if _is_calibrated else _call_launch
addresses: Callable[[Sequence[Tensor], bytes, bytes | None], bytes] = \
    _module.addresses if _is_calibrated else _addresses
