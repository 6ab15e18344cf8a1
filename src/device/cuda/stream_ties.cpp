// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/stream_ties.h"

#include "device/cuda/context_scope.h"
#include "device/cuda/relaxed_mode.h"

namespace anabranch::cuda {
namespace {

Result<bool> is_captured(const Driver& driver, CuStream stream) {
  CuCaptureStatus found = CuCaptureStatus::kNone;
  Status asked = launched("cuStreamIsCapturing", driver.cuStreamIsCapturing(stream, &found));
  if (!asked.ok()) return asked;
  return found != CuCaptureStatus::kNone;
}

// An answer that is an error is told by what is queued next.
bool is_idle(const Driver& driver, CuStream stream) {
  const RelaxedMode relaxed(driver);
  return driver.cuStreamQuery(stream) == CuResult::kSuccess;
}

}  // namespace

// An event for one tie. What waits for it waits for what it marked when the wait was queued, so it
// may mark something else right after.
class StreamTies::Mark {
 public:
  explicit Mark(StreamTies& ties) : ties_(ties), driver_(ties.device_->driver()) {
    const std::lock_guard lock(ties.mutex_);
    if (ties.unused_.empty()) return;
    event_ = ties.unused_.back();
    ties.unused_.pop_back();
  }
  ~Mark() {
    if (!event_) return;
    const std::lock_guard lock(ties_.mutex_);
    ties_.unused_.push_back(event_);
  }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  Status set(CuStream stream) {
    if (!event_) {
      Status made = launched("cuEventCreate", driver_.cuEventCreate(&event_, kEventDisableTiming));
      if (!made.ok()) return made;
    }
    return launched("cuEventRecord", driver_.cuEventRecord(event_, stream));
  }
  Status hold_back(CuStream stream) const {
    return launched("cuStreamWaitEvent",
                    driver_.cuStreamWaitEvent(stream, event_, kEventWaitDefault));
  }

 private:
  StreamTies& ties_;
  const Driver& driver_;
  CuEvent event_ = nullptr;
};

StreamTies::~StreamTies() {
  const ContextScope current(*device_, Act::kLaunch);
  for (const CuEvent event : unused_) device_->driver().cuEventDestroy(event);
}

// What both ends begin with: whether the stream is captured, and an event for the tie.
template <typename Tie>
Status StreamTies::with_mark(CuStream stream, Tie tie) {
  const ContextScope current(*device_, Act::kLaunch);
  if (!current.status().ok()) return current.status();
  const auto captured = is_captured(device_->driver(), stream);
  if (!captured.ok()) return captured.error();
  Mark mark(*this);
  return tie(mark, *captured);
}

Status StreamTies::join(CuStream stream, std::span<const CuStream> others) {
  return with_mark(stream, [&](Mark& mark, bool captured) -> Status {
    const Driver& driver = device_->driver();
    for (const CuStream other : others) {
      if (other == stream) continue;
      const auto in_capture = is_captured(driver, other);
      if (!in_capture.ok()) return in_capture.error();
      if (!*in_capture && (captured || is_idle(driver, other))) continue;
      if (Status marked = mark.set(other); !marked.ok()) return marked;
      if (Status waits = mark.hold_back(stream); !waits.ok()) return waits;
    }
    return {};
  });
}

Status StreamTies::fork(CuStream stream, std::span<const CuStream> others) {
  return with_mark(stream, [&](Mark& mark, bool captured) -> Status {
    bool is_marked = false;
    for (const CuStream other : others) {
      if (other == stream) continue;
      if (captured) {
        const auto in_capture = is_captured(device_->driver(), other);
        if (!in_capture.ok()) return in_capture.error();
        if (!*in_capture) continue;
      }
      if (Status marked = is_marked ? Status() : mark.set(stream); !marked.ok()) return marked;
      is_marked = true;
      if (Status waits = mark.hold_back(other); !waits.ok()) return waits;
    }
    return {};
  });
}

}  // namespace anabranch::cuda
