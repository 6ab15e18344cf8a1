# SPDX-License-Identifier: Apache-2.0
"""Ten steps that something holds up, each with what a report is to name."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import anabranch

CALLS = 400
Step = Callable[..., Any]
BF16: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Planted:
    """``make()`` answers the step, which is compiled and recorded, and ``call(step, i)``, which
    calls it for the i-th time and does what comes between calls."""

    name: str
    wanted: str  # `what` of the stall
    make: Callable[[], tuple[Step, Callable[[Step, int], Any]]]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def told(self) -> list[str]:
        """What the report names of its step; where that is nothing, what became of the step."""
        function, call = self.make()
        step = anabranch.record(torch.compile(function, dynamic=False), timing=True,
                                **self.options)
        with torch.no_grad():
            for i in range(CALLS):
                call(step, i)
            torch.cuda.synchronize()
            report = anabranch.explain(lambda: call(step, CALLS))
        stalls = report.to_dict()["stalls"]
        if self.wanted not in [row["what"] for row in stalls]:
            return [f"{row['what']}: {row['why']}" for row in stalls] or [
                f"nothing: {one.timing.why_not if one.timing else one.reason or one}"
                for one in step.reports]
        return [row["what"] for row in stalls]


def _products(count: int = 8, width: int = 2048) -> list[Tensor]:
    return [torch.randn(width, width, **BF16) / width**0.5 for _ in range(count)]


def _chain(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = F.gelu(x @ weight)
    return x


def host_sync() -> tuple[Step, Callable[[Step, int], Any]]:
    weights, x = _products(), torch.randn(256, 2048, **BF16)
    return lambda x: _chain(x, weights), lambda step, i: step(x).sum().item()


def slow_python() -> tuple[Step, Callable[[Step, int], Any]]:
    weights, x = _products(), torch.randn(256, 2048, **BF16)

    def call(step: Step, i: int) -> None:
        step(x)
        time.sleep(0.002)

    return lambda x: _chain(x, weights), call


def small_copies() -> tuple[Step, Callable[[Step, int], Any]]:
    """So many that kernels cannot hide them: copies run ahead, and a few would cost nothing."""
    pieces = [[torch.randn(64).pin_memory() for _ in range(16)] for _ in range(16)]
    weight, x = torch.randn(64, 64, device="cuda") / 8, torch.randn(64, 64, device="cuda")

    def step(x: Tensor) -> Tensor:
        for some in pieces:
            x = torch.tanh(x @ weight + sum(one.to("cuda", non_blocking=True) for one in some))
        return x

    return step, lambda step, i: step(x)


def late_copy() -> tuple[Step, Callable[[Step, int], Any]]:
    weight = torch.randn(8192, 8192, dtype=torch.bfloat16).pin_memory()
    x = torch.randn(16, 8192, **BF16)
    return (lambda x: x @ weight.to("cuda", non_blocking=True)), lambda step, i: step(x)


def _branches(left: int, right: int) -> tuple[Step, Callable[[Step, int], Any]]:
    first, second = _products(left, 512), _products(right, 512)
    last, x = _products(4, 512), torch.randn(128, 512, **BF16)

    def step(x: Tensor) -> Tensor:
        return _chain(_chain(x, first) + _chain(x, second), last)

    return step, lambda step, i: step(x)


def tiny_kernels() -> tuple[Step, Callable[[Step, int], Any]]:
    weights, x = _products(200, 32), torch.randn(32, 32, **BF16)
    return lambda x: _chain(x, weights), lambda step, i: step(x)


def one_line() -> tuple[Step, Callable[[Step, int], Any]]:
    large, x = torch.randn(8192, 8192, **BF16), torch.randn(8192, 8192, **BF16)

    def step(x: Tensor) -> Tensor:
        y = x @ large
        return y.sum(0)

    return step, lambda step, i: step(x)


def transposes() -> tuple[Step, Callable[[Step, int], Any]]:
    x, weight = torch.randn(4096, 4096, **BF16), torch.randn(4096, 64, **BF16)

    def step(x: Tensor) -> Tensor:
        y = x.t().clone(memory_format=torch.contiguous_format)
        z = y.view(64, 64, 4096).transpose(0, 1).clone(memory_format=torch.contiguous_format)
        return z.view(4096, 4096) @ weight

    return step, lambda step, i: step(x)


def plain_calls() -> tuple[Step, Callable[[Step, int], Any]]:
    """Every third call has a size for which there is no place."""
    weights, x = _products(), torch.randn(256, 2048, **BF16)
    return lambda x: _chain(x, weights), lambda step, i: step(x[:128] if i % 3 == 2 else x)


PLANTED = (
    Planted("a host sync", "the host comes late", host_sync),
    Planted("slow Python", "the host comes late", slow_python),
    Planted("small copies", "a slow copy", small_copies),
    Planted("a missed overlap", "a copy that nothing runs beside", late_copy),
    Planted("branches in order", "kernels run one after the other", lambda: _branches(4, 4),
            {"max_parallel_kernels": 1}),
    Planted("a late branch", "a lane waits for a late one", lambda: _branches(3, 12)),
    Planted("tiny kernels", "kernels that mostly start", tiny_kernels),
    Planted("one slow line", "most of the time is one line's", one_line),
    Planted("transposes", "copies within the GPU", transposes),
    Planted("plain calls", "calls that are not launched", plain_calls, {"max_recordings": 1}),
)
