// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_bindings.h"

#include <gmock/gmock.h>

#include <random>

#include "device/sim/sim_testing.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kSlots = 24;
constexpr std::uint64_t kAlign = 256;

// A step of fills: slots of various sizes, some without bytes, and one temporary.
class CudaBindingsTest : public sim::SimTest {
 protected:
  CudaBindingsTest() {
    std::vector<CaptureAllocation> memory[2];
    CuGraph graphs[2];
    for (int c = 0; c < 2; ++c) {
      const CuStream on = stream();
      for (std::size_t i = 0; i <= kSlots; ++i) memory[c].push_back({allocate(8192), size_of(i)});
      EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
      for (std::size_t i = 0; i <= kSlots; ++i) {
        EXPECT_CU(d->cuMemsetD8Async(memory[c][i].address, 1, 16, on));
      }
      graphs[c] = end_capture(on);
    }
    std::vector<UnitKind> kinds(kSlots, UnitKind::kGiven);
    kinds.push_back(UnitKind::kTemporary);
    auto made = CudaRecording::make(*d, {graphs[0], memory[0]}, {graphs[1], memory[1]}, kinds);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    recording = *std::move(made);
  }
  static std::uint64_t size_of(std::size_t i) { return i % 6 == 5 ? 0 : 64 * (1 + i % 4); }

  // By brute force: every slot aligned and no two, nor one and the arena, with bytes in common.
  bool is_right(const std::vector<std::uint64_t>& slots, std::uint64_t arena) const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges{
        {arena, arena + recording->arena().size_bytes}};
    if (arena == 0 || arena % 512 != 0) return false;
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (size_of(i) == 0) continue;
      if (slots[i] == 0 || slots[i] % kAlign != 0) return false;
      for (const auto& [begin, end] : ranges) {
        if (slots[i] < end && begin < slots[i] + size_of(i)) return false;
      }
      ranges.push_back({slots[i], slots[i] + size_of(i)});
    }
    return true;
  }

  std::shared_ptr<CudaRecording> recording;
};

TEST_F(CudaBindingsTest, TakesWhatBruteForceFindsRightAndRefusesTheRest) {
  std::mt19937_64 random(3);
  LaunchMemory& memory = recording->executables()[0]->memory();
  std::vector<std::uint64_t> slots(kSlots);
  for (std::size_t i = 0; i < kSlots; ++i) slots[i] = kAlign * 8 * (i + 1);
  std::uint64_t arena = 1 << 20;
  int taken_count = 0, refused_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto before = slots;
    const std::uint64_t arena_before = arena;
    for (std::uint64_t moves = random() % (round % 10 == 0 ? kSlots : 4); moves > 0; --moves) {
      slots[random() % kSlots] = kAlign * (random() % 400) / (random() % 50 == 0 ? 2 : 1);
    }
    if (random() % 8 == 0) arena = 512 * (random() % 200);
    const bool right = is_right(slots, arena);
    const auto taken = take_bindings(*recording, {slots, arena}, memory);
    ASSERT_EQ(taken.ok(), right) << "round " << round
                                 << (taken.ok() ? "" : taken.error().message());
    ++(right ? taken_count : refused_count);
    if (right) {
      EXPECT_TRUE(std::equal(slots.begin(), slots.end(), memory.addresses.begin()));
      EXPECT_EQ(memory.addresses.back(), arena);
    } else {
      slots = before;
      arena = arena_before;
    }
  }
  EXPECT_GT(taken_count, 2000);
  EXPECT_GT(refused_count, 2000);
}

TEST_F(CudaBindingsTest, SaysWhatMovedUntilItIsMany) {
  LaunchMemory& memory = recording->executables()[0]->memory();
  std::vector<std::uint64_t> slots(kSlots);
  for (std::size_t i = 0; i < kSlots; ++i) slots[i] = kAlign * 8 * (i + 1);
  const auto take = [&] { return *take_bindings(*recording, {slots, 1 << 20}, memory); };
  EXPECT_TRUE(take().is_many());
  EXPECT_EQ(take().count, 0u);
  slots[3] += kAlign * 4;
  const Moved moved = take();
  EXPECT_THAT(moved.list(), ::testing::ElementsAre(3));
  EXPECT_EQ(moved.nodes, 1u);
}

}  // namespace
}  // namespace anabranch::cuda
