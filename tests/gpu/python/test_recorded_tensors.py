# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out of recordings: where they lie, what they share, and how long they last."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compare import assert_same
from recordings import (
    CALLS,
    DEVICE,
    assert_follows,
    assert_launched,
    launches,
    normal,
    tensors_by_name,
    told,
)

import anabranch


def affine(x, w):
    return torch.relu(x @ w * 2 + 1)


def pair(seed, rows=64):
    return normal(seed, rows, 64), normal(seed + 500, 64, 64)


def same_storage(a, b):
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_outputs_of_earlier_calls_keep_their_values():
    assert_launched(assert_follows(affine, pair, calls=12), 10)


def test_inputs_may_lie_anywhere():
    kept = []  # so that every call has addresses of its own

    def inputs(seed):
        kept.append(pair(seed))
        return kept[-1]

    step = assert_follows(affine, inputs)
    assert_launched(step)
    assert step.reports[0].launched > step.reports[0].launched_unchanged, told(step)


def test_inputs_that_stay_cost_no_new_addresses():
    x, w = pair(0)
    step = anabranch.record(lambda x, w, y: torch.mm(x, w, out=y))
    y = torch.empty(64, 64, device=DEVICE)
    for _ in range(20):
        step(x, w, y)
    assert torch.equal(y, x @ w)
    assert step.reports[0].launched_unchanged > 0, told(step)


def test_an_input_may_be_written_and_autograd_sees_it():
    def step(x, y):
        x.add_(y).mul_(2)
        return x * y

    recorded = assert_follows(step, lambda seed: (normal(seed, 40), normal(seed + 500, 40)))
    assert_launched(recorded)
    x, y = normal(1, 40), normal(2, 40)
    before = x._version
    recorded(x, y)
    assert x._version > before


def test_an_output_that_is_an_input_is_that_very_tensor():
    def step(x, y):
        x.add_(y)
        return x, y

    recorded = anabranch.record(step)
    for seed in range(CALLS):
        x, y = normal(seed, 33), normal(seed + 500, 33)
        wanted = x + y
        first, second = recorded(x, y)
        assert first is x and second is y
        assert torch.equal(x, wanted)
    assert_launched(recorded)


def test_an_output_that_is_an_input_is_that_very_tensor_when_it_lies_badly():
    """Kernels that were captured for aligned memory run on a copy; the answer is no copy."""
    def step(x):
        x.mul_(2)
        return x, x[1:]

    recorded = anabranch.record(step)
    for _ in range(3):
        recorded(normal(0, 64))
    x = normal(1, 65)[1:]
    wanted = x * 2
    found, view = recorded(x)
    assert found is x and same_storage(view, x)
    assert torch.equal(x, wanted) and torch.equal(view, wanted[1:])


def test_views_of_inputs_are_views_of_what_the_call_was_given():
    def step(x):
        return x * 2, x[1:3], x.t(), x.view(-1)[5:], x.unsqueeze(0).expand(4, -1, -1)

    recorded = assert_follows(step, lambda seed: (normal(seed, 6, 7),))
    assert_launched(recorded)
    x = normal(99, 6, 7)
    for found, wanted in zip(recorded(x)[1:], step(x)[1:], strict=True):
        assert found.data_ptr() == wanted.data_ptr() and found.stride() == wanted.stride()
        assert same_storage(found, x)


def test_views_of_an_input_in_the_middle_of_its_storage_are_right():
    whole = normal(0, 40, 8)
    recorded = anabranch.record(lambda x: (x + 1, x[2:], x.reshape(-1)[3:]))
    for start in (0, 4, 8, 12, 16, 20):
        x = whole[start:start + 10]
        total, rows, flat = recorded(x)
        assert torch.equal(total, x + 1)
        assert torch.equal(rows, x[2:]) and torch.equal(flat, x.reshape(-1)[3:])
        assert same_storage(rows, whole) and same_storage(flat, whole)
    assert_launched(recorded, 3)


def test_outputs_that_share_memory_in_eager_share_it_here():
    def step(x):
        y = x * 2
        return y, y[1:], y.t(), x + 1

    recorded = assert_follows(step, lambda seed: (normal(seed, 8, 8),))
    assert_launched(recorded)
    y, rows, turned, other = recorded(normal(50, 8, 8))
    y.zero_()
    assert not rows.any() and not turned.any() and other.any()


def test_tensors_of_the_state_may_be_answered_and_looked_at():
    kept = {"bias": normal(0, 8)}
    recorded = anabranch.record(lambda x: (x + kept["bias"], kept["bias"], kept["bias"][2:5]))
    for seed in range(CALLS):
        if seed % 2:
            kept["bias"] = normal(seed, 8)  # somewhere else
        x = normal(seed + 500, 8)
        total, whole, part = recorded(x)
        assert torch.equal(total, x + kept["bias"]) and whole is kept["bias"]
        assert torch.equal(part, whole[2:5]) and same_storage(part, whole)
    assert_launched(recorded)


def test_tensors_that_only_static_names_may_move():
    class Hidden:
        __slots__ = ("scale",)  # nothing that could be looked through

    hidden = Hidden()
    hidden.scale = normal(0, 8)
    recorded = anabranch.record(lambda x: x * hidden.scale, state=[hidden.scale])
    for seed in range(CALLS):
        hidden.scale.data = normal(seed, 8)
        x = normal(seed + 500, 8)
        assert torch.equal(recorded(x), x * hidden.scale)
    assert_launched(recorded)


def test_one_tensor_answered_twice_is_equal_twice():
    recorded = assert_follows(lambda x: {"a": (y := x * 3), "b": [y, y.view(-1)]},
                              lambda seed: (normal(seed, 5, 5),))
    assert_launched(recorded)


def test_one_layers_code_is_launched_with_the_weights_of_all():
    """The state holds every layer, so each argument is a tensor of the state as well."""
    layers = [torch.nn.Linear(8, 8).to("cuda") for _ in range(CALLS)]
    weights = [dict(layer.named_parameters()) for layer in layers]
    recorded = anabranch.record(
        lambda parameters, x: torch.func.functional_call(layers[0], parameters, (x,)))
    with torch.no_grad():
        for seed in range(2):
            x = normal(seed, 4, 8)
            for parameters, layer in zip(weights, layers, strict=True):
                assert torch.equal(recorded(parameters, x), layer(x))
    assert_launched(recorded, 2 * CALLS - 3)
    assert [(report.nodes > 0, report.plain_calls) for report in recorded.reports] == [(True, 0)]


def test_a_tensor_used_both_as_an_argument_and_as_the_steps_own_is_one():
    own = normal(0, 8)

    def step(x):
        x.add_(1)
        return own * 2

    recorded = anabranch.record(step)
    for seed in range(2 * CALLS):
        x = own if seed < CALLS or seed % 2 else normal(seed, 8)
        wanted = (own + (x is own)) * 2
        assert torch.equal(recorded(x), wanted), seed
    assert recorded.reports[0].nodes and recorded.reports[0].launched >= CALLS, told(recorded)


def test_arguments_that_are_one_tensor_are_still_one():
    def step(x, y):
        x.add_(1)
        return x * y

    recorded = anabranch.record(step)
    for seed in range(CALLS):
        x = normal(seed, 30)
        assert torch.equal(recorded(x, x), (normal(seed, 30) + 1) ** 2)
    assert_launched(recorded)
    x, y = normal(50, 30), normal(51, 30)  # two now: what was frozen does not hold
    assert torch.equal(recorded(x, y), (normal(50, 30) + 1) * y)


@pytest.mark.parametrize("shift", [16, 1])
def test_arguments_that_overlap_now_and_did_not_when_recorded_are_right(shift):
    def step(x, y):
        x.mul_(2)
        return x + y

    recorded = anabranch.record(step)
    for seed in range(4):
        recorded(normal(seed, 32), normal(seed + 500, 32))
    assert_launched(recorded, 2)
    mine, theirs = normal(7, 64), normal(7, 64)
    found = recorded(mine[:32], mine[shift:shift + 32])
    assert torch.equal(found, step(theirs[:32], theirs[shift:shift + 32]))
    assert torch.equal(mine, theirs)


LAYOUTS = {
    "transposed": lambda seed: normal(seed, 20, 30).t(),
    "every second column": lambda seed: normal(seed, 30, 40)[:, ::2],
    "a slice of rows": lambda seed: normal(seed, 50, 20)[10:40],
    "one element off": lambda seed: normal(seed, 601)[1:].view(30, 20),
    "three elements off": lambda seed: normal(seed, 603)[3:].view(30, 20),
    "expanded": lambda seed: normal(seed, 1, 20).expand(30, 20),
    "channels last": lambda seed: normal(seed, 2, 3, 10, 10).to(memory_format=torch.channels_last),
    "a half, one element off": lambda seed: normal(seed, 601, dtype=torch.float16)[1:].view(30, 20),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_inputs_of_any_layout(make):
    step = assert_follows(lambda x: (torch.relu(x * 2 + 1), x.sum(0), x.exp()),
                          lambda seed: (make(seed),))
    assert_launched(step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_an_input_may_lie_worse_than_the_one_it_was_recorded_with(dtype):
    def aligned(seed):
        return normal(seed, 600).abs().mul(10).to(dtype)

    def shifted(seed):
        moved = torch.empty(700, dtype=dtype, device=DEVICE)[1 + seed % 3:][:600]
        return moved.copy_(aligned(seed))

    def step(x):
        x.mul_(2)
        return x + 1

    recorded = assert_follows(step, lambda seed: ((aligned if seed < 3 else shifted)(seed),))
    assert_launched(recorded, 2)


def test_empty_tensors_among_others():
    def step(x, empty):
        return x + 1, empty * 2, torch.cat([x, empty]), empty, x[:0]

    recorded = assert_follows(step, lambda seed: (normal(seed, 9), torch.empty(0, device=DEVICE)))
    assert_launched(recorded)


def test_a_batch_of_nothing():
    recorded = assert_follows(lambda x, w: (x @ w, w.sum(0), x.t()),
                              lambda seed: (normal(seed, 0, 16), normal(seed, 16, 4)))
    assert_launched(recorded)


def test_a_step_that_is_given_and_answers_nothing_but_empty_tensors():
    assert_follows(lambda x: (x * 2, x @ x.t()), lambda seed: (normal(seed, 0, 16),))


def test_a_step_that_queues_nothing():
    recorded = anabranch.record(lambda x: (x.t(), x[1:], 5))
    for seed in range(CALLS):
        x = normal(seed, 4, 4)
        turned, rows, number = recorded(x)
        assert torch.equal(turned, x.t()) and torch.equal(rows, x[1:]) and number == 5
        assert same_storage(turned, x)


def test_each_signature_has_a_recording_of_its_own():
    recorded = anabranch.record(affine)
    pairs = []
    for seed in range(5):
        for rows in (8, 24, 64):
            inputs = pair(seed, rows)
            pairs.append((recorded(*inputs), affine(*inputs)))
    assert all(torch.equal(found, wanted) for found, wanted in pairs)
    assert len(recorded.reports) == 3 and all(report.nodes for report in recorded.reports)
    assert_launched(recorded, 9)


def test_signatures_beyond_the_limit_run_plainly_and_say_so():
    recorded = anabranch.record(affine, max_recordings=2)
    for seed in range(4):
        for rows in (8, 24, 64):
            inputs = pair(seed, rows)
            assert torch.equal(recorded(*inputs), affine(*inputs))
    reasons = [report.reason for report in recorded.reports]
    assert reasons[:2] == [None, None] and "max_recordings" in reasons[2], told(recorded)
    assert launches(recorded) >= 4


def test_types_and_strides_are_part_of_a_signature():
    def step(x):
        return x * 2 + 1

    inputs = [normal(0, 8, 8), normal(0, 8, 8, dtype=torch.float16), normal(0, 8, 8).t(),
              normal(0, 8, 16)[:, :8]]
    recorded = anabranch.record(step)
    for _ in range(4):
        for x in inputs:
            found, wanted = recorded(x), step(x)
            assert torch.equal(found, wanted) and found.dtype == wanted.dtype
            assert found.stride() == wanted.stride()
    assert len(recorded.reports) == len(inputs)
    assert_launched(recorded, 2 * len(inputs))


def test_recordings_that_live_side_by_side_do_not_meet():
    functions = [lambda x: torch.relu(x) + 1, lambda x: (x * x).cumsum(0), lambda x: x @ x,
                 lambda x: torch.softmax(x, 1)]
    steps = [anabranch.record(function) for function in functions]
    pairs = []
    for seed in range(8):
        x = normal(seed, 48, 48)
        for step, function in zip(steps, functions, strict=True):
            pairs.append((step(x), function(x)))
            x = x + 1  # other addresses, and the same contents for both
    assert all(torch.equal(found, wanted) for found, wanted in pairs)
    for step in steps:
        assert_launched(step, 6)


def test_one_recording_may_feed_another():
    first = anabranch.record(lambda x: x * 2 + 1)
    second = anabranch.record(lambda x: x.relu().sum(0))
    for seed in range(CALLS):
        x = normal(seed, 20, 20)
        assert torch.equal(second(first(x)), (x * 2 + 1).relu().sum(0))
    assert_launched(first)
    assert_launched(second)


def test_containers_keywords_and_numbers_come_and_go():
    def step(parts, *, scale, extra=None):
        total = sum(parts["xs"]) * scale
        return {"total": total, "extra": extra, "both": (total, [total + 1, "text", None])}

    recorded = anabranch.record(step)
    for seed in range(CALLS):
        for scale in (2, 0.5):
            parts = {"xs": [normal(seed, 12), normal(seed + 500, 12)]}
            found, wanted = recorded(parts, scale=scale, extra=7), step(parts, scale=scale, extra=7)
            assert_same(tensors_by_name(answer=found), tensors_by_name(answer=wanted))
            assert found["extra"] == 7 and found["both"][1][1:] == ["text", None]
    assert len(recorded.reports) == 2
    assert_launched(recorded, 2 * (CALLS - 2))


OPERATIONS = {
    "fill and clone": lambda x: torch.zeros_like(x) + x.clone(),
    "cat": lambda x: torch.cat([x, x[:3]]),
    "pad": lambda x: F.pad(x, (1, 2)),
    "cast": lambda x: x.to(torch.float64).to(torch.float16),
    "copy": lambda x: torch.empty_like(x).fill_(3).copy_(x.t()),
    "scan": lambda x: x.cumsum(0).flip(1),
    "sort": lambda x: torch.sort(x, dim=1),
    "topk": lambda x: torch.topk(x, 3),
    "index": lambda x: x.index_select(0, x[0].argsort()[:4]),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
    "foreach": lambda x: torch._foreach_add([x, x[0], x[1]], 2),
    "bmm": lambda x: torch.bmm(x.expand(3, -1, -1), x.expand(3, -1, -1)),
    "conv": lambda x: F.conv1d(x[None], x[:3, None, :3].expand(3, 16, 3).contiguous()),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None],
                                                          x[None, None], is_causal=True),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_operators_that_copy_fill_and_use_scratch_memory(operation):
    assert_launched(assert_follows(operation, lambda seed: (normal(seed, 16, 16),)))
