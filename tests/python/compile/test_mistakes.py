# SPDX-License-Identifier: Apache-2.0
"""A mistake of ours while a model is compiled: Inductor compiles it alone, and says so."""

from __future__ import annotations

import pytest
import torch
from compare import Tolerance, assert_same
from torch import nn

import anabranch
from anabranch._compile import backend
from anabranch._fx import partitioner
from anabranch._record import warn


class Broken(Exception):
    pass


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


def left(model, call):
    model.zero_grad()
    x = torch.ones(2, 8, requires_grad=True)
    answer = call(x).sum()
    answer.backward()
    return {"answer": answer.detach(), "x": x.grad,
            **{name: one.grad for name, one in model.named_parameters()}}


def fail(*given, **named):
    raise Broken("by a test")


def in_the_backward(monkeypatch):
    original = backend._compile_ours

    def compile_ours(*how, **keywords):
        return fail() if keywords.get("is_backward") else original(*how, **keywords)

    monkeypatch.setattr(backend, "_compile_ours", compile_ours)


def in_the_partitioner(monkeypatch):
    monkeypatch.setattr(partitioner, "keep_values_for_backward", fail)


@pytest.mark.parametrize("where", [in_the_backward, in_the_partitioner])
def test_a_mistake_leaves_a_model_to_inductor(model, monkeypatch, fresh_torch, caplog, where):
    wanted = left(model, model)
    where(monkeypatch)
    monkeypatch.setattr(warn, "_told", set())
    assert_same(left(model, torch.compile(model, backend=anabranch.backend)), wanted, Tolerance())
    assert [line for line in caplog.messages if "E0602" in line] == [
        "anabranch: a graph is compiled by Inductor alone: a mistake of Anabranch's, Broken: by a test "
        "[E0602]"]


def test_under_strict_a_mistake_raises(model, monkeypatch, fresh_torch):
    in_the_partitioner(monkeypatch)
    with pytest.raises(Exception, match="a mistake of Anabranch's.*strict=True") as raised:
        left(model, torch.compile(model, backend=anabranch.backend, options={"strict": True}))
    assert "E0607" in str(raised.value)


def test_what_torch_raises_by_itself_is_not_taken_for_a_mistake(model, monkeypatch, fresh_torch):
    monkeypatch.setattr(backend._compat, "compile_fx", fail)
    with pytest.raises(Exception, match="by a test"):
        left(model, torch.compile(model, backend=anabranch.backend))
