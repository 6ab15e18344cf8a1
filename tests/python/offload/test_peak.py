# SPDX-License-Identifier: Apache-2.0
"""What a step is expected to take at its peak, by what its fused kernels write."""

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch._core.offload import Choice
from anabranch._offload import peak
from anabranch._offload.saved import steps_of

pytestmark = pytest.mark.oldest
WIDTH = 8
ONE = WIDTH * WIDTH * 4  # bytes of a tensor


def graph_of(function, inputs=2):
    given = [torch.empty(WIDTH, WIDTH) for _ in range(inputs)]
    return make_fx(function, tracing_mode="fake")(*given).graph


def tensors_alive(function, elsewhere=()):
    """By step, how many."""
    graph = graph_of(function)
    steps = steps_of(graph)
    beside = {step for step in steps if step.name in elsewhere}
    return [size / ONE for size in peak._Lives(graph, steps, beside).bytes()]


def test_of_what_is_fused_the_end_alone_is_written():
    assert tensors_alive(lambda x, w: x.sin().cos().exp() @ w) == [0, 0, 1, 2]


def test_a_product_reads_and_writes_memory_and_what_reads_it_last_writes_over_it():
    assert tensors_alive(lambda x, w: (x.sin() @ w).cos()) == [1, 2, 1]
    assert tensors_alive(lambda x, w: (x @ w) @ w) == [1, 2]


def test_what_is_read_again_lives_until_then():
    def residual(x, w):
        x = x.sin()
        return x + (x @ w)

    assert tensors_alive(residual) == [1, 2, 2]  # over one of the two


def test_what_a_fused_chain_reads_lives_until_the_chain_writes():
    def chain(x, w):
        y = x @ w
        z, v = y.cos(), w @ w  # z is not written
        return z.exp() @ v

    assert tensors_alive(chain) == [1, 1, 2, 2, 3]


def test_what_is_only_returned_is_made_where_its_inputs_are():
    def late(x, w):
        y = x @ w
        return y.sin() @ w, y.cos()

    assert tensors_alive(late) == [1, 2, 3, 2]


def test_results_live_to_the_end_and_what_is_saved_is_counted_elsewhere():
    def both(x, w):
        y = x @ w
        return y, (y.sin() @ w).sin()

    assert tensors_alive(both) == [1, 2, 3, 2]
    assert tensors_alive(both, elsewhere={"mm"}) == [0, 1, 2, 1]


def pair_of(forward, backward, *saved):
    graphs = graph_of(forward), graph_of(backward)
    steps = [steps_of(graph) for graph in graphs]
    return SimpleNamespace(
        forward=SimpleNamespace(graph=graphs[0]), backward=SimpleNamespace(graph=graphs[1]),
        forward_steps=steps[0], backward_steps=steps[1], steps=[*steps[0], *steps[1]],
        saved=[SimpleNamespace(tensor=steps[0][made], bytes=ONE, made_after=made,
                               last_backward_use=last) for made, last in saved])


def test_a_step_takes_what_is_saved_what_is_beside_it_and_workspaces(monkeypatch):
    pair = pair_of(lambda x, w: ((x @ w) @ w) @ w, lambda x, w: ((x @ w) @ w) @ w, (0, 5), (1, 4))
    assert [size // ONE for size in peak.expected_bytes(pair)] == [1, 2, 3, 3, 4, 3]
    moved = SimpleNamespace(choice=Choice.OFFLOAD, freed_before=2, in_before=5)
    kept = SimpleNamespace(choice=Choice.KEEP)
    assert [size // ONE for size in peak.expected_bytes(pair, [moved, kept])] == [1, 2, 2, 2, 3, 3]
    again = SimpleNamespace(choice=Choice.RECOMPUTE)
    pair.saved[0].last_forward_use, pair.saved[0].first_backward_use = 1, 4
    assert [size // ONE for size in peak.expected_bytes(pair, [again, kept])] == [1, 2, 2, 2, 4, 3]
    assert peak.near_peak(pair, [again, kept]) == [pair.steps[4]]
    monkeypatch.setattr(peak, "workspace_bytes",
                        lambda step: 5 * ONE if step is pair.steps[3] else 0)
    assert [size // ONE for size in peak.expected_bytes(pair)] == [1, 2, 3, 8, 4, 3]
