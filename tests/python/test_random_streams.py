# SPDX-License-Identifier: Apache-2.0
"""Random programs over named streams against eager, where streams do nothing: results, gradients,
inputs afterwards and what shares memory with them.

Regions run as torch's own operators instead of Inductor's code, which takes seconds a program: what
is tested is how a graph is cut, ordered and laid out in memory. Numbers are small integers, so
that every order of additions gives the same. Each step is delayed by a seed.
"""

from __future__ import annotations

import random

import pytest
import torch
from compare import assert_same, compiled

import anabranch
from anabranch import _backend, _compat
from anabranch._runtime import StreamedGraph

pytestmark = pytest.mark.own

SEEDS, SEEDS_AT_A_TIME = 300, 30
STEPS = 14
INPUTS = 4  # the last two may be overwritten
STREAMS = ("a", "b", "c")


class Writer:
    """Writes a random program as Python text."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = [f"x{i}" for i in range(INPUTS)]
        self._mutable = {f"x{i}" for i in range(INPUTS // 2, INPUTS)}
        self._lines = [f"def program({', '.join(self._names)}):"]
        self._depth = 1

    def text(self) -> str:
        for _ in range(STEPS):
            self._change_stream()
            self._say(self._random.choice([self._compute, self._compute, self._overwrite,
                                           self._name_again])())
        self._depth = 1
        answers = self._random.sample(self._names, 4)
        self._say(f"return {', '.join(answers)}, {self._names[-1]}")
        return "\n".join(self._lines)

    def _say(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def _change_stream(self) -> None:
        if self._depth > 1 and self._random.random() < 0.3:
            self._depth -= 1
        if self._depth < 4 and self._random.random() < 0.4:
            self._say(f"with anabranch.stream({self._random.choice(STREAMS)!r}):")
            self._depth += 1

    def _pick(self) -> str:
        recent = self._names[-6:] if self._random.random() < 0.7 else self._names
        return self._random.choice(recent)

    def _new(self) -> str:
        name = f"t{len(self._names)}"
        self._names.append(name)
        return name

    def _compute(self) -> str:
        a, b = self._pick(), self._pick()
        value = self._random.choice([
            f"torch.remainder({a} @ {b}, 5)", f"torch.remainder({a} @ {b}, 5)",
            f"torch.relu({a}) - {b}", f"torch.remainder({a} * {b} + 1, 7)",
            f"torch.cat([{a}[:2], {b}[2:]])", f"{a}.sum(0, keepdim=True) + {b}", f"{a}.clone()",
            f"torch.where({a} > {b}, {a}, {b}.t())"])
        name = self._new()
        self._mutable.add(name)
        return f"{name} = {value}"

    def _overwrite(self) -> str:
        targets = [name for name in self._names if name in self._mutable]
        target, value = self._random.choice(targets), self._pick()
        return self._random.choice([
            f"{target}.add_({value}.clone())", f"{target}.copy_({value}.clone())",
            f"{target}[1:3].add_({value}[:2].clone())", f"{target}.t()[0].mul_(2)",
            f"{target}.remainder_(5)"])

    def _name_again(self) -> str:
        """A view: as large, of the same memory."""
        of = self._pick()
        name = self._new()
        if of in self._mutable:
            self._mutable.add(name)
        return f"{name} = {of}.{self._random.choice(['t()', 'view(4, 4)', 'flip(0)'])}" \
            if self._random.random() < 0.5 else f"{name} = {of}[:]"


def inputs(seed: int, takes_gradients: bool) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randint(-3, 4, (4, 4), generator=generator).double() for _ in range(INPUTS)]
    for tensor in made[:INPUTS // 2]:
        tensor.requires_grad_(takes_gradients)
    return made


def run(function, seed, takes_gradients):
    """All that a call leaves behind."""
    given = inputs(seed, takes_gradients)
    addresses = {tensor.untyped_storage().data_ptr(): f"x{i}" for i, tensor in enumerate(given)}
    answers = function(*given)
    if takes_gradients:
        weights = torch.arange(16.0, dtype=torch.float64).view(4, 4)
        total = sum((answer * weights).sum() for answer in answers if answer.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
    left = {f"answer {i}": answer.detach() for i, answer in enumerate(answers)}
    left |= {f"x{i}": tensor.detach() for i, tensor in enumerate(given)}
    left |= {f"x{i} gradient": tensor.grad for i, tensor in enumerate(given)
             if tensor.is_leaf and tensor.grad is not None}
    shared = [addresses.get(answer.untyped_storage().data_ptr()) for answer in answers]
    return {name: tensor.clone() for name, tensor in left.items()}, shared


@pytest.fixture
def graphs(monkeypatch):
    """The graphs of several streams that were made so far, their regions run as operators."""
    made = []

    def compile_whole(module, example_inputs, **keywords):
        def call(values):
            given = list(values)
            values.clear()
            return module(*given)

        call._boxed_call = True
        call.current_callable = call  # as Inductor's has
        return call

    class Noted(StreamedGraph):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(_compat, "compile_fx_inner", compile_whole)
    monkeypatch.setattr(_backend, "StreamedGraph", Noted)
    return made


@pytest.mark.parametrize("first", [
    pytest.param(first, marks=pytest.mark.oldest if first < 2 * SEEDS_AT_A_TIME else ())
    for first in range(0, SEEDS, SEEDS_AT_A_TIME)])
def test_streams_change_nothing(first, graphs):
    compared = 0
    for seed in range(first, first + SEEDS_AT_A_TIME):
        text = Writer(seed).text()
        scope = {"torch": torch, "anabranch": anabranch}
        exec(text, scope)  # noqa: S102 - our own text
        takes_gradients = seed % 2 == 1
        try:
            wanted, wanted_shared = run(scope["program"], seed, takes_gradients)
        except RuntimeError:  # what eager refuses: gradients of what was overwritten since
            continue
        options = {"native": False, "delays": seed, "strict": True}
        found, shared = run(compiled(scope["program"], options=options), seed, takes_gradients)
        try:
            assert_same(found, wanted)
            assert shared == wanted_shared
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}\n{text}") from None
        compared += 1
        torch.compiler.reset()
    assert compared >= SEEDS_AT_A_TIME // 2
    assert len(graphs) >= compared and max(len(graph.regions) for graph in graphs) >= 5
