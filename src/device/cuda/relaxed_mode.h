// SPDX-License-Identifier: Apache-2.0
// While a capture lasts, its mode forbids threads to ask whether a stream or an event is done.
// Asked in here, of what is in no capture, that disturbs none. Ownership: borrows the driver.
// Threads:   for the calling thread.
// Failure:   none.
// Edges:     scopes may lie in one another.
#pragma once

#include "device/cuda/driver.h"

namespace anabranch::cuda {

class RelaxedMode {
 public:
  explicit RelaxedMode(const Driver& driver) : driver_(driver), is_on_(exchange()) {}
  ~RelaxedMode() {
    if (is_on_) exchange();
  }
  RelaxedMode(const RelaxedMode&) = delete;
  RelaxedMode& operator=(const RelaxedMode&) = delete;

 private:
  bool exchange() {
    return driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CuResult::kSuccess;
  }

  const Driver& driver_;
  CuCaptureMode mode_ = CuCaptureMode::kRelaxed;
  const bool is_on_;
};

}  // namespace anabranch::cuda
