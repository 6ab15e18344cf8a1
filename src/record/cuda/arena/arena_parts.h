// SPDX-License-Identifier: Apache-2.0
// The arena of a captured step in parts, for launches whose memory has holes.
// Ownership: values.
// Threads:   pure: the same layout gives the same parts.
// Failure:   none; offsets in the arena must be multiples of kPartAlignment.
// Edges:     no temporaries, no parts; where none has bytes there is one part without bytes.
//
// One arena is what the checker has proved: units share bytes there only if one is dead before the
// other lives. Parts keep that. Units of one part lie to each other as they did in the arena, and
// units of two parts share nothing, since no two parts of a launch do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "anabranch/plan.h"
#include "record/cuda/sites/units.h"

namespace anabranch::cuda {

// Of a part's address, and of all offsets in it.
inline constexpr std::uint64_t kPartAlignment = kUnitAlignment;

// Allocators leave what is left of a hole unused up to some size, 1 MiB in torch: little beside
// this.
inline constexpr std::uint64_t kLeastPartBytes = std::uint64_t{32} << 20;

// Every part costs a launch an allocation and an address, so there are no more, and parts of larger
// arenas are larger.
inline constexpr std::uint64_t kMostParts = 64;

// A unit that reaches across a cut makes the part before it longer. All of that together is at most
// this share of the arena.
inline constexpr std::uint64_t kWasteShare = 64;

struct ArenaParts {
  struct PartOffset {
    std::uint32_t part = 0;
    std::uint64_t offset = 0;
  };
  std::vector<std::uint64_t> bytes;  // by part
  std::vector<PartOffset> places;    // by unit; of those in the arena
};

// Each part spans at least `least_bytes` of the arena, but where there is only one.
ArenaParts cut_arena(const ArenaLayout& arena, std::span<const Unit> units,
                     std::uint64_t least_bytes);

}  // namespace anabranch::cuda
