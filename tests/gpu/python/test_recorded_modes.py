# SPDX-License-Identifier: Apache-2.0
"""torch's modes around and inside a recorded step: autocast, no_grad, inference, determinism."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recordings import (
    CALLS,
    DEVICE,
    assert_launched,
    assert_plain,
    batch,
    launches,
    mlp,
    normal,
    told,
    train_both,
)

import anabranch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_inside_a_training_step(dtype):
    def make():
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    assert_launched(train_both(make))


def test_autocast_around_a_call_sees_the_weights_of_now():
    """Autocast keeps casts of weights while it is on. A recording that read one of the call that
    it was made in would answer with old weights, or with memory that is long another's."""
    model = mlp()
    step = anabranch.record(lambda x: model(x))
    churn = []
    with torch.no_grad():
        for i in range(10):
            x, _ = batch(i)
            with torch.autocast("cuda", torch.bfloat16):
                found = step(x)
            with torch.autocast("cuda", torch.bfloat16):
                wanted = model(x)
            assert found.dtype == torch.bfloat16 and torch.equal(found, wanted), told(step)
            churn += [torch.full((512,), 3.0, dtype=torch.bfloat16, device=DEVICE)
                      for _ in range(8)]
            for parameter in model.parameters():
                parameter.mul_(1.25)
    assert_launched(step, 8)


def test_autocast_may_be_switched_between_calls():
    model = mlp()
    step = anabranch.record(lambda x: model(x))
    with torch.no_grad():
        for i in range(12):
            x, _ = batch(i)
            for dtype in (None, torch.bfloat16, torch.float16):
                with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                    found = step(x)
                with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                    wanted = model(x)
                assert found.dtype == wanted.dtype and torch.equal(found, wanted), told(step)
    assert len(step.reports) == 3
    assert_launched(step, 30)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients(mode):
    model = mlp()
    step = anabranch.record(lambda x: (model(x), x.add_(1)))
    with mode():
        for i in range(CALLS):
            mine, theirs = batch(i)[0], batch(i)[0]
            found, given = step(mine)
            assert given is mine
            wanted = model(theirs)
            assert torch.equal(found, wanted) and torch.equal(mine, theirs + 1)
            assert found.is_inference() == wanted.is_inference()
            assert not found.requires_grad
    assert_launched(step)


def test_no_grad_inside_the_step():
    model = mlp()

    @anabranch.record
    def step(x):
        with torch.no_grad():
            return model(x)

    for i in range(CALLS):
        x, _ = batch(i)
        assert torch.equal(step(x), model(x).detach())
    assert_launched(step)


def scatter(x, index):
    """Sums by atomics, in any order, unless torch is told to be deterministic."""
    return torch.zeros(4, device=DEVICE).index_add_(0, index, x)


def test_deterministic_algorithms_are_used_from_the_call_on_that_asks_for_them():
    step = anabranch.record(scatter)
    index = torch.arange(100_000, device=DEVICE) % 4
    for seed in range(4):
        x = normal(seed, 100_000)
        torch.testing.assert_close(step(x, index), scatter(x, index), rtol=1e-4, atol=1e-2)
    torch.use_deterministic_algorithms(True)
    try:
        for seed in range(CALLS):
            x = normal(seed, 100_000)
            assert torch.equal(step(x, index), scatter(x, index)), told(step)
    finally:
        torch.use_deterministic_algorithms(False)
    assert launches(step) >= CALLS - 2, told(step)


def test_a_step_whose_sums_come_in_any_order_is_trusted_within_bounds_or_runs_plainly():
    step = anabranch.record(scatter)
    index = torch.arange(100_000, device=DEVICE) % 4
    for seed in range(CALLS):
        x = normal(seed, 100_000)
        torch.testing.assert_close(step(x, index), scatter(x, index), rtol=1e-4, atol=1e-2)
    report = step.reports[0]
    assert report.reason or report.verified in ("bitwise", "within bounds"), told(step)


def test_the_precision_of_matrix_products_is_that_of_the_call():
    step = anabranch.record(lambda x, w: x @ w)
    x, w = normal(0, 256, 256), normal(1, 256, 256)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            for _ in range(5):
                assert torch.equal(step(x, w), x @ w), told(step)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert_launched(step, 6)


def test_code_that_asks_whether_it_is_captured_goes_the_way_of_plain_runs():
    model = mlp()

    def step(x):
        return model(x) if not torch.cuda.is_current_stream_capturing() else x

    recorded = anabranch.record(step)
    with torch.no_grad():
        for i in range(CALLS):
            x, _ = batch(i)
            assert torch.equal(recorded(x), model(x))
    assert_launched(recorded)


def test_where_that_way_cannot_be_captured_the_other_one_is_if_it_answers_the_same():
    model = mlp()

    def step(x, other=0.0):
        if torch.cuda.is_current_stream_capturing():
            return model(x) + other
        return model(x) if x.isfinite().all() else x

    recorded = anabranch.record(step)
    differs = anabranch.record(lambda x: step(x, 1.0))
    with torch.no_grad():
        for i in range(CALLS):
            x, _ = batch(i)
            assert torch.equal(recorded(x), model(x))
            assert torch.equal(differs(x), model(x))
    assert_launched(recorded)
    assert_plain(differs, "Code outside torch asks whether it is captured")
