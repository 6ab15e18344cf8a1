// SPDX-License-Identifier: Apache-2.0
// A twin of an executable, with an event behind each of its nodes and one before all. What waited
// for a node waits for its event, so that nothing runs between the two and nothing of the order is
// lost. Early edges stay between their kernels: the event is beside them.
// Ownership: owns its graph, executable and events; borrows what the executable was made from.
// Threads:   make() while nobody launches the executable; the rest as a CudaExec.
// Failure:   a Status of a driver call.
// Edges:     it is not launchable by device code, which knows no events.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "anabranch/status.h"
#include "anabranch/timed_recording.h"
#include "device/cuda/driver.h"
#include "record/cuda/exec/cuda_exec.h"
#include "record/cuda/image/graph_image.h"

namespace anabranch::cuda {

class TimedExec {
 public:
  // Of an executable without an updater and its recording's image. `addresses` by source: the
  // driver's copies and fills begin there, whose memory must be there.
  static Result<std::unique_ptr<TimedExec>> make(const Driver& driver, const CudaExec& of,
                                                 const GraphImage& image,
                                                 std::span<const std::uint64_t> addresses);
  ~TimedExec();
  TimedExec(const TimedExec&) = delete;
  TimedExec& operator=(const TimedExec&) = delete;

  CudaExec& exec() { return *exec_; }
  // Around a launch of exec() on this stream.
  Status mark_begin(CuStream stream);
  Status mark_end(CuStream stream);
  // Around a launch that is not timed.
  Status mark_plain(bool is_end, CuStream stream);
  bool is_over() const;
  bool has_run() const { return has_run_; }
  // Of the last launch, which is over.
  Result<std::vector<NodeTime>> times() const;
  Result<PlainTimes> plain_times() const;

 private:
  TimedExec(const Driver& driver, const GraphImage& image) : driver_(driver), image_(image) {}
  Result<std::uint64_t> between(CuEvent from, CuEvent to) const;

  const Driver& driver_;
  const GraphImage& image_;
  CudaExec::Stamps stamps_;
  CuEvent begin_ = nullptr, end_ = nullptr;  // around the last launch
  CuEvent plain_[2] = {};                    // around one that was not timed
  std::unique_ptr<CudaExec> exec_;
  bool has_run_ = false, has_plain_ = false;
  bool was_idle_ = false;  // whether the plain one had ended when the last launch was queued
};

}  // namespace anabranch::cuda
