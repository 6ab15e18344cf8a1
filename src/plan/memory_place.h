// SPDX-License-Identifier: Apache-2.0
// Giving lives their bytes. Two ways: one knows all conflicts and packs large lives first, trying
// again with those on top served earlier; one follows the order and costs little however many
// conflicts there are.
// Ownership: values.
// Threads:   pure.
// Failure:   none; a spent budget makes a layout larger, never wrong.
// Edges:     without lives the layout is empty.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/memory_lives.h"

namespace anabranch::memory {

struct Layout {
  std::uint64_t size_bytes = 0;
  std::vector<std::uint64_t> offsets;  // by life
};

// One after the other.
Layout place_apart(const Lives& lives);

// Improves a first packing until `lower_bound` is reached or about `budget` neighbours were seen.
Layout place_by_size(const Lives& lives, const Conflicts& conflicts, std::uint64_t lower_bound,
                     std::size_t budget);

// Best fit among bytes whose tenants are over, in plan order.
Layout place_in_order(const Lives& lives, std::size_t budget);

inline std::uint64_t align_up(std::uint64_t offset, std::uint64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace anabranch::memory
