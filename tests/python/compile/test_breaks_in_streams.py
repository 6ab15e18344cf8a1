# SPDX-License-Identifier: Apache-2.0
"""Where Dynamo breaks a graph inside a stream both parts keep it; what cannot be kept is told."""

from __future__ import annotations

import logging

import pytest
import torch
from compare import compiled

import anabranch
from anabranch import errors

pytestmark = pytest.mark.oldest

break_here = torch._dynamo.graph_break


def streams_of(told):
    """By graph, those that regions of it have been on."""
    return [{report.stream for report in graph.streamed.last.reports}
            if graph.streamed and graph.streamed.last else set() for graph in told.graphs]


def matrix(seed=0):
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))


def assert_kept(function, *streams):
    call, x = compiled(function, options={"strict": True}), matrix()
    told = anabranch.explain(call, x)
    assert [found for found in streams_of(told) if found] == list(streams), told
    assert "without effect" not in str(told), told
    torch.testing.assert_close(call(x), function(x))


def test_both_parts_of_a_broken_block_are_on_its_stream():
    def function(x):
        with anabranch.stream("s"):
            a = x @ x
            b = x.t() @ x
            break_here()
            c = a @ b
        return torch.tanh(c) + torch.sin(x @ a)

    def beside(x):
        y = torch.sin(x @ x)
        with anabranch.stream("s"):
            a = torch.tanh(x + 1)
            print(end="")
            b = a @ a
        return b + y @ y

    assert_kept(function, {"ambient", "s"})
    assert_kept(beside, {"ambient", "s"}, {"ambient", "s"})


def test_nested_blocks_are_entered_again_in_their_order():
    def function(x):
        with anabranch.overlap(8), anabranch.stream("outer"):
            a = x @ x
            with anabranch.stream("inner", priority=-1):
                b = x.t() @ x
                n = b.sum().item()
                c = torch.tanh(b) * n
            d = torch.sin(a) @ a
        return c + d

    assert_kept(function, {"outer", "inner"}, {"ambient", "outer", "inner"})


def test_both_ways_of_a_condition_on_data_are_on_the_stream():
    def function(x, limit):
        with anabranch.stream("s"):
            y = x @ x
            y = y.t() @ x if y.sum() > limit else torch.tanh(y) @ x
        return y + torch.sin(x @ x)

    call = compiled(function, options={"strict": True})
    for limit in (1e9, -1e9):
        told = anabranch.explain(call, matrix(), limit)
        assert streams_of(told)[-1] == {"ambient", "s"}, told
        torch.testing.assert_close(call(matrix(), limit), function(matrix(), limit))


def test_gradients_flow_through_the_break():
    def function(x):
        with anabranch.stream("s"):
            a = torch.tanh(x @ x)
            break_here()
            with anabranch.stream("t"):
                b = a @ x
            return (b * a).sum() + torch.sin(x).sum()

    call, mine, theirs = compiled(function, options={"strict": True}), matrix(), matrix()
    for use, x in ((call, mine.requires_grad_()), (function, theirs.requires_grad_())):
        use(x).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


def test_an_exception_behind_a_break_leaves_no_annotation():
    def function(x):
        with anabranch.stream("s"):
            y = x @ x
            break_here()
            raise KeyError(y.shape)

    with pytest.raises(KeyError):
        compiled(function, options={"strict": True})(matrix())
    assert not torch.fx.traceback.get_current_meta()


def in_a_loop(x):
    for _ in range(2):
        with anabranch.stream("looping"):
            x = torch.tanh(x @ x)
            break_here()
    return x


def in_a_try(x):
    try:
        with anabranch.stream("trying"):
            x = torch.tanh(x @ x)
            break_here()
    finally:
        x = x + 1
    return x


@pytest.mark.parametrize("function", [in_a_loop, in_a_try], ids=lambda one: one.__name__)
def test_a_block_that_cannot_be_kept_is_told_with_its_line_and_raises_under_strict(
        function, caplog):
    call, x = compiled(function), matrix()
    with caplog.at_level(logging.WARNING, "anabranch.compile"):
        told = anabranch.explain(call, x)
        torch.testing.assert_close(call(x), function(x))
    [said] = [record.message for record in caplog.records if "E0613" in record.message]
    assert "test_breaks_in_streams.py:" in said and "ing')" in said
    assert "streams without effect:" in str(told), told
    assert "test_breaks_in_streams.py:" in str(told), told
    with pytest.raises(errors.CompileError, match=r"has no effect.*strict=True") as raised:
        compiled(function, options={"strict": True})(x)
    assert raised.value.code == 613
    allowing = compiled(function, options={"strict": True, "allow": {"E0613"}})
    torch.testing.assert_close(allowing(x), function(x))


def test_nothing_is_told_where_no_stream_was_lost(caplog):
    @torch.compiler.disable
    def apart(x):
        with anabranch.stream("apart"):
            return x * 2

    @anabranch.stream("decorated")
    def decorated(x):
        y = torch.tanh(x @ x)
        break_here()
        return y @ y

    def without_operators(x):
        for _ in range(2):
            with anabranch.stream("empty"):
                rows = x.shape[0]
            break_here()
        return rows

    x, strict = matrix(), {"strict": True}
    with caplog.at_level(logging.WARNING):
        in_a_loop(x)
        torch.compile(in_a_loop, backend="eager")(x)
        compiled(in_a_loop, options={"streams": False, **strict})(x)
        compiled(lambda x: apart(x + 1) @ x, options=strict)(x)
        compiled(without_operators, options=strict)(x)
        found = compiled(lambda x: decorated(x) + 1, options=strict)(x)
    torch.testing.assert_close(found, decorated(x) + 1)
    assert not [record for record in caplog.records if "E0613" in record.message]


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "not strict"])
def test_an_exported_program_keeps_its_streams(is_strict):
    class Model(torch.nn.Module):
        def forward(self, x):
            with anabranch.stream("e"):
                y = x @ x
            return y + torch.sin(x)

    exported = torch.export.export(Model(), (matrix(),), strict=is_strict)
    assert_kept(exported.module(), {"ambient", "e"})
