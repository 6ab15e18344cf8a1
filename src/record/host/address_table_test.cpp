// SPDX-License-Identifier: Apache-2.0
#include "record/host/address_table.h"

#include <gmock/gmock.h>

#include <array>

#include "record/record_testing.h"

namespace anabranch::host {
namespace {

using ::testing::ElementsAre;

// x -> t -> y twice, with a constant of no bytes beside it.
struct Example {
  Example() {
    const StepId f = builder.compute(kAmbient, "f", {builder.read(x), builder.write(t)});
    const StepId g = builder.compute(
        kAmbient, "g", {builder.read(t), builder.write(y), builder.read(x), builder.read(none)});
    steps = {f, g};
  }
  ProgramBuilder builder;
  BufferId x = builder.add_buffer({"x", Role::kInput, 64, 32});
  BufferId t = builder.add_buffer({"t", Role::kTemporary, 64, 64});
  BufferId y = builder.add_buffer({"y", Role::kOutput, 128, 64});
  BufferId none = builder.add_buffer({"none", Role::kConstant, 0, 64});
  std::vector<StepId> steps;
};

TEST(AddressTable, SlotsAreWrittenWhereverTheirBufferIsUsedAndArenaAddressesStay) {
  Example example;
  std::byte arena{}, x{}, y{};
  AddressTable table(testing::plan_of(example.builder), example.steps, &arena);
  const std::span<void* const> addresses(table.data(), 6);
  EXPECT_THAT(addresses, ElementsAre(nullptr, &arena, &arena, nullptr, nullptr, nullptr));
  table.set(0, &x);
  table.set(1, &y);
  EXPECT_THAT(addresses, ElementsAre(&x, &arena, &arena, &y, &x, nullptr));
  table.set(0, &y);
  EXPECT_THAT(addresses, ElementsAre(&y, &arena, &arena, &y, &y, nullptr));
  EXPECT_EQ(table.slots()[0].address, &y);
}

TEST(AddressTable, KnowsWhatEachSlotNeeds) {
  Example example;
  AddressTable table(testing::plan_of(example.builder), example.steps, nullptr);
  ASSERT_EQ(table.slots().size(), 3u);
  EXPECT_EQ(table.slots()[0].size_bytes, 64u);
  EXPECT_EQ(table.slots()[0].alignment, 32u);
  EXPECT_FALSE(table.slots()[0].written);
  EXPECT_TRUE(table.slots()[1].written);
  // The constant has no bytes, so nothing can overlap it.
  ASSERT_EQ(table.extents().size(), 2u);
  EXPECT_EQ(table.extents()[1].slot, 1u);
}

}  // namespace
}  // namespace anabranch::host
