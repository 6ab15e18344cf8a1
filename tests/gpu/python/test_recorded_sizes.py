# SPDX-License-Identifier: Apache-2.0
"""Calls of other sizes: one capture where all kernels are known, two where they are not, and every
call leaves what eager leaves, bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from recordings import assert_follows, mlp, normal, told, train_both, training

SIZES = (64, 96, 128, 48, 200)
CALLS_EACH = 4


def size_of_call(i: int) -> int:
    """Each size some times in a row, and then all in turn."""
    row = len(SIZES) * CALLS_EACH
    return SIZES[i // CALLS_EACH] if i < row else SIZES[i % len(SIZES)]


CALLS = len(SIZES) * (CALLS_EACH + 2)


def captures(step):
    return [report.captures for report in step.reports]


def assert_all_recorded(step):
    """But what was called once, before the optimizer had state."""
    assert all(report.nodes for report in step.reports if report.calls > 1), told(step)


def test_a_further_size_of_known_kernels_is_captured_once():
    scale = normal(0, 16)

    def step(x):
        y = (x * scale).relu_()
        return {"y": y, "rows": y.flip(0)[1:], "parts": (x + 1).split(16)[0]}

    step = assert_follows(step, lambda seed: (normal(seed, size_of_call(seed), 16),), CALLS)
    assert captures(step) == [2, 1, 1, 1, 1], told(step)
    assert all(report.nodes == step.reports[0].nodes for report in step.reports)


@pytest.mark.parametrize("optimizer", [
    lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, fused=True, capturable=True),
    lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)])
def test_training_over_many_sizes_leaves_what_it_leaves_unrecorded(optimizer):
    def make():
        model = mlp(torch.nn.Dropout(0.2))
        made = optimizer(model)
        return model, made, training(model, made)

    step = train_both(make, calls=CALLS, inputs=lambda i: (
        normal(i, size_of_call(i), 16), normal(1000 + i, size_of_call(i), 4)))
    assert_all_recorded(step)
    assert 2 in captures(step) and 1 in captures(step), told(step)


def test_a_model_compiled_for_any_size_is_recorded_for_each():
    def make():
        model = mlp()
        compiled = torch.compile(model, dynamic=True)
        made = torch.optim.SGD(model.parameters(), lr=0.01)
        return model, made, training(compiled, made)

    step = train_both(make, calls=CALLS, inputs=lambda i: (
        normal(i, size_of_call(i), 16), normal(1000 + i, size_of_call(i), 4)))
    assert_all_recorded(step)


def test_another_number_of_known_kernels_is_captured_once():
    def step(x):
        for _ in range(x.shape[0] // 64):
            x = x + 1
        return x

    step = assert_follows(step, lambda seed: (normal(seed, 64 * (1 + seed // CALLS_EACH % 3), 8),),
                          9 * CALLS_EACH)
    assert captures(step) == [2, 1, 1], told(step)


def test_sizes_that_reach_kernels_as_numbers_are_those_of_the_call():
    """As strides, counts, bounds and scalars: none of another size's is left over."""
    def step(x):
        rows = x.shape[0]
        padded = F.pad(x, (0, 0, rows // 4, 0), value=float(rows))
        return padded.transpose(0, 1).contiguous(), x.cumsum(0), x[: rows // 2] * rows

    step = assert_follows(step, lambda seed: (normal(seed, size_of_call(seed), 16),), CALLS)
    assert all(report.nodes for report in step.reports), told(step)
