# SPDX-License-Identifier: Apache-2.0
"""What steps of a graph are expected to take, by the bytes that its fused kernels move."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from anabranch import _compat
from anabranch._offload import durations
from anabranch._offload.durations import durations_ns
from anabranch._offload.saved import steps_of

pytestmark = pytest.mark.oldest
ROWS, WIDTH = 64, 256
ONE = ROWS * WIDTH * 4  # bytes of a tensor
PER_S = 1e6  # so that a byte that is moved takes 500 ns


def bytes_of_steps(function, *shapes):
    """By operator, what its steps move; None for those that were run."""
    graph = make_fx(function, tracing_mode="fake")(*(torch.empty(shape) for shape in shapes)).graph
    steps = steps_of(graph)
    took = durations_ns(steps, PER_S)
    return {node.target.overloadpacket.__name__:
            None if node.target is torch.ops.aten.mm.default else round(ns / 500)
            for node, ns in zip(steps, took, strict=True)}


def test_a_chain_of_fused_steps_reads_and_writes_once():
    moved = bytes_of_steps(lambda x: x.sin().cos().exp(), (ROWS, WIDTH))
    assert moved == {"sin": ONE, "cos": 0, "exp": ONE}


def test_what_a_product_reads_or_makes_is_written_and_read():
    moved = bytes_of_steps(lambda x, w: (x.sin() @ w).cos(), (ROWS, WIDTH), (WIDTH, WIDTH))
    assert moved == {"sin": 2 * ONE, "mm": None, "cos": 2 * ONE}


def test_what_is_used_on_both_sides_of_a_product_is_read_twice():
    def residual(x, w):
        x = x.sin()
        return x + x @ w

    moved = bytes_of_steps(residual, (ROWS, WIDTH), (WIDTH, WIDTH))
    assert moved == {"sin": 2 * ONE, "mm": None, "add": 3 * ONE}


def test_a_view_moves_nothing_and_of_a_part_its_bytes_count():
    moved = bytes_of_steps(lambda x: x.view(WIDTH, ROWS)[:8].exp(), (ROWS, WIDTH))
    assert moved == {"exp": 2 * 8 * ROWS * 4}


def test_a_reduction_and_what_is_made_of_it_read_their_input_once():
    moved = bytes_of_steps(lambda x: F.softmax(x, -1).exp(), (ROWS, WIDTH))
    assert sum(moved.values()) == 2 * ONE


def test_what_a_call_takes_beside_its_answer_is_told_by_torchs_history(monkeypatch):
    events = [_compat.Event(address, size, is_freed) for address, size, is_freed in (
        (1, 100, False), (2, 4 * ROWS, False), (1, 100, True), (3, 30, False), (3, 30, True))]
    history = SimpleNamespace(events=events)
    monkeypatch.setattr(_compat, "memory_history",
                        lambda device: contextlib.nullcontext(lambda: history))
    answer = torch.empty(ROWS)
    device = torch.device("cuda", 0)
    assert durations._workspace_bytes(device, lambda: (answer, answer[1:])) == 100
    assert durations._workspace_bytes(torch.device("cpu"), lambda: answer) == 0

    def untold(device):
        raise RuntimeError("the recorded memory history is too short")

    monkeypatch.setattr(_compat, "memory_history", untold)
    assert durations._workspace_bytes(device, lambda: answer) == 0
