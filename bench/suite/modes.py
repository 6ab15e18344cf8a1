# SPDX-License-Identifier: Apache-2.0
"""A step of a case in each of the ways that are compared: what is called, and what it tells.

Models are compiled, by the backend also where the step around them is recorded: where that cannot be,
their graphs are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from case import Case

import anabranch

MODES = ("eager", "compile", "reduce-overhead", "anabranch", "record")
OURS = ("anabranch", "record")
CPU_MODES = ("eager", "compile", "anabranch")  # the others do the same as compile there
KINDS = ("inference", "training")
RATE = 1e-5
_TOLD_OF_EACH = ("lanes", "parallel_gain", "why_in_order", "arena_bytes",
                 "arena_lower_bound_bytes", "held_device_bytes", "unsure")


def compiled(model: torch.nn.Module, mode: str) -> Callable[..., Any]:
    if mode == "eager":
        return model
    if mode in OURS:
        return torch.compile(model, backend=anabranch.backend)
    return torch.compile(model, mode="reduce-overhead" if mode == "reduce-overhead" else None)


def _inference(case: Case, model: Callable[..., Any]) -> Callable[..., Any]:
    def step(*positional: torch.Tensor, **named: torch.Tensor) -> Any:
        with torch.no_grad():
            return case.forward(model, *positional, **named)

    return step


def _training(case: Case, model: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """The same optimizer in all modes. Gradients of the step are there after it."""
    on_gpu = {"capturable": True} if case.device == "cuda" else {}
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=RATE, fused=True, **on_gpu)

    def step(*positional: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = case.loss(model, *positional, **named)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Step:
    """Called, it runs one step and answers what that answers."""

    def __init__(self, case: Case, kind: str, mode: str) -> None:
        self.mode = mode
        self._inputs = case.positional, case.named
        make = _training if kind == "training" else _inference
        self._plain = make(case, compiled(case.model, mode))
        self._call = anabranch.record(self._plain) if mode == "record" else self._plain

    def __call__(self) -> Any:
        if self.mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        return self._call(*self._inputs[0], **self._inputs[1])

    def recordings(self) -> dict[str, Any] | None:
        """How many there are, and why the rest runs plainly; None for a mode that records nothing.
        Calls the step once more where it has to be watched."""
        if self.mode not in OURS:
            return None
        graphs, reports = self._graphs_and_reports()
        told = _told(reports, [said for graph in graphs for said in (graph.reason, graph.unrecorded)])
        return told if self.mode == "record" else {"graphs": len(graphs), **told}

    def seconds_of_recording(self) -> dict[str, float]:
        """By phase, of all that is recorded. Calls the step as `recordings` does."""
        found: dict[str, float] = {}
        for report in self._graphs_and_reports()[1]:
            for phase, seconds in report.phase_seconds.items():
                found[phase] = round(found.get(phase, 0.0) + seconds, 3)
        return found

    def _graphs_and_reports(self) -> tuple[list[Any], list[Any]]:
        if self.mode == "record":
            return [], list(self._call.reports)
        graphs = anabranch.explain(self._plain, *self._inputs[0], **self._inputs[1]).graphs
        return graphs, [report for graph in graphs for report in graph.recordings]


def _told(reports: list[Any], said: list[str | None]) -> dict[str, Any]:
    reasons = [reason for reason in (*said, *(report.reason for report in reports)) if reason]
    return {"recorded": sum(report.nodes > 0 for report in reports),
            "launched": sum(report.launched for report in reports),
            "plain": list(dict.fromkeys(reasons)),
            "of_each": [{name: getattr(report, name) for name in _TOLD_OF_EACH}
                        for report in reports if report.nodes]}
