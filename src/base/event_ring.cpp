// SPDX-License-Identifier: Apache-2.0
#include "base/event_ring.h"

#include <algorithm>

namespace anabranch {

EventRing::EventRing(std::size_t capacity)
    : capacity_(capacity), events_(std::make_unique<TraceEvent[]>(capacity)) {}

std::span<const TraceEvent> EventRing::events() const noexcept {
  const std::uint64_t written = written_.load(std::memory_order_relaxed);
  return {events_.get(), static_cast<std::size_t>(std::min<std::uint64_t>(written, capacity_))};
}

std::uint64_t EventRing::dropped() const noexcept {
  const std::uint64_t written = written_.load(std::memory_order_relaxed);
  return written - std::min<std::uint64_t>(written, capacity_);
}

}  // namespace anabranch
