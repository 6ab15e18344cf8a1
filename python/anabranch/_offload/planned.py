# SPDX-License-Identifier: Apache-2.0
"""What became of the tensors that a forward saves, for ``explain``.

Threads: any, nothing changes. Failure: none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class PlannedTensor:
    """``choice``: "keep", "recompute" or "offload"; ``why``: why it is kept in any case. Steps are
    those of the forward and then the backward, -1 where there are none: the copy out begins behind
    ``out_after`` and the memory is free before ``freed_before``; the copy in begins before
    ``in_before``, and step ``back_before`` has the tensor again. ``times_ns`` has when each of the
    four is expected, from the forward's begin, where no copy is waited for."""

    name: str
    bytes: int
    choice: str
    why: str = ""
    out_after: int = -1
    freed_before: int = -1
    in_before: int = -1
    back_before: int = -1
    times_ns: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Planned:
    """Bytes are those of saved tensors, without what is there anyway, and times are predicted.
    ``reason``: why the budget is missed, or nothing; ``least_bytes``: the least peak that can be
    had. The last two are of all that forward and backward take at their peak beside what is there
    anyway, before anything is compiled: where all is kept, and as planned. 0: not known."""

    tensors: list[PlannedTensor]
    forward_steps: int
    saved_bytes: int  # by torch, that is, where all is kept
    budget_bytes: int
    peak_bytes: int
    pinned_bytes: int
    step_ns: int  # of the forward and the backward, as planned
    added_ns: int  # of these, over a step that keeps all
    recompute_ns: int  # of these
    least_bytes: int
    reason: str
    out_bytes_per_s: float
    in_bytes_per_s: float
    step_kept_bytes: int = 0
    step_peak_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return dataclasses.asdict(self)

    def of(self, choice: str) -> list[PlannedTensor]:
        return [tensor for tensor in self.tensors if tensor.choice == choice]

    def lines(self) -> Iterator[str]:
        """As explanations show it."""
        yield (f"saved tensors: {mib(self.saved_bytes)} by torch, {mib(self.peak_bytes)} at "
               f"most as planned (budget {mib(self.budget_bytes)}), {mib(self.pinned_bytes)} "
               "of the host's memory")
        told = {"keep": "kept", "recompute": "computed again", "offload": "moved"}
        counts = [(len(self.of(choice)), sum(t.bytes for t in self.of(choice)), words)
                  for choice, words in told.items()]
        yield "  " + ", ".join(f"{count} {words} ({mib(size)})" for count, size, words in counts)
        yield (f"  predicted: {self.step_ns / 1e6:.3f} ms, {self.added_ns / 1e6:.3f} of it added "
               f"({self.recompute_ns / 1e6:.3f} computing again); copies out at "
               f"{self.out_bytes_per_s / 1e9:.1f} GB/s, in at {self.in_bytes_per_s / 1e9:.1f}")
        if self.step_peak_bytes:
            yield (f"  with all else that is alive: {mib(self.step_peak_bytes)} at the peak, "
                   f"{mib(self.step_kept_bytes)} where all is kept")
        if self.reason:
            yield f"  {self.reason}"
        for tensor in self.tensors:
            yield f"  {tensor.name}: {mib(tensor.bytes)}, {self._told(tensor)}"

    def _told(self, tensor: PlannedTensor) -> str:
        why = f" ({tensor.why})" if tensor.why else ""
        if tensor.choice == "offload":
            out, free, back, there = (f"{ns / 1e6:.2f} ms" for ns in tensor.times_ns)
            return (f"out after step {tensor.out_after} ({out}), free before {tensor.freed_before} "
                    f"({free}), in before {tensor.in_before} ({back}), back for "
                    f"{tensor.back_before} ({there}){why}")
        if tensor.choice == "recompute":
            return f"computed again{why}"
        return f"kept{why}"


def mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.2f} MiB"
