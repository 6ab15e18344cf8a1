# SPDX-License-Identifier: Apache-2.0
"""What a call of a recorded step looks at before it is launched, for hundreds of tensors at once: a
compiled module (bridge/quick), or the same in Python where there is none.

* ``stand(holders, keys, things)``: whether the very same thing is still at each key of its holder,
  or in it, where that is a cell and the key the class of cells.
* ``holding(whole)``: what tells whether each dictionary has the very keys and values that come with
  it, in their order; where the keys are None, they may be any.
* ``standing(holders, keys, things)``: the same as ``stand``, as questions of functions that have
  been given what does not change. ABSENT is no thing: nothing is at the key of a dictionary.
* ``answers_are(functions, arguments, answers)``: whether each function, called with its tuple of
  arguments, answers what is equal to this.
* ``modes_told()``: torch's ambient state in this thread, as a key; ``modes_are(told)``: whether it
  still is that; ``is_intercepted()``: whether it is one in which somebody sees each operator.
* ``gradients_are(parameters, told)``: whether each parameter's byte still says whether it requires
  a gradient (1) and whether it has none (2).
* ``let_go_of_gradients(owners, which)``: leaves those of the owners with the numbers ``which``, 8
  bytes each, without a gradient. ``set_gradients(owners, bases, rows)`` sets them: a row, as
  gradient_row() makes it, says whose gradient which base is, or a view of it. Both answer False
  where that is left to torch's Python; some may have been done then.
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
* ``launch_if(functions, arguments, answers, launch, given, owners)``: where answers_are() these,
  lets go of the owners' gradients, allocates bases, calls call_launch() and increment_versions(),
  as ``launch`` says, a LaunchOf: without a function of Python's in between. What it answers is the
  bases, and whether versions have been incremented; a number where the function has returned that
  instead of 0, and -1 where it has not been called but gradients may be gone; else None.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CellType, MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch import _compat
from anabranch._core.library import library_path

_NAME, _FILE, _VERSION = "anabranch_quick", "anabranch_quick.abi3.so", 11
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
                _learn_modes(module, rows, ())
                [told] = module.modes_told()
                rows = {i: rows[i] for i in _compat.are_told(rows, array.array("Q", told))}
        _learn_modes(module, rows, _compat.asked_modes(rows))
    except Exception:
        return False
    return True


def _learn_modes(module: Any, rows: Mapping[int, Sequence[int]],
                 asked: Sequence[tuple[Any, ...]]) -> None:
    module.learn_modes(array.array("Q", _flat(rows.values())).tobytes(), tuple(asked),
                       _compat.SWITCHES, *_compat.dispatch_keys())


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


def _stand(holders: Sequence[Any], keys: Sequence[Any], things: Sequence[Any]) -> bool:
    try:
        return len(holders) == len(keys) == len(things) and all(
            map(operator.is_, map(_at, holders, keys), things))
    except Exception:
        return False


def _standing(holders: Sequence[Any], keys: Sequence[Any],
              things: Sequence[Any]) -> list[Question]:
    return [(stand, (tuple(holders), tuple(keys), tuple(things)), True)]


def _at(holder: Any, key: Any) -> Any:
    if type(holder) is dict:
        return holder.get(key, ABSENT)
    return holder.cell_contents if key is CellType else holder[key]


ABSENT = object()  # in place of what stands at a key of a dictionary


# Sizes, strides, and the element to begin at.
View = tuple[Sequence[int], Sequence[int], int]
# A function, its arguments, and what it answers as long as nothing changes: for answers_are().
Question = tuple[Callable[..., Any], tuple[Any, ...], Any]
# A dictionary, its keys or None, and its values.
Whole = tuple[dict[Any, Any], tuple[Any, ...] | None, tuple[Any, ...]]


_VALUES, _ITEMS, _LOOKUPS, _LISTED = range(4)


class _Standing:
    """What stands in dictionaries and lists, as the compiled module compares it."""

    def __init__(self) -> None:
        self._all, self._rows = array.array("Q"), array.array("Q")

    def add(self, holder: Any, kind: int, words: Sequence[int]) -> None:
        count = len(words) // (1 if kind == _VALUES else 2)
        is_versioned = type(holder) is dict
        self._all.extend((id(holder), 0, len(self._rows), 8 * count + 2 * kind + is_versioned))
        self._rows.extend(words)

    def question(self, owners: Any) -> Callable[[], bool]:
        """The owners are kept alive."""
        return functools.partial(_module.all_stand, bytearray(self._all), self._rows.tobytes(),
                                 owners)


def _holding_compiled(whole: Sequence[Whole]) -> Callable[[], bool]:
    made = _Standing()
    for one, keys, values in whole:
        if keys is None:
            made.add(one, _VALUES, list(map(id, values)))
        else:
            made.add(one, _ITEMS, list(map(id, _flat(zip(keys, values, strict=True)))))
    return made.question(whole)


def _standing_compiled(holders: Sequence[Any], keys: Sequence[Any],
                       things: Sequence[Any]) -> list[Question]:
    places = [(dict_behind(holder), key, thing)
              for holder, key, thing in zip(holders, keys, things, strict=True)]
    found: dict[int, tuple[Any, int, list[int]]] = {}  # by holder
    others = []
    for place in places:
        holder, key, thing = place
        if type(holder) is dict:
            found.setdefault(id(holder), (holder, _LOOKUPS, []))[-1].extend(
                (id(key), 0 if thing is ABSENT else id(thing)))
        elif type(holder) is list and type(key) is int and key >= 0:
            found.setdefault(id(holder), (holder, _LISTED, []))[-1].extend((key, id(thing)))
        else:
            others.append(place)
    made = _Standing()
    for one in found.values():
        made.add(*one)
    asked: list[Question] = [(made.question(places), (), True)] if found else []
    return [*asked, *(_standing(*zip(*others, strict=True)) if others else ())]


def dict_behind(holder: Any) -> Any:
    """The dictionary of a class, where it is asked for by what shows it; else the holder itself."""
    if type(holder) is MappingProxyType:
        shown = gc.get_referents(holder)
        if len(shown) == 1 and type(shown[0]) is dict:
            return shown[0]
    return holder


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


def _let_go_of_gradients(owners: Sequence[Tensor], which: bytes) -> bool:
    return False


def _set_gradients(owners: Sequence[Tensor], bases: Sequence[Tensor], rows: bytes) -> bool:
    return False


def _call_launch(*of_what: Any) -> int | None:
    return None


class LaunchOf(NamedTuple):
    """What launch_if() is told of a recording."""

    allocate: Callable[..., Tensor]
    layouts: tuple[Sequence[Any], ...]  # of the bases: with each ``allocate`` is called
    current_stream: Callable[[int], int]
    device: tuple[int]
    call: tuple[Any, ...]  # of call_launch(), with None for the stream, what is given, and bases
    mutated: bytes  # of increment_versions()
    let_go: bytes  # of let_go_of_gradients()

    def with_offsets(self, offsets: bytes) -> LaunchOf:
        """The same, which adds these to the addresses of what is given."""
        return self._replace(call=(*self.call[:5], offsets, *self.call[6:]))


def _launch_if(*of_what: Any) -> None:
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
sets_gradients: bool = tells_autograd and _can_set_gradients(_module)
tells_modes: bool = is_compiled and _can_tell_modes(_module)
modes_told: Callable[[], Any] = _module.modes_told if tells_modes else _compat.modes
modes_are: Callable[[Any], bool] = _module.modes_are if tells_modes else _modes_are
is_intercepted: Callable[[], bool] = \
    _module.is_intercepted if tells_modes else _compat.is_intercepted
tells_versions: bool = is_compiled and _can_tell_versions(_module)
stand: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], bool] = \
    _stand if _module is None else _module.stand
standing: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Question]] = \
    _standing if _module is None else _standing_compiled
holding: Callable[[Sequence[Whole]], Callable[[], bool]] = \
    _holding if _module is None else _holding_compiled
answers_are: Callable[[Sequence[Callable[..., Any]], Sequence[tuple[Any, ...]], Sequence[Any]],
                      bool] = _answers_are if _module is None else _module.answers_are
gradients_are: Callable[[Sequence[Tensor], bytes], bool] = \
    _gradients_are if _module is None else _module.gradients_are
increment_versions: Callable[[Sequence[Tensor], bytes], bool] = \
    _module.increment_versions if _is_calibrated else _increment_versions
let_go_of_gradients: Callable[[Sequence[Tensor], bytes], bool] = \
    _module.let_go_of_gradients if sets_gradients else _let_go_of_gradients
set_gradients: Callable[[Sequence[Tensor], Sequence[Tensor], bytes], bool] = \
    _module.set_gradients if sets_gradients else _set_gradients
calls_launches = _is_calibrated
call_launch: Callable[..., int | None] = \
    _module.call_launch if _is_calibrated else _call_launch
launch_if: Callable[..., tuple[list[Tensor], bool] | int | None] = \
    _module.launch_if if _is_calibrated else _launch_if
addresses: Callable[[Sequence[Tensor], bytes, bytes | None], bytes] = \
    _module.addresses if _is_calibrated else _addresses
