# SPDX-License-Identifier: Apache-2.0
"""experimental/offload.h from Python: what becomes of the tensors that a forward saves.

Each stays on the device, is computed again, or goes to pinned memory of the host and comes back.
Data alone, and pure: the same problem gives the same plan. Bytes and nanoseconds; steps are
numbered from the first of the forward to the last of the backward. In one step happen, in order:

1. it waits for the copies out of the tensors that are ``freed_before`` it; their device memory may
   serve others from here on, and is counted no more
2. copies in whose ``in_before`` it is are queued; their device memory is taken and counted
3. it waits for the copies in of the tensors that are ``back_before`` it
4. tensors that are computed again ``back_before`` it are, and then its own work runs

Failure: a malformed problem is E0101; decisions that are not safe are E0201 or E0202. A budget that
cannot be met is none: the plan is the smallest one, and ``reason`` says why.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_uint32, c_uint64
from dataclasses import dataclass, fields
from typing import Any

from anabranch._core import abi
from anabranch._core.library import core, last_error

_NEVER = 0xFFFFFFFF


class Choice(enum.IntEnum):
    """What becomes of a tensor; ``NONE`` is no wish."""

    NONE = 0
    KEEP = 1
    RECOMPUTE = 2
    OFFLOAD = 3


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that the forward saves.

    It is made by step ``made_after``, and used until ``last_forward_use`` and again from
    ``first_backward_use`` to ``last_backward_use``. ``recompute_ns`` below 0: it may not be
    computed again. ``must`` is a user's wish. ``needs`` are numbers of tensors before it in the
    list that must be on the device where it is computed again; they may be kept, copied back or
    computed again.
    """

    size_bytes: int
    made_after: int
    last_forward_use: int
    first_backward_use: int
    last_backward_use: int
    recompute_ns: int = -1
    may_offload: bool = False
    must: Choice = Choice.NONE
    needs: Sequence[int] = ()


@dataclass(frozen=True)
class Link:
    """What copies take: ``latency_ns`` each, and ``both_ways`` of either rate while both run."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_ns: int = 0
    both_ways: float = 1.0


@dataclass(frozen=True)
class Problem:
    """What is to be planned. ``base_bytes`` are each step's beside saved tensors, None for 0; both
    count for ``budget_bytes``. At most ``pinned_bytes`` of pinned memory are used. Copies that take
    ``link_margin`` longer than the link says are planned for; predictions are of the link."""

    step_ns: Sequence[int]
    forward_steps: int
    tensors: Sequence[SavedTensor]
    link: Link
    budget_bytes: int
    pinned_bytes: int
    base_bytes: Sequence[int] | None = None
    link_margin: float = 0.1


@dataclass(frozen=True)
class Decision:
    """What becomes of one tensor; steps and orders are None where they do not count.

    ``back_before`` is the step that has it again: before it a tensor is computed again, or its copy
    in waited for. That may be earlier than its first use, where another tensor is computed from it.
    A copy out may begin when step ``out_after`` has ended. Orders count from 0 on each queue.
    """

    choice: Choice
    back_before: int | None = None
    freed_before: int | None = None
    out_order: int | None = None
    out_after: int | None = None
    in_order: int | None = None
    in_before: int | None = None
    pinned_offset: int = 0


@dataclass(frozen=True)
class Prediction:
    """What decisions take. ``added_ns`` is over a program in which all tensors stay;
    ``recompute_ns`` is a part of it, the rest are waits for copies."""

    peak_bytes: int
    peak_step: int
    total_ns: int
    added_ns: int
    recompute_ns: int
    out_bytes: int
    in_bytes: int
    pinned_bytes: int


@dataclass(frozen=True)
class OffloadPlan:
    """A decision for each tensor. ``least_bytes`` is the least peak that any choice reaches, and
    ``reason`` one sentence why the budget cannot be met; empty where it is."""

    decisions: tuple[Decision, ...]
    predicted: Prediction
    least_bytes: int
    reason: str


def plan_offload(problem: Problem) -> OffloadPlan:
    """The decisions with the least time added whose peak is within the budget, proved."""
    decisions = (abi.OffloadDecision * max(len(problem.tensors), 1))()
    predicted, least, reason = abi.OffloadPrediction(), c_uint64(), c_char_p()
    if core.offload_plan(byref(_Given(problem).fields), decisions, byref(predicted), byref(least),
                         byref(reason)):
        raise last_error()
    made = tuple(_decision(each) for each in decisions[:len(problem.tensors)])
    return OffloadPlan(made, _prediction(predicted), least.value, (reason.value or b"").decode())


def simulate_offload(problem: Problem, decisions: Sequence[Decision]) -> Prediction:
    """What the decisions take; raises like ``check_offload``, but for the peak."""
    predicted = abi.OffloadPrediction()
    if core.offload_simulate(byref(_Given(problem).fields), _written(problem, decisions),
                             byref(predicted)):
        raise last_error()
    return _prediction(predicted)


def check_offload(problem: Problem, decisions: Sequence[Decision], peak_bytes: int) -> None:
    """Raises unless the decisions are safe however long copies take, and no peak is higher."""
    if core.offload_check(byref(_Given(problem).fields), _written(problem, decisions), peak_bytes):
        raise last_error()


def known_links() -> dict[str, Link]:
    """Links by name, as others have measured them: PCIe 4 and 5, NVLink-C2C of GH200 and GB200."""
    links = {}
    for number in range(core.offload_link_count()):
        link = abi.OffloadLink()
        name = core.offload_link(number, byref(link)).decode()
        links[name] = Link(link.out_bytes_per_s, link.in_bytes_per_s, link.latency_ns,
                           link.both_ways)
    return links


class _Given:
    """A problem in C, with the arrays that it points to."""

    def __init__(self, problem: Problem) -> None:
        self._needs: list[Any] = []
        self._steps = _u64s(problem.step_ns)
        self._base = None if problem.base_bytes is None else _u64s(problem.base_bytes)
        if problem.base_bytes is not None and len(problem.base_bytes) != len(problem.step_ns):
            raise ValueError(f"base_bytes has {len(problem.base_bytes)} steps, "
                             f"step_ns {len(problem.step_ns)}")
        self._tensors = (abi.OffloadTensor * max(len(problem.tensors), 1))(
            *map(self._tensor, problem.tensors))
        link = problem.link
        self.fields = abi.OffloadProblem(
            self._steps, self._base, len(problem.step_ns), problem.forward_steps, self._tensors,
            len(problem.tensors), abi.OffloadLink(link.out_bytes_per_s, link.in_bytes_per_s,
                                                  link.latency_ns, link.both_ways),
            problem.link_margin, problem.budget_bytes, problem.pinned_bytes)

    def _tensor(self, tensor: SavedTensor) -> abi.OffloadTensor:
        needs = (c_uint32 * max(len(tensor.needs), 1))(*tensor.needs)
        self._needs.append(needs)
        return abi.OffloadTensor(
            tensor.size_bytes, tensor.made_after, tensor.last_forward_use,
            tensor.first_backward_use, tensor.last_backward_use, tensor.recompute_ns,
            tensor.may_offload, tensor.must, needs, len(tensor.needs))


def _u64s(values: Sequence[int]) -> Any:
    return ctypes.cast((c_uint64 * max(len(values), 1))(*values), POINTER(c_uint64))


_ORDERS = ("back_before", "freed_before", "out_order", "out_after", "in_order", "in_before")


def _decision(made: abi.OffloadDecision) -> Decision:
    counts = {name: getattr(made, name) for name in _ORDERS if getattr(made, name) != _NEVER}
    return Decision(Choice(made.choice), pinned_offset=made.pinned_offset, **counts)


def _written(problem: Problem, decisions: Sequence[Decision]) -> Any:
    if len(decisions) != len(problem.tensors):
        raise ValueError(f"{len(decisions)} decisions for {len(problem.tensors)} tensors")
    written = (abi.OffloadDecision * max(len(decisions), 1))()
    for into, made in zip(written, decisions, strict=False):
        into.choice, into.pinned_offset = made.choice, made.pinned_offset
        for name in _ORDERS:
            step = getattr(made, name)
            setattr(into, name, _NEVER if step is None else step)
    return written


def _prediction(predicted: abi.OffloadPrediction) -> Prediction:
    return Prediction(*(getattr(predicted, field.name) for field in fields(Prediction)))
