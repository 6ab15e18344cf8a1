# SPDX-License-Identifier: Apache-2.0
"""Several threads of the caller at once."""

import concurrent.futures
import copy
import threading

import pytest
import torch
from compare import compiled, weighted_sum
from zoo import Encoder, Towers, normal

CALLS = 40
DEADLINE_S = 120


def together(*tasks):
    """Runs all tasks at the same time, started as closely as can be; raises what they raise."""
    start = threading.Barrier(len(tasks))

    def run(task):
        start.wait(DEADLINE_S)
        return task()

    with concurrent.futures.ThreadPoolExecutor(len(tasks)) as pool:
        futures = [pool.submit(run, task) for task in tasks]
        return [future.result(timeout=DEADLINE_S) for future in futures]


def outputs(call, seeds, shape):
    with torch.no_grad():
        return [call(normal(seed, *shape)) for seed in seeds]


def assert_equals_eager(found, model, seeds, shape):
    for output, wanted in zip(found, outputs(model, seeds, shape), strict=True):
        torch.testing.assert_close(output, wanted)


@pytest.mark.oldest
def test_two_threads_may_call_two_models():
    towers, encoder = Towers(True), Encoder(True)
    calls = compiled(towers), compiled(encoder)
    shapes = (3, 8), (2, 5, 16)
    for call, shape in zip(calls, shapes):
        outputs(call, [0], shape)
    seeds = range(CALLS)
    found = together(*(lambda call=call, shape=shape: outputs(call, seeds, shape)
                       for call, shape in zip(calls, shapes)))
    assert_equals_eager(found[0], towers, seeds, shapes[0])
    assert_equals_eager(found[1], encoder, seeds, shapes[1])


@pytest.mark.oldest
def test_threads_may_call_the_same_model():
    model = Towers(True)
    call = compiled(model)
    outputs(call, [0], (3, 8))
    ranges = [range(start, start + CALLS) for start in (0, 1000, 2000)]
    found = together(*(lambda seeds=seeds: outputs(call, seeds, (3, 8)) for seeds in ranges))
    for result, seeds in zip(found, ranges):
        assert_equals_eager(result, model, seeds, (3, 8))


def test_threads_may_train_through_the_same_compiled_function():
    model = Towers(True)
    call = compiled(model)
    weighted_sum(call(normal(0, 3, 8, grad=True))).backward()

    def gradients(function, seeds):
        found = []
        for seed in seeds:
            x = normal(seed, 3, 8, grad=True)
            found.append(torch.autograd.grad(weighted_sum(function(x)), x)[0])
        return found

    ranges = [range(start, start + CALLS) for start in (0, 1000)]
    for found, seeds in zip(together(*(lambda s=s: gradients(call, s) for s in ranges)), ranges):
        for gradient, wanted in zip(found, gradients(model, seeds), strict=True):
            torch.testing.assert_close(gradient, wanted)


def test_a_first_call_may_come_from_two_threads_at_once():
    model = Towers(True)
    call = compiled(model)
    found = together(*(lambda: outputs(call, range(3), (3, 8)),) * 2)
    for result in found:
        assert_equals_eager(result, model, range(3), (3, 8))


def test_a_model_compiled_in_one_thread_may_be_called_and_dropped_in_another():
    model = Towers(True)
    reference = copy.deepcopy(model)
    found = together(lambda: outputs(compiled(model), range(2), (3, 8)))
    assert_equals_eager(found[0], reference, range(2), (3, 8))
    found = together(lambda: outputs(compiled(model), range(2), (3, 8)))
    assert_equals_eager(found[0], reference, range(2), (3, 8))


def test_an_error_in_one_thread_leaves_the_other_alone():
    model = Towers(True)
    call = compiled(model)
    outputs(call, [0], (3, 8))

    def failing():
        for _ in range(3):
            with pytest.raises(Exception, match="(?i)size|shape"):
                call(normal(1, 3, 9))

    found = together(lambda: outputs(call, range(CALLS), (3, 8)), failing)
    assert_equals_eager(found[0], model, range(CALLS), (3, 8))
