// SPDX-License-Identifier: Apache-2.0
// Happens-before as the user wrote it: what eager would order, and nothing that a planner derives.
// Ownership: borrows the program.
// Threads:   one thread.
// Failure:   none.
// Edges:     a wait for an event without a record comes after nothing.
//
// Work runs on lanes, in program order of each:
//   * the caller's thread: synchronizes, and host steps under streams that the user synchronises.
//     What is launched later comes after both;
//   * the ambient stream, and all placed ones: without them their work would be there. What the
//     caller did before the program and does after it (entry and exit) is on this lane;
//   * each stream that the user synchronises.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "anabranch/program.h"
#include "plan/clocks.h"

namespace anabranch {

class UserOrder {
 public:
  explicit UserOrder(const Program& program);

  // Two steps beside those of the program, for clocks.
  StepId entry() const { return StepId{step_count_}; }
  StepId exit() const { return StepId{step_count_ + 1}; }
  // Nothing but lanes: all steps are still to be added, the entry first.
  Clocks make_clocks() const { return {lanes_, lane_count_}; }
  std::uint32_t lane(StepId step) const { return lanes_[index_of(step)]; }
  std::size_t lane_count() const { return lane_count_; }

  // What the step comes after beside those of its lane. To be called for the entry, all steps in
  // program order, and the exit. Valid until the next call.
  std::span<const StepId> next(StepId step);

 private:
  const Program& program_;
  std::uint32_t step_count_;
  std::uint32_t lane_count_;
  std::vector<std::uint32_t> lane_of_stream_;
  std::vector<std::uint32_t> lanes_;            // by step
  std::vector<std::optional<StepId>> last_;     // by lane
  std::vector<std::optional<StepId>> records_;  // the latest, by event
  std::vector<StepId> found_;
};

// Whether eager runs the step on the caller's thread. Under a placed stream a host step is the
// planner's, in the order of its stream.
inline bool is_callers(const Program& program, const Step& step) {
  if (step.kind == StepKind::kSynchronize) return true;
  return step.kind == StepKind::kHost &&
         program.origins()[index_of(step.stream)] == StreamOrigin::kUserSynchronised;
}

}  // namespace anabranch
