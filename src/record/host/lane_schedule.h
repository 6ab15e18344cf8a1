// SPDX-License-Identifier: Apache-2.0
// What each step of a plan waits for and tells others, once its streams are on lanes.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     waits within a lane, and waits that others imply, are gone; one lane has none.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/plan.h"
#include "record/host/lane_assignment.h"

namespace anabranch::host {

// Wait until `lane` has reached `point`.
struct LaneWait {
  std::uint32_t lane = 0;
  std::uint32_t point = 0;
  StepId on{};  // for the trace
};

// Steps, as positions [begin, end) in the plan's order, that all come after those of the phase
// before.
struct Phase {
  std::uint32_t begin = 0, end = 0;
  bool one_lane = false;  // no two of its steps can run at the same time
};

struct LaneSchedule {
  // By position in the plan's order.
  std::vector<std::uint32_t> lane;
  std::vector<std::uint32_t> point;       // what the lane has reached after it; 0: none waits
  std::vector<std::uint32_t> first_wait;  // into waits; one more than there are steps
  std::vector<LaneWait> waits;
  std::uint32_t most_points = 0;  // of any lane
  std::vector<Phase> phases;      // as many as there can be, neighbours of one lane taken together
};

LaneSchedule make_lane_schedule(const Plan& plan, const LaneAssignment& lanes);

}  // namespace anabranch::host
