// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda_bindings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>

#include "device/sim/sim_testing.h"
#include "record/cuda/discover.h"

namespace anabranch::cuda {
namespace {

constexpr std::size_t kSlots = 24, kParts = 3, kSources = kSlots + kParts;
constexpr std::uint64_t kAlign = 256, kPartBytes = 1024;

using Addresses = std::vector<std::uint64_t>;

// A step of fills: slots of various sizes, on demand some without bytes, and temporaries that live
// together, each a part of the arena.
class CudaBindingsTest : public sim::SimTest, public ::testing::WithParamInterface<bool> {
 protected:
  CudaBindingsTest() {
    std::vector<CaptureAllocation> memory[2];
    CuGraph graphs[2];
    for (int c = 0; c < 2; ++c) {
      const CuStream on = stream();
      for (std::size_t i = 0; i < kSources; ++i) memory[c].push_back({allocate(8192), size_of(i)});
      EXPECT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
      for (std::size_t i = 0; i < kSources + kParts; ++i) {  // each temporary twice
        EXPECT_CU(d->cuMemsetD8Async(memory[c][i < kSources ? i : i - kParts].address, 1, 16, on));
      }
      graphs[c] = end_capture(on);
    }
    std::vector<UnitKind> kinds(kSlots, UnitKind::kGiven);
    kinds.resize(kSources, UnitKind::kTemporary);
    auto made = record_captures(*d, {graphs[0], memory[0]}, {graphs[1], memory[1]}, kinds,
                                {.least_part_bytes = kPartBytes});
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    recording = *std::move(made);
    EXPECT_EQ(recording->part_bytes().size(), kParts);
  }
  static std::uint64_t size_of(std::size_t i) {
    if (i >= kSlots) return kPartBytes;
    return GetParam() && i % 6 == 5 ? 0 : 64 * (1 + i % 4);
  }
  static std::uint64_t alignment_of(std::size_t source) { return source < kSlots ? kAlign : 512; }
  static std::string name_of(std::size_t source) {
    return source < kSlots ? fmt::format("slot {}", source)
                           : fmt::format("arena part {}", source - kSlots);
  }
  // Apart from each other, and in the order of their numbers.
  static Addresses first_places() {
    Addresses at(kSources);
    for (std::size_t i = 0; i < kSlots; ++i) at[i] = kAlign * 8 * (i + 1);
    for (std::size_t i = kSlots; i < kSources; ++i) at[i] = (1 << 20) + i * kPartBytes;
    return at;
  }

  // By brute force: every source aligned and no two with bytes in common.
  static bool is_right(const Addresses& at) {
    for (std::size_t i = 0; i < kSources; ++i) {
      if (size_of(i) == 0) continue;
      if (at[i] == 0 || at[i] % alignment_of(i) != 0) return false;
      for (std::size_t j = 0; j < i; ++j) {
        if (size_of(j) != 0 && at[i] < at[j] + size_of(j) && at[j] < at[i] + size_of(i)) {
          return false;
        }
      }
    }
    return true;
  }

  // What take_bindings() says of these, without a memory of others; empty where they are right.
  static std::string naive_message(const Addresses& at) {
    for (std::size_t i = 0; i < kSources; ++i) {
      if (size_of(i) == 0 || (at[i] != 0 && at[i] % alignment_of(i) == 0)) continue;
      return fmt::format(
          "launch: {} is at {:#x} and must be aligned to {}, as it was captured. Kernels may rely "
          "on it: copy the tensor to fresh memory. [E0402]",
          name_of(i), at[i], alignment_of(i));
    }
    const auto sorted = by_address(at);
    for (std::size_t k = 1; k < sorted.size(); ++k) {
      const std::size_t a = sorted[k - 1], b = sorted[k];
      if (at[b] >= at[a] + size_of(a)) continue;
      return fmt::format(
          "launch: {} and {} share bytes ({:#x} to {:#x}, {:#x} to {:#x}). Copy one of the two "
          "tensors. [E0402]",
          name_of(a), name_of(b), at[a], at[a] + size_of(a), at[b], at[b] + size_of(b));
    }
    return "";
  }
  static std::vector<std::size_t> by_address(const Addresses& at) {
    std::vector<std::size_t> sorted;
    for (std::size_t i = 0; i < kSources; ++i) {
      if (size_of(i) != 0) sorted.push_back(i);
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](std::size_t a, std::size_t b) { return at[a] < at[b]; });
    return sorted;
  }
  Result<Moved> take(const Addresses& at, SinceLaunch* since = nullptr) {
    return take_bindings(*recording, at, memory(), since);
  }
  LaunchMemory& memory() { return recording->executables()[0]->memory(); }

  std::shared_ptr<CudaRecording> recording;
};

TEST_P(CudaBindingsTest, TakesWhatBruteForceFindsRightAndRefusesTheRest) {
  std::mt19937_64 random(3);
  Addresses at = first_places();
  int taken_count = 0, refused_count = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Addresses before = at;
    for (std::uint64_t moves = random() % (round % 10 == 0 ? kSlots : 4); moves > 0; --moves) {
      at[random() % kSlots] = kAlign * (random() % 400) / (random() % 50 == 0 ? 2 : 1);
    }
    if (random() % 8 == 0) at[kSlots + random() % kParts] = 512 * (random() % 200);
    const bool right = is_right(at);
    const auto taken = take(at);
    ASSERT_EQ(taken.ok(), right) << "round " << round
                                 << (taken.ok() ? "" : taken.error().message());
    ++(right ? taken_count : refused_count);
    if (right) {
      EXPECT_EQ(at, memory().addresses);
    } else {
      at = before;
    }
  }
  EXPECT_GT(taken_count, 2000);
  EXPECT_GT(refused_count, 2000);
}

TEST_P(CudaBindingsTest, SaysWhatMovedUntilItIsMany) {
  Addresses at = first_places();
  EXPECT_TRUE(take(at)->sources.are_many());
  EXPECT_THAT(take(at)->sources.list(), ::testing::IsEmpty());
  at[3] += kAlign * 4;
  at[kSlots + 2] += 512;
  const Moved moved = *take(at);
  EXPECT_THAT(moved.sources.list(), ::testing::ElementsAre(3, kSlots + 2));
  EXPECT_EQ(moved.nodes, 3u);  // the temporary is filled twice
}

TEST_P(CudaBindingsTest, EverySourceNeedsAnAddress) {
  for (const std::size_t count : {std::size_t{0}, kSlots, kSources + 1}) {
    const auto taken = take(Addresses(count, 512));
    ASSERT_FALSE(taken.ok());
    EXPECT_EQ(taken.error().message(),
              fmt::format("launch: {} addresses for 24 slots, 3 arena parts and 0 numbers. [E0402]",
                          count));
  }
}

// Places for all sources, as launches of a program in use have them, or with a fault in them.
class Places {
 public:
  explicit Places(std::uint64_t seed) : random_(seed) { shuffle(); }

  void next(Addresses& at) {
    switch (random_() % 8) {
      case 0:
        shuffle();
        [[fallthrough]];
      case 1:
      case 2:
        return spread(at, order_);
      case 3:
      case 4:
        return spread(at, in_turn_);
      default:
        for (std::uint64_t moves = random_() % 4; moves > 0; --moves) {
          at[random_() % kSources] = 512 * (1 + random_() % 2000);
        }
    }
  }
  void spoil(Addresses& at) {
    std::uint64_t& source = at[random_() % kSources];
    const std::uint64_t other = at[random_() % kSources];
    switch (random_() % 6) {
      case 0:
        source = 0;
        break;
      case 1:
        source += 8;
        break;
      case 2:
        source = other;
        break;
      case 3:
        at[kSlots + random_() % kParts] = other / 512 * 512;
        break;
      case 4:
        source |= std::uint64_t{1} << 63;  // where no device has memory, but right
        break;
      default:
        at[kSlots + random_() % kParts] += 256;
    }
  }
  std::uint64_t random() { return random_(); }

 private:
  void shuffle() { std::shuffle(order_.begin(), order_.end(), random_); }
  void spread(Addresses& at, const std::vector<std::size_t>& order) {
    std::uint64_t next = 512 * (1 + random_() % 100);
    for (const std::size_t source : order) {
      at[source] = next;
      next += 512 * (1 + random_() % 3) + (source < kSlots ? 0 : kPartBytes - 512);
    }
  }

  static std::vector<std::size_t> numbers() {
    std::vector<std::size_t> all(kSources);
    for (std::size_t i = 0; i < kSources; ++i) all[i] = i;
    return all;
  }
  std::mt19937_64 random_;
  const std::vector<std::size_t> in_turn_ = numbers();
  std::vector<std::size_t> order_ = numbers();
};

TEST_P(CudaBindingsTest, SaysTheSameWhateverWasGivenBefore) {
  Places places(17);
  Addresses at(kSources);
  int right = 0;
  for (int round = 0; round < 30'000; ++round) {
    places.next(at);
    for (std::uint64_t faults = places.random() % 3; faults > 1; --faults) places.spoil(at);
    const auto taken = take(at);
    ASSERT_EQ(taken.ok() ? "" : taken.error().message(), naive_message(at)) << "round " << round;
    right += taken.ok();
  }
  EXPECT_GT(right, 8'000);
  EXPECT_LT(right, 22'000);
}

TEST_P(CudaBindingsTest, SaysTheSameToCallersThatTellWhatTheyMoved) {
  struct Caller {
    Addresses at = Addresses(kSources);
    SinceLaunch since;
  };
  Places places(29);
  std::array<Caller, 3> callers;
  int right = 0, told = 0;
  for (int round = 0; round < 30'000; ++round) {
    // Mostly the one of before, so that it is believed.
    Caller& caller = callers[places.random() % 12 < 10 ? round / 50 % 3 : places.random() % 3];
    const Addresses before = caller.at;
    places.next(caller.at);
    for (std::uint64_t faults = places.random() % 4; faults > 2; --faults) {
      places.spoil(caller.at);
    }
    for (std::size_t i = 0; i < kSources; ++i) {
      if (caller.at[i] != before[i]) caller.since.moved.add(i);
    }
    if (places.random() % 20 == 0) caller.since.moved.add(places.random() % kSources);  // stayed
    told += caller.since.memory == &memory() && caller.since.number == memory().launches;
    const bool is_untold = places.random() % 20 == 0;
    const auto taken = take(caller.at, is_untold ? nullptr : &caller.since);
    ASSERT_EQ(taken.ok() ? "" : taken.error().message(), naive_message(caller.at))
        << "round " << round;
    if (taken.ok()) {
      ASSERT_EQ(caller.at, memory().addresses) << "round " << round;
    }
    right += taken.ok();
  }
  EXPECT_GT(right, 8'000);
  EXPECT_LT(right, 25'000);
  EXPECT_GT(told, 8'000);
}

TEST_P(CudaBindingsTest, AddressesThatStandForNoneAreCheckedLikeAnyOther) {
  EXPECT_FALSE(take(Addresses(kSources, CudaExec::kUnset)).ok());
}

TEST_P(CudaBindingsTest, AnEndBeyondTheLastAddressHidesNothing) {
  Addresses at = first_places();
  at[2] = (std::uint64_t{1} << 63) - kAlign;
  at[3] = ~std::uint64_t{0} - kAlign + 1;  // 256 bytes: its end is zero
  at[4] = at[0];
  const auto taken = take(at);
  ASSERT_FALSE(taken.ok());
  EXPECT_THAT(taken.error().message(), ::testing::HasSubstr("slot 0 and slot 4 share bytes"));
}

std::string name_of(const ::testing::TestParamInfo<bool>& with_empty) {
  return with_empty.param ? "SomeWithoutBytes" : "AllWithBytes";
}
INSTANTIATE_TEST_SUITE_P(, CudaBindingsTest, ::testing::Bool(), name_of);

}  // namespace
}  // namespace anabranch::cuda
