// SPDX-License-Identifier: Apache-2.0
// What copy and fill steps run: loops over strided bytes, made once, as few and as wide as they go.
// Ownership: the recording owns its moves; a Move owns its scratch.
// Threads:   one run at a time.
// Failure:   none.
// Edges:     views without bytes move nothing; a copy within overlapping bytes of one buffer
//            behaves as if all were read before any is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "anabranch/device.h"
#include "anabranch/program.h"

namespace anabranch::host {

struct Loop {
  std::uint64_t count = 0;
  std::int64_t to_stride = 0;
  std::int64_t from_stride = 0;
};

// `item_bytes` bytes, at every combination of the loops.
struct Walk {
  std::uint64_t to_offset = 0;
  std::uint64_t from_offset = 0;
  std::uint64_t item_bytes = 0;
  std::vector<Loop> loops;
};

// How often the item stands there; 0 for a walk over no bytes.
std::uint64_t count_items(const Walk& walk);
// Whether the intervals of bytes that the two span meet.
bool share_bytes(const View& a, const View& b);
// The same shape without gaps, from offset 0.
View packed(const View& view);

// The walk over two views of equal shape: loops that walk contiguous bytes become one item.
Walk make_walk(const View& to, const View& from);

class Move {
 public:
  // Of a copy or fill step; another kind of step has no move.
  explicit Move(const Step& step);
  Region region() { return {is_fill_ ? run_fill : run_copy, this}; }

 private:
  static std::int32_t run_copy(void* self, const RegionCall* call);
  static std::int32_t run_fill(void* self, const RegionCall* call);
  void stage(const View& to, const View& from);

  bool is_fill_;
  std::uint8_t fill_byte_;
  Walk walk_;
  // Where source and destination share bytes: `walk_` ends in the scratch, this one begins there.
  Walk unstage_;
  std::vector<std::byte> scratch_;
};

}  // namespace anabranch::host
