// SPDX-License-Identifier: Apache-2.0
#include "record/host/host_transfer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "plan/random_program.h"

namespace anabranch::host {
namespace {

constexpr BufferId kTo{0}, kFrom{1};
using Bytes = std::vector<std::uint8_t>;

Bytes counted(std::size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{1});
  return bytes;
}

// The offset of each byte of a view, in order.
std::vector<std::size_t> offsets_in(const View& view) {
  std::vector<std::int64_t> items{static_cast<std::int64_t>(view.offset_bytes)};
  for (const Dim& dim : view.dims) {
    std::vector<std::int64_t> next;
    for (const std::int64_t item : items) {
      for (std::uint64_t i = 0; i < dim.size; ++i) {
        next.push_back(item + static_cast<std::int64_t>(i) * dim.stride_bytes);
      }
    }
    items = std::move(next);
  }
  std::vector<std::size_t> offsets;
  for (const std::int64_t item : items) {
    for (std::uint64_t i = 0; i < view.item_bytes; ++i) {
      offsets.push_back(static_cast<std::size_t>(item) + i);
    }
  }
  return offsets;
}

Bytes copied_byte_by_byte(const View& to, const View& from, Bytes into, const Bytes& source) {
  const std::vector<std::size_t> t = offsets_in(to), f = offsets_in(from);
  for (std::size_t i = 0; i < t.size(); ++i) into[t[i]] = source[f[i]];
  return into;
}

void run(const Step& step, void* to, void* from) {
  HostTransfer transfer(step);
  void* const buffers[] = {to, from};
  const RegionCall call{buffers, 2, nullptr, 0};
  EXPECT_EQ(transfer.region().function(transfer.region().context, &call), 0);
}

Step copy_step(const View& to, const View& from) {
  Step step;
  step.kind = StepKind::kCopy;
  step.accesses = {{AccessMode::kWrite, to}, {AccessMode::kRead, from}};
  return step;
}

Step fill_step(const View& to, std::uint8_t byte) {
  Step step;
  step.kind = StepKind::kFill;
  step.accesses = {{AccessMode::kWrite, to}};
  step.fill_byte = byte;
  return step;
}

// Dims of the same sizes, in another order on both sides: any order, reversed, with gaps.
View random_layout(RandomNumbers& random, BufferId buffer, std::uint64_t item,
                   const std::vector<std::uint64_t>& sizes) {
  View view{buffer, 0, item, {}};
  for (const std::uint64_t size : sizes) view.dims.push_back({size, 0});
  std::vector<std::size_t> inner_first(sizes.size());
  std::iota(inner_first.begin(), inner_first.end(), std::size_t{0});
  for (std::size_t i = inner_first.size(); i > 1; --i) {
    std::swap(inner_first[i - 1], inner_first[random.below(i)]);
  }
  std::uint64_t span = item;
  for (const std::size_t d : inner_first) {
    const auto stride = static_cast<std::int64_t>(span + random.below(2) * item);
    const bool reversed = random.chance(30);
    view.dims[d].stride_bytes = reversed ? -stride : stride;
    const std::uint64_t reach = (sizes[d] - 1) * static_cast<std::uint64_t>(stride);
    if (reversed) view.offset_bytes += reach;
    span += reach;
  }
  return view;
}

TEST(HostTransfer, CopiesWhatACopyByteByByteDoes) {
  RandomNumbers random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::uint64_t item = std::uint64_t{1} << random.below(6);
    std::vector<std::uint64_t> sizes(random.below(5));
    for (std::uint64_t& size : sizes) size = 1 + random.below(4);
    const View to = random_layout(random, kTo, item, sizes);
    const View from = random_layout(random, kFrom, item, sizes);
    Bytes target(1 << 16, 0xA5), source = counted(1 << 16);
    const Bytes expected = copied_byte_by_byte(to, from, target, source);
    run(copy_step(to, from), target.data(), source.data());
    ASSERT_EQ(target, expected) << "round " << round;
  }
}

TEST(HostTransfer, FillsExactlyTheBytesOfTheView) {
  RandomNumbers random(2);
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint64_t> sizes(random.below(4));
    for (std::uint64_t& size : sizes) size = 1 + random.below(4);
    const View to = random_layout(random, kTo, 4, sizes);
    Bytes target(1 << 14, 0xA5);
    Bytes expected = target;
    for (const std::size_t offset : offsets_in(to)) expected[offset] = 0x3C;
    run(fill_step(to, 0x3C), target.data(), nullptr);
    ASSERT_EQ(target, expected) << "round " << round;
  }
}

TEST(HostTransfer, CopiesWithinOverlappingBytesAsIfAllWereReadFirst) {
  Bytes bytes = counted(64);
  const View whole{kTo, 0, 4, {{4, 16}, {4, 4}}}, transposed{kTo, 0, 4, {{4, 4}, {4, 16}}};
  const Bytes expected = copied_byte_by_byte(whole, transposed, bytes, bytes);
  run(copy_step(whole, transposed), bytes.data(), bytes.data());
  EXPECT_EQ(bytes, expected);
}

TEST(HostTransfer, CopiesAShiftedItemWithinItself) {
  Bytes bytes = counted(64);
  const View to{kTo, 4, 32, {}}, from{kTo, 0, 32, {}};
  const Bytes expected = copied_byte_by_byte(to, from, bytes, bytes);
  run(copy_step(to, from), bytes.data(), bytes.data());
  EXPECT_EQ(bytes, expected);
}

TEST(HostTransfer, ReadsOneItemIntoManyThroughAStrideOfZero) {
  Bytes target(16, 0), source{1, 2, 3, 4};
  run(copy_step({kTo, 0, 4, {{4, 4}}}, {kFrom, 0, 4, {{4, 0}}}), target.data(), source.data());
  EXPECT_EQ(target, (Bytes{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST(HostTransfer, TouchesNothingWhereViewsHaveNoBytes) {
  run(copy_step({kTo, 0, 4, {{0, 4}}}, {kFrom, 0, 4, {{0, 4}}}), nullptr, nullptr);
  run(fill_step({kTo, 0, 0, {}}, 1), nullptr, nullptr);
}

}  // namespace
}  // namespace anabranch::host
