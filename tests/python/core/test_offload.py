# SPDX-License-Identifier: Apache-2.0
"""Plans for saved tensors, from Python: what goes in comes out in its own types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch._core.library import NativeError
from anabranch._core.offload import (
    Choice,
    Decision,
    Link,
    Problem,
    SavedTensor,
    check_offload,
    known_links,
    plan_offload,
    simulate_offload,
)

pytestmark = [pytest.mark.oldest, pytest.mark.own, pytest.mark.quick]


def four_layers(budget_bytes: int, **tensor: object) -> Problem:
    """Four steps forward and four back, of a microsecond; each forward step saves 1,000 bytes, which
    take half a step on the link."""
    made = {"may_offload": True, "recompute_ns": 900} | tensor
    tensors = [SavedTensor(1000, step, step, 7 - step, 7 - step, **made)  # type: ignore[arg-type]
               for step in range(4)]
    return Problem([1000] * 8, 4, tensors, Link(2e9, 2e9), budget_bytes, pinned_bytes=1 << 20)


def test_a_budget_is_met_by_copies_that_hide():
    problem = four_layers(3000)
    plan = plan_offload(problem)
    assert [made.choice for made in plan.decisions] == [Choice.OFFLOAD, *[Choice.KEEP] * 3]
    first = plan.decisions[0]
    assert (first.out_order, first.out_after, first.in_order, first.back_before) == (0, 0, 0, 7)
    assert first.freed_before is not None and first.in_before is not None
    assert 0 < first.freed_before <= first.in_before <= 7
    assert plan.decisions[1] == Decision(Choice.KEEP)
    assert plan.predicted.peak_bytes == 3000
    assert plan.predicted.added_ns == 0
    assert plan.predicted.out_bytes == plan.predicted.in_bytes == 1000
    assert plan.predicted == simulate_offload(problem, plan.decisions)
    assert plan.reason == ""


def test_a_budget_that_cannot_be_met_has_a_reason_and_the_least_there_is():
    plan = plan_offload(four_layers(10, may_offload=False, recompute_ns=-1))
    assert plan.least_bytes == plan.predicted.peak_bytes == 4000
    assert plan.reason.startswith("the budget of 10 bytes cannot be met: step 3 of 8 takes at least")


def test_wishes_and_needs_cross_the_border():
    problem = four_layers(4000)
    last = replace(problem.tensors[3], must=Choice.RECOMPUTE, needs=(1,))
    plan = plan_offload(replace(problem, tensors=[*problem.tensors[:3], last]))
    assert plan.decisions[3].choice == Choice.RECOMPUTE
    assert plan.predicted.recompute_ns == plan.predicted.added_ns == 900
    with pytest.raises(NativeError, match=r"needs tensor 3.*E0101"):
        plan_offload(replace(problem, tensors=[*problem.tensors[:3], replace(last, needs=(3,))]))


def test_base_memory_counts_for_the_budget():
    problem = replace(four_layers(4500), base_bytes=[500] * 8)
    assert plan_offload(problem).predicted.peak_bytes == 4500
    with pytest.raises(ValueError, match="base_bytes has 1 steps, step_ns 8"):
        plan_offload(replace(problem, base_bytes=[1]))


def test_unsafe_decisions_are_refused():
    problem = four_layers(3000)
    made = plan_offload(problem).decisions
    check_offload(problem, made, 3000)
    with pytest.raises(NativeError, match=r"the peak is said to be 2999.*E0202"):
        check_offload(problem, made, 2999)
    with pytest.raises(NativeError, match=r"tensor 0 is freed before step 0.*E0201"):
        check_offload(problem, [replace(made[0], freed_before=0), *made[1:]], 3000)
    with pytest.raises(NativeError, match="is copied out after"):
        simulate_offload(problem, [replace(made[0], out_after=None), *made[1:]])
    with pytest.raises(ValueError, match="1 decisions for 4 tensors"):
        check_offload(problem, made[:1], 3000)


def test_links_that_are_not_here_can_be_planned_for():
    links = known_links()
    assert list(links) == ["pcie4-x16", "pcie5-x16", "nvlink-c2c-gh200", "nvlink-c2c-gb200"]
    for link in links.values():
        assert link.in_bytes_per_s > 1e10 and link.out_bytes_per_s > 1e10 and link.both_ways <= 1
        assert plan_offload(replace(four_layers(3000), link=link)).reason == ""


def test_nothing_is_planned_for_no_tensors():
    plan = plan_offload(Problem([], 0, [], Link(1e9, 1e9), 0, 0))
    assert plan.decisions == () and plan.reason == ""
