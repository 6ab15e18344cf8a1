// SPDX-License-Identifier: Apache-2.0
#include "record/cuda/image/capture_memory.h"

#include <gmock/gmock.h>

#include <array>
#include <set>

#include "device/sim/sim_testing.h"

namespace anabranch::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CaptureMemoryTest : public sim::SimTest {
 protected:
  std::unique_ptr<CaptureMemory> make(bool is_kept = false) {
    auto made = CaptureMemory::make(*d, is_kept);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message());
    return *std::move(made);
  }
  std::uint64_t free_bytes() {
    std::size_t free = 0, total = 0;
    EXPECT_CU(d->cuMemGetInfo(&free, &total));
    return free;
  }
};

TEST_F(CaptureMemoryTest, AnyAmountOfAddressesTakesOnePage) {
  const auto memory = make();
  const std::uint64_t before = free_bytes();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(memory->allocate(std::uint64_t{64} << 20).ok());
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(CaptureMemoryTest, AllocationsNeitherOverlapNorTouch) {
  const auto memory = make();
  const std::uint64_t granule = memory->granule_bytes();
  std::set<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const std::uint64_t bytes : {std::uint64_t{1}, granule - 1, granule, granule + 1,
                                    std::uint64_t{0}, 3 * granule, std::uint64_t{512}}) {
    const auto address = memory->allocate(bytes);
    ASSERT_TRUE(address.ok());
    for (const auto& [begin, end] : ranges) {
      EXPECT_TRUE(*address > end || *address + bytes < begin);
    }
    ranges.insert({*address, *address + bytes});
  }
  EXPECT_EQ(memory->allocations().size(), 7u);
  EXPECT_EQ(memory->allocations()[1].bytes, granule - 1);
}

TEST_F(CaptureMemoryTest, TwoCapturesShareNoPartOfAnAddress) {
  const auto memory = make(), other = make();
  const std::vector<std::uint64_t> sizes{1, 5 << 20, 64, 1 << 30, 512};
  std::vector<std::vector<std::uint64_t>> captures;
  for (CaptureMemory* const from : {memory.get(), memory.get(), other.get()}) {
    from->begin_capture();
    captures.emplace_back();
    for (const std::uint64_t bytes : sizes) {
      const auto address = from->allocate(bytes);
      ASSERT_TRUE(address.ok()) << address.error().message();
      captures.back().push_back(*address);
    }
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
      EXPECT_NE(captures[a][i] >> 32, captures[b][i] >> 32);
      EXPECT_NE(std::uint32_t(captures[a][i]), std::uint32_t(captures[b][i]));
      for (const int byte : {1, 2}) {
        EXPECT_NE(captures[a][i] >> 8 * byte & 0xff, captures[b][i] >> 8 * byte & 0xff);
        EXPECT_NE(captures[a][i] >> 8 * byte & 0xff, 0u);
      }
      EXPECT_EQ(captures[a][i] % 512, 0u);  // as torch's own allocations
    }
  }
}

TEST_F(CaptureMemoryTest, EveryByteIsMappedSoThatCapturedWorkIsTaken) {
  const auto memory = make();
  const std::uint64_t bytes = (std::uint64_t{2} << 30) + 64;
  const auto address = memory->allocate(bytes);
  const CuStream on = stream();
  ASSERT_CU(d->cuStreamBeginCapture(on, CuCaptureMode::kThreadLocal));
  EXPECT_CU(d->cuMemsetD8Async(*address, 1, bytes, on));
  const auto second = memory->allocate(64);  // as a callable does while it is captured
  ASSERT_TRUE(second.ok());
  EXPECT_CU(d->cuMemcpyDtoDAsync(*second, *address, 64, on));
  EXPECT_EQ(nodes_of(end_capture(on)).size(), 2u);
}

TEST_F(CaptureMemoryTest, GivesEverythingBack) {
  const std::size_t before = sim->live_objects();
  const std::uint64_t free = free_bytes();
  {
    const auto memory = make();
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(memory->allocate(5 << 20).ok());
  }
  EXPECT_EQ(sim->live_objects(), before);
  EXPECT_EQ(free_bytes(), free);
}

TEST_F(CaptureMemoryTest, WhenAnyCallFailsNothingIsLeftBehind) {
  const std::size_t before = sim->live_objects();
  for (std::uint64_t n = 1;; ++n) {
    sim->fail_call(n, CuResult::kOutOfMemory);
    std::string message;
    {
      auto made = CaptureMemory::make(*d);
      if (!made.ok()) {
        message = made.error().message();
      } else if (const auto address = (*made)->allocate(5 << 20); !address.ok()) {
        message = address.error().message();
        EXPECT_TRUE((*made)->allocations().empty());
        EXPECT_TRUE((*made)->allocate(64).ok());  // still of use
      }
    }
    const std::string failed = sim->failed_call();
    EXPECT_EQ(sim->live_objects(), before) << failed;
    if (message.empty()) {
      EXPECT_GT(n, 7u);
      break;  // what failed now, if anything, was a call of the destructor
    }
    EXPECT_THAT(message, HasSubstr(failed));
  }
}

TEST_F(CaptureMemoryTest, KeptAddressesAreWhereMemoryOfTheirOwnCanBeMapped) {
  const auto kept = make(true), other = make();
  const auto address = kept->allocate(64), from = other->allocate(64);
  ASSERT_TRUE(address.ok() && from.ok());
  EXPECT_EQ(*address % kept->granule_bytes(), 0u);
  EXPECT_NE(*address >> 8 & 0xff, *from >> 8 & 0xff);
}

TEST_F(CaptureMemoryTest, KeptAllocationsShareNoBytes) {
  const auto memory = make(true);
  const std::uint64_t granule = memory->granule_bytes(), bytes = granule + 8;
  const auto one = memory->allocate(bytes), other = memory->allocate(64);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(memory->own_bytes(), 3 * granule);
  ASSERT_CU(d->cuMemsetD8Async(*one, 1, bytes, nullptr));
  ASSERT_CU(d->cuMemsetD8Async(*other, 2, 64, nullptr));
  std::array<std::uint8_t, 2> last{};
  ASSERT_CU(d->cuMemcpyDtoHAsync(&last[0], *one + bytes - 1, 1, nullptr));
  ASSERT_CU(d->cuMemcpyDtoHAsync(&last[1], *other + 63, 1, nullptr));
  ASSERT_CU(d->cuStreamSynchronize(nullptr));
  EXPECT_THAT(last, ElementsAre(1, 2));
}

TEST_F(CaptureMemoryTest, MemoryOfItsOwnIsGivenBackBeforeTheRestIs) {
  const std::size_t before = sim->live_objects();
  const std::uint64_t free = free_bytes();
  {
    const auto memory = make(true);
    std::vector<std::uint64_t> all;
    for (int i = 0; i < 5; ++i) {
      const auto address = memory->allocate(5 << 20);
      ASSERT_TRUE(address.ok());
      all.push_back(*address);
    }
    const std::uint64_t held = free_bytes();
    memory->take_own(std::array{all[2], all[0], all[4] + 1});  // the last is none of these
    memory->take_own(std::array{all[2]});
    EXPECT_EQ(free_bytes(), held + (std::uint64_t{12} << 20));
    memory->release(all[0]);
    memory->release(all[1]);
    ASSERT_TRUE(memory->give_own().ok());  // what is released has none
    EXPECT_EQ(free_bytes(), held + (std::uint64_t{12} << 20));
  }
  EXPECT_EQ(sim->live_objects(), before);
  EXPECT_EQ(free_bytes(), free);
}

TEST_F(CaptureMemoryTest, MemoryOfItsOwnIsGivenForEachLaunchAnew) {
  const std::size_t before = sim->live_objects();
  const std::uint64_t free = free_bytes();
  {
    const auto memory = make(true);
    const auto kept = memory->allocate(5 << 20), other = memory->allocate(5 << 20);
    ASSERT_TRUE(kept.ok() && other.ok());
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(memory->give_own().ok());
      EXPECT_EQ(memory->own_bytes(), std::uint64_t{12} << 20);
      if (i == 0) {
        ASSERT_CU(d->cuMemsetD8Async(*kept, 7, 5 << 20, nullptr));
      }
      ASSERT_CU(d->cuMemsetD8Async(*other, 1, 5 << 20, nullptr));
      memory->take_own(std::array{*other});
      EXPECT_EQ(memory->own_bytes(), std::uint64_t{6} << 20);
    }
    std::uint8_t still = 0;
    ASSERT_CU(d->cuMemcpyDtoHAsync(&still, *kept, 1, nullptr));
    ASSERT_CU(d->cuStreamSynchronize(nullptr));
    EXPECT_EQ(still, 7);
  }
  EXPECT_EQ(sim->live_objects(), before);
  EXPECT_EQ(free_bytes(), free);
}

TEST_F(CaptureMemoryTest, WhereMemoryOfItsOwnIsNotToBeHadNothingIsLeftBehind) {
  const std::size_t before = sim->live_objects();
  for (const bool is_again : {false, true}) {
    for (std::uint64_t n = 1; n <= 5; ++n) {
      {
        const auto memory = make(true);
        std::uint64_t address = 0;
        if (is_again) {
          address = *memory->allocate(5 << 20);
          memory->take_own({&address, 1});
        }
        sim->fail_call(n, CuResult::kOutOfMemory);
        const bool is_given = is_again ? memory->give_own().ok() : memory->allocate(5 << 20).ok();
        const std::set<std::string> harmless{"", "cuMemRelease"};
        EXPECT_EQ(is_given, harmless.contains(sim->failed_call())) << sim->failed_call();
      }
      EXPECT_EQ(sim->live_objects(), before) << sim->failed_call();
    }
  }
}

TEST_F(CaptureMemoryTest, ADriverWithoutVirtualMemoryIsRefusedWithItsReason) {
  Driver without = *d;
  without.off[static_cast<std::size_t>(Feature::kVirtualMemory)] = "the test says so";
  const auto made = CaptureMemory::make(without);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message(), HasSubstr("the test says so"));
}

}  // namespace
}  // namespace anabranch::cuda
