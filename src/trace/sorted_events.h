// SPDX-License-Identifier: Apache-2.0
// Events as the writers want them: in time, and with the waits of the plan found in them.
// Edges:     events of steps that the plan does not have are left out; where the ring dropped one
//            end of a wait, the pair is left out.
#pragma once

#include <cstddef>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/trace.h"

namespace anabranch {

// By begin; of events that begin together, the longer first, so that what encloses comes first.
std::vector<TraceEvent> sort_events(const Plan& plan, std::vector<TraceEvent> events);

// Positions in the sorted events of a step and of a step it waited for, in the same launch.
struct WaitPair {
  std::size_t step = 0;
  std::size_t on = 0;
};
std::vector<WaitPair> find_wait_pairs(const Plan& plan, const std::vector<TraceEvent>& sorted);

}  // namespace anabranch
