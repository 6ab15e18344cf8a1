// SPDX-License-Identifier: Apache-2.0
// One thing that happened in a launch.
#pragma once

#include <cstdint>

namespace anabranch {

enum class EventKind : std::uint8_t { kLaunch, kStep, kWait };

// Times are of the steady clock, in nanoseconds.
struct TraceEvent {
  EventKind kind = EventKind::kStep;
  std::uint32_t lane = 0;   // 0 is the caller's thread
  std::uint32_t step = 0;   // kStep: what ran. kWait: what waited
  std::uint32_t other = 0;  // kWait: for which step
  std::uint64_t begin_ns = 0;
  std::uint64_t end_ns = 0;
};

}  // namespace anabranch
