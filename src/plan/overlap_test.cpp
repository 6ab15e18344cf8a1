// SPDX-License-Identifier: Apache-2.0
#include "plan/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "plan/random_program.h"
#include "plan/waits_oracle.h"

namespace anabranch {
namespace {

constexpr BufferId kBuffer{0};

Overlap overlap(const View& a, const View& b) { return find_overlap(make_bytes(a), make_bytes(b)); }

bool share_a_byte(const View& a, const View& b, std::uint64_t size) {
  const std::vector<bool> x = bytes_of(a, size);
  const std::vector<bool> y = bytes_of(b, size);
  for (std::size_t i = 0; i < size; ++i) {
    if (x[i] && y[i]) return true;
  }
  return false;
}

bool covers(const View& outer, const View& inner, std::uint64_t size) {
  const std::vector<bool> x = bytes_of(outer, size);
  const std::vector<bool> y = bytes_of(inner, size);
  for (std::size_t i = 0; i < size; ++i) {
    if (y[i] && !x[i]) return false;
  }
  return true;
}

std::string text_of(const View& view) {
  std::string text = std::to_string(view.offset_bytes) + "+" + std::to_string(view.item_bytes);
  for (const Dim& dim : view.dims) {
    text += " " + std::to_string(dim.size) + "*" + std::to_string(dim.stride_bytes);
  }
  return text;
}

// Any view that stays inside `size` bytes, over itself or not.
View odd_view(RandomNumbers& random, std::uint64_t size) {
  const auto limit = static_cast<std::int64_t>(size);
  while (true) {
    View view{kBuffer, random.below(size), 1 + random.below(6), {}};
    auto low = static_cast<std::int64_t>(view.offset_bytes);
    std::int64_t high = low + static_cast<std::int64_t>(view.item_bytes);
    for (std::uint64_t dims = random.below(4); dims > 0; --dims) {
      const Dim dim{random.below(6), static_cast<std::int64_t>(random.below(61)) - 30};
      view.dims.push_back(dim);
      const std::int64_t reach = dim.stride_bytes * (static_cast<std::int64_t>(dim.size) - 1);
      (reach < 0 ? low : high) += dim.size == 0 ? 0 : reach;
    }
    if (low >= 0 && high <= limit) return view;
  }
}

// A part of a contiguous tensor: in each dim a range with a step, perhaps backwards; permuted.
View tensor_part(RandomNumbers& random, const std::vector<std::uint64_t>& shape) {
  View view{kBuffer, 0, 4, {}};
  std::int64_t stride = 4;
  for (std::size_t i = shape.size(); i-- > 0; stride *= static_cast<std::int64_t>(shape[i])) {
    const std::uint64_t first = random.below(shape[i]);
    const std::uint64_t step = 1 + random.below(3);
    const std::uint64_t count = 1 + random.below((shape[i] - 1 - first) / step + 1);
    const bool reversed = random.chance(20);
    const std::uint64_t start = reversed ? first + step * (count - 1) : first;
    view.offset_bytes += start * static_cast<std::uint64_t>(stride);
    const std::int64_t forward = stride * static_cast<std::int64_t>(step);
    view.dims.push_back({count, reversed ? -forward : forward});
  }
  std::rotate(view.dims.begin(),
              view.dims.begin() + static_cast<std::ptrdiff_t>(random.below(shape.size())),
              view.dims.end());
  return view;
}

TEST(Overlap, AgreesWithEveryByteOfOddViews) {
  constexpr std::uint64_t kSize = 160;
  RandomNumbers random(1);
  for (int i = 0; i < 40'000; ++i) {
    const View a = odd_view(random, kSize);
    const View b = odd_view(random, kSize);
    const Overlap expected = share_a_byte(a, b, kSize) ? Overlap::kOverlap : Overlap::kDisjoint;
    ASSERT_EQ(overlap(a, b), expected) << text_of(a) << " | " << text_of(b);
    ASSERT_EQ(overlap(b, a), expected) << text_of(b) << " | " << text_of(a);
  }
}

TEST(Overlap, AgreesWithEveryByteOfPartsOfTensors) {
  const std::vector<std::vector<std::uint64_t>> shapes = {{64},      {8, 9},       {16, 4},
                                                          {3, 5, 7}, {4, 4, 4, 4}, {2, 3, 2, 3, 4}};
  RandomNumbers random(2);
  for (int i = 0; i < 10'000; ++i) {
    const std::vector<std::uint64_t>& shape = shapes[static_cast<std::size_t>(i) % shapes.size()];
    const View a = tensor_part(random, shape);
    const View b = tensor_part(random, shape);
    const Overlap expected = share_a_byte(a, b, 2048) ? Overlap::kOverlap : Overlap::kDisjoint;
    ASSERT_EQ(overlap(a, b), expected) << text_of(a) << " | " << text_of(b);
  }
}

TEST(Overlap, IsDecidedForEveryPartOfALargeTensorOfUpToSixDims) {
  const std::vector<std::vector<std::uint64_t>> shapes = {
      {1 << 20},          {4096, 4096},         {1023, 769, 33},
      {32, 16, 128, 128}, {7, 64, 3, 224, 225}, {3, 5, 7, 64, 33, 66}};
  RandomNumbers random(3);
  for (int i = 0; i < 60'000; ++i) {
    const std::vector<std::uint64_t>& shape = shapes[static_cast<std::size_t>(i) % shapes.size()];
    const View a = tensor_part(random, shape);
    const View b = tensor_part(random, shape);
    ASSERT_NE(overlap(a, b), Overlap::kUnknown) << text_of(a) << " | " << text_of(b);
  }
}

TEST(Overlap, DisjointColumnsOfAMatrixShareNothing) {
  const View left{kBuffer, 0, 4, {{1000, 4000}, {500, 4}}};
  const View right{kBuffer, 2000, 4, {{1000, 4000}, {500, 4}}};
  const View middle{kBuffer, 1996, 4, {{1000, 4000}, {2, 4}}};
  EXPECT_EQ(overlap(left, right), Overlap::kDisjoint);
  EXPECT_EQ(overlap(left, middle), Overlap::kOverlap);
  EXPECT_EQ(overlap(right, middle), Overlap::kOverlap);
}

TEST(Overlap, ViewsAtOtherOffsetsShareBytes) {
  EXPECT_EQ(overlap({kBuffer, 0, 1024, {}}, {kBuffer, 1020, 4, {}}), Overlap::kOverlap);
  EXPECT_EQ(overlap({kBuffer, 0, 1024, {}}, {kBuffer, 1024, 4, {}}), Overlap::kDisjoint);
}

TEST(Overlap, OddAndEvenItemsShareNothingInEitherDirection) {
  const View even{kBuffer, 0, 4, {{1 << 20, 8}}};
  const View odd_reversed{kBuffer, 8 * ((1 << 20) - 1) + 4, 4, {{1 << 20, -8}}};
  EXPECT_EQ(overlap(even, odd_reversed), Overlap::kDisjoint);
}

TEST(Overlap, AViewWithoutBytesSharesNone) {
  const View whole{kBuffer, 0, 64, {}};
  EXPECT_EQ(overlap(whole, {kBuffer, 8, 4, {{0, 4}}}), Overlap::kDisjoint);
  EXPECT_EQ(overlap(whole, {kBuffer, 8, 0, {{4, 4}}}), Overlap::kDisjoint);
}

// Strides without a common measure: more sums than the search tries.
TEST(Overlap, SaysUnknownRatherThanGuessWhereTheSearchEnds) {
  const View a{kBuffer, 0, 1, {{99, 1'000'003}, {97, 1'000'033}, {95, 1'000'037}}};
  const View b{kBuffer, 777, 1, {{89, 1'000'039}, {87, 1'000'081}, {85, 1'000'099}}};
  EXPECT_EQ(overlap(a, b), Overlap::kUnknown);
}

TEST(Overlap, CoveringIsNeverClaimedWrongly) {
  constexpr std::uint64_t kSize = 160;
  RandomNumbers random(4);
  int claimed = 0;
  for (int i = 0; i < 20'000; ++i) {
    const View outer = odd_view(random, kSize);
    const View inner = odd_view(random, kSize);
    if (!surely_covers(make_bytes(outer), make_bytes(inner))) continue;
    ++claimed;
    ASSERT_TRUE(covers(outer, inner, kSize)) << text_of(outer) << " | " << text_of(inner);
  }
  EXPECT_GT(claimed, 100);
}

TEST(Overlap, AViewCoversItselfAndColumnsWithinItsColumns) {
  const View columns{kBuffer, 8, 4, {{10, 64}, {4, 4}}};
  const View inner{kBuffer, 12, 4, {{10, 64}, {2, 4}}};
  EXPECT_TRUE(surely_covers(make_bytes(columns), make_bytes(columns)));
  EXPECT_TRUE(surely_covers(make_bytes(columns), make_bytes(inner)));
  EXPECT_FALSE(surely_covers(make_bytes(inner), make_bytes(columns)));
}

TEST(Overlap, EqualBytesInOtherDimsAreRecognised) {
  const View flat{kBuffer, 0, 4, {{24, 4}}};
  const View cube{kBuffer, 0, 4, {{2, 48}, {3, 16}, {4, 4}}};
  const View transposed{kBuffer, 0, 4, {{4, 4}, {6, 16}}};
  EXPECT_EQ(make_bytes(flat), make_bytes(cube));
  EXPECT_EQ(make_bytes(flat), make_bytes(transposed));
}

}  // namespace
}  // namespace anabranch
