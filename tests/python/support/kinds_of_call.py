# SPDX-License-Identifier: Apache-2.0
"""Calls of recorded callables as programs make them, by what is another from call to call. They
run without a GPU: tensors lie on the CPU, and a launch does nothing."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from stand_in_recording import StandIn
from torch import Tensor, nn

import anabranch
from anabranch import _compat
from anabranch._core.abi import CaptureCounts
from anabranch._core.capture import Block, Slot
from anabranch._record import attempt
from anabranch._record.capture.captured import Captured
from anabranch._record.capture.pytree import flatten
from anabranch._record.capture.step import Fresh, Step
from anabranch._record.launch import discovered
from anabranch._record.launch.discovered import DiscoveredStep
from anabranch._record.launch.recording import StepRecording

LAYERS, PARTS, WIDTH, INPUTS = 16, 9, 8, 8
SIZE_BYTES = WIDTH * 4


class DoesNothing:
    """In the place of CapturedRecording: it names all blocks that have a size."""

    counts = CaptureCounts(nodes=2)
    parts = ()
    launch_address = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    handle = SimpleNamespace(value=0)  # of which labs answers 0

    def __init__(self, step: Any, *_: Any, **__: Any) -> None:
        self.slots = [Slot(i, block.size_bytes, 4) for i, block in enumerate(step.blocks)
                      if block.size_bytes]

    def launch(self, addresses: bytes, stream: int) -> None:
        assert len(addresses) == 8 * (len(self.slots) + len(self.parts))


class Steps:
    """Records what is called as if it answered one tensor, wrote what it was given behind its
    arguments, and left gradients or none."""

    def __init__(self, patch: pytest.MonkeyPatch, do_gradients_stay: bool = False) -> None:
        self._stays = do_gradients_stay
        StandIn(patch)
        patch.setattr(Tensor, "is_cuda", property(lambda tensor: True))
        patch.setattr(_compat, "empty_strided_cuda", _compat.empty_strided_cpu)
        patch.setattr(_compat, "current_device", lambda: 0)
        patch.setattr(_compat, "current_stream", lambda device: 0)
        patch.setattr(attempt, "StepRecording", self._recording)
        patch.setattr(discovered, "CapturedStep",
                      lambda device, one, two, blocks, *_: SimpleNamespace(blocks=blocks))
        patch.setattr(discovered, "CapturedRecording", DoesNothing)

    def _recording(self, step: Step, *_: Any) -> StepRecording:
        like = [torch.ones(WIDTH), *(step.parameters if self._stays else ())]
        fresh = [Fresh(i, 0, tuple(one.shape), one.stride(), one.dtype)
                 for i, one in enumerate(like)]
        _, shape = flatten([0])
        first = Captured(None, None, [], object(), None, fresh[:1], shape,
                         gradients=dict(enumerate(fresh[1:])),
                         mutated=list(range(step.arguments, step.own)))
        blocks = [*(Block(0, 0, unit.size_bytes * (unit.members[0][0] < step.own), True)
                    for unit in step.units),  # it clears the gradients that it finds
                  *(Block(0, 0, SIZE_BYTES, False) for _ in fresh)]
        capture = SimpleNamespace(first=first, second=first, blocks=blocks, noted=None, third=None,
                                  is_mapped=False)
        return StepRecording(step, DiscoveredStep(step, capture, None), False)


record = anabranch.record(verify=False, max_parallel_kernels=1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, 1, bias=False) for _ in range(PARTS))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 1, bias=False)


class Deep(nn.Module):
    """Of so many layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) * (2 if self.training else 1)
        return x


class Case(NamedTuple):
    """A recorded callable, what is done before each of its calls by the call's number, and the
    arguments of that call."""

    recorded: Any
    arguments: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    before: Callable[[int], Any] = lambda i: None


def ones() -> Tensor:
    return torch.ones(WIDTH)


def always(*args: Any, **kwargs: Any) -> Callable[[int], Any]:
    return lambda i: (args, kwargs)


def small() -> Case:
    @record
    def join(*parts: Tensor) -> Tensor:
        return torch.cat(parts)

    return Case(join, always(*(ones() for _ in range(INPUTS))))


def training(do_gradients_stay: bool) -> Case:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, cos, sin = (ones() for _ in range(3))

    @record
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = sum(((parameter * tokens).sum() for parameter in model.parameters()),
                   (cos * sin).sum())
        loss.backward()
        optimizer.step()
        if not do_gradients_stay:
            optimizer.zero_grad()
        return loss.detach()

    return Case(step, always())


def deep(before: Callable[[Deep], Callable[[int], Any]] = lambda model: lambda i: None) -> Case:
    model = Deep(50)

    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return model(x)

    return Case(record(step), lambda i: ((ones(),), {}), before(model))


def replaces_weight(model: Deep) -> Callable[[int], Any]:
    def replace(i: int) -> None:
        model.layers[i % 50].weight = nn.Parameter(torch.ones(WIDTH, WIDTH))

    return replace


def guarded() -> Case:
    return Case(anabranch.record(lambda x: x * 2, verify=False, max_parallel_kernels=1,
                                 guard=lambda: 1), always(ones()))


def doubling(arguments: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]) -> Case:
    return Case(record(lambda x: x * 2), arguments)


@dataclasses.dataclass
class Data:
    ids: Tensor
    mask: Tensor
    name: str = "some"


class Plain:
    def __init__(self) -> None:
        self.ids, self.mask, self.name = ones(), ones(), "some"


class Encoding(collections.UserDict):  # type: ignore[type-arg]
    """As a tokenizer's."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def adding(make: Callable[[int], Any]) -> Case:
    return Case(record(lambda batch: batch.ids + batch.mask), lambda i: ((make(i),), {}))


def of_dict(make: Callable[[int], dict[str, Tensor]]) -> Case:
    return Case(record(lambda batch: batch["ids"] + batch["mask"]), lambda i: ((make(i),), {}))


def fresh_dict(i: int) -> dict[str, Tensor]:
    return {"ids": ones(), "mask": ones()}


_SAME_DICT = fresh_dict(0)
_WANTS_GRADIENT = ones().requires_grad_()

# Of each kind, and whether gradients stay.
KINDS: dict[str, tuple[Callable[[], Case], bool]] = {
    "one kernel, 8 inputs": (small, False),
    "training, no gradients left": (lambda: training(False), False),
    "training, gradients stay": (lambda: training(True), True),
    "50 layers, fresh tensors": (deep, False),
    "guard=": (guarded, False),
    "two shapes in turn": (lambda: doubling(lambda i: ((torch.ones(WIDTH + i % 2),), {})), False),
    "an argument requires grad": (lambda: doubling(always(_WANTS_GRADIENT)), False),
    "train() and eval() in turn": (
        lambda: deep(lambda model: lambda i: model.train(i % 2 == 0)), False),
    "the same dict": (lambda: of_dict(lambda i: _SAME_DICT), False),
    "a fresh dict": (lambda: of_dict(fresh_dict), False),
    "a keyword": (lambda: doubling(lambda i: ((), {"x": ones()})), False),
    "a replaced weight": (lambda: deep(replaces_weight), False),
    "a fresh object": (lambda: adding(lambda i: Plain()), False),
    "a fresh dataclass": (lambda: adding(lambda i: Data(ones(), ones())), False),
    "a fresh encoding": (lambda: adding(lambda i: Encoding(ids=ones(), mask=ones())), False),
}


def warmed_up(case: Case, calls: int = 30) -> Case:
    """Behind so many calls, of which the last were launched."""
    for i in range(calls):
        case.before(i)
        args, kwargs = case.arguments(i)
        case.recorded(*args, **kwargs)
    reports = case.recorded.reports
    assert all(report.reason is None for report in reports), reports
    return case
