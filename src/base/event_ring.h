// SPDX-License-Identifier: Apache-2.0
// Where the lanes of a launch write what happened.
// Ownership: the ring owns its events; all its memory is taken when it is made.
// Threads:   write() from any number of threads, without locks; the rest while nobody writes.
// Failure:   a full ring drops the newest events and counts them.
// Edges:     a ring of capacity 0 only counts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "anabranch/trace_event.h"

namespace anabranch {

class EventRing {
 public:
  explicit EventRing(std::size_t capacity);

  void write(const TraceEvent& event) noexcept {
    const std::uint64_t place = written_.fetch_add(1, std::memory_order_relaxed);
    if (place < capacity_) events_[place] = event;
  }

  // In the order in which their places were taken.
  std::span<const TraceEvent> events() const noexcept;
  std::uint64_t dropped() const noexcept;
  void clear() noexcept { written_.store(0, std::memory_order_relaxed); }

 private:
  const std::size_t capacity_;
  const std::unique_ptr<TraceEvent[]> events_;
  std::atomic<std::uint64_t> written_{0};
};

}  // namespace anabranch
