// SPDX-License-Identifier: Apache-2.0
// Where two lists of addresses differ. Most are alike as a rule, so they are compared in blocks.
// Ownership: borrows both.
// Threads:   pure.
// Failure:   none.
// Edges:     lists are of one length; empty ones do not differ.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace anabranch::cuda {

// Calls `differs(place)` in turn, until one answers false.
template <typename Function>
void for_each_difference(std::span<const std::uint64_t> a, std::span<const std::uint64_t> b,
                         Function&& differs) {
  constexpr std::size_t kBlock = 64;
  assert(a.size() == b.size());
  for (std::size_t begin = 0; begin < a.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, a.size());
    if (std::memcmp(&a[begin], &b[begin], (end - begin) * sizeof a[0]) == 0) continue;
    for (std::size_t i = begin; i < end; ++i) {
      if (a[i] != b[i] && !differs(i)) return;
    }
  }
}

}  // namespace anabranch::cuda
