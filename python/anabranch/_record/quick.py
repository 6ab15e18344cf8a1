# SPDX-License-Identifier: Apache-2.0
"""What is done for hundreds of tensors at once: by a compiled module (bridge/call), or in Python
where there is none. ``checks`` has what else that module is for.

* ``modes_told()``: torch's ambient state in this thread, as a key; ``modes_are(told)``: whether it
  still is that; ``is_intercepted()``: whether it is one in which somebody sees each operator.
* ``let_go_of_gradients(owners, which)``: leaves those of the owners with the numbers ``which``, 8
  bytes each, without a gradient. ``set_gradients(owners, bases, rows)`` sets them: a row, as
  gradient_row() makes it, says whose gradient which base is, or a view of it. Both answer False
  where that is left to torch's Python; some may have been done then.
* ``increment_versions(tensors, which)``: torch's increment_version of the tensors with the numbers
  ``which``, 8 bytes each. False where that is left to torch; some may have been counted then.
* ``addresses(tensors, offsets, which)``: 8 bytes for each tensor, or each of those with the numbers
  ``which``: its address and what ``offsets`` add, which are 8 bytes each, or none at all.

Sequences are lists or tuples.

The compiled module reads a tensor's pointer where objects of Python's keep it. Where that is, is
found out from tensors that say it themselves, once a process, and compared with what torch answers.
So are torch's functions of C++ for gradients, versions and modes, which are found by their names.
A dictionary of Python 3.11 and 3.12 counts its changes, so that one that has none is not looked
through again; whether its counter is where these keep it is found out, too.

Threads: any. Failure: what addresses() raises is what Tensor.data_ptr() raises.
"""

from __future__ import annotations

import array
import functools
import gc
import importlib.machinery
import importlib.util
import itertools
import operator
import struct
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.library import library_path

_NAME, _FILE, _VERSION = "anabranch_call", "anabranch_call.abi3.so", 13
_address: Callable[[Tensor], int] = Tensor.data_ptr


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


def _can_set_gradients(module: Any) -> bool:
    """Whether what the compiled module leaves of gradients is what torch's Python would leave."""
    functions = map(_compat.library_function, (
        "mutable_gradient", "assign", "reinterpret", "delete_tensor"))
    base, plain = torch.arange(8., device="cpu"), torch.empty(2, 3, device="cpu")
    owner, other = torch.nn.Parameter(plain.clone()), torch.nn.Parameter(torch.empty_like(base))
    owner.grad = plain
    gone = weakref.ref(plain)
    del plain
    view = base[1:7].view(3, 2).t()
    rows = gradient_row(0, 0, ((2, 3), view.stride(), 1)) + gradient_row(1, 0, None)
    if module.learn_setters(*functions) and module.let_go_of_gradients([owner], bytes(8)) \
            and owner.grad is None and gone() is None \
            and module.set_gradients([owner, other], [base], rows) and other.grad is base \
            and owner.grad is not None and torch.equal(owner.grad, view) \
            and owner.grad.stride() == view.stride() and owner.grad.data_ptr() == view.data_ptr():
        return True
    module.learn_setters(0, 0, 0, 0)
    return False


def gradient_row(owner: int, base: int, view: View | None) -> bytes:
    """For set_gradients(), by their numbers. ``view``: None, where the gradient is the base."""
    shape, stride, begin = view or ((), (), 0)
    return struct.pack(f"{4 + 2 * len(shape)}q", owner, base, len(shape) if view else -1, begin,
                       *shape, *stride)


def _can_tell_modes(module: Any) -> bool:
    """After this it asks torch's C++ for the modes of which that says what torch's Python says, and
    Python for the others."""
    rows = _compat.modes_in_cpp()
    try:
        for trial in _compat.trials_of_modes():
            with trial():
                _learn_modes(module, rows, [], ())
                [told] = module.modes_told()
                rows = {i: rows[i] for i in _compat.are_told(rows, array.array("Q", told))}
        _learn_modes(module, rows, _compat.told_by_keys(rows), _compat.asked_modes(rows))
    except Exception:
        return False
    return True


def _learn_modes(module: Any, rows: Mapping[int, Sequence[int]], by_others: Collection[int],
                 asked: Sequence[tuple[Any, ...]]) -> None:
    """``by_others``: these rows need not be compared."""
    some = [row for i, row in rows.items() if i not in by_others]
    others = map(rows.__getitem__, by_others)
    words = array.array("Q", itertools.chain.from_iterable([*some, *others]))
    module.learn_modes(words.tobytes(), len(some), tuple(asked), _compat.SWITCHES,
                       *_compat.dispatch_keys())


_KEEPS_VERSIONS = ((3, 11), (3, 12))  # of Python


def _can_tell_versions(module: Any) -> bool:
    """Whether the compiled module finds another number in a dictionary behind each change of it,
    and the same one where there was none."""
    is_so = sys.implementation.name == "cpython" and sys.version_info[:2] in _KEEPS_VERSIONS \
        and all(map(functools.partial(_is_told, module.version_of), _changed_dicts()))
    module.learn_versions(is_so)
    return is_so


def _is_told(version_of: Callable[[Any], int], changed: tuple[dict[Any, Any], Any]) -> bool:
    one, change = changed
    before = version_of(one), version_of({}), version_of(dict(one))
    len(one), one.get("a"), list(one.items()), dict(one), one == {}
    is_same = version_of(one) == before[0]
    change(one)
    return is_same and len({*before, version_of(one)}) == 4


OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__")  # what they are made of


def _can_tell_functions(module: Any) -> bool:
    """Whether the compiled module has found out where functions keep what they are made of. What it
    has not found it asks Python for."""
    some: list[Any] = [lambda: 0, lambda a=1: a, lambda *, b=2: b, lambda a=3, *, b=4: a + b]
    is_known = module.learn_functions(some, OF_FUNCTIONS)
    for one, other in itertools.pairwise(some):
        for name in OF_FUNCTIONS:
            setattr(one, name, getattr(other, name))
    return bool(is_known and module.learn_functions(some, OF_FUNCTIONS))


def _can_watch(module: Any) -> bool:
    """Whether Python tells the compiled module each change of a dictionary."""
    is_so = sys.implementation.name == "cpython" and module.learn_watcher(True) \
        and all(map(functools.partial(_is_watched, module), _changed_dicts()))
    return bool(module.learn_watcher(is_so))


def _is_watched(module: Any, changed: tuple[dict[Any, Any], Any]) -> bool:
    one, change = changed
    if not module.watch(one):
        return False
    before = module.changes()
    len(one), one.get("a"), list(one.items()), dict(one), one == {}
    is_same = module.changes() == before
    change(one)
    return bool(is_same and module.changes() > before)


class _Thing:
    def __init__(self) -> None:
        self.a = self.b = None


_CHANGES: tuple[Callable[[dict[Any, Any]], Any], ...] = (
    dict.popitem, dict.clear, operator.methodcaller("pop", "a"),
    operator.methodcaller("setdefault", "c"), operator.methodcaller("update", a=0),
    operator.methodcaller("update", c=0), operator.methodcaller("__setitem__", "a", 0),
    operator.methodcaller("__delitem__", "b"), operator.methodcaller("__ior__", {"a": 0}))


def _changed_dicts() -> Iterator[tuple[dict[Any, Any], Callable[[dict[Any, Any]], Any]]]:
    """Dictionaries, and ways to change each: also the attributes of an object, by code of one's own
    that has run often enough for Python to go its shortest way."""
    for change in _CHANGES:
        yield {"a": None, "b": None}, change
        yield vars(_Thing()), change
    for begin in range(3):
        thing = _Thing()
        yield vars(thing), functools.partial(_set_often, thing, begin)


def _set_often(thing: Any, by: int, changed: dict[Any, Any]) -> None:
    for i in range(100):
        thing.a = by + i


def _modes_are(told: Any) -> bool:
    return bool(_compat.modes() == told)


# Sizes, strides, and the element to begin at.
View = tuple[Sequence[int], Sequence[int], int]


def dict_behind(shown: Any) -> Any:
    """The dictionary of a class by what shows it; else what it is given."""
    found = gc.get_referents(shown) if type(shown) is MappingProxyType else ()
    return found[0] if len(found) == 1 and type(found[0]) is dict else shown


def tell_gradients(parameters: Sequence[Tensor]) -> bytes:
    """Of each whether it requires a gradient (1), and whether it has none (2)."""
    return bytes([parameter.requires_grad + 2 * (parameter.grad is None)
                  for parameter in parameters])


def _increment_versions(tensors: Sequence[Tensor], which: bytes) -> bool:
    return False


def _let_go_of_gradients(owners: Sequence[Tensor], which: bytes) -> bool:
    return False


def _set_gradients(owners: Sequence[Tensor], bases: Sequence[Tensor], rows: bytes) -> bool:
    return False


def _addresses(tensors: Sequence[Tensor], offsets: bytes, which: bytes | None) -> bytes:
    at = map(_address, tensors if which is None
             else map(tensors.__getitem__, array.array("Q", which)))
    return array.array("Q", map(operator.add, at, array.array("Q", offsets)) if offsets
                       else at).tobytes()


module = _load(library_path.with_name(_FILE))
is_compiled: bool = module is not None
tells_addresses = is_compiled and _can_tell_addresses(module)  # and so calls launches
tells_autograd: bool = tells_addresses and _can_tell_autograd(module)
sets_gradients: bool = tells_autograd and _can_set_gradients(module)
tells_modes: bool = is_compiled and _can_tell_modes(module)
tells_versions: bool = is_compiled and _can_tell_versions(module)
tells_functions: bool = is_compiled and _can_tell_functions(module)
watches: bool = is_compiled and _can_watch(module)
modes_told: Callable[[], Any] = module.modes_told if tells_modes else _compat.modes
modes_are: Callable[[Any], bool] = module.modes_are if tells_modes else _modes_are
is_intercepted: Callable[[], bool] = \
    module.is_intercepted if tells_modes else _compat.is_intercepted
increment_versions: Callable[[Sequence[Tensor], bytes], bool] = \
    module.increment_versions if tells_addresses else _increment_versions
let_go_of_gradients: Callable[[Sequence[Tensor], bytes], bool] = \
    module.let_go_of_gradients if sets_gradients else _let_go_of_gradients
set_gradients: Callable[[Sequence[Tensor], Sequence[Tensor], bytes], bool] = \
    module.set_gradients if sets_gradients else _set_gradients
addresses: Callable[[Sequence[Tensor], bytes, bytes | None], bytes] = \
    module.addresses if tells_addresses else _addresses
