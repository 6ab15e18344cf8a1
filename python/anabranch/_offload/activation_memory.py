# SPDX-License-Identifier: Apache-2.0
"""The option ``activation_memory``: what a forward saves is kept, computed again or moved.

Once torch has cut a graph, the core plans twice: first what is computed again, which changes both
graphs, and then, for these, which copies run when. What it is told of time is measured: products
by running them, the link by copying (``durations``, ``link``).

Threads: one compilation at a time. Failure: none. Where no plan can be made the graphs stay as they
were, and a budget that cannot be met is missed by as little as possible; ``planned`` tells it.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.fx import Graph, GraphModule, Node

from anabranch import config
from anabranch._core.offload import (
    Choice,
    Decision,
    OffloadPlan,
    Problem,
    SavedTensor,
    plan_offload,
)
from anabranch._offload import wishes
from anabranch._offload.durations import durations_ns
from anabranch._offload.host_memory import ALIGNMENT
from anabranch._offload.layouts import foresee
from anabranch._offload.link import MeasuredLink, link_of
from anabranch._offload.peak import base_bytes, expected_bytes, near_peak
from anabranch._offload.planned import Planned, PlannedTensor
from anabranch._offload.recompute import Calls, Way, compute_again, find_ways, ns_of
from anabranch._offload.rewrite import Move, move
from anabranch._offload.saved import Pair, Saved
from anabranch._record.memory.gpu import free_bytes
from anabranch._record.memory.host import host_free_bytes
from anabranch._record.refusals import Cause

log = logging.getLogger("anabranch.offload")
_FREE_SHARE = 0.9  # of what is free, that "fit" fills: fragments take some
_PINNED_SHARE = 0.5  # of what the process may take of the host's memory, that it may pin
_CHOICES = {Choice.KEEP: "keep", Choice.RECOMPUTE: "recompute", Choice.OFFLOAD: "offload"}


class ActivationMemory:
    """Of one model; asked before and after each cut of a graph."""

    def __init__(self, chosen: config.Options) -> None:
        self.name = f"activation_memory={chosen.activation_memory!r}"
        self.planned: Planned | None = None  # of the graph that was cut last
        self._budget = chosen.activation_memory
        self._is_allowed = Cause.NOT_OFFLOADED in chosen.allow

    def before(self, joint: Graph) -> None:
        self.planned = None
        wishes.mark(joint)

    def after(self, forward: GraphModule, backward: GraphModule, results: int) -> None:
        pair = Pair(forward, backward, results)
        wished = any(wishes.wish_of(saved.tensor) for saved in pair.saved)
        if not pair.saved or (self._budget is None and not wished) \
                or pair.device.type not in ("cpu", "cuda"):
            return
        changed = [GraphModule(each, copy.deepcopy(each.graph)) for each in (forward, backward)]
        try:
            self.planned = self._change(Pair(changed[0], changed[1], results))
        except Exception:
            log.warning("anabranch: what is saved cannot be planned", exc_info=True)
            return
        forward.graph, backward.graph = changed[0].graph, changed[1].graph

    def _change(self, pair: Pair) -> Planned:
        planner, kept_bytes = _Planner(pair, self._budget), _peak_bytes(pair)
        ways = find_ways(pair)
        first = plan = planner.plan(pair, ways)
        again = [(saved, ways[saved]) for saved, decision
                 in zip(pair.saved, first.decisions, strict=True)
                 if decision.choice == Choice.RECOMPUTE]
        again_ns = 0
        if again:
            calls = Calls(pair.backward.graph, planner.step_ns,
                          _near_peak(pair, first.decisions))
            pair = compute_again(pair, again, calls)
            again_ns = calls.again_ns
            plan = planner.plan(pair, {})
        moves = list(_moves(pair, plan))
        told = planner.tell(pair, plan, again_ns, [saved for saved, _ in again], kept_bytes)
        if moves:
            foresee(pair)
            move(pair, moves, plan.predicted.pinned_bytes, self._is_allowed)
        return told


class _Planner:
    """What stays the same in all plans of a pair."""

    def __init__(self, pair: Pair, budget: float | int | str | None) -> None:
        self._link: MeasuredLink = link_of(pair.device)
        self._saved_bytes = pair.saved_bytes
        self._is_fit = budget == "fit"
        if isinstance(budget, float):
            self._budget_bytes = int(budget * self._saved_bytes)
        elif isinstance(budget, int):
            self._budget_bytes = budget
        else:
            self._budget_bytes = int(_free_bytes(pair.device) * _FREE_SHARE) if self._is_fit \
                else self._saved_bytes
        self._pinned_bytes = int(host_free_bytes() * _PINNED_SHARE)

    def plan(self, pair: Pair, ways: Mapping[Saved, Way]) -> OffloadPlan:
        step_ns = durations_ns(pair.steps, self._link.own_rate)
        self._begins = [0, *itertools.accumulate(step_ns)]
        self.step_ns = dict(zip(pair.steps, step_ns, strict=True))
        index = {saved: i for i, saved in enumerate(pair.saved)}
        tensors = [_tensor(saved, ways, self.step_ns, index) for saved in pair.saved]
        wished = sum(_aligned(tensor.size_bytes) for tensor in tensors
                     if tensor.must == Choice.OFFLOAD)
        problem = Problem(
            step_ns=step_ns, forward_steps=len(pair.forward_steps), tensors=tensors,
            link=self._link.link(), budget_bytes=self._budget_bytes,
            pinned_bytes=max(self._pinned_bytes, wished),
            base_bytes=base_bytes(pair) if self._is_fit else None)
        return plan_offload(problem)

    def tell(self, pair: Pair, plan: OffloadPlan, again_ns: int, computed: list[Saved],
             kept_bytes: int) -> Planned:
        told = plan.predicted
        tensors = [_told(saved, decision, self._begins) for saved, decision
                   in zip(pair.saved, plan.decisions, strict=True)]
        tensors += [PlannedTensor(saved.name, saved.bytes, "recompute") for saved in computed]
        return Planned(
            sorted(tensors, key=lambda each: -each.bytes), len(pair.forward_steps),
            self._saved_bytes, self._budget_bytes, told.peak_bytes, told.pinned_bytes,
            told.total_ns, told.added_ns + again_ns, again_ns, plan.least_bytes, plan.reason,
            self._link.out_rate, self._link.in_rate, kept_bytes,
            _peak_bytes(pair, plan.decisions))


def _peak_bytes(pair: Pair, decisions: Sequence[Decision] | None = None) -> int:
    """0 where it cannot be told: it is told to users, and nothing is decided by it."""
    try:
        return max(expected_bytes(pair, decisions), default=0)
    except Exception:
        log.debug("what a step takes at its peak cannot be told", exc_info=True)
        return 0


def _near_peak(pair: Pair, decisions: Sequence[Decision]) -> list[Node]:
    """Nothing where it cannot be told: what is computed again is so once then."""
    try:
        return near_peak(pair, decisions)
    except Exception:
        log.debug("where a step takes most cannot be told", exc_info=True)
        return []


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def _tensor(saved: Saved, ways: Mapping[Saved, Way], step_ns: Mapping[Node, int],
            index: Mapping[Saved, int]) -> SavedTensor:
    way = ways.get(saved)
    may_recompute = way is not None and not wishes.must_be_saved(saved.tensor) \
        and all(index[need] < index[saved] for need in way.needs)
    return SavedTensor(
        size_bytes=saved.bytes, made_after=saved.made_after,
        last_forward_use=saved.last_forward_use, first_backward_use=saved.first_backward_use,
        last_backward_use=saved.last_backward_use,
        recompute_ns=ns_of(way, step_ns) if way is not None and may_recompute else -1,
        may_offload=not saved.why_kept,
        must=Choice.NONE if saved.why_kept else wishes.wish_of(saved.tensor),
        needs=[index[need] for need in way.needs] if way is not None and may_recompute else [])


def _moves(pair: Pair, plan: OffloadPlan) -> Iterator[Move]:
    for saved, made in zip(pair.saved, plan.decisions, strict=True):
        if made.choice == Choice.OFFLOAD:
            yield Move(saved, *_times(made), _known(made.out_order), _known(made.in_order),
                       made.pinned_offset)


def _times(made: Decision) -> tuple[int, int, int, int]:
    """Of a tensor that moves."""
    return (_known(made.out_after), _known(made.freed_before), _known(made.in_before),
            _known(made.back_before))


def _known(number: int | None) -> int:
    assert number is not None
    return number


def _told(saved: Saved, made: Decision, begins: Sequence[int]) -> PlannedTensor:
    """``begins``: when each step is expected to begin."""
    if made.choice != Choice.OFFLOAD:
        return PlannedTensor(saved.name, saved.bytes, _CHOICES[made.choice], saved.why_kept)
    out, freed, back, there = _times(made)
    return PlannedTensor(saved.name, saved.bytes, "offload", "", out, freed, back, there,
                         (begins[out + 1], begins[freed], begins[back], begins[there]))


def _free_bytes(device: torch.device) -> int:
    """That a step could take now."""
    return free_bytes(device.index) if device.type == "cuda" else host_free_bytes()
