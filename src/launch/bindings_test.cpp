// SPDX-License-Identifier: Apache-2.0
#include "launch/bindings.h"

#include <gmock/gmock.h>

#include <array>
#include <vector>

#include "plan/random_program.h"
#include "record/record_testing.h"

namespace anabranch::host {
namespace {

using ::testing::HasSubstr;
using testing::plan_of;

constexpr std::uint64_t kBytes = 64;
alignas(64) std::array<std::byte, 64 * kBytes> memory{};

Binding at(std::size_t place) { return {&memory[place * kBytes], kBytes}; }

// One step over a read buffer, a written one, another read one, and one without bytes.
class Bindings : public ::testing::Test {
 protected:
  static Plan make_plan_of_four() {
    ProgramBuilder builder;
    const BufferId x = builder.add_buffer({"x", Role::kInput, kBytes, 64});
    const BufferId y = builder.add_buffer({"y", Role::kOutput, kBytes, 64});
    const BufferId w = builder.add_buffer({"w", Role::kConstant, kBytes, 64});
    const BufferId none = builder.add_buffer({"none", Role::kConstant, 0, 64});
    builder.compute(kAmbient, "f",
                    {builder.read(x), builder.write(y), builder.read(w), builder.read(none)});
    return plan_of(builder);
  }
  Status bind(std::vector<Binding> bindings) {
    return bind_slots(plan_.program(), table_, bindings);
  }
  void expect_refusal(std::vector<Binding> bindings, const std::string& text) {
    const Status status = bind(std::move(bindings));
    EXPECT_EQ(status.code(), StatusCode::kBadBinding);
    EXPECT_THAT(status.message(), HasSubstr(text));
  }

  const Plan plan_ = make_plan_of_four();
  AddressTable table_{plan_, plan_.order(), nullptr};
};

TEST_F(Bindings, MoveTheAddressesOfEverySlot) {
  ASSERT_TRUE(bind({at(0), at(1), at(2), {}}).ok());
  ASSERT_TRUE(bind({at(0), at(3), at(2), {}}).ok());
  EXPECT_EQ(table_.data()[0], at(0).data);
  EXPECT_EQ(table_.data()[1], at(3).data);
  EXPECT_EQ(table_.data()[2], at(2).data);
}

TEST_F(Bindings, OfAnotherNumberThanSlotsAreRefused) {
  expect_refusal({at(0), at(1)}, "2 bindings were given, the recording has 4 slots");
}

TEST_F(Bindings, ThatAreTooSmallAreRefusedEvenAtTheSameAddress) {
  ASSERT_TRUE(bind({at(0), at(1), at(2), {}}).ok());
  expect_refusal({at(0), {at(1).data, 63}, at(2), {}},
                 "binding 'y' (slot 1) has 63 bytes, the recording needs 64");
}

TEST_F(Bindings, ThatAreNullAreRefusedUnlessNothingIsNeeded) {
  expect_refusal({{nullptr, kBytes}, at(1), at(2), {}}, "binding 'x' (slot 0) is null");
}

TEST_F(Bindings, ThatAreNotAlignedAreRefused) {
  expect_refusal({at(0), at(1), {&memory[2 * kBytes + 4], kBytes}, {}}, "a multiple of 64");
}

TEST_F(Bindings, ThatShareBytesAreRefusedWhereOneIsWritten) {
  expect_refusal({at(0), at(0), at(2), {}}, "'y' is written");
  expect_refusal({at(0), at(2), at(2), {}}, "share bytes");
  EXPECT_TRUE(bind({at(0), at(1), at(0), {}}).ok());
}

TEST_F(Bindings, ThatWereRefusedHaveMovedNothing) {
  ASSERT_TRUE(bind({at(0), at(1), at(2), {}}).ok());
  ASSERT_FALSE(bind({at(3), at(4), at(4), {}}).ok());
  EXPECT_EQ(table_.data()[0], at(0).data);
  EXPECT_EQ(table_.data()[1], at(1).data);
  EXPECT_TRUE(bind({at(0), at(1), at(2), {}}).ok());
}

TEST(BindingOverlap, IsFoundExactlyWhereAWrittenBufferSharesAByte) {
  constexpr std::uint32_t kSlots = 12;
  RandomNumbers random(1);
  int refused = 0;
  for (int round = 0; round < 200; ++round) {
    ProgramBuilder builder;
    std::vector<Access> accesses;
    std::vector<std::uint64_t> sizes;
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      sizes.push_back(random.below(100));
      const bool written = random.chance(30);
      const BufferId buffer = builder.add_buffer(
          {std::to_string(i), written ? Role::kOutput : Role::kInput, sizes.back(), 1});
      accesses.push_back(written ? builder.write(buffer) : builder.read(buffer));
    }
    builder.compute(kAmbient, "f", accesses);
    const Plan plan = plan_of(builder);
    AddressTable table(plan, plan.order(), nullptr);
    std::vector<Binding> bindings(kSlots);
    for (int launch = 0; launch < 20; ++launch) {
      // All move at first, few later: both ways of sorting are used.
      for (std::uint32_t i = 0; i < kSlots; ++i) {
        if (launch == 0 || random.chance(15)) {
          bindings[i] = {&memory[random.below(memory.size() - 100)], sizes[i]};
        }
      }
      bool overlap = false;
      for (std::uint32_t i = 0; i < kSlots; ++i) {
        for (std::uint32_t j = 0; j < i; ++j) {
          const auto* a = static_cast<std::byte*>(bindings[i].data);
          const auto* b = static_cast<std::byte*>(bindings[j].data);
          const bool written =
              accesses[i].mode != AccessMode::kRead || accesses[j].mode != AccessMode::kRead;
          overlap |= written && sizes[i] && sizes[j] && a < b + sizes[j] && b < a + sizes[i];
        }
      }
      ASSERT_EQ(bind_slots(plan.program(), table, bindings).ok(), !overlap) << "round " << round;
      refused += overlap;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 3900);
}

}  // namespace
}  // namespace anabranch::host
