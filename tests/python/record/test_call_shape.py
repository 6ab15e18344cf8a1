# SPDX-License-Identifier: Apache-2.0
"""What arguments are to be so that a plan serves them, and what makes them others."""

from __future__ import annotations

import collections
import dataclasses

import pytest
import torch
from kinds_of_call import Encoding
from test_walk import Launched, as_on_a_gpu  # noqa: F401
from torch import nn

import anabranch
from anabranch._record.recorded_callable import RecordedCallable

pytestmark = pytest.mark.oldest
Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Data:
    x: torch.Tensor
    scale: int = 1
    parts: list = dataclasses.field(default_factory=list)
    samples: int = 0  # which no code names but this


class Other(Data):
    pass


class Slotted:
    __slots__ = ("scale", "x")

    def __init__(self, x, scale=1):
        self.x, self.scale = x, scale


def ones(size=2):
    return torch.ones(size)


def of_object(batch):
    return [batch.x] * batch.scale


def of_parts(batch):
    return [batch.x, *(part for part in batch.parts if batch.scale)]


CASES = {  # step, arguments that it knows, others that are alike, and some that are not
    "a dict": (lambda batch, k=0: [batch["x"], batch["y"]][k:], lambda: ({"x": ones(), "y": ones()},),
               [lambda: ({"x": ones(3), "y": ones()},), lambda: ({"y": ones(), "x": ones()},),
                lambda: ({"x": ones(), "y": ones(), "z": 1},), lambda: ({"x": ones(), "y": ones()}, 1)]),
    "containers": (lambda some: [some[0][1], some[1][0]], lambda: ([(1, ones()), Pair(ones(), 2)],),
                   [lambda: ([(2, ones()), Pair(ones(), 2)],), lambda: ([(1, ones()), (ones(), 2)],),
                    lambda: ([[1, ones()], Pair(ones(), 2)],),
                    lambda: ([(True, ones()), Pair(ones(), 2)],)]),
    "a dataclass": (of_parts, lambda: (Data(ones(), parts=[ones(), ones()]),),
                    [lambda: (Data(ones(), 2, [ones(), ones()]),), lambda: (Data(ones()),),
                     lambda: (Data(ones(), parts=[ones(), ones(3)]),),
                     lambda: (Other(ones(), parts=[ones(), ones()]),),
                     lambda: (Data(ones().double(), parts=[ones(), ones()]),)]),
    "an encoding": (lambda batch: [batch.x, batch["y"]], lambda: (Encoding(x=ones(), y=ones()),),
                    [lambda: (Encoding(x=ones(), y=ones(), z=ones()),),
                     lambda: (Encoding(y=ones(), x=ones()),)]),
    "slots": (of_object, lambda: (Slotted(ones()),),
              [lambda: (Slotted(ones(), 2),), lambda: (Slotted(ones(3)),)]),
    "objects in one another": (
        lambda batch: [batch.x, batch.parts[0].x], lambda: (Data(ones(), parts=[Data(ones())]),),
        [lambda: (Data(ones(), parts=[Other(ones())]),),
         lambda: (Data(ones(), parts=[Data(ones()), Data(ones())]),)])}


@pytest.fixture
def fully(monkeypatch):
    """Calls that went the full way."""
    seen, call = [], RecordedCallable._call_fully
    monkeypatch.setattr(RecordedCallable, "_call_fully",
                        lambda *given: seen.append(1) or call(*given))
    return seen


def ids(tensors):
    return [id(tensor) for tensor in tensors]


def known(step, make):
    made = anabranch.record(step)
    for _ in range(4):
        made(*make())
    return made


@pytest.mark.parametrize("name", CASES)
def test_others_that_are_alike_are_served_with_their_tensors(name, fully):
    step, make, _ = CASES[name]
    made = known(step, make)
    fully.clear()
    for _ in range(3):
        args = make()
        answer = made(*args)
        assert isinstance(answer, Launched) and ids(answer) == ids(step(*args))
    assert not fully


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_alike_is_looked_at_anew(name, fully):
    step, make, others = CASES[name]
    made = known(step, make)
    for other in others:
        fully.clear()
        args = other()
        answer = made(*args)
        assert fully and ids(answer) == ids(step(*args))
        for _ in range(2):
            args = make()
            assert ids(made(*args)) == ids(step(*args))


def test_an_attribute_that_no_code_reads_may_be_anything(fully):
    made = known(of_object, lambda: (Data(ones()),))
    fully.clear()
    for samples in (1, 2.5, "many", [3]):
        batch = Data(ones(), samples=samples)
        assert ids(made(batch)) == [id(batch.x)]
    assert not fully


def test_an_object_that_is_changed_meanwhile_is_another(fully):
    batch, net = Data(ones()), nn.Linear(2, 2)
    made = known(lambda batch: [batch.x, net.weight], lambda: (batch,))
    fully.clear()
    for _ in range(2):
        batch.x = ones()
        assert ids(made(batch)) == ids([batch.x, net.weight])
    assert not fully
    batch.y = ones()
    assert ids(made(batch)) == ids([batch.x, net.weight]) and fully
    del batch.y
    batch.x = net.weight  # which the step has by itself, too
    assert ids(made(batch)) == ids([net.weight, net.weight])


def test_a_container_that_the_step_has_by_itself_is_no_argument_alone():
    """What is checked among the arguments is not what the step reads by itself."""
    shared = [1, 2]
    holder = Data(ones(), parts=shared)

    def step(batch):
        return [batch.x] * (1 + holder.parts[0])

    made = known(step, lambda: (Data(ones(), parts=shared),))
    other = Data(ones(), parts=[1, 2])
    assert ids(made(other)) == ids(step(other))
    shared[0] = 2
    for _ in range(3):
        assert ids(made(other)) == ids(step(other))
