# SPDX-License-Identifier: Apache-2.0
"""What a step may answer: objects that it makes are opened, what was there before is answered
itself."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anabranch._record.capture.pytree import Unlike, flatten

pytestmark = pytest.mark.oldest


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    cache: object = None
    name: str = "output"


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted:
    value: torch.Tensor
    name: str = "frozen"


class Slotted:
    __slots__ = ("keys", "values")

    def __init__(self, keys, values):
        self.keys, self.values = keys, values


class Both(Slotted):
    """With a dictionary beside its slots."""


class Copied:
    """Says itself how it is copied."""

    def __init__(self, value):
        self.value = value

    def __setstate__(self, state):
        vars(self).update(state)


class Counted:
    """Is made in a way of its own."""

    def __new__(cls, value):
        return super().__new__(cls)


def again(answer, leaves=None):
    """One like it, of the same leaves or of others."""
    [flat], shape = flatten([answer])
    return shape.unflatten(flat if leaves is None else leaves)


def test_objects_of_the_steps_own_are_made_again_with_other_tensors_in_them():
    layers = [Slotted(torch.zeros(1), torch.ones(1)) for _ in range(2)]
    answer = {"out": Output(torch.ones(2), cache=SimpleNamespace(layers=layers)), "loss": 3.0}
    [flat], shape = flatten([answer])
    numbers = [leaf + 10 if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    made = shape.unflatten(numbers)
    assert type(made["out"]) is Output and made["out"] is not answer["out"]
    assert made["out"].logits.tolist() == [11.0, 11.0] and made["out"].name == "output"
    assert made["loss"] == 3.0
    found = made["out"].cache.layers
    assert [type(layer) for layer in found] == [Slotted, Slotted]
    assert [(layer.keys.item(), layer.values.item()) for layer in found] == [(10.0, 11.0)] * 2
    assert answer["out"].logits.tolist() == [1.0, 1.0]


def test_objects_with_slots_and_attributes_and_frozen_ones_are_made_again():
    both = Both(1, 2)
    both.more = 3
    made = again([both, Frozen(torch.ones(1)), FrozenSlotted(torch.ones(1))])
    assert (made[0].keys, made[0].values, made[0].more) == (1, 2, 3)
    assert made[1].value.item() == 1.0
    assert (made[2].value.item(), made[2].name) == (1.0, "frozen")
    assert vars(again(SimpleNamespace())) == {}


def test_an_object_that_is_there_twice_and_one_that_leads_to_itself_stay_so():
    shared = SimpleNamespace(x=1)
    ring = SimpleNamespace(first=shared, second=[shared])
    ring.ring = ring
    made = again((ring, shared))
    assert made[0].first is made[0].second[0] is made[1] and made[0].ring is made[0]


def test_what_says_itself_how_it_is_copied_is_not_opened():
    things = [Copied(1), Counted(1), nn.Linear(1, 1), threading.Lock(), test_answers, Output,
              ValueError("x"),
              torch.float32, {1, 2}, (i for i in range(2)), torch.nn.Parameter(torch.ones(1))]
    [flat], shape = flatten([things])
    assert all(a is b for a, b in zip(flat, things, strict=True))
    assert all(a is b for a, b in zip(shape.unflatten(flat), things, strict=True))


def test_answers():
    """A function for the test above."""
    assert again(5) == 5


def test_what_was_there_before_is_answered_itself():
    held, rows = SimpleNamespace(x=1), [1, 2]
    [flat], shape = flatten([(held, rows, SimpleNamespace(x=2))], {id(held), id(rows)})
    assert flat[0] is held and flat[1] is rows and flat[2] == 2
    found = shape.unflatten(flat)
    assert found[0] is held and found[1] is rows and found[2].x == 2


def test_of_several_answers_what_is_the_same_object_in_all_was_there_before():
    config = SimpleNamespace(depth=3)
    answers = [Output(torch.full((1,), float(i)), cache=config) for i in range(2)]
    leaves, shape = flatten(answers)
    assert [flat[0].item() for flat in leaves] == [0.0, 1.0]
    assert all(shape.unflatten(flat).cache is config for flat in leaves)


@pytest.mark.parametrize("one, other", [
    (SimpleNamespace(x=1), SimpleNamespace(y=1)),
    ([1], [1, 2]),
    (SimpleNamespace(x=[1]), SimpleNamespace(x=(1,))),
], ids=["attributes", "lengths", "containers"])
def test_answers_of_two_shapes_are_told_apart(one, other):
    with pytest.raises(Unlike):
        flatten([one, other])


def test_answers_in_which_an_object_is_shared_and_is_not_are_told_apart():
    shared = SimpleNamespace(x=1)
    with pytest.raises(Unlike):
        flatten([[shared, shared], [SimpleNamespace(x=1), SimpleNamespace(x=1)]])
    leaves, shape = flatten([[shared, shared], [other := SimpleNamespace(x=2), other]])
    assert leaves == [[1], [2]] and len(set(map(id, shape.unflatten([3])))) == 1


def test_objects_of_two_classes_are_leaves_that_differ():
    leaves, _ = flatten([SimpleNamespace(x=1), Output(torch.ones(1))])
    assert [type(flat[0]) for flat in leaves] == [SimpleNamespace, Output]


def test_a_long_chain_of_objects_is_opened_so_far_and_no_farther():
    chain = SimpleNamespace(next=None)
    for _ in range(200):
        chain = SimpleNamespace(next=chain)
    [flat], shape = flatten([chain])
    assert len(flat) == 1 and type(flat[0]) is SimpleNamespace
    made, length = shape.unflatten(flat), 0
    while made is not None:
        made, length = made.next, length + 1
    assert length == 201
