// SPDX-License-Identifier: Apache-2.0
// The end of one launch on CUDA: what tickets ask and what later launches wait for.
// Ownership: owns an event and keeps the device. Shared by tickets and by the recording, which uses
//            it again once it is the last owner.
// Threads:   place() belongs to the launch that took the mark; the rest from any thread, with the
//            device's context current.
// Failure:   a Status that names the call.
// Edges:     a mark that was never placed is over.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "anabranch/status.h"
#include "device/cuda/cuda_device.h"

namespace anabranch::cuda {

class LaunchMark {
 public:
  static Result<std::shared_ptr<LaunchMark>> make(std::shared_ptr<const CudaDevice> device);
  ~LaunchMark();
  LaunchMark(const LaunchMark&) = delete;
  LaunchMark& operator=(const LaunchMark&) = delete;

  const CudaDevice& device() const { return *device_; }
  // Behind all that is queued on `stream`.
  Status place(CuStream stream);
  // Later work of `stream` starts after it.
  Status hold(CuStream stream) const;
  // Whether the launch has ended, well or not.
  bool is_over() const;
  Status wait() const;

 private:
  explicit LaunchMark(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {}
  const Driver& driver() const { return device_->driver(); }

  const std::shared_ptr<const CudaDevice> device_;
  CuEvent event_ = nullptr;
};

// Marks that are used again. One thread at a time.
class LaunchMarks {
 public:
  // One that no ticket has; null if there is none. Only this hands marks out, so one that has no
  // other owner stays that way. Tickets mostly go in the order in which they came: the next mark is
  // the likeliest to be free.
  std::shared_ptr<LaunchMark> find_unused() noexcept;
  void add(std::shared_ptr<LaunchMark> mark) { marks_.push_back(std::move(mark)); }

 private:
  std::vector<std::shared_ptr<LaunchMark>> marks_;
  std::size_t next_ = 0;
};

}  // namespace anabranch::cuda
