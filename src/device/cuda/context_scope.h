// SPDX-License-Identifier: Apache-2.0
// A device's context for the length of a scope, so that a call of ours leaves the caller's thread
// as it was: a program with several devices keeps the one it had chosen.
// Ownership: borrows the device.
// Threads:   for the calling thread.
// Failure:   status(); then the context is not current.
// Edges:     where no context was current, the device's stays.
#pragma once

#include "device/cuda/cuda_device.h"

namespace anabranch::cuda {

class ContextScope {
 public:
  explicit ContextScope(const CudaDevice& device, Act act = Act::kRecord);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaDevice& device_;
  CuContext before_ = nullptr;
  Status status_;
};

}  // namespace anabranch::cuda
