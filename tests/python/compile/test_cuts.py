# SPDX-License-Identifier: Apache-2.0
"""Where a graph on a GPU is cut so that its safe parts can be recorded, and what runs when. The
tensors are fake and Inductor's graph is a stand-in: tests/gpu/python/test_recorded_parts.py has the
real ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from anabranch import config, errors
from anabranch._compile import backend
from anabranch._compile import cuts as cuts_module
from anabranch._record.recorded_graph import RecordedGraph
from anabranch._record.refusals import Cause
from anabranch._record.signatures.callable_kind import CallableKind
from anabranch._record.trial.plain_steps import PLAIN_STEPS

pytestmark = pytest.mark.oldest
GPU = torch.device("cuda", 0)


def define(name, **more):
    operator = torch.library.custom_op(f"anabranch_parts::{name}", lambda x: x + 1,
                                       mutates_args=(), schema="(Tensor x) -> Tensor", **more)
    operator.register_fake(torch.empty_like)
    return operator


foreign = define("foreign")
tagged = define("tagged", tags=[torch.Tag.cudagraph_unsafe])


def cuts(function):
    """Of a function of a matrix on a GPU and one on the CPU."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        given = torch.empty(4, 4, device=GPU), torch.empty(4, 4)
    return cuts_module.find_cuts(make_fx(function)(*given))


def to_gpu(x):
    return torch.ops.aten._to_copy(x, device=GPU)


@pytest.mark.parametrize("function", [
    lambda x, host: x.relu() @ x,
    lambda x, host: x + to_gpu(host),
    lambda x, host: x + torch.full((), 2.0) * 3,
    lambda x, host: x / torch.sqrt(torch.tensor(64.0)),
], ids=["only a GPU's", "a copy to the GPU", "constants of the CPU", "numbers of the model"])
def test_a_graph_that_can_be_captured_is_not_cut(function):
    found = cuts(function)
    assert not found.reasons and not found.operators


@pytest.mark.parametrize("function, reason, code", [
    (lambda x, host: tagged(x), "anabranch_parts.tagged.default cannot be captured", 336),
    (lambda x, host: x.nonzero(), "aten.nonzero.default", 335),
    (lambda x, host: x * x.sum().item(), "aten._local_scalar_dense.default", 335),
    (lambda x, host: torch.ops.aten._to_copy(x, device="cpu"), "a tensor on the CPU", 336),
    (lambda x, host: x + torch.rand(()), "aten.rand.default answers a tensor on the CPU", 336),
    (lambda x, host: x + to_gpu(host.relu()), "aten.relu.default answers a tensor on the CPU", 336),
], ids=["tagged", "sizes", "a number", "to the CPU", "random on the CPU", "work on the CPU"])
def test_a_graph_that_cannot_be_captured_says_why(function, reason, code):
    why = cuts(lambda x, host: function(x.relu(), host).relu()).reasons[0]
    assert reason in why.text and why.code == code and why.remedy


def test_under_strict_a_graph_is_cut_where_all_of_its_reasons_are_allowed():
    def cut(**options):
        with FakeTensorMode(shape_env=ShapeEnv()):
            x = torch.empty(4, 4, device=GPU)
        graph = make_fx(lambda x: tagged(x).nonzero())(x)
        return [why.code for why in backend._cuts(config.resolve(options), graph).reasons]

    assert cut() == cut(strict=True, allow=["E0335", "E0336"]) == [336, 335]
    assert cut(strict=True) == cut(strict=True, allow=[335]) == []


def test_operators_of_other_libraries_cut_a_graph_that_may_still_be_captured():
    found = cuts(lambda x, host: foreign(x))
    assert not found.reasons and found.operators == ("anabranch_parts::foreign.default",)


def test_only_graphs_without_copies_from_the_host_are_reordered():
    """All copies would come first, and all that they bring lie on the GPU at once."""
    assert cuts(lambda x, host: x.nonzero()).may_reorder is False  # host is among the inputs
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(4, 4, device=GPU)
    assert cuts_module.find_cuts(make_fx(lambda x: x.nonzero())(x)).may_reorder


def test_a_fall_back_is_told_once_a_reason_and_not_where_it_is_allowed(caplog):
    for reason in ("mul is complex", "mul is complex", "add is sparse"):
        backend._fall_back(config.resolve({}), reason)
    assert [line.count("E0602") for line in caplog.messages] == [1, 1]
    for code in (602, 607):
        backend._fall_back(config.resolve({"strict": True, "allow": [code]}), "sub is quantized")
    assert len(caplog.messages) == 2
    backend._fall_back(config.resolve({}), "sub is quantized")
    assert len(caplog.messages) == 3


def test_graphs_with_one_cause_at_one_line_are_told_once_and_counted(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    graphs = [RecordedGraph(lambda given: [given[0] + 1], config.resolve({}), f"graph {i}", CallableKind(), dynamic=False)
              for i in range(3)]
    with pytest.warns(errors.RecordWarning) as told:
        for graph in graphs * 2:
            graph([torch.ones(2)])
    [said] = [str(one.message) for one in told]
    assert said.startswith("graph 0 runs unrecorded: it is given nothing on a GPU\n  called at ")
    assert [report.times for graph in graphs for report in graph.reports] == [3, 3, 3]


def test_graphs_are_not_recorded_by_themselves_while_a_callable_around_them_is_tried(monkeypatch):
    """They become part of its recording; and have their own once it has been refused."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    graph = RecordedGraph(lambda given: [given[0] + 1], config.resolve({}), "graph", CallableKind(), dynamic=False)
    with PLAIN_STEPS, PLAIN_STEPS:
        assert torch.equal(graph([torch.ones(2)])[0], torch.full((2,), 2.0))
    assert graph.reports == []
    graph([torch.ones(2)])
    with pytest.warns(errors.RecordWarning):
        graph([torch.ones(2)])
    [report] = graph.reports
    assert report.calls == 2


class InTwoParts:
    """As Inductor's: y = 2x, then something between, then a part that is given a number too."""

    def __init__(self):
        self.partitions = [self.double, self.scale]
        self.compiled_fn_runner = self
        self.ran = []

    def recursively_apply_fns(self, functions):
        self.partitions = [make(part) for make, part in zip(functions, self.partitions,
                                                            strict=True)]

    def double(self, inputs):
        self.ran.append("double")
        (x,) = inputs
        inputs.clear()
        return (x * 2,)

    def scale(self, inputs):
        self.ran.append("scale")
        y, number = inputs
        inputs.clear()
        return (y * number,)

    def current_callable(self, inputs):
        (x,) = inputs
        inputs.clear()
        (y,) = self.partitions[0]([x])
        return self.partitions[1]([y + 1, int(y.sum())])


@pytest.fixture
def graph(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return InTwoParts()


def reports(graph):
    return [report for recorded in cuts_module.recordings_of(graph) for report in recorded.reports]


@pytest.mark.parametrize("depends", [True, False])
def test_a_part_whose_sizes_depend_on_data_is_not_recorded(graph, depends):
    cuts_module.record_parts(graph, config.resolve({}), "a graph", False,
                             cuts_module.Cuts((Cause.GRAPH_IN_PARTS.because("of a reason"),), (), depends), None)
    for i in range(1, 5):
        (answer,) = graph.current_callable([torch.full((2,), i)])
        assert answer.tolist() == [(2 * i + 1) * 4 * i] * 2
    assert graph.ran == ["double", "scale"] * 4
    first, *others = reports(graph)
    assert first.inputs == "part 0 of 2: (int64[2])"
    assert "nothing on a GPU" in first.reason  # it came to be recorded
    if depends:
        [second] = others
        assert "depend on data" in second.reason and second.calls == 4
    else:
        assert [other.calls for other in others] == [1] * 4  # a signature each


def test_parts_of_a_graph_that_may_be_captured_run_by_themselves_once_it_was_refused(graph):
    whole = SimpleNamespace(is_refused=False)
    cuts_module.record_parts(graph, config.resolve({}), "a graph", False,
                             cuts_module.Cuts((), ("foreign",)), whole)
    graph.current_callable([torch.ones(2)])
    assert not reports(graph)
    whole.is_refused = True
    graph.current_callable([torch.ones(2)])
    assert [report.calls for report in reports(graph)] == [1, 1]
