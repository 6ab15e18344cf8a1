# SPDX-License-Identifier: Apache-2.0
"""Random programs over streams, as Python text: over named ones (Writer), and over torch's, with
the syncs that they need and perhaps less some (SyncWriter).

A program is a function of four square matrices, of which the last two may be overwritten. Numbers
are small integers, so that every order of additions gives the same. Programs compute, overwrite,
take views, change streams in nested contexts, and answer views, inputs and results alike; over
torch's streams they also record events anew, wait in several forms, and let tensors go.
"""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import os
import random
from collections.abc import Callable
from typing import Any

import torch

import anabranch

STEPS = 14
INPUTS = 4  # the last two may be overwritten
START = 0  # the number of whatever the caller did
FIRST_SEED = int(os.environ.get("ANABRANCH_FIRST_SEED", "0"))  # others than the suite's are others
SEEDS = int(os.environ.get("ANABRANCH_SEEDS", "30"))  # of each kind of program; make test-long has more


def seed_parts(count: int, at_a_time: int) -> list[range]:
    """Of the programs that tests are to take, in parts."""
    return [range(first, first + at_a_time)
            for first in range(FIRST_SEED, FIRST_SEED + count, at_a_time)]


@dataclasses.dataclass(frozen=True)
class Op:
    """One line of a program. Names stand for tensors."""

    line: str
    reads: tuple[str, ...]
    overwrites: str | None = None
    makes: str | None = None
    is_view: bool = False  # what it makes is memory of what it reads
    is_copy: bool = False  # it copies all of what it reads, and does nothing else
    copied: str | None = None  # what it copies first, all of it


class Writer:
    """Over named streams, of which any order of waits is right."""

    streams = ("a", "b", "c")

    def __init__(self, seed: int, size: int = 4) -> None:
        self.random = random.Random(seed)
        self.size = size
        self.names = [f"x{i}" for i in range(INPUTS)]
        self._count = INPUTS
        self._mutable = {f"x{i}" for i in range(INPUTS // 2, INPUTS)}
        self._lines: list[str] = []
        self._depth = 1

    def text(self) -> str:
        self.begin()
        for _ in range(STEPS):
            self._change_stream()
            op = self.random.choice([self._compute, self._compute, self._overwrite,
                                     self._name_again])()
            self.before(op)
            self.say(op.line)
            self.behind(op)
        self._depth = 1
        self.end()
        answers = self.random.sample(self.names, 4)
        self.say(f"return {', '.join(answers)}, {self.names[-1]}")
        return "\n".join(self._lines) + "\n"

    # What kinds of streams do differently.

    def begin(self) -> None:
        self._lines.append(f"def program({', '.join(self.names)}):")

    def enter(self, stream: str) -> str:
        return f"with anabranch.stream({stream!r}):"

    def leave(self) -> None:
        """A context has ended."""

    def before(self, op: Op) -> None:
        """Whatever is to stand before its line."""

    def behind(self, op: Op) -> None:
        """And behind it."""

    def end(self) -> None:
        """Before the answer."""

    # Lines.

    def say(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _change_stream(self) -> None:
        if self._depth > 1 and self.random.random() < 0.3:
            self._depth -= 1
            self.leave()
        if self._depth < 4 and self.random.random() < 0.4:
            self.say(self.enter(self.random.choice(self.streams)))
            self._depth += 1

    def _pick(self) -> str:
        recent = self.names[-6:] if self.random.random() < 0.7 else self.names
        return self.random.choice(recent)

    def _new(self) -> str:
        name = f"t{self._count}"
        self._count += 1
        self.names.append(name)
        return name

    def _compute(self) -> Op:
        a, b, half = self._pick(), self._pick(), self.size // 2
        value = self.random.choice([
            f"torch.remainder({a} @ {b}, 5)", f"torch.remainder({a} @ {b}, 5)",
            f"torch.relu({a}) - {b}", f"torch.remainder({a} * {b} + 1, 7)",
            f"torch.cat([{a}[:{half}], {b}[{half}:]])",
            f"torch.remainder({a}.sum(0, keepdim=True), 9) + {b}", f"{a}.clone()", f"{a}.flip(0)",
            f"torch.where({a} > {b}, {a}, {b}.t())"])
        name = self._new()
        self._mutable.add(name)
        is_copy = value == f"{a}.clone()"
        reads = (a,) if is_copy else (a, b)
        return Op(f"{name} = {value}", reads, makes=name, is_copy=is_copy,
                  copied=a if is_copy else None)

    def _overwrite(self) -> Op:
        target = self.random.choice([name for name in self.names if name in self._mutable])
        value = self._pick()
        line, copied = self.random.choice([
            (f"{target}.add_({value}.clone())", value),
            (f"{target}.copy_({value}.clone())", value),
            (f"{target}[1:3].add_({value}[:2].clone())", None),
            (f"{target}.t()[0].mul_(2)", None), (f"{target}.remainder_(5)", None)])
        return Op(line, (target, value), overwrites=target, copied=copied)

    def _name_again(self) -> Op:
        """A view: as large, of the same memory."""
        of = self._pick()
        name = self._new()
        if of in self._mutable:
            self._mutable.add(name)
        view = self.random.choice([f"{of}.t()", f"{of}.view({self.size}, {self.size})", f"{of}[:]"])
        return Op(f"{name} = {view}", (of,), makes=name, is_view=True)


# ---- over torch's streams


@dataclasses.dataclass(frozen=True)
class Use:
    """What a line does with one memory."""

    number: int  # of the line
    stream: str
    writes: bool
    is_first: bool = False  # it gives the memory its first value
    is_copy: bool = False  # it copies all of it, to there or from there

    def conflicts(self, other: Use) -> bool:
        return self.writes or other.writes


@dataclasses.dataclass(frozen=True)
class Race:
    """Two uses of one memory that nothing orders."""

    first: Use
    second: Use

    @property
    def is_flow(self) -> bool:
        """The order of the text is the only one that has a meaning."""
        return self.first.number == START or (self.first.is_first and not self.second.writes)

    @property
    def is_certain(self) -> bool:
        """Two copies meet, so that a recording tells it from the captured graph alone."""
        return self.first.is_copy and self.second.is_copy


class Order:
    """Which lines come before what a stream does next, by its syncs."""

    def __init__(self) -> None:
        self.before = {"D": {START}}
        self.covered: dict[str, set[int]] = {}  # by an event

    def wait_stream(self, stream: str, other: str) -> None:
        self.before.setdefault(stream, set()).update(self.before[other])

    def record(self, event: str, stream: str) -> None:
        self.covered[event] = set(self.before[stream])

    def wait_event(self, stream: str, event: str) -> None:
        self.before.setdefault(stream, set()).update(self.covered[event])


class SyncWriter(Writer):
    """Over torch's streams A, B, C and the current one, D.

    Every two lines of which one writes what the other uses are ordered by a sync, unless that is
    left out: each wait is with the probability ``less``; ``races`` are then what lacks an order.
    Streams are forked at the beginning and joined in any case, and nothing is let go.
    ``lacks`` names what torch cannot do here, as a Place has it; ``slow`` adds calls of slow().
    """

    streams = ("A", "B", "C", "D")
    events = ("E", "F")

    def __init__(self, seed: int, size: int = 4, *, less: float = 0.0,
                 lacks: frozenset[str] = frozenset(), slow: bool = False) -> None:
        super().__init__(seed, size)
        self.races: list[Race] = []
        # The last input is the one before it. torch compiles no such code with gradients.
        self.is_aliased = self.random.random() < 0.3 and not takes_gradients(seed)
        self._left_out = random.Random(seed + 1)
        self._less = less
        self._lacks = lacks
        self._slow = slow
        self._orders = self._meant, self._actual = Order(), Order()
        self._stack = ["D"]
        self._memory = {name: name for name in self.names}  # by name
        if self.is_aliased:
            self._memory["x3"] = "x2"
        self._home = dict.fromkeys(self.names, "D")  # streams that memory is allocated on
        self._uses = {name: [Use(START, "D", writes=True)] for name in self.names}
        self._number = START

    def begin(self) -> None:
        more = [*self.streams[:-1], *self.events, "current", "cuda"] + ["slow"] * self._slow
        self._lines.append(f"def program({', '.join(self.names + more)}):")
        self.say("D = current()")
        if self._less:
            for stream in self.streams[:-1]:
                self._wait_stream(stream, "D", always=True)

    def enter(self, stream: str) -> str:
        # Dynamo cannot enter one object again before it has left it.
        forms = ["cuda.stream({})"] if stream in self._stack else ["{}", "cuda.stream({})"]
        self._stack.append(stream)
        return f"with {self.random.choice(forms).format(stream)}:"

    def leave(self) -> None:
        self._stack.pop()

    def before(self, op: Op) -> None:
        self._number += 1
        if op.makes is not None:
            memory = self._memory[op.reads[0]] if op.is_view else op.makes
            self._memory[op.makes] = memory
            self._home.setdefault(memory, self._stack[-1])
        if op.is_view:
            return
        if self.random.random() < 0.15 and self._slow:
            self.say("slow()")
        uses = self._uses_of(op)
        for memory, use in uses.items():
            self._order(memory, use)
        for memory, use in uses.items():
            self._uses.setdefault(memory, []).append(use)
        for order in self._orders:
            order.before[self._stack[-1]].add(self._number)

    def behind(self, op: Op) -> None:
        if self.random.random() < 0.3:
            self._record(self.random.choice(self.events),
                         self.random.choice([*self._meant.before]))
        if self.random.random() < 0.3 and len(self.names) > 7 and not self._less:
            self._let_go(self.random.choice(self.names[INPUTS:-1]))

    def end(self) -> None:
        self._stack = ["D"]
        for stream in [name for name in self._meant.before if name != "D"]:
            self._join(stream)

    def _uses_of(self, op: Op) -> dict[str, Use]:
        """By memory."""
        stream = self._stack[-1]
        copied = self._memory[op.copied] if op.copied else None
        uses = {memory: Use(self._number, stream, False, is_copy=memory == copied)
                for memory in (self._memory[name] for name in op.reads)}
        if op.makes:
            uses[op.makes] = Use(self._number, stream, True, is_first=True, is_copy=op.is_copy)
        if op.overwrites:
            uses[self._memory[op.overwrites]] = Use(self._number, stream, True)
        return uses

    def _order(self, memory: str, use: Use) -> None:
        """Behind all that conflicts."""
        earlier = [other for other in self._uses.get(memory, ()) if other.conflicts(use)]
        for other in earlier:
            if other.number not in self._meant.before.get(use.stream, ()):
                self._sync(use.stream, other.stream, other.number)
        self.races += [Race(other, use) for other in earlier
                       if other.number not in self._actual.before[use.stream]]

    def _sync(self, stream: str, other: str, number: int) -> None:
        """Has a stream wait for a line of another."""
        covering = [event for event in self.events if number in self._meant.covered.get(event, ())]
        between = [each for each in self._meant.before if each not in (stream, other)]
        form = self.random.choice(["stream", "new event", "event", "between"])
        if form == "event" and covering:
            self._wait_event(stream, self.random.choice(covering))
        elif form == "between" and between:
            middle = self.random.choice(between)
            self._wait_stream(middle, other)
            self._wait_stream(stream, middle)
        elif form == "new event":
            event = self.random.choice(self.events)
            self._record(event, other)
            self._wait_event(stream, event)
        else:
            self._wait_stream(stream, other)

    def _join(self, stream: str) -> None:
        if self.random.random() < 0.5:
            self._wait_stream("D", stream, always=True)
        else:
            self._record("E", stream)
            self._wait_event("D", "E", always=True)

    def _let_go(self, name: str) -> None:
        """Deletes a tensor. Its memory goes back to the stream it is of, which has to come behind
        the others that use it."""
        memory = self._memory.pop(name)
        self.names.remove(name)
        home = self._home[memory]
        if memory not in self._memory.values():
            late = {use.stream for use in self._uses[memory]
                    if use.number not in self._meant.before[home]}
            for stream in sorted(late):
                if "record_stream" not in self._lacks and self.random.random() < 0.5:
                    self.say(f"{name}.record_stream({stream})")
                else:
                    self._wait_stream(home, stream)
        self.say(f"del {name}")

    def _wait_stream(self, stream: str, other: str, always: bool = False) -> None:
        self._meant.wait_stream(stream, other)
        if always or not self._is_left_out():
            self._actual.wait_stream(stream, other)
            self.say(f"{stream}.wait_stream({other})")

    def _wait_event(self, stream: str, event: str, always: bool = False) -> None:
        self._meant.wait_event(stream, event)
        line = self.random.choice([f"{stream}.wait_event({event})", f"{event}.wait({stream})"])
        if always or not self._is_left_out():
            self._actual.wait_event(stream, event)
            self.say(line)

    def _record(self, event: str, stream: str) -> None:
        for order in self._orders:
            order.record(event, stream)
        forms = [f"{event}.record({stream})"]
        if "record_event" not in self._lacks:
            forms.append(f"{stream}.record_event({event})")
        if stream == self._stack[-1] != "D":
            forms.append(f"{event}.record()")
        self.say(self.random.choice(forms))

    def _is_left_out(self) -> bool:
        return self._left_out.random() < self._less


# ---- what becomes of a text


def function_of(text: str, name: str) -> Callable[..., Any]:
    """Tracebacks show the lines of the text."""
    file = f"<{name}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    scope = {"torch": torch, "anabranch": anabranch}
    exec(compile(text, file, "exec"), scope)
    return scope["program"]


def at(function: Callable[..., Any], place: Any,
       slow: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
    """The same as a function of tensors alone, on the streams of a place."""
    names = list(inspect.signature(function).parameters)[INPUTS:]
    given = {name: slow if name == "slow" else getattr(place, name) for name in names}

    def run(x0: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, x3: torch.Tensor) -> Any:
        return function(x0, x1, x2, x3, **given)

    return run


def takes_gradients(seed: int) -> bool:
    return seed % 2 == 1


def inputs(seed: int, *, wants_gradients: bool = False, size: int = 4, device: str = "cpu",
           is_aliased: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(-3, 4, (size, size), generator=generator).double().to(device)
            for _ in range(INPUTS)]
    if is_aliased:
        made[3] = made[2][:]
    for tensor in made[:INPUTS // 2]:
        tensor.requires_grad_(wants_gradients)
    return made


Left = tuple[dict[str, torch.Tensor], list[str | None]]


def left_by(function: Callable[..., Any], given: list[torch.Tensor]) -> Left:
    """All that a call leaves behind, and which input each answer shares memory with. No gradient
    is one of zeros."""
    addresses = {tensor.untyped_storage().data_ptr(): f"x{i}" for i, tensor in enumerate(given)}
    answers = function(*given)
    weighted = [(answer * torch.arange(answer.numel(), device=answer.device).view(answer.shape)
                 .remainder(16)).sum() for answer in answers if answer.requires_grad]
    if weighted:
        sum(weighted).backward()
    left = {f"answer {i}": answer.detach() for i, answer in enumerate(answers)}
    left |= {f"x{i}": tensor.detach() for i, tensor in enumerate(given)}
    left |= {f"x{i} gradient": torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
             for i, tensor in enumerate(given) if tensor.is_leaf and tensor.requires_grad}
    shared = [addresses.get(answer.untyped_storage().data_ptr()) for answer in answers]
    return {name: tensor.clone() for name, tensor in left.items()}, shared
