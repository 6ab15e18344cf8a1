// SPDX-License-Identifier: Apache-2.0
// Happens-before while it is being built: a vector clock for every step.
// Ownership: borrows the program.
// Threads:   one thread while steps are added, any number afterwards.
// Failure:   none.
// Edges:     steps are added in an order that runs; a step waits only for steps added before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/program.h"

namespace anabranch {

// Memory: 4 bytes a stream for each step that waits; steps that do not share a row.
class Clocks {
 public:
  explicit Clocks(const Program& program);

  void add(StepId step, std::span<const StepId> waits_for);

  // `first` has ended whenever `second` starts. Both were added.
  bool before(StepId first, StepId second) const;
  // `step` has ended whenever the next step of `stream` starts, if that waits for nothing more.
  bool known_to(StreamId stream, StepId step) const;
  // The place of a step within its stream, from 1; 0 if it was not added.
  std::uint32_t place(StepId step) const { return steps_[index_of(step)].place; }

 private:
  struct At {
    std::uint32_t place = 0;
    std::uint32_t row = 0;
  };
  // By stream, how many of its steps have ended.
  std::uint32_t* row(std::uint32_t number) { return rows_.data() + std::size_t{number} * width_; }
  const std::uint32_t* row(std::uint32_t number) const {
    return rows_.data() + std::size_t{number} * width_;
  }
  std::uint32_t stream(StepId step) const { return index_of(program_.step(step).stream); }

  const Program& program_;
  std::size_t width_;
  std::vector<At> steps_;
  std::vector<At> latest_;  // by stream
  std::vector<std::uint32_t> rows_;
};

}  // namespace anabranch
