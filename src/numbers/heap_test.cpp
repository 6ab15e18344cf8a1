// SPDX-License-Identifier: Apache-2.0
#include "numbers/heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace anabranch::numbers {
namespace {

std::uint64_t address_of(const void* thing) { return reinterpret_cast<std::uint64_t>(thing); }

TEST(Heap, ReachesUpToTheProgramsBreak) {
  constexpr int kBytes = 1 << 16;
  const std::uint64_t begin = address_of(sbrk(kBytes));
  EXPECT_TRUE(is_in_heap(begin));
  EXPECT_TRUE(is_in_heap(begin + kBytes - 1));
  EXPECT_FALSE(is_in_heap(address_of(sbrk(0)) + kBytes));
  EXPECT_FALSE(is_in_heap(address_of(&kBytes)));  // the stack's
  EXPECT_FALSE(is_in_heap(0));
}

}  // namespace
}  // namespace anabranch::numbers
