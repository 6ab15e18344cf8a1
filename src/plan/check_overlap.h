// SPDX-License-Identifier: Apache-2.0
// Whether two strided views share a byte, as the race checker sees it.
// Ownership: values.
// Threads:   pure.
// Failure:   none; if kMaxVisits pairs of branches do not decide it, the answer is kUndecided. It
// is
//            too where the work is exhausted, which the caller asks for.
// Edges:     views must lie inside their buffers; a view without bytes overlaps nothing.
//
// Method: a view is a tree, a level a dimension, whose leaves are runs of bytes. Two trees are
// walked together from the top, and pairs of branches that cannot meet, by their bounds or by their
// residues modulo the strides below, are left out. What derives waits uses another method.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "anabranch/program.h"
#include "plan/compare_work.h"

namespace anabranch::check {

// Different pairs of branches after which overlap is kUndecided; some milliseconds.
inline constexpr std::size_t kMaxVisits = 1u << 14;

// The bytes of a view in a form of its own: equal normal forms are equal sets of bytes.
struct ByteSet {
  struct Level {
    std::uint64_t stride = 0;  // above the extent of a run
    std::uint64_t count = 0;   // at least 2
    auto operator<=>(const Level&) const = default;
  };
  std::uint64_t begin = 0;    // first byte, and
  std::uint64_t end = 0;      // one past the last; equal if there is none
  std::uint64_t run = 0;      // bytes of a run
  std::vector<Level> levels;  // by falling stride; none: the bytes are contiguous

  bool contiguous() const { return levels.empty(); }
  // Every byte of `other` is surely one of these; may answer false where it is so.
  bool surely_covers(const ByteSet& other) const;
  auto operator<=>(const ByteSet&) const = default;
};

ByteSet make_byte_set(const View& view);

enum class Overlap : std::uint8_t { kNone, kShared, kUndecided };
Overlap find_overlap(const ByteSet& a, const ByteSet& b, CompareWork& work);
// Whatever it costs.
Overlap find_overlap(const ByteSet& a, const ByteSet& b);

}  // namespace anabranch::check
