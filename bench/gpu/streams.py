# SPDX-License-Identifier: Apache-2.0
"""What streams cost where they can bring nothing: a chain of kernels, all of it on one stream.

    python bench/gpu/streams.py [results.json] [--rounds N]

Linear layers with gelu, bf16, of which each needs the one before it, compiled by the backend: as
they are, within one of torch's streams that waits for the current one and is waited for, and within
a named one. Recorded and not, the forward alone and with the backward.

Whose time on the CPU it is, is asked of calls whose graph does nothing: what Dynamo does for any
function, what it does more for streams, and what the ties of the graph to them take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from turns import Step, faster, race, save

import anabranch
from anabranch._compile.user_streams import extract

DEPTH = 12
SHAPES = ((256, 32), (1024, 1024), (4096, 4096))  # (width, rows): small kernels to large ones
MOST = 1.01  # times as long as without streams
WARM_UP = 8
WITHOUT = "no stream"


class Chain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


def on_torchs_stream(chain: Chain) -> Callable[[Tensor], Tensor]:
    side = torch.cuda.Stream()

    def run(x: Tensor) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = chain(x)
        torch.cuda.current_stream().wait_stream(side)
        return y

    return run


def on_a_named_stream(chain: Chain) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        with anabranch.stream("side"):
            return chain(x)

    return run


WAYS: dict[str, Callable[[Chain], Callable[[Tensor], Tensor]]] = {
    WITHOUT: lambda chain: lambda x: chain(x),
    "torch's stream": on_torchs_stream,
    "named stream": on_a_named_stream,
}


def forward(call: Callable[[Tensor], Tensor], chain: Chain, x: Tensor) -> Step:
    def step() -> list[Tensor]:
        with torch.no_grad():
            return [call(x)]

    return step


def gradients(call: Callable[[Tensor], Tensor], chain: Chain, x: Tensor) -> Step:
    def step() -> list[Tensor]:
        chain.zero_grad(set_to_none=True)
        y = call(x)
        y.backward(x)
        return [y.detach(), *(parameter.grad for parameter in chain.parameters())]

    return step


def steps_of(make: Callable[..., Step], width: int, rows: int, record: bool) -> dict[str, Step]:
    """Each way with a model of its own, all of the same numbers."""
    torch._dynamo.reset()
    steps = {}
    for way, within in WAYS.items():
        torch.manual_seed(0)
        chain = Chain(width).cuda().bfloat16()
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        call = torch.compile(within(chain), backend=anabranch.backend, options={"record": record},
                             dynamic=False)
        steps[way] = make(call, chain, x)
        for _ in range(WARM_UP):
            steps[way]()
    return steps


def measure(make: Callable[..., Step], width: int, rows: int, record: bool,
            rounds: int) -> dict[str, Any]:
    steps = steps_of(make, width, rows, record)
    wanted = steps[WITHOUT]()
    same = all(torch.equal(a, b) for step in steps.values()
               for a, b in zip(step(), wanted, strict=True))
    found = race(steps, rounds)
    judged = []
    for way in list(WAYS)[1:]:
        times, spread = faster(found, WITHOUT, way)
        more = found[way].cpu.median - found[WITHOUT].cpu.median
        judged.append({"way": way, "times_as_long": round(times, 3), "iqr": round(spread, 3),
                       "more_cpu_us": round(more, 1), "reach": MOST,
                       "reached": round(times, 2) <= MOST})
    return {"kind": make.__name__, "width": width, "rows": rows, "recorded": record,
            "same_result": same, "judged": judged,
            "rows_us": {way: each.row() for way, each in found.items()},
            "rounds": {way: each.raw() for way, each in found.items()}}


def doing_nothing(tied: bool) -> Callable[..., Any]:
    """A backend for graphs of one result, whose streams are tied to them or not."""
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        ties = extract.take_out(gm)

        def call(*args: Tensor) -> tuple[Tensor]:
            return args[:1]  # type: ignore[return-value]

        return ties.around(call) if ties and tied else call

    return backend


def shares(rounds: int) -> dict[str, Any]:
    """Of the CPU's time in a call, in microseconds."""
    torch._dynamo.reset()
    chain, x = Chain(16).cuda(), torch.randn(16, 16, device="cuda")
    steps = {name: forward(torch.compile(within(chain), backend=doing_nothing(tied)), chain, x)
             for name, within, tied in (("plain", WAYS[WITHOUT], False),
                                        ("streams", on_torchs_stream, False),
                                        ("ties", on_torchs_stream, True))}
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    found = race(steps, rounds)
    plain, streams, ties = (found[name].cpu.median for name in steps)
    return {"kind": "shares of the CPU", "any_function_us": round(plain, 1),
            "dynamo_for_streams_us": round(streams - plain, 1),
            "ties_us": round(ties - streams, 1),
            "rounds": {name: each.raw() for name, each in found.items()}}


def tell(answer: dict[str, Any]) -> None:
    print({key: value for key, value in answer.items() if key != "rounds"}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=101)
    chosen = parser.parse_args()
    answers = [shares(chosen.rounds)]
    tell(answers[-1])
    for width, rows in SHAPES:
        for make, record in ((forward, True), (gradients, True), (gradients, False)):
            answers.append(measure(make, width, rows, record, chosen.rounds))
            tell(answers[-1])
    save(chosen.results, "gpu_streams", answers=answers)


if __name__ == "__main__":
    main()
