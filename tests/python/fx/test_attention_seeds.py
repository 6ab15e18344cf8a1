# SPDX-License-Identifier: Apache-2.0
"""Seeds of attention that draws no random numbers are on the GPU in a compiled graph, and those of
attention that does are left where they are. Of a GPU there are only the shapes."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch import _compat
from anabranch._fx import attention_seeds

pytestmark = pytest.mark.oldest

aten = torch.ops.aten


def scaled(q, bias, dropout):
    given = (dropout,) if dropout is not None else ()
    return aten._scaled_dot_product_efficient_attention(q, q, q, bias, True, *given)


def direct(q, bias, dropout):
    return aten._efficient_attention_forward(q, q, q, bias, None, None, None, None, dropout or 0.0,
                                             0, True)[:4]


def traced(attention, dropout, layers=2):
    """A graph that answers everything of some layers."""
    def function(q):
        results = []
        for _ in range(layers):
            results += (made := attention(q, None, dropout))
            q = made[0]
        return results

    with _compat.FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, 32, 32, device="cuda")
        return make_fx(function, tracing_mode="real")(q)


def seeds_of(gm):
    [results] = gm.graph.output_node().args
    return [node for i, node in enumerate(results) if i % 4 in (2, 3)]


@pytest.mark.parametrize("attention", [scaled, direct])
@pytest.mark.parametrize("dropout", [None, 0.0])
def test_without_dropout_one_number_on_the_gpu_stands_for_all(attention, dropout):
    gm = traced(attention, dropout)
    before = [node.meta["val"].shape for node in gm.graph.output_node().args[0]]
    attention_seeds.drop_unused_seeds(gm)
    gm.graph.lint()
    assert {node.target for node in seeds_of(gm)} == {aten.full.default}
    assert len(set(seeds_of(gm))) == 1
    [results] = gm.graph.output_node().args
    assert [node.meta["val"].shape for node in results] == before
    value = seeds_of(gm)[0].meta["val"]
    assert value.device.type == "cuda" and value.dtype == torch.int64
    assert "full" in gm.code


@pytest.mark.parametrize("attention", [scaled, direct])
def test_seeds_of_dropout_are_left(attention):
    gm = traced(attention, 0.5)
    code = gm.code
    attention_seeds.drop_unused_seeds(gm)
    assert gm.code == code


def test_a_graph_without_attention_is_left():
    gm = make_fx(lambda x: x.sin() + 1)(torch.ones(2))
    code = gm.code
    attention_seeds.drop_unused_seeds(gm)
    assert gm.code == code
