// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/exec/launch_mark.h"

#include "device/cuda/context_scope.h"

namespace anabranch::cuda {

Result<std::shared_ptr<LaunchMark>> LaunchMark::make(std::shared_ptr<const CudaDevice> device) {
  std::shared_ptr<LaunchMark> made(new LaunchMark(std::move(device)));
  if (Status created = launched("cuEventCreate",
                                made->driver().cuEventCreate(&made->event_, kEventDisableTiming));
      !created.ok()) {
    return created;
  }
  return made;
}

LaunchMark::~LaunchMark() {
  if (!event_) return;
  const ContextScope current(*device_);
  driver().cuEventDestroy(event_);
}

Status LaunchMark::place(CuStream stream) {
  return launched("cuEventRecord", driver().cuEventRecord(event_, stream));
}

Status LaunchMark::hold(CuStream stream) const {
  return launched("cuStreamWaitEvent", driver().cuStreamWaitEvent(stream, event_, 0));
}

bool LaunchMark::is_over() const { return driver().cuEventQuery(event_) != CuResult::kNotReady; }

Status LaunchMark::wait() const {
  return launched("cuEventSynchronize", driver().cuEventSynchronize(event_));
}

std::shared_ptr<LaunchMark> LaunchMarks::find_unused() noexcept {
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    next_ = (next_ + 1) % marks_.size();
    if (marks_[next_].use_count() == 1) return marks_[next_];
  }
  return nullptr;
}

}  // namespace anabranch::cuda
