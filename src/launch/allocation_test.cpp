// SPDX-License-Identifier: Apache-2.0
// A program of its own, because it counts every allocation of the process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "launch/launch_testing.h"

namespace {

std::atomic<std::uint64_t> allocations{0};

void* allocate(std::size_t size, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded ? rounded : alignment)) return memory;
  throw std::bad_alloc();
}

// Not inlined: the compiler would take the pair for a mismatch.
[[gnu::noinline]] void release(void* memory) { std::free(memory); }

}  // namespace

void* operator new(std::size_t size) { return allocate(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace anabranch {
namespace {

using testing::must;

TEST(Launch, AllocatesNothingWhetherAddressesMoveOrNot) {
  ProgramBuilder builder;
  const StreamId side = builder.add_stream("side");
  const BufferId x = builder.add_buffer({"x", Role::kInput, 64, 64});
  const BufferId y = builder.add_buffer({"y", Role::kOutput, 64, 64});
  const BufferId z = builder.add_buffer({"z", Role::kOutput, 64, 64});
  builder.copy(side, builder.whole(y), builder.whole(x));
  builder.compute(kAmbient, "f", {builder.read(x), builder.write(z)});
  const Plan plan = testing::plan_of(builder);
  testing::Regions regions;
  regions.add("f", [](const RegionCall&) { return 0; });
  HostOptions options;
  options.max_lanes = 2;
  const Recording recording = must(record(plan, Device::host(options), regions.table()));
  ASSERT_EQ(recording.lane_count(), 2u);
  testing::SlotMemory here(plan), there(plan);
  const std::uint64_t before = allocations;
  ASSERT_GT(before, 0u);
  bool all_ran = true;
  for (int i = 0; i < 100; ++i) {
    all_ran &= launch(recording, here.bindings()).ok();
    all_ran &= launch(recording, here.bindings()).ok();
    all_ran &= launch(recording, there.bindings()).ok();
  }
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_TRUE(all_ran);
}

}  // namespace
}  // namespace anabranch
