# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs with operators that cannot be captured: their safe parts are recorded, the rest
runs between them, and all is as without recordings."""

from __future__ import annotations

import pytest
import torch
from compare import assert_same, compiled, tensors_of
from recordings import batch, everything, normal, training
from torch import nn

import anabranch
from anabranch import errors

CALLS = 8


def define(name, function, **more):
    operator = torch.library.custom_op(f"anabranch_gpu_parts::{name}", function, mutates_args=(),
                                       schema="(Tensor x) -> Tensor", **more)
    operator.register_fake(torch.empty_like)
    operator.register_autograd(lambda context, gradient: gradient * 2)
    return operator


def double_by_the_host(x):
    """Waits for the GPU, which no capture may."""
    return x * (2 if x[0, 0].item() is not None else 3)


tagged = define("tagged", double_by_the_host, tags=[torch.Tag.cudagraph_unsafe])
untold = define("untold", double_by_the_host)
harmless = define("harmless", lambda x: x * 2)


def recordings(function, *args):
    return [report for graph in anabranch.explain(function, *args).graphs
            for report in graph.recordings]


def told(reports):
    return "\n".join(map(str, reports))


def launched(reports):
    return [report.inputs.split(":")[0] for report in reports if report.launched]


def assert_as_unrecorded(function, inputs, calls=CALLS):
    """Answers and inputs afterwards, of calls that are all looked at when the last was made.
    Answers the reports."""
    found = []
    for record in (False, True):
        torch.compiler.reset()
        call = compiled(function, options={"record": record})
        given = [inputs(i) for i in range(calls)]
        with torch.no_grad():
            found.append([(call(*each), each) for each in given])
    for wanted, mine in zip(*found, strict=True):
        assert_same(dict(tensors_of(mine)), dict(tensors_of(wanted)))
    with torch.no_grad():
        return recordings(call, *inputs(calls))


def matrices(seed, rows=32):
    return normal(seed, rows, 16), normal(seed + 500, 16, 16)


def test_what_lies_on_both_sides_of_a_tagged_operator_is_recorded():
    reports = assert_as_unrecorded(lambda x, w: tagged((x @ w).relu()).cos() @ w, matrices)
    assert launched(reports) == ["part 0 of 2", "part 1 of 2"], told(reports)


def test_a_graph_that_is_refused_for_an_operator_nobody_knew_is_recorded_around_it():
    reports = assert_as_unrecorded(lambda x, w: untold((x @ w).relu()).cos() @ w, matrices)
    assert launched(reports) == ["part 0 of 2", "part 1 of 2"], told(reports)
    assert any(report.reason and not report.inputs.startswith("part") for report in reports)


def test_a_graph_with_an_operator_of_another_library_that_can_be_captured_is_recorded_as_one():
    reports = assert_as_unrecorded(lambda x, w: harmless((x @ w).relu()).cos() @ w, matrices)
    [report] = reports
    assert report.launched and not report.inputs.startswith("part"), told(reports)


def test_a_graph_that_answers_a_tensor_on_the_cpu_is_recorded_but_for_the_copy():
    def function(x, w):
        y = (x @ w).relu()
        return y.cos().cpu(), y

    reports = assert_as_unrecorded(function, matrices)
    assert launched(reports) == ["part 0 of 1"], told(reports)


def test_constants_of_the_cpu_do_not_cut():
    reports = assert_as_unrecorded(
        lambda x, w: (x @ w) * torch.tensor(3.0) + torch.arange(16).to("cuda"), matrices)
    [report] = reports
    assert report.launched and not report.inputs.startswith("part"), told(reports)


def test_sizes_that_depend_on_data_are_not_recorded_and_what_is_before_them_is():
    def function(x, w):
        y = (x @ w).relu()
        return y.cos() @ w, y.nonzero().sum(1).float().cos()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        reports = assert_as_unrecorded(function, matrices)
    assert "part 0 of 2" in launched(reports), told(reports)
    assert len([report for report in reports if report.nodes]) <= 2, told(reports)


def test_a_number_that_is_read_is_that_of_each_call():
    def function(x, w):
        y = (x @ w).relu()
        return (y * (y > 1).sum().item()).cos() @ w

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        reports = assert_as_unrecorded(function, matrices)
    assert launched(reports)[0].startswith("part 0"), told(reports)


def test_a_buffer_that_two_parts_write_is_what_it_would_be():
    def function(x, counts):
        counts.add_(x.sum(0))
        y = tagged(x * counts)
        counts.mul_(0.5)
        return y + counts

    # Whole numbers: both ways are timed, and may add in different orders.
    reports = assert_as_unrecorded(function, lambda i: (
        normal(i, 8, 16).mul(4).round(), normal(i + 90, 16).mul(4).round()))
    assert len(launched(reports)) == 2, told(reports)


class Between(nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x):
        return self.operator(x)


@pytest.mark.parametrize("operator", [tagged, untold], ids=["tagged", "untold"])
@pytest.mark.parametrize("more", [(), (nn.Dropout(0.5),)], ids=["plain", "dropout"])
def test_training_in_parts_leaves_what_it_leaves_unrecorded(operator, more):
    histories = []
    for record in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), *more, Between(operator),
                              nn.Linear(32, 4)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = training(compiled(model, options={"record": record}), optimizer)
        torch.manual_seed(1)
        histories.append([everything(step(*batch(i)), model, optimizer) for i in range(CALLS)])
    for wanted, found in zip(*histories, strict=True):
        assert_same(found, wanted)
    reports = recordings(step, *batch(CALLS))
    assert len(launched(reports)) >= 3, told(reports)  # of forward and backward


def test_a_recorded_step_that_is_refused_for_such_an_operator_launches_the_parts_of_its_models():
    model = nn.Sequential(nn.Linear(16, 32), Between(tagged), nn.Linear(32, 4)).cuda()
    call = compiled(model)
    step = anabranch.record(call)
    with torch.no_grad():
        for i in range(CALLS):
            x = batch(i)[0]
            assert torch.allclose(step(x), model(x), atol=1e-5)
        assert step.reports[0].reason, told(step.reports)
        assert len(launched(recordings(call, x))) == 2


def test_under_strict_a_graph_that_cannot_be_recorded_as_one_raises():
    call = compiled(lambda x, w: tagged(x @ w).cos(), options={"strict": True})
    with torch.no_grad(), pytest.raises(errors.RecordError):
        for i in range(4):
            call(*matrices(i))
