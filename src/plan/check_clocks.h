// SPDX-License-Identifier: Apache-2.0
// Happens-before of a finished plan, by vector clocks.
// Ownership: values; the program must outlive them.
// Threads:   immutable once made.
// Failure:   none. What makes no sense gives no order: ids that are not of the program, a second
//            mention of a step, and a wait for a step that the order names later.
// Edges:     a step the order leaves out never ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "anabranch/program.h"

namespace anabranch::check {

inline constexpr std::uint32_t kNever = ~0u;

// Memory: 4 bytes a stream in use, for each such stream and each step that waits.
class Clocks {
 public:
  Clocks(const Program& program, std::span<const StepId> order, std::span<const Wait> waits);

  // `first` has ended whenever `second` starts.
  bool before(StepId first, StepId second) const {
    const At& a = at_[index_of(first)];
    const At& b = at_[index_of(second)];
    return a.lane == b.lane ? a.place < b.place : a.place <= seen(second, a.lane);
  }
  // How many steps of a lane have ended whenever `step`, of another lane, starts.
  std::uint32_t seen(StepId step, std::uint32_t lane) const {
    return rows_[std::size_t{at_[index_of(step)].row} * lane_count_ + lane];
  }
  // The streams in use, numbered without gaps.
  std::uint32_t lane(StepId step) const { return at_[index_of(step)].lane; }
  std::uint32_t lane_count() const { return lane_count_; }
  // From 1, within the lane; kNever if the order leaves the step out.
  std::uint32_t place(StepId step) const { return at_[index_of(step)].place; }
  // From 0, within the order; or kNever.
  std::uint32_t position(StepId step) const { return at_[index_of(step)].position; }

 private:
  struct At {
    std::uint32_t lane = 0;
    std::uint32_t place = kNever;
    std::uint32_t position = kNever;
    std::uint32_t row = 0;  // shared by the steps of a lane up to the next that waits
  };
  void number_lanes(const Program& program);
  void join(At& to, std::span<const StepId> waited_for);

  std::uint32_t lane_count_ = 0;
  std::vector<At> at_;
  std::vector<std::uint32_t> rows_;  // row 0: nothing has ended
};

}  // namespace anabranch::check
