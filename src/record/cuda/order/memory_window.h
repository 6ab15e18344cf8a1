// SPDX-License-Identifier: Apache-2.0
// How far nodes run ahead of the captured order where memory is short: unbound, the forwards of all
// microbatches of a step would run first, and what each saves for its backward be there at once.
// Ownership: borrows the step.
// Threads:   one.
// Failure:   none.
// Edges:     without a bound no node waits.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "record/cuda/order/reachability.h"
#include "record/cuda/sites/step_graph.h"

namespace anabranch::cuda {

inline constexpr std::uint64_t kNoBound = std::numeric_limits<std::uint64_t>::max();

// A unit is dead at a node if the capture has used it for the last time before that node. Where
// each node that is the first to use a unit waits as is said here, the dead units at it of which
// some use may not have ended yet take `bytes` at most. So all units that are in use at any time
// take no more than those that the captured order has at once, and `bytes`.
class MemoryWindow {
 public:
  // `unit_bytes` of each unit that a recording has to place; 0 of the others.
  MemoryWindow(const StepGraph& step, std::span<const std::uint64_t> unit_bytes,
               std::uint64_t bytes);

  // The nodes that this one has to come behind, without those that come before another of them.
  // Asked for rising nodes. `before` has all paths between the nodes below it.
  std::span<const std::uint32_t> waits_of(std::uint32_t node, const Reachability& before);

 private:
  struct Use {
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> nodes;  // rising
  };
  void add(std::uint32_t node, const Reachability& before);

  std::vector<Use> uses_;               // of units, by their last node
  std::vector<bool> is_first_;          // by node: to use some unit
  std::vector<std::uint32_t> last_;     // nodes that all have to come behind
  std::size_t awaited_ = 0, dead_ = 0;  // so many of uses_
  std::uint64_t held_ = 0;              // by those that are dead and not awaited
  const std::uint64_t bytes_;
};

}  // namespace anabranch::cuda
