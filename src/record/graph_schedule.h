// SPDX-License-Identifier: Apache-2.0
// When each node of a graph would begin, and on which of some lanes, if kernels took as long as is
// estimated: list scheduling by highest levels first with estimated times (HLFET; T. L. Adam, K. M.
// Chandy and J. R. Dickson, "A comparison of list schedules for parallel processing systems",
// 1974).
// Ownership: values.
// Threads:   pure; the same graph gives the same schedule.
// Failure:   none.
// Edges:     nothing runs by these times. They say only what is worth beginning before what; a
//            wrong one costs time and never a result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/graph_image.h"
#include "record/graph_order.h"

namespace anabranch::cuda {

// What a kernel takes that has next to nothing to do, and what memory gives in a nanosecond: of a
// large GPU. Only their ratio matters: it says from what size on a kernel is a long one.
inline constexpr std::uint64_t kLeastKernelNs = 3000;
inline constexpr std::uint64_t kBytesPerNs = 4000;

// Of a kernel that goes through so many bytes once. What it computes is not known here, so that a
// large product counts for less than it takes.
constexpr std::uint64_t estimate_ns(std::uint64_t bytes) {
  return kLeastKernelNs + bytes / kBytesPerNs;
}

struct NodeCost {
  std::uint64_t ns = kLeastKernelNs;
  bool takes_lane = true;  // else it begins as soon as all before it have ended
};

struct NodePlace {
  static constexpr std::uint32_t kNone = ~0u;
  std::uint64_t begin_ns = 0, end_ns = 0;
  std::uint32_t lane = kNone;
  // The last node before it on its lane of those with a lower number. One with a higher number
  // cannot come before it: the numbers stay an order in which the nodes can run.
  std::uint32_t behind = kNone;
};

struct Schedule {
  std::vector<NodePlace> places;  // by node
  std::uint32_t lanes = 0;        // that have nodes
};

// `edges` are sorted by `to`, lead from lower to higher numbers, and `before` is what they say.
//
// A lane that becomes free takes, of the nodes behind whose predecessors all have ended, the one
// with the longest way to the end of the graph; no lane is idle while one of them waits. So what
// is captured last but needs little of what was captured before it, such as an optimizer's kernels,
// runs where lanes would be idle, and what the end waits for goes first.
Schedule schedule_nodes(std::span<const NodeCost> costs, std::span<const EdgeImage> edges,
                        const Before& before, std::uint32_t lanes);

}  // namespace anabranch::cuda
