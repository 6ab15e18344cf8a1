// SPDX-License-Identifier: Apache-2.0
// The way from the public handles to what they hold, and back. For the rooms and their tests: users
// have none, so what a handle holds may change with any version.
// Ownership: borrows the handle.
// Threads:   as the handle.
// Failure:   none.
// Edges:     what a handle of another kind would hold is null.
#pragma once

#include <utility>

namespace anabranch::detail {

struct Inside {
  // Of a Device or a Recording, on the host.
  static const auto& host(const auto& handle) { return handle.host_; }
  // On CUDA; of a Recording, that of a plan.
  static const auto& cuda(const auto& handle) { return handle.cuda_; }
  // Of a Recording or a CapturedRecording, of a captured step.
  static const auto& step(const auto& handle) { return handle.step_; }
  static const auto& image(const auto& snapshot) { return *snapshot.image_; }
  static const auto& marks(const auto& marks) { return *marks.marks_; }
  static const auto& timed(const auto& recording) { return recording.timed_; }

  template <typename Handle, typename... Parts>
  static Handle make(Parts&&... parts) {
    return Handle(std::forward<Parts>(parts)...);
  }
};

}  // namespace anabranch::detail
