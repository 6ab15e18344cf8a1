# SPDX-License-Identifier: Apache-2.0
"""Arguments on the CPU: each launch is given the bytes of its call, wherever they lie, and a step
that uses them in another way than on the GPU runs plainly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recordings import (
    DEVICE,
    assert_follows,
    assert_launched,
    assert_plain,
    launches,
    mlp,
    normal,
    told,
)

import anabranch

COUNT = 8
LARGE = 1 << 20  # floats: four times what goes through pinned memory of ours


def numbers(seed: int, count: int = COUNT) -> torch.Tensor:
    """All different, below 16."""
    return torch.randperm(16, generator=torch.Generator().manual_seed(seed))[:count].clone()


def inputs(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return normal(seed, 16, 16), numbers(seed)


def sums(table: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(len(table) + 1, dtype=torch.int32)
    made[1:] = table.cumsum(0)
    return made.to(DEVICE)


STEPS = {
    "to": lambda x, t: x * t.to(DEVICE).repeat(2),
    "without waiting": lambda x, t: x * t.to(DEVICE, non_blocking=True).repeat(2),
    "cuda()": lambda x, t: x + t.cuda().repeat(2).float(),
    "of another type": lambda x, t: x + t.to(DEVICE, torch.float16).repeat(2),
    "narrowed there": lambda x, t: x + t.to(torch.int32).to(DEVICE).repeat(2),
    "copy_": lambda x, t: torch.empty(COUNT, device=DEVICE).copy_(t).repeat(2) + x,
    "pinned in the step": lambda x, t: x[t.pin_memory().to(DEVICE, non_blocking=True)],
    "an index on the CPU": lambda x, t: x[t],
    "of columns": lambda x, t: x[:, t] * 2,
    "rows that are put": lambda x, t: x.clone().index_put_((t.to(DEVICE),), x[:COUNT]),
    "a part": lambda x, t: x[t[2:6]],
    "one number of it": lambda x, t: x * t[3:4].to(DEVICE),
    "sums": lambda x, t: x[:9] * F.pad(t.cumsum(0), (1, 0)).to(DEVICE)[:, None],
    "sums that are put": lambda x, t: x[:9] * sums(t)[:, None],
    "a mask": lambda x, t: x[:8] * (torch.arange(16)[None] < t[:, None]).to(DEVICE),
    "twice": lambda x, t: x[t] + x[t.to(DEVICE).flip(0)],
    "written there": lambda x, t: x[t.to(DEVICE).add_(1) % 16] + x[t.to(DEVICE)],
    "answered": lambda x, t: (x[t], t.to(DEVICE)),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())
def test_tables_on_the_cpu_are_arguments_of_a_launch(step):
    recorded = assert_follows(step, inputs, calls=12)
    assert_launched(recorded, 9)
    assert sum(report.nodes > 0 for report in recorded.reports) == 1, told(recorded)


@pytest.mark.parametrize("is_pinned", [True, False])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("size", [100, LARGE])
def test_batches_on_the_cpu_are_those_of_their_calls(size, waits, is_pinned):
    def given(seed):
        batch = normal(seed, size, device="cpu")
        return (batch.pin_memory() if is_pinned else batch), normal(seed, 1)

    step = assert_follows(lambda batch, x: batch.to(DEVICE, non_blocking=not waits) * x, given)
    assert_launched(step, 4)


def test_a_buffer_that_is_filled_anew_after_each_call_is_as_it_was_in_the_call():
    buffer = torch.zeros(LARGE).pin_memory()
    x = normal(0, LARGE)
    step = anabranch.record(lambda batch, x: batch.to(DEVICE) + x)
    found = []
    for i in range(8):
        buffer.fill_(i)
        found.append(step(buffer, x))
    assert all(torch.equal(one, x + i) for i, one in enumerate(found))
    assert_launched(step, 5)


def test_small_tables_may_be_written_as_soon_as_the_call_returns():
    table = torch.zeros(COUNT, dtype=torch.long)
    x = normal(0, 16, 16)
    work = normal(1, 2048, 2048)
    step = anabranch.record(lambda x, t: (work @ work, x[t.to(DEVICE, non_blocking=True)])[1])
    found = []
    for i in range(12):
        table.fill_(i)
        found.append(step(x, table))
        table.fill_(15)
    assert all(torch.equal(one, x[[i] * COUNT]) for i, one in enumerate(found))
    assert_launched(step, 9)


def test_a_training_step_takes_its_batch_from_the_cpu():
    def make():
        model = mlp()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(x, y):
            x, y = x.to(DEVICE, non_blocking=True), y.to(DEVICE)
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    (model, mine), (other, plain) = make(), make()
    other.load_state_dict(model.state_dict())
    step = anabranch.record(mine)
    for seed in range(10):
        x, y = normal(seed, 8, 16, device="cpu"), normal(seed + 99, 8, 4, device="cpu")
        assert torch.equal(step(x, y), plain(x, y)), told(step)
    for one, wanted in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, wanted)
    assert launches(step) >= 6, told(step)


def test_a_compiled_model_takes_tables_from_the_cpu():
    compiled = torch.compile(lambda x, t: torch.relu(x[t.to(DEVICE)]) * 2, dynamic=False)
    step = assert_follows(lambda x, t: compiled(x, t) + 1, inputs)
    assert_launched(step, 4)


def test_tables_of_other_sizes_are_recorded_each():
    def given(seed):
        return normal(seed, 16, 16), numbers(seed, count=4 + seed % 2)

    step = assert_follows(lambda x, t: x[t.to(DEVICE)], given, calls=14)
    assert_launched(step, 8)


def test_an_argument_that_is_also_the_steps_own_is_right():
    own = numbers(3)
    step = anabranch.record(lambda x, t: x[t.to(DEVICE)] + x[own.to(DEVICE)])
    x = normal(0, 16, 16)
    for i in range(8):
        table = own if i % 2 else numbers(i)
        assert torch.equal(step(x, table), x[table.to(DEVICE)] + x[own.to(DEVICE)]), told(step)


def test_a_dictionary_of_tensors_on_the_cpu():
    def step(batch, x):
        moved = {name: one.to(DEVICE) for name, one in batch.items()}
        return x[moved["rows"]] * moved["by"][:, None]

    def given(seed):
        return {"rows": numbers(seed), "by": normal(seed, COUNT, device="cpu")}, normal(seed, 16, 4)

    assert_launched(assert_follows(step, given), 4)


REFUSED = {
    "read": (lambda x, t: x * t[0].item(), "reads one there"),
    "in a list": (lambda x, t: x[t.tolist()], ".tolist()"),
    "computed": (lambda x, t: x * (t / 3).to(DEVICE).repeat(2), "computes with it there"),
    "an operand": (lambda x, t: x * t[0], "computes with it there"),
    "an if": (lambda x, t: x + 1 if t[0] > 3 else x - 1, "reads one there"),
    "a mask": (lambda x, t: x[t.repeat(2) > 3], "a mask on the CPU"),
}


@pytest.mark.parametrize("step, reason", REFUSED.values(), ids=REFUSED.keys())
def test_other_uses_run_plainly_with_the_reason(step, reason):
    assert_plain(assert_follows(step, inputs), reason)


def test_a_step_that_writes_its_argument_on_the_cpu_runs_plainly_and_writes_it():
    def step(x, t):
        t.add_(1)
        return x[t.to(DEVICE) % 16]

    assert_plain(assert_follows(step, inputs), "computes with it there")


LISTS = {
    "tensor": lambda x, p: x[torch.tensor(p, device=DEVICE)],
    "of another type": lambda x, p: x * torch.tensor(p, dtype=torch.float32, device=DEVICE),
    "new_tensor": lambda x, p: x + x.new_tensor(p),
    "an index": lambda x, p: x[p] * 2,
    "an index of columns": lambda x, p: x[:, p],
    "put": lambda x, p: put(x.clone(), p),
    "sums": lambda x, p: x * torch.tensor(p).cumsum(0).to(DEVICE),
}


def put(x, places):
    x[places] = 1.0
    return x


@pytest.mark.parametrize("step", LISTS.values(), ids=LISTS.keys())
def test_lists_of_integers_are_arguments_of_a_launch_once_they_have_changed(step):
    def given(seed):
        return normal(seed, 16, 16), numbers(seed, 16).tolist()

    recorded = assert_follows(step, given, calls=14)
    assert launches(recorded) >= 8, told(recorded)
    assert sum(report.nodes > 0 for report in recorded.reports) == 1, told(recorded)


def test_block_tables_in_lists_of_lists():
    def step(cache, batch):
        rows = torch.tensor(batch["blocks"], device=DEVICE)
        return cache[rows].sum(1) + torch.tensor(batch["lengths"], device=DEVICE)[:, None]

    def given(seed):
        blocks = numbers(seed, 12).view(4, 3).tolist()
        return normal(0, 16, 8), {"blocks": blocks, "lengths": numbers(seed + 1, 4).tolist()}

    recorded = assert_follows(step, given, calls=14)
    assert launches(recorded) >= 8, told(recorded)


def test_a_list_that_the_step_looks_at_is_recorded_for_each_of_its_values():
    recorded = assert_follows(lambda x, dims: x.sum(dims), lambda seed: (
        normal(seed, 4, 4, 4), [0, 1] if seed % 2 else [1, 2]), calls=20)
    assert launches(recorded) >= 8, told(recorded)
    assert sum(report.nodes > 0 for report in recorded.reports) == 2, told(recorded)
