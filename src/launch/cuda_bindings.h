// SPDX-License-Identifier: Apache-2.0
// What a launch of a captured step is given: whether it is right, and what of it has moved.
// Ownership: values and borrowed memory.
// Threads:   for the lessee of the executable whose memory it is.
// Failure:   kBadBinding names the source and both values; the memory then knows of no launch
// before. Edges:     sources without bytes may be anywhere and share nothing.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "anabranch/status.h"
#include "record/cuda_recording.h"

namespace anabranch::cuda {

// Sources that have moved since the launch before; no more of them than it takes to know what to
// do.
struct Moved {
  static constexpr std::uint32_t kMost = 8;
  std::array<std::uint32_t, kMost> sources{};
  std::uint32_t count = 0;  // kMost + 1: more than that
  std::uint32_t nodes = 0;  // that name them, or some of them

  bool is_many() const { return count > kMost; }
  std::span<const std::uint32_t> list() const { return {sources.data(), count}; }
};

// `addresses`: one for each slot, then one for each part of the arena, of its bytes and aligned to
// kPartAlignment.
//
// Checks what moved and takes it into the memory: places aligned as they were captured, and no two
// that share bytes, since those would be written in an order that the capture has not seen.
Result<Moved> take_bindings(const CudaRecording& recording,
                            std::span<const std::uint64_t> addresses, LaunchMemory& memory);

}  // namespace anabranch::cuda
