# SPDX-License-Identifier: Apache-2.0
"""What a call looks at before it is launched, as data, and what evaluates it: a compiled module
(bridge/call), or some lines of Python where there is none.

A check has a holder, a place in it, a kind, and what is expected there. The holder may be what an
earlier check has found: that is in a *register*. Registers 0 to 2 are a call's arguments, its
keywords, and what the user's guard answered.

A CallPlan is made of checks and of what it launches with, a Launched. ``call(plans, args, kwargs,
guarded)`` answers what the first plan answers whose checks hold, or MISSED; that plan comes first
in the list then. ``plan.holds()`` tells whether all checks hold, and ``plan.missed()`` names the
one that did not last.

Threads: any, several calls at once. Failure: a check in which something is raised does not hold;
what is no Exception passes through.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from anabranch._record import quick


class At(enum.IntEnum):
    """Where something stands: it is the holder itself, an item of it, what is in it as a cell, its
    attributes as a dictionary, or its attribute of the class's own making, by slot."""

    ITSELF = 0
    ITEM = 1
    CELL = 2
    VARS = 3
    ATTRIBUTE = 4


class Kind(enum.IntEnum):
    """What is to be so of what stands there."""

    IS = 0  # the very object that is expected
    EQUALS = 1  # that, or a plain value of its type that is equal
    TYPE = 2  # of exactly this type; found is put into ``to``
    LENGTH = 3  # so many items
    KEYS = 4  # a dictionary of these keys, a tuple, in this order
    VALUES = 5  # one of these very values
    # What is in the register ``to``, or what this function says is like that, and no register has.
    LIKE = 6
    ANY = 7  # whatever it is, found is put into ``to``
    FLOAT = 8  # a float: number ``to`` of the call
    ANSWERS = 9  # a function that, called with the key, answers what is equal to this
    ALIKE = 10  # a function that says so of what is in the registers of the key, 8 bytes each
    # What is in the registers of the key are tensors, whose bytes say whether each requires a
    # gradient (1), and whether it has none (2).
    GRADIENTS = 11
    MODES = 12  # torch is in these modes, as quick.modes_told() tells them
    ABSENT = 13  # nothing: an item that a dictionary does not have


class Check(NamedTuple):
    kind: Kind
    at: At
    holder: Any
    key: Any
    expected: Any
    register: int = -1  # of the holder; -1: it is the holder
    to: int = -1
    name: str = ""  # for people


class Launched(NamedTuple):
    """What a plan does when its checks hold.

    ``kept`` has what stood in each register when it was made, None where each call finds it;
    ``given`` and ``owners`` are registers, 8 bytes each, of the tensors that a launch is given, and
    of those whose gradients it sets. ``words_of(numbers)`` answers words for kernels, of doubles in
    bytes, and None where there are none; None: there are no numbers. ``otherwise(code, args,
    kwargs, given, owners, words)`` launches where ``direct`` is None, or could not: with that code,
    or 0. It may answer MISSED. ``calls``: 8 bytes that count.
    """

    kept: Sequence[Any]
    given: bytes = b""
    owners: bytes = b""
    numbers: int = 0
    words_of: Callable[[bytes], Sequence[int] | None] | None = None
    otherwise: Callable[..., Any] | None = None
    calls: bytearray | None = None
    direct: Direct | None = None


class Direct(NamedTuple):
    """How a plan launches without a function of Python's in between, as long as the checks of
    ``when`` hold: it lets go of the owners' gradients that ``let_go`` numbers, allocates a base for
    each layout, queues the launch, increments the versions of what ``mutated`` numbers, and sets
    gradients by ``rows``. The answer is base number ``answer``; where that is -1, or something is
    left to do, it is what ``finish(given, owners, bases, are_counted, are_set)`` answers."""

    when: Any
    launch: Any
    allocate: Callable[..., Tensor]
    layouts: tuple[tuple[Any, ...], ...]
    current_stream: Callable[[int], int]
    device: tuple[int]
    before: Callable[[], Any] | None
    finish: Callable[..., Any]
    offsets: bytes = b""
    mutated: bytes = b""
    let_go: bytes = b""
    rows: bytes = b""
    answer: int = -1


ARGUMENTS, KEYWORDS, GUARDED, FIRST_FREE = range(4)  # registers


def item(holder: Any, key: Any, kind: Kind, expected: Any = None, *, to: int = -1,
         name: str = "") -> Check:
    """Of an item; of what shows the attributes of a class those themselves."""
    return Check(kind, At.ITEM, quick.dict_behind(holder), key, expected, -1, to, name or str(key))


def answers(function: Callable[..., Any], arguments: tuple[Any, ...], expected: Any,
            name: str) -> Check:
    return Check(Kind.ANSWERS, At.ITSELF, function, arguments, expected, name=name)


def modes(told: Any) -> Check:
    if quick.tells_modes:
        return Check(Kind.MODES, At.ITSELF, None, None, told, name="torch's modes")
    return answers(quick.modes_told, (), told, "torch's modes")


class PlanInPython:
    """A CallPlan without the compiled module. It launches nothing directly."""

    def __init__(self, checks: Iterable[Check], of: Launched) -> None:
        self._checks, self._of = list(checks), of
        self._kept = list(of.kept)  # replaced as a whole, since threads may look at once
        self._given, self._owners = registers_in(of.given), registers_in(of.owners)
        self._missed: str | None = None

    def call(self, args: Any, kwargs: Any, guarded: Any) -> Any:
        of, found, numbers = self._of, [*self._kept], [0.0] * self._of.numbers
        found[:FIRST_FREE] = args, kwargs, guarded
        if not self._hold(found, numbers):
            return MISSED
        words: Sequence[int] | None = ()
        if of.words_of is not None:
            try:
                words = of.words_of(struct.pack(f"{len(numbers)}d", *numbers))
            except Exception:
                words = None
        if words is None or of.otherwise is None:
            return MISSED
        answer = of.otherwise(0, args, kwargs, [found[i] for i in self._given],
                              [found[i] for i in self._owners], words)
        if answer is not MISSED and of.calls is not None:
            of.calls[:] = (int.from_bytes(of.calls, "little") + 1).to_bytes(8, "little")
        return answer

    def holds(self) -> bool:
        return self._hold([*self._kept], [0.0] * self._of.numbers)

    def missed(self) -> str | None:
        return self._missed

    def _hold(self, found: list[Any], numbers: list[float]) -> bool:
        for check in self._checks:
            try:
                is_so = self._is_so(check, found, numbers)
            except Exception:
                is_so = False
            if not is_so:
                self._missed = check.name
                return False
        if any(found[i] is not thing for i, thing in enumerate(self._kept) if thing is not None):
            self._kept = [thing if kept is not None else None
                          for kept, thing in zip(self._kept, found, strict=True)]
        return True

    def _is_so(self, check: Check, found: list[Any], numbers: list[float]) -> bool:
        kind, expected = check.kind, check.expected
        if kind is Kind.GRADIENTS:
            told = quick.tell_gradients([found[i] for i in registers_in(check.key)])
            return told == bytes(expected)
        if kind is Kind.ALIKE:
            return bool(check.holder(*[found[i] for i in registers_in(check.key)]) is True)
        if kind is Kind.MODES:
            return bool(quick.modes_are(expected))
        if kind is Kind.ABSENT:
            return check.key not in check.holder
        thing = _at(check, found)
        if kind is Kind.LIKE:
            return self._stands_alike(check, thing, found)
        if kind is Kind.FLOAT and type(thing) is float:
            numbers[check.to] = thing
            return True
        if kind in (Kind.TYPE, Kind.ANY) and check.to >= 0:
            found[check.to] = thing
        return _HOLDS[kind](thing, check)

    def _stands_alike(self, check: Check, thing: Any, found: list[Any]) -> bool:
        if thing is found[check.to]:
            return True
        if found[check.to] is not self._kept[check.to]:  # another place has told of another one
            return False
        if check.expected(thing) is not True or not is_of_such_a_graph(thing, found[check.to]) \
                or any(thing is another for another in found):
            return False
        found[check.to] = thing
        return all(_at(other, found) is thing for other in self._checks
                   if other.kind is Kind.LIKE and other.to == check.to)


def _at(check: Check, found: Sequence[Any]) -> Any:
    holder = check.holder if check.register < 0 else found[check.register]
    if check.at is At.ITEM:
        return holder[check.key]
    if check.at is At.CELL:
        return holder.cell_contents
    if check.at is At.VARS:
        return object.__getattribute__(holder, "__dict__")
    if check.at is At.ATTRIBUTE:
        return object.__getattribute__(holder, check.key)
    return holder


def is_of_such_a_graph(one: Tensor, other: Tensor) -> bool:
    """As to autograd."""
    return one.requires_grad == other.requires_grad and one.is_leaf == other.is_leaf


def are_equal(one: Any, other: Any) -> bool:
    """Of plain values: 1 is not True, and (1,) is not (1.0,)."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return bool(one == other)


_HOLDS: dict[Kind, Callable[[Any, Check], bool]] = {
    Kind.IS: lambda thing, check: thing is check.expected,
    Kind.EQUALS: lambda thing, check: are_equal(thing, check.expected),
    Kind.TYPE: lambda thing, check: type(thing) is check.expected,
    Kind.LENGTH: lambda thing, check: len(thing) == check.expected,
    Kind.KEYS: lambda thing, check: isinstance(thing, dict) and are_equal(
        tuple(dict.keys(thing)), check.expected),
    Kind.VALUES: lambda thing, check: isinstance(thing, dict) and len(thing) == len(
        check.expected) and all(a is b for a, b in zip(dict.values(thing), check.expected,
                                                       strict=True)),
    Kind.ANY: lambda thing, check: True,
    Kind.FLOAT: lambda thing, check: False,
    Kind.ANSWERS: lambda thing, check: bool(thing(*check.key) == check.expected)}


def packed(numbers: Iterable[int]) -> bytes:
    """8 bytes each."""
    some = list(numbers)
    return struct.pack(f"{len(some)}Q", *some)


def registers_in(some: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(some) // 8}Q", some)


def _call_in_python(plans: list[Any], args: Any, kwargs: Any, guarded: Any) -> Any:
    for i, plan in enumerate(list(plans)):
        answer = plan.call(args, kwargs, guarded)
        if answer is not MISSED:
            if i and plan in plans:
                plans.remove(plan)
                plans.insert(0, plan)
            return answer
    return MISSED


is_compiled = quick.is_compiled
MISSED: Any = quick.module.MISSED if is_compiled else object()  # in place of an answer
CallPlan: Any = quick.module.CallPlan if is_compiled else PlanInPython
call: Callable[[list[Any], Any, Any, Any], Any] = \
    quick.module.call if is_compiled else _call_in_python


def holding(checks: Iterable[Check]) -> Any:
    """A plan that launches nothing: it holds() or not."""
    return CallPlan(list(checks), Launched([None] * FIRST_FREE))
