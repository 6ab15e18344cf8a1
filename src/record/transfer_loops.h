// SPDX-License-Identifier: Apache-2.0
// The loops over strided bytes by which a copy or fill goes through its views: as few as there can
// be, over items as wide as there can be.
// Ownership: values.
// Threads:   pure.
// Failure:   none.
// Edges:     views without bytes have an item of 0 bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/program.h"

namespace anabranch {

// `item_bytes` bytes, at every combination of the loops.
struct TransferLoops {
  struct Loop {
    std::uint64_t count = 0;
    std::int64_t to_stride = 0;
    std::int64_t from_stride = 0;
  };
  std::uint64_t to_offset = 0;
  std::uint64_t from_offset = 0;
  std::uint64_t item_bytes = 0;
  std::vector<Loop> loops;
};

// Over two views of equal shape: loops over contiguous bytes become one item.
TransferLoops make_transfer_loops(const View& to, const View& from);

// How many items the loops go over; 0 where there are no bytes.
std::uint64_t count_items(const TransferLoops& transfer);
// Whether the intervals of bytes that the two span meet.
bool share_bytes(const View& a, const View& b);
// The same shape without gaps, from offset 0.
View packed(const View& view);

}  // namespace anabranch
