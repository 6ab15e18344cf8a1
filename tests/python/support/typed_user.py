# SPDX-License-Identifier: Apache-2.0
"""A program as a user types it. `make lint` checks it: the front door keeps the types of what goes
through."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

import anabranch
from anabranch import GraphReport, RecordedCallable, RecordedModule, RecordingReport

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Linear
    from torch.optim import AdamW

    def step(x: Tensor, scale: float = 1.0) -> tuple[Tensor, int]:
        return x * scale, 1

    recorded = anabranch.record(step, strict=True, guard=lambda: 1)
    assert_type(recorded(step(recorded(step(x=Tensor())[0])[0])[0], scale=2.0), tuple[Tensor, int])
    assert_type(recorded.reports, list[RecordingReport])
    assert_type(recorded.precompile(Tensor()), RecordingReport)
    recorded("text")  # type: ignore[arg-type]
    anabranch.record(step, strickt=True)  # type: ignore[call-overload]

    @anabranch.record(max_recordings=2)
    def decorated(x: Tensor) -> Tensor:
        return x

    @anabranch.stream("side", priority=-1)
    def streamed(x: Tensor) -> Tensor:
        with anabranch.overlap(lanes=2):
            return x

    assert_type(decorated(streamed(Tensor())), Tensor)
    handed: RecordedCallable[..., Tensor] = decorated
    assert_type(anabranch.explain(decorated).graphs, list[GraphReport])
    assert_type(anabranch.explain(decorated).to_dict(), dict[str, Any])
    assert_type(anabranch.explain(decorated).html("it.html"), Path)
    assert_type(anabranch.is_recording(), bool)
    module = anabranch.record(Linear(1, 1), max_recordings=2)
    assert_type(module, RecordedModule)
    side = anabranch.stream("side")
    with side, side:
        assert_type(side(step)(Tensor(), scale=2.0), tuple[Tensor, int])
    assert_type(anabranch.offload_optimizer(AdamW([Tensor()]), in_flight_bytes=1 << 28), AdamW)
