# SPDX-License-Identifier: Apache-2.0
"""Programs over torch's streams, as data: what they are given, where they run, what they are
compared with.

A program is a function of tensors (``x``, ``y``, ``w``) and of what its other parameters name: the
streams A, B and C, the current stream D, the events E and F, and the other attributes of a Place.
Numbers are small integers: every order of additions, and every way to multiply, gives the same.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from compare import assert_same, compiled, tensors_of

from anabranch import _compat
from anabranch._compile.user_streams import extract

SIZE = 8
TENSORS = ("x", "y", "w")
# What torch can do with streams of a GPU only; with those of the CPU it raises while it traces.
_ON_A_GPU = {"made by a record", "an accelerator"}
_SINCE_215_ON_THE_CPU = {"record_event", "record_stream", "the device"}


@dataclasses.dataclass(frozen=True)
class Program:
    function: Callable[..., Any]
    needs: frozenset[str]
    has_gradients: bool

    @property
    def name(self) -> str:
        return self.function.__name__

    def at(self, place: Place) -> Callable[..., Any]:
        """The same as a function of tensors alone, on the streams of a place."""
        names = inspect.signature(self.function).parameters
        given = {name: getattr(place, name) for name in names if name not in TENSORS}
        function = self.function

        def run(*inputs: torch.Tensor) -> Any:
            return function(*inputs, **given)

        return run

    def inputs(self, seed: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        names = [n for n in inspect.signature(self.function).parameters if n in TENSORS]
        return tuple(torch.randint(-2, 3, (SIZE, SIZE), generator=generator).float().to(device)
                     .requires_grad_(self.has_gradients) for _ in names)


PROGRAMS: list[Program] = []


def program(*needs: str, gradients: bool = True) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(Program(function, frozenset(needs), gradients))
        return function

    return add


@dataclasses.dataclass
class Place:
    """Where programs run: streams, events, and functions that torch has for them."""

    device: str
    new_stream: Callable[[], Any]
    new_event: Callable[[], Any]
    D: Any
    current: Callable[[], Any]
    is_done: Callable[[Any], Any]  # whether an event has happened, asked outside of graphs
    cuda: Any = torch.cuda
    accelerator: Any = torch.accelerator
    lacks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.A, self.B, self.C = (self.new_stream() for _ in range(3))
        self.E, self.F = self.new_event(), self.new_event()

    def why_not(self, program: Program) -> str:
        missing = program.needs & self.lacks
        return f"torch {torch.__version__} has no {', '.join(missing)} here" if missing else ""


def host() -> Place:
    """torch's streams of the CPU, which are names. D is one of them: none is the current one."""
    current = torch.Stream(device="cpu")
    lacks = _ON_A_GPU if _compat.version >= (2, 15) else _ON_A_GPU | _SINCE_215_ON_THE_CPU
    return Place("cpu", lambda: torch.Stream(device="cpu"), lambda: torch.Event(device="cpu"),
                 current, lambda: current, torch.compiler.disable(lambda event: True),
                 lacks=frozenset(lacks))


def gpu() -> Place:
    return Place("cuda", torch.cuda.Stream, lambda: torch.Event("cuda"),
                 torch.cuda.current_stream(), torch.cuda.current_stream,
                 torch.compiler.disable(lambda event: event.query()))


class Nothing:
    """A stream, an event, or a module of torch, that does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> None:
        """For methods of tensors that take a stream."""

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


def nowhere() -> Place:
    """One stream: what a program means."""
    nothing = Nothing()
    return Place("", *[nothing] * 7)


def note_reports(monkeypatch: Any, place: Place) -> list[str]:
    """What is told while graphs are compiled from now on. On the CPU D is the current stream."""
    told: list[str] = []
    check, ambient_of = extract.check_syncs, extract._ambient_of

    def noted(*args: Any, **kwargs: Any) -> list[str]:
        texts = check(*args, **kwargs)
        told.extend(texts)
        return texts

    def with_current(ties: Any) -> set[int]:
        return ambient_of(ties) | {i for i in ties.streams
                                   if _compat.object_of_graph(i) is place.D}

    monkeypatch.setattr(extract, "check_syncs", noted)
    monkeypatch.setattr(extract, "_ambient_of", with_current)
    return told


def compare_with_one_stream(program: Program, place: Place, options: dict[str, Any]) -> None:
    """Three calls, each with other data, bit for bit."""
    call, plain = compiled(program.at(place), options=options), program.at(nowhere())
    for seed in range(3):
        found = _left_by(call, program.inputs(seed, place.device))
        assert_same(found, _left_by(plain, program.inputs(seed, place.device)))


def _left_by(function: Callable[..., Any],
             inputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """Outputs, inputs afterwards, and gradients by weights that are whole numbers too."""
    outputs = dict(tensors_of(function(*inputs)))
    weighted = [(out * torch.arange(out.numel(), device=out.device).view(out.shape).remainder(5)
                 ).sum() for out in outputs.values() if out.requires_grad]
    if weighted:
        sum(weighted).backward()
    left = {name: out.detach() for name, out in outputs.items()}
    for number, given in enumerate(inputs):
        left[f"input {number}"] = given.detach()
        if given.grad is not None:
            left[f"gradient {number}"] = given.grad
    return left
