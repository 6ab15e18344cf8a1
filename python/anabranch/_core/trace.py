# SPDX-License-Identifier: Apache-2.0
"""trace.h from Python: what launches did, by step and lane."""

from __future__ import annotations

import json
from typing import Any

from anabranch._core.abi import TraceEvent
from anabranch._core.handle import Handle
from anabranch._core.library import core, last_error
from anabranch._core.program import Plan

EVENT_LAUNCH, EVENT_STEP, EVENT_WAIT = range(3)


class Trace(Handle):
    _free = "trace_free"

    def __init__(self, capacity: int = 1 << 16) -> None:
        super().__init__(core.trace_new(capacity))

    def __len__(self) -> int:
        return core.trace_count(self.handle)

    @property
    def events(self) -> list[TraceEvent]:
        """Only between launches."""
        out = (TraceEvent * len(self))()
        return list(out[:core.trace_events(self.handle, out, len(out))])

    @property
    def dropped(self) -> int:
        """Events for which there was no room."""
        return core.trace_dropped(self.handle)

    def clear(self) -> None:
        core.trace_clear(self.handle)

    def chrome_json(self, plan: Plan) -> str:
        return core.trace_chrome_json(self.handle, plan.handle).decode()

    def dump(self, plan: Plan) -> str:
        return core.trace_dump(self.handle, plan.handle).decode()


def plan_contents(plan: Plan) -> dict[str, Any]:
    """Steps, order, waits and memory; docs/trace.md has the keys."""
    text = core.plan_json(plan.handle)
    if text is None:
        raise last_error()
    contents: dict[str, Any] = json.loads(text)
    return contents
