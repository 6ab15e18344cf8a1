// SPDX-License-Identifier: Apache-2.0
// Sites: every place of a captured graph that holds an address which may change between launches.
// Ownership: values.
// Threads:   pure.
// Failure:   kCapturesDiffer names a word that differs and is no address: never a guess.
// Edges:     words that are equal in both captures are left alone, since the captures share no
//            address of a unit; so is memory that belongs to no unit.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/status.h"
#include "record/graph_image.h"
#include "record/graph_units.h"

namespace anabranch::cuda {

enum class Operand : std::uint8_t {
  kParam,        // `offset` bytes into a kernel's parameters
  kSource,       // of a copy
  kDestination,  // of a copy or fill
};

struct Site {
  std::uint32_t node = 0;
  Operand operand = Operand::kParam;
  std::uint32_t offset = 0;
  std::uint32_t unit = 0;
  std::uint64_t shift = 0;  // the site holds the unit's address and this many bytes
  bool operator==(const Site&) const = default;
};

// Both images match (match_graphs). Sorted by node, then by offset.
//
// Words of eight bytes are looked at where the ABI puts pointers, at multiples of eight within each
// parameter. A word that lies in one unit at one offset in both captures is a site.
Result<std::vector<Site>> find_sites(const GraphImage& first, const GraphImage& second,
                                     const UnitTable& units);

}  // namespace anabranch::cuda
