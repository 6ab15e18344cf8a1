// SPDX-License-Identifier: Apache-2.0
// Happens-before while it is being built: a vector clock for every step.
// Ownership: values.
// Threads:   one thread while steps are added, any number afterwards.
// Failure:   none.
// Edges:     steps are added in an order that runs; a step waits only for steps added before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/program.h"

namespace anabranch {

// Memory: 4 bytes a lane for each step that waits; steps that do not share a row.
class Clocks {
 public:
  // A lane a stream.
  explicit Clocks(const Program& program);
  // By step, on which of `lane_count` lanes it runs; the steps of a lane end in their order.
  Clocks(std::vector<std::uint32_t> lanes, std::size_t lane_count);

  void add(StepId step, std::span<const StepId> waits_for);
  // More to wait for, for the step that was added last to its lane.
  void add_waits(StepId step, std::span<const StepId> waits_for);

  // `first` has ended whenever `second` starts. Both were added.
  bool before(StepId first, StepId second) const;
  // `step` has ended whenever the next step of `lane` starts, if that waits for nothing more.
  bool known_to(std::uint32_t lane, StepId step) const;
  // The place of a step within its lane, from 1; 0 if it was not added.
  std::uint32_t place(StepId step) const { return steps_[index_of(step)].place; }
  std::uint32_t lane(StepId step) const { return lanes_[index_of(step)]; }

 private:
  struct At {
    std::uint32_t place = 0;
    std::uint32_t row = 0;
  };
  // By lane, how many of its steps have ended.
  std::uint32_t* row(std::uint32_t number) { return rows_.data() + std::size_t{number} * width_; }
  const std::uint32_t* row(std::uint32_t number) const {
    return rows_.data() + std::size_t{number} * width_;
  }
  void join(At& to, std::span<const StepId> ended);

  std::vector<std::uint32_t> lanes_;
  std::size_t width_;
  std::vector<At> steps_;
  std::vector<At> latest_;  // by lane
  std::vector<std::uint32_t> rows_;
};

}  // namespace anabranch
