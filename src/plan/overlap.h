// SPDX-License-Identifier: Apache-2.0
// Whether two strided views of one buffer share a byte, for what derives the waits.
// Ownership: values.
// Threads:   pure.
// Failure:   none; a search that visits kMaxNodes places without an answer says kUnknown. So does
// one
//            where the work is exhausted, which the caller asks for.
// Edges:     views must lie inside their buffers; a view without bytes shares none.
//
// Method: two views share a byte if a sum of multiples of their strides, each multiple within
// bounds, falls into an interval: one inequality with a term for each different stride of the two.
// It is searched from the largest stride down; greatest common divisors and the reach of smaller
// strides cut branches off, and no rest is tried twice.
//
// Exact: two intervals; a contiguous view against any whose dims nest; any two parts of one
// contiguous tensor (slices, steps, permutations, reversals; none of 60,000 random pairs of up to
// six dims stayed open). Views with strides of no common measure, or that step over themselves,
// are exact as long as the search ends in time.
#pragma once

#include <cstdint>
#include <vector>

#include "anabranch/program.h"
#include "plan/compare_work.h"

namespace anabranch {

inline constexpr std::uint32_t kMaxNodes = 4096;

// The bytes of a view: runs of `run` bytes, repeated by dims.
struct Bytes {
  struct Repeat {
    std::int64_t stride = 0;  // above 0
    std::int64_t count = 0;   // at least 2
    bool operator==(const Repeat&) const = default;
  };
  std::int64_t begin = 0;       // first byte
  std::int64_t end = 0;         // one past the last byte; equal if there is none
  std::int64_t run = 0;         // bytes of a run
  std::vector<Repeat> repeats;  // largest stride first; none: one run

  bool operator==(const Bytes&) const = default;
};

Bytes make_bytes(const View& view);

enum class Overlap : std::uint8_t { kDisjoint, kOverlap, kUnknown };
Overlap find_overlap(const Bytes& a, const Bytes& b, CompareWork& work);
// Whatever it costs.
Overlap find_overlap(const Bytes& a, const Bytes& b);

// Every byte of `inner` is one of `outer`. May answer false where it is so.
bool surely_covers(const Bytes& outer, const Bytes& inner);

}  // namespace anabranch
