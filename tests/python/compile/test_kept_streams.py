# SPDX-License-Identifier: Apache-2.0
"""What `anabranch.stream` answers may be kept and entered often: in eager, in compiled code, within
itself, by several threads, and from copies of what holds it."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from compare import compiled
from test_breaks_in_streams import assert_kept, matrix, streams_of
from torch import nn

import anabranch
from anabranch import streams

pytestmark = pytest.mark.oldest

AT_MODULE_LEVEL = anabranch.stream("global")


class Model(nn.Module):
    def __init__(self, name="side", wrap=lambda module: module):
        super().__init__()
        self.side, self.inner = anabranch.stream(name), wrap(nn.Linear(8, 8, bias=False))

    def forward(self, x):
        with self.side:
            y = torch.tanh(self.inner(x)) @ x
        z = torch.sin(x @ x)
        with self.side:
            y = y @ x
        return y + z


def assert_nothing_is_left():
    assert streams.around() == {} and not torch.fx.traceback.get_current_meta()


def test_a_kept_stream_is_entered_often_in_compiled_code():
    model = Model()
    assert_kept(model, {"ambient", "side"})
    model(matrix()), model(matrix())
    assert_nothing_is_left()


def test_gradients_flow_and_weights_train_as_in_eager():
    mine, theirs = Model(), Model()
    theirs.load_state_dict(mine.state_dict())
    for model, call in ((mine, compiled(mine, options={"strict": True})), (theirs, theirs)):
        for _ in range(2):
            call(matrix()).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=1e-3).step()
    torch.testing.assert_close(mine.inner.weight, theirs.inner.weight)


def test_blocks_nest_in_themselves_and_in_others():
    side, other = anabranch.stream("side"), anabranch.stream("other", priority=-1)

    def function(x):
        with side, other:
            a = x @ x
            with side:
                b = x.t() @ x
                with side, other, side:
                    b = torch.tanh(b) @ x
            c = a @ a
        with AT_MODULE_LEVEL:
            d = torch.sin(x @ x)
        return a + b + c + d

    assert_kept(function, {"ambient", "other", "side", "global"})
    with side, other, side:
        assert streams.around()[streams.ANNOTATION] == "side"
    assert_nothing_is_left()


def test_a_kept_stream_is_kept_where_dynamo_breaks_a_graph():
    side = anabranch.stream("side")

    def function(x):
        y = torch.sin(x @ x)
        with side:
            a = torch.tanh(x + 1)
            with side:
                torch._dynamo.graph_break()
                b = a @ a
            torch._dynamo.graph_break()
            c = b @ a
        return b + c + y @ y

    call = compiled(function, options={"strict": True})
    told = anabranch.explain(call, matrix())
    assert [found for found in streams_of(told) if found] == [{"ambient", "side"}] * 2, told
    assert "without effect" not in str(told), told
    for _ in range(2):
        torch.testing.assert_close(call(matrix()), function(matrix()))
    assert_nothing_is_left()


@pytest.mark.parametrize("decorate", [anabranch.stream("one"), Model("one").side])
def test_one_stream_decorates_several_functions(decorate):
    @decorate
    def first(x):
        """What it does."""
        return x @ x

    @decorate
    def second(x, *, by=2):
        return torch.tanh(x @ x) * by

    def function(x):
        return first(x) + second(x, by=3) + torch.sin(x @ x)

    assert first.__name__ == "first" and first.__doc__ == "What it does."
    assert_kept(function, {"ambient", "one"})
    torch.testing.assert_close(compiled(second)(matrix()), second(matrix()))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy,
                                    lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_model_that_holds_a_stream_is_copied_and_saved(copied):
    model = Model()
    other = copied(model)
    assert other.side.pairs == model.side.pairs
    torch.testing.assert_close(other(matrix()), model(matrix()))
    assert_kept(other, {"ambient", "side"})


def test_another_stream_in_its_place_is_another_graph_and_one_of_its_name_is_not():
    counts = torch._dynamo.utils.counters["frames"]
    model = Model()
    call = compiled(model, options={"strict": True})
    call(matrix())
    before = counts["total"]
    model.side = anabranch.stream("side")
    call(matrix())
    assert counts["total"] == before
    model.side = anabranch.stream("another")
    assert streams_of(anabranch.explain(call, matrix()))[-1] == {"ambient", "another"}
    assert counts["total"] == before + 1


def test_under_other_compilers_it_does_nothing():
    model, graphs = Model(), []

    def backend(graph, examples):
        graphs.append(graph)
        return graph

    found = torch.compile(model, backend=backend, fullgraph=True)(matrix())
    torch.testing.assert_close(found, model(matrix()))
    assert len(graphs) == 1
    assert_nothing_is_left()


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "not strict"])
def test_an_exported_program_keeps_kept_streams(is_strict):
    exported = torch.export.export(Model(), (matrix(),), strict=is_strict)
    assert_kept(exported.module(), {"ambient", "side"})
    assert_nothing_is_left()


def test_threads_share_a_stream():
    model, found = Model(), []
    call = compiled(model)
    call(matrix())
    start = threading.Barrier(4)

    def run(seed):
        start.wait()
        for i in range(20):
            x = matrix(seed * 100 + i)
            with model.side:
                found.append((x, (call if seed % 2 else model)(x)))
                assert streams.around()[streams.ANNOTATION] == "side"
            assert streams.around() == {}

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for x, answer in found:
        torch.testing.assert_close(answer, model(x))
    assert_nothing_is_left()


def test_generators_may_leave_it_in_any_order():
    side, other = anabranch.stream("side"), anabranch.stream("other")

    def entering(block):
        with block:
            yield streams.around()[streams.ANNOTATION]

    first, second, third = entering(side), entering(other), entering(side)
    assert [next(one) for one in (first, second, third)] == ["side", "other", "side"]
    first.close()
    assert streams.around()[streams.ANNOTATION] in ("side", "other")
    third.close()
    assert streams.around()[streams.ANNOTATION] == "other"
    second.close()
    assert_nothing_is_left()


def test_an_exception_inside_leaves_it():
    side = anabranch.stream("side")
    for _ in range(2):
        with pytest.raises(KeyError), side:
            raise KeyError
    assert_nothing_is_left()
    side.__exit__(None, None, None)  # who has not entered it leaves nothing
    assert_nothing_is_left()


def test_a_recorded_step_and_a_recorded_layer_enter_it():
    model, plain = Model(wrap=anabranch.record), Model()
    model.load_state_dict(plain.state_dict())
    step = anabranch.record(model)
    for _ in range(3):
        torch.testing.assert_close(step(matrix()), plain(matrix()))
    assert_kept(model, {"ambient", "side"})
