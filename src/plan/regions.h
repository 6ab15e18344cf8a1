// SPDX-License-Identifier: Apache-2.0
// The parts of find_regions: see include/anabranch/plan.h for what it promises.
// Ownership: values.
// Threads:   pure.
// Failure:   kTooManyComparisons.
// Edges:     a step that is not compute is a group of its own.
//
// Rule: a stream is cut before each step that waits for another stream, after each that another
// stream waits for, and around each step that is not compute. What lies between two cuts comes
// after and before the same steps of other streams, so that compiling it as one delays nobody.
//
// Before that, steps are gathered: a compute step that does not need the wait in front of it moves
// back to the first group of its stream that it may join, as long as no other stream waits for
// anything between (x needs p1 and p2, only q waits: p1 | q, p2 becomes p1, p2 | q). Two steps of
// different streams that could run at the same time in the given order still can afterwards. Where
// that would make more groups (other steps lose a wait that implied theirs) nothing is gathered.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch {

// An order of all steps that runs, with the steps gathered that can share a group.
Result<std::vector<StepId>> gather_steps(const Program& program, std::span<const Wait> waits);

struct Groups {
  std::vector<std::uint32_t> group_of;  // by step; numbered by the first step of each in the order
  std::uint32_t count = 0;
};

// The rule of cuts for steps that run in `order`; `waits` are the derived ones of that order.
Groups cut_regions(const Program& program, std::span<const StepId> order,
                   std::span<const Wait> waits);

}  // namespace anabranch
