// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_bindings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "device/sim/sim_testing.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kSlots = 24;
constexpr std::uint64_t kAlign = 256;

// A step of fills: slots of various sizes, on demand some without bytes, and one temporary.
class CudaBindingsTest : public sim::SimTest, public ::testing::WithParamInterface<bool> {
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
  static std::uint64_t size_of(std::size_t i) {
    return GetParam() && i % 6 == 5 ? 0 : 64 * (1 + i % 4);
  }

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

  // What take_bindings() says of these, without a memory of others; empty where they are right.
  std::string naive_message(const std::vector<std::uint64_t>& slots, std::uint64_t arena) const {
    for (std::size_t i = 0; i <= kSlots; ++i) {
      const std::uint64_t at = i < kSlots ? slots[i] : arena;
      const std::uint64_t alignment = i < kSlots ? recording->slots()[i].alignment : 512;
      const std::string name = i < kSlots ? fmt::format("slot {}", i) : "the arena";
      if (bytes_of(i) == 0 || (at != 0 && at % alignment == 0)) continue;
      return fmt::format(
          "launch: {} is at {:#x} and must be aligned to {}, as it was captured. Kernels may rely "
          "on it: copy the tensor to fresh memory. [E0402]",
          name, at, alignment);
    }
    const auto sorted = by_address(slots);
    for (std::size_t k = 1; k < sorted.size(); ++k) {
      const std::size_t a = sorted[k - 1], b = sorted[k];
      if (slots[b] < slots[a] + bytes_of(a)) {
        return shared(fmt::format("slot {} and slot {}", a, b), slots[a], bytes_of(a), slots[b],
                      bytes_of(b));
      }
    }
    for (auto slot = sorted.rbegin(); slot != sorted.rend(); ++slot) {
      if (slots[*slot] < arena + bytes_of(kSlots) && arena < slots[*slot] + bytes_of(*slot)) {
        return shared(fmt::format("slot {} and the arena", *slot), slots[*slot], bytes_of(*slot),
                      arena, bytes_of(kSlots));
      }
    }
    return "";
  }
  std::vector<std::size_t> by_address(const std::vector<std::uint64_t>& slots) const {
    std::vector<std::size_t> sorted;
    for (std::size_t i = 0; i < kSlots; ++i) {
      if (bytes_of(i) != 0) sorted.push_back(i);
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::size_t a, std::size_t b) { return slots[a] < slots[b]; });
    return sorted;
  }
  static std::string shared(const std::string& names, std::uint64_t a, std::uint64_t bytes_a,
                            std::uint64_t b, std::uint64_t bytes_b) {
    return fmt::format(
        "launch: {} share bytes ({:#x} to {:#x}, {:#x} to {:#x}). Copy one of the two tensors. "
        "[E0402]",
        names, a, a + bytes_a, b, b + bytes_b);
  }
  std::uint64_t bytes_of(std::size_t source) const {
    return source < kSlots ? recording->slots()[source].bytes : recording->arena().size_bytes;
  }

  std::shared_ptr<CudaRecording> recording;
};

TEST_P(CudaBindingsTest, TakesWhatBruteForceFindsRightAndRefusesTheRest) {
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

TEST_P(CudaBindingsTest, SaysWhatMovedUntilItIsMany) {
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

// Places for all slots, as launches of a program in use have them, or with a fault in them.
class Places {
 public:
  explicit Places(std::uint64_t seed) : random_(seed) { shuffle(); }

  void next(std::vector<std::uint64_t>& slots, std::uint64_t& arena) {
    switch (random_() % 8) {
      case 0:
        shuffle();
        [[fallthrough]];
      case 1:
      case 2:
        return spread(slots, arena, order_);
      case 3:
      case 4:
        return spread(slots, arena, in_turn_);
      default:
        for (std::uint64_t moves = random_() % 4; moves > 0; --moves) {
          slots[random_() % kSlots] = 512 * (1 + random_() % 2000);
        }
    }
  }
  void spoil(std::vector<std::uint64_t>& slots, std::uint64_t& arena) {
    std::uint64_t& slot = slots[random_() % kSlots];
    const std::uint64_t other = slots[random_() % kSlots];
    switch (random_() % 6) {
      case 0:
        slot = 0;
        break;
      case 1:
        slot += 8;
        break;
      case 2:
        slot = other;
        break;
      case 3:
        arena = other / 512 * 512;
        break;
      case 4:
        slot |= std::uint64_t{1} << 63;  // where no device has memory, but right
        break;
      default:
        arena += 256;
    }
  }
  std::uint64_t random() { return random_(); }

 private:
  void shuffle() { std::shuffle(order_.begin(), order_.end(), random_); }
  void spread(std::vector<std::uint64_t>& slots, std::uint64_t& arena,
              const std::vector<std::size_t>& order) {
    std::uint64_t at = 512 * (1 + random_() % 100);
    const std::uint64_t arena_before = random_() % (2 * kSlots);  // half the time behind them all
    for (std::size_t k = 0; k < kSlots; ++k) {
      if (k == arena_before) at = (arena = at) + 1024;
      slots[order[k]] = at;
      at += 512 * (1 + random_() % 3);
    }
    if (arena_before >= kSlots) arena = at;
  }

  static std::vector<std::size_t> numbers() {
    std::vector<std::size_t> all(kSlots);
    for (std::size_t i = 0; i < kSlots; ++i) all[i] = i;
    return all;
  }
  std::mt19937_64 random_;
  const std::vector<std::size_t> in_turn_ = numbers();
  std::vector<std::size_t> order_ = numbers();
};

TEST_P(CudaBindingsTest, SaysTheSameWhateverWasGivenBefore) {
  LaunchMemory& memory = recording->executables()[0]->memory();
  Places places(17);
  std::vector<std::uint64_t> slots(kSlots);
  std::uint64_t arena = 0;
  int right = 0;
  for (int round = 0; round < 30'000; ++round) {
    places.next(slots, arena);
    for (std::uint64_t faults = places.random() % 3; faults > 1; --faults) {
      places.spoil(slots, arena);
    }
    const auto taken = take_bindings(*recording, {slots, arena}, memory);
    ASSERT_EQ(taken.ok() ? "" : taken.error().message(), naive_message(slots, arena))
        << "round " << round;
    right += taken.ok();
  }
  EXPECT_GT(right, 8'000);
  EXPECT_LT(right, 22'000);
}

TEST_P(CudaBindingsTest, AddressesThatStandForNoneAreCheckedLikeAnyOther) {
  const std::vector<std::uint64_t> none(kSlots, CudaExec::kUnset);
  LaunchMemory& memory = recording->executables()[0]->memory();
  EXPECT_FALSE(take_bindings(*recording, {none, CudaExec::kUnset}, memory).ok());
}

TEST_P(CudaBindingsTest, AnEndBeyondTheLastAddressHidesNothing) {
  std::vector<std::uint64_t> slots(kSlots);
  for (std::size_t i = 0; i < kSlots; ++i) slots[i] = kAlign * 8 * (i + 1);
  slots[2] = (std::uint64_t{1} << 63) - kAlign;
  slots[3] = ~std::uint64_t{0} - kAlign + 1;  // 256 bytes: its end is zero
  slots[4] = slots[0];
  LaunchMemory& memory = recording->executables()[0]->memory();
  const auto taken = take_bindings(*recording, {slots, 1 << 20}, memory);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.error().message(), ::testing::HasSubstr("slot 0 and slot 4 share bytes"));
}

std::string name_of(const ::testing::TestParamInfo<bool>& with_empty) {
  return with_empty.param ? "SomeWithoutBytes" : "AllWithBytes";
}
INSTANTIATE_TEST_SUITE_P(, CudaBindingsTest, ::testing::Bool(), name_of);

}  // namespace
}  // namespace anabranch::cuda
