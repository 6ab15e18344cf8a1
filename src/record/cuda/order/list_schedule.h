// SPDX-License-Identifier: Apache-2.0
// When each node of a graph would begin, and on which of some lanes, if nodes took as long as is
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

#include "record/cuda/image/graph_image.h"
#include "record/cuda/order/reachability.h"

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

// What PCIe 5 x16 gives in a nanosecond, each way. A machine that gives more or less schedules
// copies all the same: they are mostly the longest way there is, or short.
inline constexpr std::uint64_t kBusBytesPerNs = 50;

// Of a copy of so many bytes between the device's memory and the host's.
constexpr std::uint64_t estimate_copy_ns(std::uint64_t bytes) {
  return kLeastKernelNs + bytes / kBusBytesPerNs;
}

// What a node runs on. Kernels have lanes, as many as are asked for; a GPU has a copy engine for
// either way between its memory and the host's, and each of these is one lane.
enum class Engine : std::uint8_t {
  kKernels,
  kToDevice,
  kToHost,
  kNone,  // it begins as soon as all before it have ended, beside whatever runs
};

struct NodeCost {
  std::uint64_t ns = kLeastKernelNs;
  Engine engine = Engine::kKernels;
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
  std::uint32_t lanes = 0;        // that have nodes, those of copy engines among them
};

// `edges` are sorted by `to`, lead from lower to higher numbers, and `before` is what they say.
// Lanes are numbered from those of kernels on, of which there are `lanes`.
//
// A lane that becomes free takes, of the nodes for it whose predecessors all have ended, the one
// with the longest way to the end of the graph; no lane is idle while one of them waits. So what
// is captured last but needs little of what was captured before it, such as an optimizer's kernels,
// runs where lanes would be idle, and what the end waits for goes first.
Schedule list_schedule(std::span<const NodeCost> costs, std::span<const EdgeImage> edges,
                       const Reachability& before, std::uint32_t lanes);

}  // namespace anabranch::cuda
