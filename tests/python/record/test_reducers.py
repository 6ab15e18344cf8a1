# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel in a step that is captured: its reducer takes no times in a
capture, its buckets stay where they are, and a capture that breaks leaves a model that trains."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from anabranch import _compat
from anabranch._record.reducers import untimed
from anabranch._record.refusals import Cause, NotRecordable

pytestmark = [pytest.mark.own, pytest.mark.oldest]


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def made(**options):
    """A model that has trained, with two buckets."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), **options)
    train(model)
    return model


def train(model, times=1):
    for _ in range(times):
        model(torch.ones(2, 4)).sum().backward()


def capturing(*models):
    return untimed(models, _compat.exchanges(models))


def refusal(is_refused, told):
    return pytest.raises(NotRecordable, match=told) if is_refused else contextlib.nullcontext()


def timed(model):
    """The last iteration of which times were taken."""
    return model._get_ddp_logging_data()["iteration"]


@pytest.mark.parametrize("before", [0, 8, 60, 98, 99, 150])
def test_no_iteration_is_timed_while_a_step_is_captured(before):
    model = made()
    train(model, before)
    with capturing(model):
        last = timed(model)
        train(model, 60)
        assert timed(model) == last
    train(model, 100)
    assert timed(model) == last + 100 - last % 100  # afterwards it is as ever


def test_a_capture_that_comes_to_a_timed_iteration_leaves_its_events_to_nobody():
    model = made()
    with capturing(model):
        last = timed(model)
        train(model, 100 - (last + 1))
    train(model, 3)
    assert timed(model) == last  # a wait for what the capture has recorded would have raised
    train(model, 100)
    assert timed(model) == 200


def test_a_model_that_is_timed_in_every_iteration_is_refused():
    model = made()
    model.reducer._set_ddp_runtime_logging_sample_rate(1)
    with pytest.raises(NotRecordable, match="times of every iteration"), capturing(model):
        pass
    train(model, 3)


def test_gradients_in_buckets_are_refused():
    model = made(gradient_as_bucket_view=True)
    with pytest.raises(NotRecordable) as refused, capturing(model):
        pass
    assert "gradient_as_bucket_view=False" in refused.value.reason.remedy


class State:
    """What a hook may keep."""


@pytest.mark.parametrize("state, is_refused", [
    (lambda: None, False), (lambda: dist.group.WORLD, False), (State, True)],
    ids=["none", "a group", "a state"])
def test_a_communication_hook_that_keeps_a_state_is_refused(state, is_refused):
    model = made()
    model.register_comm_hook(state(), _halved)
    with refusal(is_refused, "communication hook"), capturing(model):
        train(model)


def _halved(state, bucket):
    made = torch.futures.Future()
    made.set_result(bucket.buffer() / 2)
    return made


def test_a_backward_that_breaks_in_a_capture_leaves_a_model_that_trains():
    model, reference = made(), made()

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise NotRecordable("it broke")

    layers = model.module
    layers.insert(1, nn.Identity())
    handle = layers[1].register_forward_hook(lambda module, x, answer: Breaks.apply(answer))
    with pytest.raises(NotRecordable, match="it broke"), capturing(model):
        train(model)  # the gradients of the last layer have come to their bucket
    handle.remove()
    for one in (model, reference):
        one.zero_grad()
        train(one, 3)
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("models, told", [(1, True), (0, False)])
def test_a_model_made_on_the_default_stream_is_told_what_to_do(models, told):
    refusal = NotRecordable("the legacy stream would depend on it", Cause.LEGACY_STREAM)
    with pytest.raises(NotRecordable) as raised, capturing(*(made() for _ in range(models))):
        raise refusal
    assert raised.value is refusal
    assert ("torch.cuda.stream" in refusal.reason.remedy) == told


def with_buffers(**options):
    model = DistributedDataParallel(nn.BatchNorm1d(4), **options)
    train(model)
    return model


@pytest.mark.parametrize("options, is_refused", [({}, True), ({"broadcast_buffers": False}, False)])
def test_a_step_that_leaves_out_the_next_exchange_of_buffers_is_refused(options, is_refused):
    """Whether the plain run of it has done so, or a capture."""
    model = with_buffers(**options)
    with refusal(is_refused, "exchange of buffers"), capturing(model), model.no_sync():
        train(model)
    train(model)
    before = _compat.exchanges([model])
    with model.no_sync():
        train(model)
    with refusal(is_refused, "exchange of buffers"), untimed([model], before):
        pass


def test_batches_of_an_accumulation_in_one_step_are_captured():
    model = with_buffers()
    with capturing(model):
        with model.no_sync():
            train(model)
        train(model)


def test_models_are_found_among_modules():
    model = made()
    assert _compat.distributed_models(model.modules()) == [model]


def test_what_python_refers_to_is_told_from_what_cpp_has_alone():
    """As buckets are: gradients that Python has been told of, once."""
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    sum((parameter * 2).sum() for parameter in parameters).backward()
    kept = {"here": parameters[1].grad}
    found = [parameter.grad for parameter in parameters]
    alone = _compat.of_cpp_alone(found)
    assert [one.data_ptr() for one in alone] == [parameters[i].grad.data_ptr() for i in (0, 2)]
    assert kept["here"] is parameters[1].grad
