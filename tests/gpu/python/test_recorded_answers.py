# SPDX-License-Identifier: Apache-2.0
"""Answers that are no tensors: objects that a step makes have new ones in each launch, what was
there before is answered itself, whichever there is then."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace

import torch
from recordings import assert_follows, assert_launched, assert_plain, batch, mlp, normal, told
from torch import Tensor, nn

import anabranch


@dataclasses.dataclass
class Output:
    logits: Tensor
    cache: list
    scale: float = 2.0
    loss: Tensor | None = None


class Layer:
    """Grows as a cache of keys and values does."""

    def __init__(self):
        self.keys = None

    def update(self, keys):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], -1)
        return self.keys


def inputs(seed):
    return (normal(seed, 8, 16),)


def test_an_object_that_a_step_makes_has_new_tensors_in_each_launch():
    model = mlp().requires_grad_(False)

    def step(x):
        layers = [Layer() for _ in range(2)]
        for layer in layers:
            layer.update(x)
            layer.update(x * 2)
        return Output(model(x), layers)

    recorded = anabranch.record(step)
    found = [recorded(*inputs(seed)) for seed in range(7)]
    for seed, mine in enumerate(found):
        theirs = step(*inputs(seed))
        assert type(mine) is Output and (mine.scale, mine.loss) == (2.0, None)
        assert torch.equal(mine.logits, theirs.logits)
        assert [type(layer) for layer in mine.cache] == [Layer, Layer]
        assert all(torch.equal(a.keys, b.keys)
                   for a, b in zip(mine.cache, theirs.cache, strict=True))
        mine.cache[0].update(mine.cache[0].keys)  # it is an object like any other
    assert_launched(recorded)


def test_a_step_that_trains_may_answer_an_object_with_its_loss():
    """Whose history is gone, as any answer's."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)

    def step(x, y):
        optimizer.zero_grad()
        logits = model(x)
        loss = ((logits - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return SimpleNamespace(loss=loss, output=Output(logits, []))

    recorded = anabranch.record(step)
    losses = [recorded(*batch(0)) for _ in range(6)]
    assert_launched(recorded, 4)
    values = [answer.loss.item() for answer in losses]
    assert values == sorted(values, reverse=True) and len(set(values)) == 6
    assert not losses[-1].output.logits.requires_grad


def test_a_step_that_answers_its_argument_answers_that_of_the_call():
    model = mlp().requires_grad_(False)

    def step(given):
        given.y = model(given.x)
        return given

    recorded = anabranch.record(step)
    for seed in range(7):
        given = SimpleNamespace(x=normal(seed, 8, 16), y=None)
        assert recorded(given) is given
        assert torch.equal(given.y, model(given.x)), told(recorded)
    assert_launched(recorded)


def test_what_the_step_holds_is_answered_as_it_is_then():
    holder = SimpleNamespace(model=mlp(), history=[normal(0, 8, 16)])
    holder.model.requires_grad_(False)

    def step(x):
        holder.history[0] = holder.history[0] + x
        return holder.model, holder.history, holder.model(x)

    recorded = anabranch.record(step)
    for seed in range(9):
        if seed == 5:
            holder.model = mlp().requires_grad_(False)
            holder.history = [holder.history[0]]
        wanted = holder.history[0] + normal(seed, 8, 16)
        model, history, answer = recorded(normal(seed, 8, 16))
        assert model is holder.model and history is holder.history
        assert torch.equal(history[0], wanted)
        assert torch.equal(answer, model(normal(seed, 8, 16)))
    assert_launched(recorded)


def test_answers_that_share_objects_and_tensors_share_them_in_each_launch():
    def step(x):
        shared = SimpleNamespace(value=x + 1)
        return {"a": shared, "b": SimpleNamespace(inner=shared, value=shared.value)}

    recorded = anabranch.record(step)
    for seed in range(5):
        answer = recorded(*inputs(seed))
        assert answer["a"] is answer["b"].inner and answer["b"].value is answer["a"].value
        assert torch.equal(answer["a"].value, normal(seed, 8, 16) + 1)
    assert_launched(recorded, 3)


def test_an_object_with_a_tensor_of_the_cpu_in_it_runs_plainly():
    def step(x):
        return SimpleNamespace(y=x + 1, count=torch.zeros(1))

    recorded = anabranch.record(step)
    for seed in range(4):
        assert torch.equal(recorded(*inputs(seed)).y, normal(seed, 8, 16) + 1)
    assert_plain(recorded, "on the CPU")


class Locked:
    """No copy of it can be made."""

    def __init__(self, value):
        self.value, self.lock = value, threading.Lock()

    def __reduce__(self):
        raise TypeError("no copies")


def test_an_object_of_which_there_is_no_copy_runs_plainly_and_is_named():
    recorded = anabranch.record(lambda x: Locked(x + 1))
    for seed in range(4):
        assert torch.equal(recorded(*inputs(seed)).value, normal(seed, 8, 16) + 1)
    assert_plain(recorded, "answers a Locked, another one in each call")


def test_containers_of_every_kind_within_objects():
    def step(x):
        return SimpleNamespace(rows={"a": (x, [x + 1]), "b": torch.Size((1, 2))}, none=None)

    recorded = assert_follows(lambda x: step(x).rows, inputs)
    assert_launched(recorded)
    recorded = anabranch.record(step)
    for seed in range(5):
        x, = inputs(seed)
        answer = recorded(x)
        assert answer.rows["a"][0] is x and answer.rows["b"] == (1, 2) and answer.none is None
    assert_launched(recorded, 3)


def test_conjugated_and_negated_views_are_answered_as_such():
    """Torch reads their elements otherwise than they lie in memory."""
    def step(x):
        z = torch.complex(x, x + 1) * 2
        return z.conj(), z.mH, z.conj().imag, z

    recorded = anabranch.record(step)
    for seed in range(6):
        mine, theirs = recorded(*inputs(seed)), step(*inputs(seed))
        for a, b in zip(mine, theirs, strict=True):
            assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
            assert torch.equal(a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg())
    assert_launched(recorded)


def test_arguments_and_weights_that_torch_reads_conjugated_or_negated_are_told_apart():
    """They have one memory and one layout; their kernels are others."""
    model = nn.Module()

    def step(z):
        return z * model.turn + 1, z, z[1:], model.turn.conj()

    recorded = anabranch.record(step)
    for seed in range(24):
        z, turn = (torch.complex(normal(seed + i, 8), normal(seed - i, 8)) for i in (1, 2))
        given = (z, z.conj(), torch._neg_view(z), z.conj().imag)[seed % 4]
        model.turn = turn.conj() if seed % 8 < 4 else turn
        for a, b in zip(recorded(given), step(given), strict=True):
            assert (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
            assert torch.equal(a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg())
    assert_launched(recorded, 8)
