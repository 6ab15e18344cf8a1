// SPDX-License-Identifier: Apache-2.0
// Which streams of a plan share a thread.
// Ownership: values.
// Threads:   pure.
// Failure:   none; every answer runs every plan correctly, since each lane keeps the plan's order.
// Edges:     a program without side streams has one lane.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/plan.h"

namespace anabranch::host {

struct LaneAssignment {
  std::uint32_t lane_count = 1;
  std::vector<std::uint32_t> lane_of_stream;
};

// The ambient stream has lane 0, the caller's thread. A stream joins a lane at no cost where each
// of its steps comes before or after each step of the lane anyway; the heaviest such stream joins
// first, so two equal branches on two side streams take the caller and one worker. What is left
// when all lanes are taken goes to the lanes with the least work. A more urgent stream comes before
// a heavier one in all of this.
LaneAssignment assign_lanes(const Plan& plan, std::uint32_t max_lanes);

}  // namespace anabranch::host
