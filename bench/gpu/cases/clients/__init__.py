# SPDX-License-Identifier: Apache-2.0
"""Other people's libraries in the ways that docs/clients.md tells to use them: what clients.py
races."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from turns import time_call

import anabranch
from cases.llama import Llama, Shape, rotation

DEVICE = "cuda"
LAYERS, WIDTH, HIDDEN, HEADS, VOCABULARY = 8, 1024, 2816, 16, 32000

EAGER, COMPILE, GRAPHS = "eager", "torch.compile", "reduce-overhead"
BACKEND, RECORD = 'backend="anabranch"', "anabranch.record"
WAYS = (EAGER, COMPILE, GRAPHS, BACKEND, RECORD)


@dataclasses.dataclass
class Made:
    """A client's work in one way. ``timed`` does a unit of it and answers the microseconds,
    ``answer`` what that has computed; ``recorded`` is what anabranch.record has made, if that is the
    way."""

    timed: Callable[[], float]
    answer: Callable[[], Tensor]
    recorded: Any = None


@dataclasses.dataclass(frozen=True)
class Client:
    """``library`` is imported by its name. ``make`` has the same weights and inputs in each way."""

    library: str
    unit: str
    make: Callable[[str], Made]
    ways: tuple[str, ...] = WAYS


def steps(call: Callable[..., Tensor], way: str, *given: Tensor) -> Made:
    """Calls with the same arguments; recorded, if that is the way."""
    step, made = recorded(call, way)

    def one() -> Tensor:
        begin(way)
        return step(*given)

    return calls(one, recorded=made)


def calls(call: Callable[[], Tensor], units: int = 1, recorded: Any = None) -> Made:
    """Of something that is called: once after another rival's, and then timed."""
    answers: list[Tensor] = []

    def timed() -> float:
        call()
        whole, _ = time_call(lambda: answers.append(call()))
        del answers[:-1]
        return whole / units

    return Made(timed, lambda: answers[-1], recorded)


def how_compiled(way: str) -> dict[str, Any]:
    """For torch.compile; under anabranch.record the model is compiled as it is by itself."""
    if way == BACKEND:
        return {"backend": anabranch.backend}
    return {"mode": "reduce-overhead"} if way == GRAPHS else {}


def compiled_in_place(model: Any, way: str) -> Any:
    if way != EAGER:
        model.compile(**how_compiled(way))
    return model


def recorded(call: Callable[..., Any], way: str) -> tuple[Callable[..., Any], Any]:
    """What is called, and the same where it is recorded."""
    if way != RECORD:
        return call, None
    made = anabranch.record(call)
    return made, made


def begin(way: str) -> None:
    """Of a step: what the last one has answered may be written over."""
    if way == GRAPHS:
        torch.compiler.cudagraph_mark_step_begin()


def words(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (count, length),
                         generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def llama(kind: torch.dtype) -> tuple[Llama, tuple[Tensor, Tensor]]:
    """The benchmarks' own, and its cosines and sines."""
    torch.manual_seed(0)
    shape = Shape(layers=LAYERS, width=WIDTH, vocabulary=VOCABULARY)
    return Llama(shape).to(DEVICE, kind), rotation(shape, DEVICE, kind)


def llama_of_transformers() -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, vocab_size=VOCABULARY,
        max_position_embeddings=4096)).to(DEVICE)
