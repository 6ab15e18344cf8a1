// SPDX-License-Identifier: Apache-2.0
// The order of a captured graph's nodes, without what their use of memory does not ask for: a step
// is captured as its program was written, one kernel behind the other, and much of it could run
// side by side.
// Ownership: borrows everything.
// Threads:   pure.
// Failure:   none.
// Edges:     nodes of which not all is known stay behind all that was captured before them, and
//            before all that was captured behind them; so do both ends of an early edge, which
//            stays. The nodes of one piece of work stay in order among themselves, and those of all
//            works in turn. Nothing is ever ordered that the capture did not order, but by the
//            lanes. Every edge leads from a node to one that was captured later.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "record/cuda/order/memory_window.h"
#include "record/cuda/rewrite/tables.h"
#include "record/cuda/sites/step_graph.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// Above so many nodes the captured order stays: reachability takes a bit a pair.
inline constexpr std::size_t kMostRelaxedNodes = 16384;

struct RelaxedOrder {
  std::vector<EdgeImage> edges;        // sorted by `to`, then by `from`
  std::vector<std::uint32_t> lane_of;  // by node; what keeps the captured order is on the first
  // That have nodes, one of either way between device and host among them. With one the captured
  // order stays, and the edges are those of the capture.
  std::uint32_t lanes = 1;
  // That the captured order has where it stays, by streams of the step's own: nodes are on these
  // then. A graph of more than kMostRelaxedNodes is not looked at.
  std::uint32_t captured_lanes = 1;
};

// How far nodes may leave the captured order.
struct RelaxBounds {
  std::uint32_t lanes = 1;
  std::uint64_t ahead_bytes = 0;  // see copy_window.h
  // What units may take beside those that the captured order has at once, see memory_window.h, and
  // the bytes of each unit that counts.
  std::uint64_t parallel_bytes = kNoBound;
  std::span<const std::uint64_t> unit_bytes{};
};

// The edges by which each node runs behind those whose memory it shares (the bytes of it, as far as
// sites tell, and bytes of the host's), one of the two writing, and behind the last one before it
// on its lane that was captured earlier. Lanes are those of a schedule (list_schedule.h) that takes
// a kernel for as long as its units, whose sizes `units` has, are large. They are what the schedule
// wants and no bound: where a node is to begin behind one that was captured later, no edge says so,
// and both may run beside the other lanes. What is in turn keeps no kernel from a lane: it begins
// when what it needs has ended, and all of it counts as one more lane.
RelaxedOrder relax_order(const StepGraph& step, std::span<const TableWrite> tables,
                         std::span<const Unit> units, const RelaxBounds& bounds);

}  // namespace anabranch::cuda
