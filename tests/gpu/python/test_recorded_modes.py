# SPDX-License-Identifier: Apache-2.0
"""torch's ambient state around and inside a recorded step: autocast, no_grad, inference, determinism,
hooks for all modules, on saved tensors and on nodes, modes that see functions, a default device."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from ambient_states import HOOKS, SEEN, VALUES, between
from recordings import (
    CALLS,
    DEVICE,
    assert_launched,
    assert_plain,
    batch,
    everything,
    launches,
    mlp,
    normal,
    told,
    train_both,
)
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode

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


class Coarse(TorchFunctionMode):
    """As emulators of low precision use it."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        return torch.round(answer * 8) / 8 if function is F.linear else answer


def packed(tensor):
    return (tensor * 4).round() / 4 if tensor.is_floating_point() else tensor


def registered(register, hook):
    @contextlib.contextmanager
    def around():
        handle = register(hook)
        try:
            yield
        finally:
            handle.remove()

    return around


def halved(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def rounded(module, args, answer):
    return packed(answer) if isinstance(module, nn.Linear) else None


# Each changes what a training step leaves.
CHANGES = {
    "hooks on saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(packed, lambda x: x),
    "a mode that sees functions": Coarse,
    "a hook behind all modules": registered(modules.register_module_forward_hook, rounded),
    "a hook before all modules": registered(
        modules.register_module_forward_pre_hook, lambda module, args: tuple(map(packed, args))),
    "a hook on all backwards": registered(
        modules.register_module_full_backward_hook,
        lambda module, given, answered: tuple(None if one is None else one * 2 for one in given)),
    "a hook before all optimizers": registered(
        optimizers.register_optimizer_step_pre_hook, halved),
    # Eager keeps its casts of weights from call to call, also where these have changed since.
    "autocast": lambda: torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False),
    "products in TF32": VALUES["products in TF32"],
    "sums in another order": VALUES["library of products"],
}


def made_step():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


@pytest.mark.parametrize("begin", [False, True], ids=["set later", "set before"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_training_step_in_another_state_leaves_what_eager_leaves(name, begin):
    """On in some calls and off in others, whichever was recorded first."""
    runs = []
    for records in (False, True):
        model, optimizer, step = made_step()
        made, seen = anabranch.record(step) if records else step, []
        for part in range(4):
            is_on = begin == (part % 2 == 0)
            with CHANGES[name]() if is_on else contextlib.nullcontext():
                for i in range(4):
                    answer = made(normal(10 * part + i, 32, 256))
                    seen.append(everything(answer, model, optimizer))
        runs.append(seen)
    for i, (wanted, found) in enumerate(zip(*runs, strict=True)):
        for key, tensor in wanted.items():
            assert torch.equal(found[key], tensor), (i, key, told(made))
    assert launches(made) >= 4, told(made)


# What eager does not do with these tensors, or what writes a file.
NOT_HERE = {"a transform", "a tracer", "determinism", "TunableOp"}
OTHERS = {name: around for name, around in {**VALUES, **HOOKS, **SEEN}.items()
          if name not in NOT_HERE}


@pytest.mark.parametrize("name", OTHERS)
def test_a_call_in_any_other_state_answers_as_eager(name):
    """Whatever it changes; and calls without it are launched as before."""
    model, around = mlp(), OTHERS[name]
    step = anabranch.record(lambda x: model(x).sin())
    with torch.no_grad():
        for i in range(12):
            x, _ = batch(i)
            with around() if i % 6 > 3 else contextlib.nullcontext():
                found, wanted = step(x), model(x).sin()
            assert torch.equal(found, wanted) and found.dtype == wanted.dtype, (i, told(step))
    assert launches(step) >= 2, told(step)


def test_steps_are_launched_under_a_default_device_that_is_set_for_good():
    """And what they make lies there, as eager's does."""
    def make():
        model = mlp(nn.Dropout(0.1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)

        def step(x, y):
            optimizer.zero_grad()
            scale = torch.linspace(0, 1, 4)
            loss = F.mse_loss(model(x) * scale, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, optimizer, step

    torch.set_default_device(DEVICE)
    try:
        assert_launched(train_both(make))
    finally:
        torch.set_default_device(None)


def test_a_tensor_lies_where_the_default_device_of_the_call_says():
    step = anabranch.record(lambda x: x + torch.ones(4).to(DEVICE))
    for i in range(12):
        x = normal(i, 4)
        with torch.device(DEVICE) if i % 4 < 2 else contextlib.nullcontext():
            assert torch.equal(step(x), x + 1), told(step)


def test_the_default_type_of_tensors_is_that_of_the_call():
    """With its device, which is no mode."""
    on_gpu = between(lambda: torch.set_default_tensor_type(torch.cuda.FloatTensor),
                     lambda: torch.set_default_tensor_type(torch.FloatTensor))
    step = anabranch.record(lambda x: (x * 2, torch.empty(3, dtype=x.dtype).is_cuda))
    for i in range(12):
        x = normal(i, 4)
        with on_gpu() if i % 6 > 2 else contextlib.nullcontext():
            found, is_on_gpu = step(x)
        assert torch.equal(found, x * 2) and is_on_gpu == (i % 6 > 2), told(step)
