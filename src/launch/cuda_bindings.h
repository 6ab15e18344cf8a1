// SPDX-License-Identifier: Apache-2.0
// What a launch of a captured step is given: whether it is right, and what of it has moved.
// Ownership: values and borrowed memory.
// Threads:   for the lessee of the executable whose memory it is.
// Failure:   kBadBinding names the source and both values; the memory then knows of no launch
//            before.
// Edges:     sources without bytes may be anywhere and share nothing.
#pragma once

#include <cstdint>
#include <span>

#include "anabranch/status.h"
#include "launch/moved_places.h"
#include "record/cuda/exec/cuda_recording.h"

namespace anabranch::cuda {

// Sources that have moved since the launch before, as far as one has to know them.
struct Moved {
  MovedPlaces sources;
  std::uint32_t nodes = 0;  // that name them, or some of them
};

// `addresses`: one for each slot, then one for each part of the arena, of its bytes and aligned to
// kPartAlignment, then the word of each number.
//
// Checks what moved and takes it into the memory: places aligned as they were captured, and no two
// that share bytes, since those would be written in an order that the capture has not seen.
//
// `since`: what a caller that keeps its addresses has moved since its last launch. It is believed
// where that was the last one of this memory's, and tells of this launch then.
Result<Moved> take_bindings(const CudaRecording& recording,
                            std::span<const std::uint64_t> addresses, LaunchMemory& memory,
                            SinceLaunch* since = nullptr);

}  // namespace anabranch::cuda
