// SPDX-License-Identifier: Apache-2.0
// The timed twin of a captured step's recording, as launches take it.
// Ownership: keeps the recording, whose nodes it is made of.
// Threads:   launches are leased one at a time by exec(); times are read by the lessee.
// Failure:   make() is a Status and leaves nothing behind.
// Edges:     none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "anabranch/status.h"
#include "record/cuda/exec/timed_exec.h"
#include "record/cuda/step_recording.h"

namespace anabranch::cuda {

class TimedStep {
 public:
  // With the device's context current.
  static Result<std::shared_ptr<TimedStep>> make(std::shared_ptr<StepRecording> step,
                                                 std::span<const std::uint64_t> addresses);
  ~TimedStep();
  TimedStep(const TimedStep&) = delete;
  TimedStep& operator=(const TimedStep&) = delete;

  StepRecording& step() const { return *step_; }
  TimedExec& exec() const { return *exec_; }

 private:
  TimedStep(std::shared_ptr<StepRecording> step, std::unique_ptr<TimedExec> exec)
      : step_(std::move(step)), exec_(std::move(exec)) {}

  const std::shared_ptr<StepRecording> step_;
  std::unique_ptr<TimedExec> exec_;
};

}  // namespace anabranch::cuda
