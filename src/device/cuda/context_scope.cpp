// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/context_scope.h"

namespace anabranch::cuda {

ContextScope::ContextScope(const CudaDevice& device, Act act) : device_(device) {
  const Driver& driver = device.driver();
  status_ = driver_status(act, "cuCtxGetCurrent", driver.cuCtxGetCurrent(&before_));
  if (!status_.ok() || before_ == device.context()) return;
  status_ = driver_status(act, "cuCtxSetCurrent", driver.cuCtxSetCurrent(device.context()));
}

ContextScope::~ContextScope() {
  if (before_ && before_ != device_.context()) device_.driver().cuCtxSetCurrent(before_);
}

}  // namespace anabranch::cuda
