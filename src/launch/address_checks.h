// SPDX-License-Identifier: Apache-2.0
// Takes over the addresses of a launch and says whether they are right, in loops without a branch:
// for launches as they should be. Who is told that something is wrong looks again, one by one.
// Ownership: borrows all lists, which are by source unless said otherwise.
// Threads:   pure.
// Failure:   none.
// Edges:     addresses and the ends of what is there lie in the lower half of the numbers, so that
//            the top bit of a difference says which of two is the greater; others are wrong. Where
//            there are no bytes, any word is right in take_in_order().
#pragma once

#include <cstdint>
#include <span>

#include "record/cuda/arena/sources.h"

namespace anabranch::cuda {

enum class Placed : std::uint8_t {
  kRight,
  kMisplaced,  // some address has a bit of its mask
  kInDisorder  // none has, and some source begins before the end of the one that should precede it
};

// Sources in the order of their numbers; the first not at null. `next`: as many words that are
// written soon, which the caches fetch meanwhile.
Placed take_in_turn(std::span<const std::uint64_t> given, const SourceRule* rules,
                    std::uint64_t* to, const std::uint64_t* next = nullptr);

// Sources in this order, which need not name all.
Placed take_in_order(std::span<const std::uint64_t> given, const SourceRule* rules,
                     std::span<const std::uint32_t> order, std::uint64_t* to,
                     const std::uint64_t* next = nullptr);

}  // namespace anabranch::cuda
